"""What a hospital writes into its kit's local/privacy.json, by FLARE's own code."""

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
from medfed.engines.flare.job import EXECUTOR
from medfed.engines.flare.kit import Kit
from medfed.engines.flare.messages import to_message, to_shareable
from medfed.federation.message import Message

PERCENTILE = {
    "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "args": {"percentile": 50, "gamma": 4},
}
ROUNDING = {"path": "own_filters.Rounding"}
OWN = '''
import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter


class Rounding(DXOFilter):
    def __init__(self):
        super().__init__([DataKind.STATISTICS], [DataKind.STATISTICS])

    def process_dxo(self, dxo, shareable, fl_ctx):
        return DXO(dxo.data_kind, {name: np.round(array) for name, array in dxo.data.items()})
'''


def scopes(*filters: object, name: str = "hospital", key: str = "task_result_filters") -> dict:
    return {"scopes": [{"name": name, key: list(filters)}], "default_scope": "hospital"}


def beside(more: dict) -> dict:
    """A filter that acts, and something else in its scope."""
    whole = scopes(PERCENTILE)
    whole["scopes"][0] |= more
    return whole


@pytest.fixture
def kit(tmp_path) -> Kit:
    for folder in ("startup", "local/custom"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "startup/sub_start.sh").touch()
    (tmp_path / "local/custom/own_filters.py").write_text(OWN)
    return Kit(tmp_path, (EXECUTOR,))


def wrote(kit: Kit, content: object) -> Path:
    path = kit.path / "local/privacy.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_filters_of_flare_and_of_the_hospital_act_on_what_leaves_though_no_job_may_name_them(kit, monkeypatch):
    wrote(kit, scopes(PERCENTILE, ROUNDING))
    kit.check()
    monkeypatch.syspath_prepend(kit.path / "local/custom")
    shareable = to_shareable(Message("train", {"w": torch.tensor([1.0, -9.0, 2.0, 6.0])}, {"m": torch.tensor([1.26])}))
    scope = create_privacy_manager(Workspace(str(kit.path)), names_only=False).default_scope
    for one in scope.task_result_filters["out"]:
        shareable = one.process(shareable, FLContext())
    found = to_message(shareable)
    assert found.weights["w"].tolist() == [0, -4, 0, 4]  # below the median of 1, 2, 6, 9: none; above 4: 4
    assert found.tensors["m"].tolist() == [1]


@pytest.mark.parametrize(("content", "what"), [
    ('{"scopes": [', "FLARE cannot make its filters"),
    ([], "FLARE cannot make its filters"),
    (scopes({"path": "own_filters.Roundin"}), "FLARE cannot make its filters .*own_filters"),
    (scopes({**PERCENTILE, "args": {"percent": 3}}), "FLARE cannot make its filters .*percent"),
    (scopes(PERCENTILE, name="other"), "FLARE cannot make its filters .*hospital"),
    ({"scopes": scopes(PERCENTILE)["scopes"]}, "the default_scope none; expected one scope"),
    ({"task_result_filters": [PERCENTILE]}, "has the scopes none"),
    ({**scopes(), "scopes": [*scopes(PERCENTILE)["scopes"], {"name": "open"}]}, "the scopes hospital, open"),
    (scopes(), "scope 'hospital' filters nothing"),
    (scopes(PERCENTILE, key="task_result_filter"), "has 'task_result_filter', which FLARE passes over"),
    (beside({"task_results_filters": [PERCENTILE]}), "has 'task_results_filters', which FLARE passes over"),
    ({**scopes(PERCENTILE), "task_result_filters": []}, "has 'task_result_filters', which FLARE passes over"),
    (scopes({**PERCENTILE, "direction": "in"}), "of 1 task_result_filters FLARE would apply 0"),
    (scopes(PERCENTILE, {**PERCENTILE, "direction": "in"}), "of 2 task_result_filters FLARE would apply 1"),
    (beside({"task_data_filters": [{**PERCENTILE, "direction": "out"}]}), "of 1 task_data_filters FLARE would apply 0"),
    (scopes({"path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor"}), "must see an update to check it"),
], ids=["no JSON", "a list", "no class", "no argument", "no such scope", "no default", "no scopes", "two scopes",
        "nothing", "a slip", "a slip beside a filter", "outside the scope", "the wrong way", "one of two the wrong way",
        "the wrong way in", "encryption"])  # fmt: skip
def test_what_would_filter_nothing_or_end_the_job_is_told_before_joining(kit, content, what, capsys):
    path = wrote(kit, content)
    with pytest.raises(UserError, match=f"{path}: .*{what}"):
        kit.check()
    assert capsys.readouterr() == ("", "")


def test_a_job_can_choose_no_other_scope(kit, monkeypatch):
    """FLARE asks this before it takes a job in."""
    wrote(kit, scopes(PERCENTILE))
    kit.check()
    monkeypatch.setattr(PrivacyService, "manager", create_privacy_manager(Workspace(str(kit.path)), names_only=True))
    assert PrivacyService.is_scope_allowed("") and PrivacyService.get_scope("").name == "hospital"
    assert not PrivacyService.is_scope_allowed("open")


def test_a_job_can_name_no_filter(kit):
    """By FLARE's own judge of what a job names, which what a hospital names is not held against."""
    (kit.path / "local/resources.json").write_text("{}")
    kit.start(kit.path / "log")
    kit.stop()
    judge, where = ComponentPathAuthorizer(), Workspace(str(kit.path))
    judge.authorize_component_config({"path": EXECUTOR}, workspace=where)
    for one in (PERCENTILE, ROUNDING):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            judge.authorize_component_config(one, workspace=where)


def test_the_file_that_the_readme_shows_is_one_that_works(kit):
    text = README.format(**dict.fromkeys(("sites", "method", "rounds", "host", "folder", "first"), "x"))
    wrote(kit, text.split("```json\n")[1].split("```")[0])
    kit.check()
