"""What a coordinator cannot do with a FLARE job, checked by FLARE's own code on a hospital's workspace."""

import io
import json
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.privacy_manager import PrivacyManager, PrivacyService
from nvflare.security.security import FLAuthorizer

from medfed.engines.flare.job import EXECUTOR, write_job
from medfed.engines.flare.kit import ADDRESS_FILE, CERTIFICATES, hospital_process

ROLES = ("project_admin", "org_admin", "lead", "member", "unknown")


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    """The workspace that medfed writes for a hospital, with FLARE's services as FLARE's client starts them."""
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    for name in CERTIFICATES:
        (tmp_path / "kit" / "startup" / name).touch()
    server = {"name": "medfed", "identity": "hub", "service": {"target": "hub:8002"}}
    address = {"servers": [server], "client": {"fqsn": "HK"}}
    (tmp_path / "kit" / "startup" / ADDRESS_FILE).write_text(json.dumps(address))
    client = hospital_process(tmp_path / "kit", tmp_path / "out", "HK", {})
    result = Workspace(str(client.workspace), "HK")
    policy = json.loads(Path(result.get_authorization_file_path()).read_text())
    monkeypatch.setattr(AuthorizationService, "the_authorizer", FLAuthorizer("medfed", policy))
    monkeypatch.setattr(AppAuthzService, "app_validator", FLAppValidator("client"))
    monkeypatch.setattr(PrivacyService, "manager", PrivacyManager(None, None, None))
    return result


def deploy(workspace: Workspace, app: Path, role: str = "project_admin", **meta: object) -> str | None:
    """Deploy a job's app at the hospital, as FLARE's client does it; return the reason of a refusal."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path in app.rglob("*"):
            archive.write(path, path.relative_to(app))
    submitter = {"submitter_name": "x@y.org", "submitter_org": "medfed", "submitter_role": role}
    return AppDeployer().deploy(workspace, "7", {**submitter, **meta}, "app_site", data.getvalue(), FLContext())


@pytest.fixture
def app(tmp_path) -> Path:
    return write_job(tmp_path / "job", ["HK"]) / "app_site"


def test_medfeds_own_job_is_accepted(workspace, app):
    assert deploy(workspace, app) is None
    assert Path(workspace.get_client_app_config_file_path("7")).is_file()


@pytest.mark.parametrize("role", ROLES)
def test_a_job_with_code_is_refused_whoever_submits_it(workspace, app, role):
    (app / "custom").mkdir()
    (app / "custom" / "evil.py").write_text("open('ran', 'w')")
    assert deploy(workspace, app, role) == "BYOC not permitted"
    assert not Path(workspace.get_run_dir("7")).exists()


@pytest.mark.parametrize("spec", [{"docker": {"image": "evil"}}, {"k8s": {"python_path": "/evil"}}])
def test_a_job_that_brings_its_own_image_is_refused(workspace, app, spec):
    assert deploy(workspace, app, launcher_spec={"HK": spec}) == "BYOC not permitted"


def test_a_job_cannot_claim_that_its_code_was_permitted(workspace, app):
    """FLARE would not look at the list of allowed classes if the job's own note `byoc` reached it."""
    assert deploy(workspace, app, byoc=True) is None
    assert "byoc" not in json.loads(Path(workspace.get_job_meta_path("7")).read_text())


@pytest.mark.parametrize(
    "path",
    [
        "subprocess.Popen",
        "medfed.engines.flare.controller.FlareController",
        f"{EXECUTOR}2",
        "nvflare.app_common.np.np_trainer.NPTrainer",
        "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
        "nvflare.app_common.ccwf.client_controller_executor.ClientControllerExecutor",
        "nvflare.app_common.executors.statistics.statistics_executor.StatisticsExecutor",
        "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
        "own_filters.Rounding",
    ],
)
def test_a_job_can_use_no_executor_workflow_or_filter_but_medfeds_executor(workspace, path):
    authorizer = ComponentPathAuthorizer()
    authorizer.authorize_component_config({"path": EXECUTOR}, workspace=workspace)
    for key in ("path", "class_path"):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            authorizer.authorize_component_config({key: path}, workspace=workspace)
    with pytest.raises(UnsafeComponentError, match="name is not allowed"):
        authorizer.authorize_component_config({"name": path.rpartition(".")[2]}, workspace=workspace)
