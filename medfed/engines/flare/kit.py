"""Startup kits of NVIDIA FLARE: the folders with certificates that a coordinator makes for the participants.

medfed reads four files of a hospital's kit as data: two certificates, a key, and the address of the coordinator's
server. Everything that FLARE would run or import, such as scripts, medfed writes into a folder of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from medfed.core.errors import UserError
from medfed.engines.flare.job import CONTROLLER, EXECUTOR, SITE_FILE, allow_only, coordinator_permissions
from medfed.engines.flare.process import FlareProcess, check_ports_free

ADDRESS_FILE, FILTERS = "fed_client.json", "privacy.json"
STATE_FILE = "joined"  # in the workspace when the client has joined; it has what the hospital must know
CONNECT_TIMEOUT_S = 5.0
CERTIFICATES = ("rootCA.pem", "client.crt", "client.key")
COMPONENTS = {  # parts of FLARE's client, without the one that sends the log
    "resource_manager": (
        "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
        {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
    ),
    "resource_consumer": ("nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer", {}),
    "process_launcher": ("nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher", {}),
    "reporter": ("medfed.engines.flare.shared_kit.KitReporter", {}),
}
LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
            "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}},
    "loggers": {"root": {"level": "INFO", "handlers": ["console"]}},
}


def check_kit(kit: Path, site: str) -> None:
    """Raise UserError unless this is the startup kit of the site, and FLARE applies its privacy filters as written."""
    if not kit.is_dir():
        raise UserError(f"{kit}: does not exist; unpack the startup kit that the coordinator sent there")
    if missing := [name for name in (ADDRESS_FILE, *CERTIFICATES) if not (kit / "startup" / name).is_file()]:
        raise UserError(
            f"{kit}: is not a startup kit of NVIDIA FLARE, as startup/{missing[0]} is missing; give the "
            "folder that the coordinator sent, unpacked"
        )
    _read_address(kit, site)
    if (filters := kit / "local" / FILTERS).is_file():
        from medfed.engines.flare.filters import check_filters  # needs FLARE, which a dry run must not need

        check_filters(filters)


def server_address(kit: Path) -> str:
    """The address of the coordinator's server, such as "hub.example:8002"."""
    return str(json.loads((kit / "startup" / ADDRESS_FILE).read_text())["servers"][0]["service"]["target"])


def answers(kit: Path) -> bool:
    """Return whether the coordinator's server answers; it may start later.

    UserError if the server and the kit do not have certificates of the same authority: FLARE's client would try to
    connect without an end.
    """
    startup, target = kit / "startup", server_address(kit)
    host, _, port = target.rpartition(":")
    root, own, key = (startup / name for name in CERTIFICATES)
    try:
        context = ssl.create_default_context(cafile=root)
        context.load_cert_chain(own, key)
        context.check_hostname = False  # FLARE compares the names itself
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # set since Python 3.13, and stricter than FLARE
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S) as connection,
            context.wrap_socket(connection) as server,
        ):
            server.recv(1)  # a server that does not accept the certificate says so only now
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # a server that ends
        return False
    except ssl.SSLError as error:
        raise UserError(
            f"{target}: the certificates of the coordinator's server and of this startup kit do not fit "
            f"({error.reason}); ask the coordinator for the kit of this federation"
        ) from error
    except OSError:
        return False
    return True


def hospital_process(kit: Path, folder: Path, site: str, job: Mapping[str, object]) -> FlareProcess:
    """Write the workspace of a hospital's FLARE client, and return the client, which is not started yet.

    An existing workspace is replaced. The workspace, `folder/flare`, has copies of the kit's certificates, key and
    privacy filters; FLARE's audit logs are in `folder/audit`. The coordinator may submit and manage jobs, a job may
    name only medfed's executor, and no log is sent. `job` is that of the site's worker
    (`medfed.deployment.worker.serve`).
    """
    workspace = folder / "flare"
    client = FlareProcess(workspace, "client", site, folder / "audit")
    client.end_left_processes()
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(mode=0o700, parents=True)
    for name in ("startup", "local"):
        (workspace / name).mkdir()
    for name in CERTIFICATES:
        (workspace / "startup" / name).touch(mode=0o600)
        shutil.copyfile(kit / "startup" / name, workspace / "startup" / name)
    (workspace / "startup" / ADDRESS_FILE).write_text(json.dumps(_read_address(kit, site)))
    if (filters := kit / "local" / FILTERS).is_file():
        shutil.copyfile(filters, workspace / "local" / FILTERS)
    client.write(
        "resources.json",
        {
            "format_version": 2,
            "client": {"retry_timeout": 30, "compression": "Gzip"},
            **allow_only(EXECUTOR),
            "components": [
                {"id": name, "path": path, "args": arguments} for name, (path, arguments) in COMPONENTS.items()
            ],
        },
    )
    client.write("authorization.json", coordinator_permissions())
    client.write("log_config.json", LOG)
    client.write(SITE_FILE, {site: job})
    return client


def server_process(kit: Path) -> FlareProcess:
    """Return the coordinator's FLARE server, not started yet; its workspace is its startup kit.

    The file `local/resources.json` is changed: a job may name only medfed's controller. Processes of the same kit that
    an earlier program left behind are ended. UserError if another program uses one of the server's ports.
    """
    server = FlareProcess(kit, "server")
    server.end_left_processes()
    address = json.loads((kit / "startup" / "fed_server.json").read_text())["servers"][0]
    check_ports_free([int(address["service"]["target"].rpartition(":")[2]), int(address["admin_port"])])
    own = kit / "local" / "resources.json"
    resources = json.loads((own if own.is_file() else kit / "local" / "resources.json.default").read_text())
    server.write("resources.json", {**resources, **allow_only(CONTROLLER)})
    return server


def _read_address(kit: Path, site: str) -> dict[str, object]:
    """Return the content of a file `fed_client.json` of our own, with the server's name and address of the kit's."""
    file = kit / "startup" / ADDRESS_FILE
    try:
        content = json.loads(file.read_text())
        server, name = content["servers"][0], content["client"]["fqsn"]
        values = {"name": server["name"], "identity": server["identity"], "target": server["service"]["target"]}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{file}: the address of the coordinator's server cannot be read ({error!r}); ask the "
            "coordinator for the kit again"
        ) from error
    if unusual := [value for value in values.values() if not re.fullmatch(r"[\w.:\[\]-]+", str(value), re.ASCII)]:
        raise UserError(
            f"{file}: {unusual[0]!r} is not the name or the address of a server; ask the coordinator for the kit again"
        )
    if name != site:
        raise UserError(
            f"{kit}: is the startup kit of {name!r}, but the site file has site: {site}; ask the "
            "coordinator for the kit of your site"
        )
    service = {"target": values.pop("target"), "scheme": "grpc"}
    client = {
        "ssl_private_key": "client.key",
        "ssl_cert": "client.crt",
        "ssl_root_cert": "rootCA.pem",
        "fqsn": site,
        "is_leaf": True,
        "connection_security": "mtls",
    }
    return {"format_version": 2, "servers": [{**values, "service": service}], "client": client}
