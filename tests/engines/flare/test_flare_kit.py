import json
import subprocess
from pathlib import Path

import pytest

from medfed.core.errors import UserError
from medfed.engines.flare.job import EXECUTOR, allow_list, check_names, coordinator_permissions, write_job
from medfed.engines.flare.kit import Kit


@pytest.fixture
def kit(tmp_path) -> Kit:
    for folder, name, text in (("startup", "sub_start.sh", "sleep 60 &\nsleep 60\n"),
                               ("local", "resources.json.default", '{"a": 1, "b": 2}')):  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    return Kit(tmp_path, (EXECUTOR,), coordinator_permissions())


def resources(kit: Kit) -> dict:
    return json.loads((kit.path / "local" / "resources.json").read_text())


def test_a_folder_that_is_not_a_kit_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a startup kit of NVIDIA FLARE"):
        Kit(tmp_path).check()


def test_starting_restricts_what_others_may_do_and_keeps_other_entries(kit):
    lax = {"a": 3, "class_allow_list": ["*"], "class_list_enforcement_mode": "warn"}
    (kit.path / "local" / "resources.json").write_text(json.dumps(lax))
    kit.start(kit.path / "log")
    kit.stop()
    assert resources(kit) == {"a": 3, "class_allow_list": [EXECUTOR], "class_list_enforcement_mode": "enforce",
                              "allow_log_streaming": False}  # fmt: skip
    assert json.loads((kit.path / "local" / "authorization.json").read_text()) == coordinator_permissions()


def test_stopping_ends_all_processes_of_the_kit(kit):
    kit.start(kit.path / "log")
    group = kit._process.pid
    assert not kit.has_ended()
    kit.stop()
    left = subprocess.run(["ps", "-o", "stat=", "-s", str(group)], capture_output=True, text=True, check=False)
    assert not [state for state in left.stdout.split() if not state.startswith("Z")]


def test_files_of_the_participant_are_readable_by_their_owner_only(kit):
    kit.write("medfed_site.json", {"folder": "/home"})
    assert (kit.path / "local" / "medfed_site.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["BMC", "site-1", "a_b.c", "7"])
def test_names_that_flare_accepts(name):
    check_names([name])


@pytest.mark.parametrize("name", ["a b", "a,b", "Zürich", "-x", "", "a;b", "$(x)"])
def test_names_that_flare_does_not_accept_are_refused(name):
    with pytest.raises(UserError, match="NVIDIA FLARE cannot name a site"):
        check_names([name])


def test_a_job_names_two_classes_and_contains_no_code(tmp_path):
    write_job(tmp_path, ["north"])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["app_server/config/config_fed_server.json", "app_site/config/config_fed_client.json", "meta.json"]
    text = (tmp_path / files[1]).read_text()
    assert text.count('"path"') == 1 and EXECUTOR in allow_list()["class_allow_list"] and EXECUTOR in text


@pytest.fixture
def authorizer():
    pytest.importorskip("nvflare")
    from nvflare.security.security import FLAuthorizer

    return FLAuthorizer("org_1", coordinator_permissions())


@pytest.mark.parametrize(("right", "granted"), [
    *((right, False) for right in ("byoc", "cat", "ls", "grep", "restart", "call", "download_job", "clone_job",
                                   "server-predeployed-flwr")),
    *((right, True) for right in ("submit_job", "abort_job", "check_status")),
])  # fmt: skip
def test_a_coordinator_may_start_and_end_jobs_at_a_hospital_but_not_send_code(authorizer, right, granted):
    """Checked by FLARE's own authorizer. Its default policy grants all of these rights."""
    from nvflare.fuel.sec.authz import AuthzContext, Person

    person = Person("coordinator@medfed.org", "coordinator", "project_admin")
    result, _ = authorizer.authorize(AuthzContext(right, person, person))
    assert bool(result) is granted


def test_a_job_with_code_is_refused_at_a_hospital(authorizer, monkeypatch):
    from nvflare.fuel.sec.authz import AuthorizationService
    from nvflare.private.fed.utils.app_authz import AppAuthzService

    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    who = {"submitter_name": "a", "submitter_org": "coordinator", "submitter_role": "project_admin", "job_meta": {}}
    assert AppAuthzService.authorize_app_info({"byoc": True}, **who) == (False, "BYOC not permitted")
    assert AppAuthzService.authorize_app_info({}, **who) == (True, "")


def test_the_path_of_a_kit_may_be_relative(kit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    relative = Kit(Path(tmp_path.name), (EXECUTOR,))
    relative.check()
