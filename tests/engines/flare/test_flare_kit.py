"""A startup kit of FLARE, and FLARE's process, without a federation."""

import contextlib
import datetime
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import free_port
from fake_sites import is_alive

from medfed.core.errors import UserError
from medfed.core.import_path import child_import_path
from medfed.engines.flare import process
from medfed.engines.flare.job import (
    CONTROLLER,
    COORDINATOR_ROLES,
    EXECUTOR,
    SITE_FILE,
    check_names,
    coordinator_permissions,
    write_job,
)
from medfed.engines.flare.kit import (
    ADDRESS_FILE,
    CERTIFICATES,
    answers,
    check_kit,
    hospital_process,
    server_process,
)
from medfed.engines.flare.process import FlareProcess

ADDRESS = {
    "servers": [{"name": "medfed", "identity": "hub.example", "service": {"target": "hub.example:8002"}}],
    "client": {"fqsn": "HK"},
}
CODE = "open('ran', 'w')"


@pytest.fixture
def kit(tmp_path) -> Path:
    """A kit whose coordinator has put code into each place from which FLARE would run or import it."""
    for name in (*CERTIFICATES, "sub_start.sh", "start.sh"):
        write(tmp_path / "kit" / "startup" / name, "touch ran" if name.endswith(".sh") else name)
    write(tmp_path / "kit" / "startup" / ADDRESS_FILE, json.dumps({**ADDRESS, "app_validator": {"path": "evil.Thing"}}))
    evil = {"components": [{"id": "evil", "path": "evil.Thing"}], "class_allow_list": ["*"]}
    for name in ("resources.json", "resources.json.default", "evil__resources.json"):
        write(tmp_path / "kit" / "local" / name, json.dumps(evil))
    write(tmp_path / "kit" / "local" / "log_config.json", json.dumps({"formatters": {"x": {"()": "evil.Thing"}}}))
    write(tmp_path / "kit" / "local" / "authorization.json", json.dumps({"permissions": {"project_admin": "any"}}))
    for name in ("local/custom/evil.py", "local/custom/nvflare_decomposers/evil.py", "evil.py", "numpy.py"):
        write(tmp_path / "kit" / name, CODE)
        write(tmp_path / "medfed_HK" / "flare" / name, CODE)
    return tmp_path / "kit"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_hospital_takes_certificates_and_the_servers_address_from_its_kit_and_nothing_else(kit, tmp_path):
    check_kit(kit, "HK")
    client = hospital_process(kit, tmp_path / "medfed_HK", "HK", {"sites": ["HK"]})
    files = {str(path.relative_to(client.workspace)): path for path in client.workspace.rglob("*") if path.is_file()}
    ours = ("resources.json", "authorization.json", "log_config.json", SITE_FILE)
    from_kit = [f"startup/{name}" for name in (*CERTIFICATES, ADDRESS_FILE)]
    assert set(files) == {*from_kit, *(f"local/{name}" for name in ours)}
    texts = {name: path.read_text() for name, path in files.items()}
    assert not [name for name, text in texts.items() if "evil" in text]
    assert {name: texts[f"startup/{name}"] for name in CERTIFICATES} == {name: name for name in CERTIFICATES}
    address = json.loads(texts[f"startup/{ADDRESS_FILE}"])
    assert address["servers"][0]["service"] == {"target": "hub.example:8002", "scheme": "grpc"}
    assert address["client"]["connection_security"] == "mtls"
    resources = json.loads(texts["local/resources.json"])
    assert (resources["class_allow_list"], resources["class_list_enforcement_mode"]) == ([EXECUTOR], "enforce")
    assert resources["allow_log_streaming"] is False
    assert json.loads(texts["local/authorization.json"]) == coordinator_permissions()
    private = [client.workspace, files["startup/client.key"], files[f"local/{SITE_FILE}"]]
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)


