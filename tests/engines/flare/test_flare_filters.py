"""A hospital's own privacy filters (`local/privacy.json` in its kit), applied by FLARE's own code."""

import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyService

import medfed
from medfed.core.errors import UserError
from medfed.engines.flare.filters import check_filters
from medfed.engines.flare.messages import to_message, to_shareable
from medfed.federation.message import Message

PATH = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
PERCENTILE = {"path": PATH, "args": {"percentile": 50, "gamma": 4}}
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


POPEN = {"path": "subprocess.Popen", "args": {"args": ["touch", "ran"]}}
ENCRYPTION = {"path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor"}
BAD_FILES = {  # what is wrong: (the content of the file, what the error says)
    "no JSON": ('{"scopes": [', "FLARE cannot create the filters"),
    "a list": ([], "FLARE cannot create the filters"),
    "no such class": (scopes({"path": "own_filters.Roundin"}), "cannot create the filters .*own_filters"),
    "no such argument": (scopes({**PERCENTILE, "args": {"percent": 3}}), "cannot create the filters .*percent"),
    "no such scope": (scopes(PERCENTILE, name="other"), "FLARE cannot create the filters .*hospital"),
    "no default": ({"scopes": scopes(PERCENTILE)["scopes"]}, "default_scope is none; expected exactly one scope"),
    "no scopes": ({"scopes": []}, "the scopes are none"),
    "two scopes": (
        {**scopes(), "scopes": [*scopes(PERCENTILE)["scopes"], {"name": "open"}]},
        "the scopes are hospital, open",
    ),
    "no filters": (scopes(), "the scope 'hospital' has no filters"),
    "a misspelt key": (scopes(PERCENTILE, key="task_result_filter"), "ignores the key 'task_result_filter'"),
    "a misspelt key besides a filter": (with_keys({"task_results": [PERCENTILE]}), "ignores the key 'task_results'"),
    "outside the scope": (
        {**scopes(PERCENTILE), "task_result_filters": []},
        "the key 'task_result_filters' is not allowed",
    ),
    "another component": ({**scopes(PERCENTILE), "components": [{"id": "x", **POPEN}]}, "the key 'components' is not"),
    "another class": (scopes(POPEN), "'subprocess.Popen' is not a filter"),
    "another class as an argument": (
        scopes({**PERCENTILE, "args": {"gamma": POPEN}}),
        "the argument 'gamma' of .* names a class",
    ),
    "a wrong direction": (scopes({**PERCENTILE, "direction": "in"}), "1 of the 1 filters in 'task_result_filters'"),
    "one wrong direction of two": (scopes(PERCENTILE, {**PERCENTILE, "direction": "in"}), "1 of the 2 filters in"),
    "a wrong direction of data": (
        with_keys({"task_data_filters": [{**PERCENTILE, "direction": "out"}]}),
        "1 of the 1 filters in .task_data",
    ),
    "encryption": (scopes(ENCRYPTION), "must read an update to check"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_filters_that_would_not_be_applied_or_end_the_job_are_refused_before_joining(kit, case, capsys):
    content, what = BAD_FILES[case]
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


def test_the_example_in_the_documentation_is_valid(kit):
    text = (Path(medfed.__file__).parent.parent / "docs" / "how_to" / "hospital.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    check_filters(write_filters(kit, example))
