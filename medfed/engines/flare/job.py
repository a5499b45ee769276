"""The FLARE job of a federation, and the permissions that a hospital gives to it.

The job names two classes of medfed and contains no code, so that nothing that a coordinator sends is executed at a
site.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.federation.message import Kind

CONTROLLER, EXECUTOR = "medfed.engines.flare.controller.FlareController", "medfed.engines.flare.executor.SiteExecutor"
CONNECTION_FILE, SITE_FILE = "medfed_coordinator.json", "medfed_site.json"  # in the local folders of server and site
COORDINATOR_ROLES = ("project_admin", "lead")  # in certificates by `nvflare provision` and by `nvflare cert`
NO_REPLY = "did not reply"  # the reason in a failed reply begins with it if the site itself reported nothing
TASK_REQUEST_INTERVAL_S = 0.1  # how often a site asks for work; FLARE's 2 s would be most of a short round


def has_flare() -> bool:
    return importlib.util.find_spec("nvflare") is not None


def require_flare(purpose: str, otherwise: str = "") -> None:
    """Raise UserError if NVIDIA FLARE is not installed; `purpose` needs it, and `otherwise` is another way out."""
    if not has_flare():
        raise UserError(
            f"{purpose} needs NVIDIA FLARE, which is not installed; run pip install -e '.[nvflare]' in medfed's "
            f"folder{otherwise}"
        )


def allow_only(*allowed: str) -> dict[str, object]:
    """Return the entries of FLARE's file `resources.json` by which a job may name these classes, and read no log."""
    return {"class_allow_list": list(allowed), "class_list_enforcement_mode": "enforce", "allow_log_streaming": False}


def coordinator_permissions() -> dict[str, object]:
    """Return a hospital's file `local/authorization.json`: the coordinator may submit, manage and view jobs.

    With FLARE's default file, the coordinator could also send code with a job, download files and run shell commands at
    the hospital.
    """
    denied = ("clone_job", "download_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr")
    rights = {"submit_job": "any", "manage_job": "any", "view": "any", **dict.fromkeys(denied, "none")}
    return {"format_version": "1.0", "permissions": dict.fromkeys(COORDINATOR_ROLES, rights)}


def check_names(names: Sequence[str]) -> None:
    """Raise UserError unless FLARE's command lines and certificates can hold the names of the sites."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise UserError(
                f"NVIDIA FLARE cannot name a site {ascii(name)}; rename the site's folder, using only the "
                "letters A to Z, digits, _ . and -"
            )


def write_job(folder: Path, sites: Sequence[str]) -> Path:
    """Write the files of the FLARE job that connects the coordinator and the sites; return the folder.

    The job is the same for all federations, except for the names of the sites. FLARE starts it when one site is
    connected.
    """
    server = {
        "format_version": 2,
        "server": {"task_request_interval": TASK_REQUEST_INTERVAL_S},
        "workflows": [{"id": "relay", "path": CONTROLLER, "args": {}}],
        **_empty_lists(),
    }
    site = {
        "format_version": 2,
        "executors": [{"tasks": [kind.value for kind in Kind], "executor": {"path": EXECUTOR, "args": {}}}],
        **_empty_lists(),
    }
    meta = {
        "name": "medfed",
        "resource_spec": {},
        "min_clients": 1,
        "deploy_map": {"app_server": ["server"], "app_site": list(sites)},
    }
    for name, content in (
        ("meta.json", meta),
        ("app_server/config/config_fed_server.json", server),
        ("app_site/config/config_fed_client.json", site),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2))
    return folder


def _empty_lists() -> dict[str, list]:
    """FLARE requires them in a job's config."""
    return {"components": [], "task_data_filters": [], "task_result_filters": []}