def test_the_client_is_started_from_python_and_no_script_of_the_kit_is_run(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("NVFL_WORKSPACE", str(kit))
    monkeypatch.setenv("LD_PRELOAD_X", "x")
    command, environment = [], {}

    def record(words, env, **others) -> None:
        command.extend(words)
        environment.update(env, cwd=others["cwd"])

    monkeypatch.setattr(process.subprocess, "Popen", record)
    client = hospital_process(kit, tmp_path / "medfed_HK", "HK", {})
    client.start(tmp_path / "log")
    workspace = str(tmp_path / "medfed_HK" / "flare")
    assert " ".join(command) == (
        f"{sys.executable} -u -m medfed.engines.flare.process nvflare.private.fed.app.client.client_train "
        f"-m {workspace} -s fed_client.json --set secure_train=true uid=HK org=medfed config_folder=config"
    )
    assert not {"NVFL_WORKSPACE", "LD_PRELOAD_X"} & set(environment) and environment["cwd"] == "/"
    assert environment["PYTHONSAFEPATH"] == "1" and str(kit) not in environment["PYTHONPATH"]
    assert environment["NVFL_AUDIT_ROOT"] == str(tmp_path / "medfed_HK" / "audit")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"servers": []}, "the address of the coordinator's server cannot be read"),
        ({"servers": [{**ADDRESS["servers"][0], "identity": "a b"}]}, "'a b' is not the name or the address"),
        ({"client": {"fqsn": "UCL"}}, "is the startup kit of 'UCL', but the site file has site: HK"),
    ],
)
def test_a_kit_with_an_unusual_address_or_of_another_site_is_refused(kit, change, sentence):
    write(kit / "startup" / ADDRESS_FILE, json.dumps({**ADDRESS, **change}))
    with pytest.raises(UserError, match=sentence):
        check_kit(kit, "HK")


def test_a_folder_that_is_not_a_kit_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a startup kit of NVIDIA FLARE, as startup/fed_client.json is missing"):
        check_kit(tmp_path, "HK")


@pytest.fixture(scope="module")
def authorities(tmp_path_factory) -> dict[str, dict[str, Path]]:
    """Two certificate authorities; by name the files of a root certificate, and of a certificate and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    result = {}
    for name in ("ours", "other"):
        folder, keys = tmp_path_factory.mktemp(name), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} {part}")]) for part in ("root", "HK")]
        files = dict(zip(CERTIFICATES, (folder / file for file in CERTIFICATES)))
        now = datetime.datetime.now(datetime.timezone.utc)
        for index, file in enumerate(CERTIFICATES[:2]):
            builder = x509.CertificateBuilder(names[0], names[index], keys[index].public_key(), 7 + index)
            builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
            builder = builder.add_extension(x509.BasicConstraints(ca=index == 0, path_length=None), critical=True)
            files[file].write_bytes(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        pem, openssl = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        files[CERTIFICATES[2]].write_bytes(keys[1].private_bytes(pem, openssl, serialization.NoEncryption()))
        result[name] = files
    return result


@pytest.mark.parametrize(
    ("root", "own", "reason"),
    [
        ("ours", "ours", ""),
        ("other", "ours", "CERTIFICATE_VERIFY_FAILED"),
        ("ours", "other", "UNKNOWN_CA"),
    ],
)
def test_a_kit_of_another_authority_than_the_servers_is_reported(authorities, tmp_path, root, own, reason):
    """The third kit has the right root certificate, but its own certificate is of another authority."""
    ours = authorities["ours"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours["client.crt"], ours["client.key"])
    context.load_verify_locations(ours["rootCA.pem"])
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            end, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(end, server_side=True) as connection:
                connection.sendall(b"settings")

        port, thread = listener.getsockname()[1], threading.Thread(target=serve, daemon=True)
        thread.start()
        for name in CERTIFICATES:
            write(tmp_path / "startup" / name, authorities[root if name == "rootCA.pem" else own][name].read_text())
        address = {"servers": [{"service": {"target": f"127.0.0.1:{port}"}}]}
        write(tmp_path / "startup" / ADDRESS_FILE, json.dumps(address))
        sentence = (
            f"127.0.0.1:{port}: the certificates of the .* do not fit .*{reason}.*; ask the coordinator for the kit"
        )
        with pytest.raises(UserError, match=sentence) if reason else contextlib.nullcontext():
            assert answers(tmp_path)
        thread.join(10)
    assert not answers(tmp_path), "nobody listens any more, but the server may start later"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server_kit(tmp_path, port) -> Path:
    server = {"service": {"target": f"localhost:{port}"}, "admin_port": port + 1}
    write(tmp_path / "startup" / "fed_server.json", json.dumps({"servers": [server]}))
    write(tmp_path / "local" / "resources.json.default", json.dumps({"a": 3, "class_allow_list": ["*"]}))
    return tmp_path


def test_a_servers_jobs_may_use_medfeds_controller_only_and_other_entries_are_kept(server_kit):
    server_process(server_kit)
    assert json.loads((server_kit / "local" / "resources.json").read_text()) == {
        "a": 3,
        "class_allow_list": [CONTROLLER],
        "class_list_enforcement_mode": "enforce",
        "allow_log_streaming": False,
    }


@pytest.mark.parametrize("number", [0, 1])
def test_a_server_is_not_started_if_another_program_uses_a_port_of_it(server_kit, port, number):
    """Even if the other program would share the port, as FLARE's server does."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port + number))
        other.listen()
        with pytest.raises(UserError, match=f"port {port + number} is used by another program"):
            server_process(server_kit)


