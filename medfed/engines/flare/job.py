"""The FLARE job of a federation, and the permissions that a hospital gives to it.

The job names two classes of medfed and contains no code, so that nothing that a coordinator sends is executed at a
site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from medfed.core.errors import UserError

CONTROLLER, EXECUTOR = "medfed.engines.flare.controller.FlareController", "medfed.engines.flare.executor.SiteExecutor"
TASKS = ("share", "train", "validate", "end")
CONNECTION_FILE, SITE_FILE = "medfed_coordinator.json", "medfed_site.json"  # in the local folders of server and site
NO_REPLY = "did not reply"  # the reason in a failed reply begins with it if the site itself reported nothing
TASK_REQUEST_INTERVAL_S = 0.1  # how often a site asks for work; FLARE's 2 s would be most of a short round


def allow_list() -> dict[str, object]:
    """Return the content of a participant's `local/resources.json`, with the classes that a job may use."""
    return {"format_version": 2, "class_allow_list": ["nvflare.", CONTROLLER, EXECUTOR]}


def coordinator_permissions() -> dict[str, object]:
    """Return the content of a hospital's `local/authorization.json`: the coordinator may start and end jobs only.

    FLARE's default would also let the coordinator send code with a job (which is not restricted by the list of allowed
    classes), download files and run shell commands.
    """
    denied = ("clone_job", "download_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr")
    return {"format_version": "1.0", "permissions": {
        "project_admin": {"submit_job": "any", "manage_job": "any", "view": "any", **dict.fromkeys(denied, "none")}}}


def check_names(names: Sequence[str]) -> None:
    """Check that NVIDIA FLARE can use the names of the sites in its command lines and certificates.

    Args:
        names: the names of the sites.

    Raises:
        UserError: if a name has other characters than the letters A to Z and a to z, digits, "_", "." and "-".
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise UserError(f"NVIDIA FLARE cannot name a site {ascii(name)}; rename the site's folder, using only the "
                            "letters A to Z, digits, _ . and -")


def write_job(folder: Path, sites: Sequence[str], min_sites: int = 1) -> Path:
    """Write the FLARE job of a federation; apart from the sites it is the same for all federations.

    Args:
        folder: the folder of the job, which is created.
        sites: the names of the sites.
        min_sites: FLARE does not start the job if fewer sites are connected.

    Returns:
        The folder.
    """
    server = {"format_version": 2, "server": {"task_request_interval": TASK_REQUEST_INTERVAL_S},
              "workflows": [{"id": "relay", "path": CONTROLLER, "args": {}}], **_empty_lists()}  # fmt: skip
    site = {"format_version": 2, "executors": [{"tasks": list(TASKS), "executor": {"path": EXECUTOR, "args": {}}}],
            **_empty_lists()}  # fmt: skip
    meta = {"name": "medfed", "resource_spec": {}, "min_clients": min_sites,
            "deploy_map": {"app_server": ["server"], "app_site": list(sites)}}  # fmt: skip
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
    return {"components": [], "task_data_filters": [], "task_result_filters": []}
