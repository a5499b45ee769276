"""A hospital's own privacy filters (`local/privacy.json` in its kit), applied by FLARE's own code."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyService

from medfed.core.errors import UserError
from medfed.deployment.templates import README
from medfed.engines.flare.filters import check_filters
from medfed.engines.flare.job import EXECUTOR
from medfed.engines.flare.kit import allow_only
from medfed.engines.flare.messages import to_message, to_shareable
from medfed.federation.message import Message

PERCENTILE = {
    "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "args": {"percentile": 50, "gamma": 4},
}
ROUNDING = {"path": "own_filters.Rounding"}
OWN = """
import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter


class Rounding(DXOFilter):
    def __init__(self):
        super().__init__([DataKind.STATISTICS], [DataKind.STATISTICS])

    def process_dxo(self, dxo, shareable, fl_ctx):
        return DXO(dxo.data_kind, {name: np.round(array) for name, array in dxo.data.items()})
"""


def scopes(*filters: object, name: str = "hospital", key: str = "task_result_filters") -> dict:
    return {"scopes": [{"name": name, key: list(filters)}], "default_scope": "hospital"}


def with_keys(more: dict) -> dict:
    """Return a valid file with more keys in its scope."""
    whole = scopes(PERCENTILE)
    whole["scopes"][0] |= more
    return whole


@pytest.fixture
def kit(tmp_path, monkeypatch) -> Path:
    """A kit of a hospital that has installed a filter class of its own."""
    for folder in ("startup", "local", "installed"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "installed/own_filters.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    return tmp_path


def write_filters(kit: Path, content: object) -> Path:
    path = kit / "local/privacy.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_flares_and_a_hospitals_own_filters_are_applied_though_no_job_may_name_them(kit):
    check_filters(write_filters(kit, scopes(PERCENTILE, ROUNDING)))
    shareable = to_shareable(Message("train", {"w": torch.tensor([1.0, -9.0, 2.0, 6.0])}, {"m": torch.tensor([1.26])}))
    scope = create_privacy_manager(Workspace(str(kit)), names_only=False).default_scope
    for one in scope.task_result_filters["out"]:
        shareable = one.process(shareable, FLContext())
    result = to_message(shareable)
    assert result.weights["w"].tolist() == [0, -4, 0, 4]  # below the median of 1, 2, 6, 9: none; above 4: 4
    assert result.tensors["m"].tolist() == [1]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"scopes": [', "FLARE cannot create the filters"),
        ([], "FLARE cannot create the filters"),
        (scopes({"path": "own_filters.Roundin"}), "FLARE cannot create the filters .*own_filters"),
        (scopes({**PERCENTILE, "args": {"percent": 3}}), "FLARE cannot create the filters .*percent"),
        (scopes(PERCENTILE, name="other"), "FLARE cannot create the filters .*hospital"),
        ({"scopes": scopes(PERCENTILE)["scopes"]}, "the default_scope is none; expected exactly one scope"),
        ({"scopes": []}, "the scopes are none"),
        ({**scopes(), "scopes": [*scopes(PERCENTILE)["scopes"], {"name": "open"}]}, "the scopes are hospital, open"),
        (scopes(), "the scope 'hospital' has no filters"),
        (scopes(PERCENTILE, key="task_result_filter"), "FLARE ignores the key 'task_result_filter'"),
        (with_keys({"task_results_filters": [PERCENTILE]}), "FLARE ignores the key 'task_results_filters'"),
        ({**scopes(PERCENTILE), "task_result_filters": []}, "the key 'task_result_filters' is not allowed"),
        (
            {**scopes(PERCENTILE), "components": [{"id": "x", "path": "subprocess.Popen"}]},
            "the key 'components' is not",
        ),
        (
            scopes({"path": "subprocess.Popen", "args": {"args": ["touch", "ran"]}}),
            "'subprocess.Popen' is not a filter",
        ),
        (
            scopes({**PERCENTILE, "args": {"gamma": {"path": "subprocess.Popen", "args": {"args": ["touch", "ran"]}}}}),
            "the argument 'gamma' of .* names a class",
        ),
        (scopes({**PERCENTILE, "direction": "in"}), "FLARE would ignore 1 of the 1 filters in 'task_result_filters'"),
        (scopes(PERCENTILE, {**PERCENTILE, "direction": "in"}), "ignore 1 of the 2 filters in .task_result_filters"),
        (with_keys({"task_data_filters": [{**PERCENTILE, "direction": "out"}]}), "1 of the 1 filters in .task_data"),
        (scopes({"path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor"}), "must read an update to check"),
    ],
    ids=[
        "no JSON",
        "a list",
        "no such class",
        "no such argument",
        "no such scope",
        "no default",
        "no scopes",
        "two scopes",
        "no filters",
        "a misspelt key",
        "a misspelt key besides a filter",
        "outside the scope",
        "another component",
        "another class",
        "another class as an argument",
        "a wrong direction",
        "one wrong direction of two",
        "a wrong direction of data",
        "encryption",
    ],
)
def test_filters_that_would_not_be_applied_or_end_the_job_are_refused_before_joining(kit, content, what, capsys):
    path = write_filters(kit, content)
    with pytest.raises(UserError, match=f"{path}: .*{what}"):
        check_filters(path)
    assert capsys.readouterr() == ("", "")


def test_a_job_cannot_choose_another_scope(kit, monkeypatch):
    """FLARE checks this before it accepts a job."""
    check_filters(write_filters(kit, scopes(PERCENTILE)))
    monkeypatch.setattr(PrivacyService, "manager", create_privacy_manager(Workspace(str(kit)), names_only=True))
    assert PrivacyService.is_scope_allowed("") and PrivacyService.get_scope("").name == "hospital"
    assert not PrivacyService.is_scope_allowed("open")


def test_a_job_cannot_name_a_filter(kit):
    """Checked by FLARE's own authorizer, which does not apply to the filters that a hospital names."""
    (kit / "local/resources.json").write_text(json.dumps(allow_only(EXECUTOR)))
    authorizer, where = ComponentPathAuthorizer(), Workspace(str(kit))
    authorizer.authorize_component_config({"path": EXECUTOR}, workspace=where)
    for one in (PERCENTILE, ROUNDING):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            authorizer.authorize_component_config(one, workspace=where)


def test_the_example_in_the_readme_is_valid(kit):
    text = README.format(**dict.fromkeys(("sites", "method", "rounds", "host", "folder", "first", "admin"), "x"))
    check_filters(write_filters(kit, text.split("```json\n")[1].split("```")[0]))