LEFT = """
import subprocess, sys, time
if len(sys.argv) == 3:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *sys.argv[1:]], start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def flare(tmp_path, monkeypatch) -> FlareProcess:
    """A process that starts another one in a session of its own, as FLARE starts its jobs."""
    for name in ("startup", "local"):
        (tmp_path / name).mkdir()
    words = [sys.executable, "-c", LEFT, "nvflare.fake", str(tmp_path)]
    monkeypatch.setattr(FlareProcess, "_command", lambda self: words)
    return FlareProcess(tmp_path, "client")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def wait_for_both(flare: FlareProcess) -> list[int]:
    wait_until(lambda: len(flare._running()) == 2)
    return flare._running()


def test_stopping_ends_all_processes_of_a_workspace_also_those_of_another_session(flare):
    flare.start(flare.workspace / "log")
    wait_for_both(flare)
    assert not flare.has_ended()
    flare.stop()
    assert not flare._running()


def test_processes_that_a_killed_program_left_behind_are_ended_before_the_next_start(flare, tmp_path):
    flare.start(flare.workspace / "log")
    left = wait_for_both(flare)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "nvflare.x", f"{tmp_path}_other"])
    FlareProcess(flare.workspace, "client").end_left_processes()
    assert not [number for number in left if is_alive(number)] and other.poll() is None
    other.kill()
    other.wait()
    flare.stop()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "medfed.engines.flare.process", "sleeper", sys.argv[1]],
                         start_new_session=True)
print(child.pid, flush=True)
while True:
    time.sleep(60)
"""


def test_flares_process_ends_when_the_program_that_started_it_is_killed(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import sys, time\nopen(sys.argv[1], 'w')\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), child_import_path()]))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    wait_until((tmp_path / "runs").exists)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(child))


def test_a_workspace_that_flare_cannot_name_in_a_command_is_refused(tmp_path):
    (tmp_path / "a b").mkdir()
    with pytest.raises(UserError, match="a b: NVIDIA FLARE cannot use a folder with a space"):
        FlareProcess(tmp_path / "a b", "client").start(tmp_path / "log")


@pytest.mark.parametrize("name", ["a b", "a,b", "Zürich", "-x", "", "a;b", "$(x)"])
def test_names_that_flare_does_not_accept_are_refused(name):
    check_names(["BMC", "site-1", "a_b.c", "7"])
    with pytest.raises(UserError, match="NVIDIA FLARE cannot name a site"):
        check_names([name])


def test_a_job_names_two_classes_and_contains_no_code(tmp_path):
    write_job(tmp_path, ["north"])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["app_server/config/config_fed_server.json", "app_site/config/config_fed_client.json", "meta.json"]
    text = (tmp_path / files[1]).read_text()
    assert text.count('"path"') == 1 and EXECUTOR in text


@pytest.fixture
def authorizer():
    pytest.importorskip("nvflare")
    from nvflare.security.security import FLAuthorizer

    return FLAuthorizer("org_1", coordinator_permissions())


REFUSED = "byoc cat ls grep restart call download_job clone_job server-predeployed-flwr".split()
GRANTED = ["submit_job", "abort_job", "check_status"]


@pytest.mark.parametrize("role", COORDINATOR_ROLES)
@pytest.mark.parametrize("right", [*REFUSED, *GRANTED])
def test_a_coordinator_may_start_and_end_jobs_at_a_hospital_but_not_send_code(authorizer, right, role):
    """Checked by FLARE's own authorizer. Its default policy grants all of these rights."""
    from nvflare.fuel.sec.authz import AuthzContext, Person

    person = Person("coordinator@medfed.org", "coordinator", role)
    result, _ = authorizer.authorize(AuthzContext(right, person, person))
    assert bool(result) is (right in GRANTED)
