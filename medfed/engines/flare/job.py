"""A FLARE job of medfed: two class names and no code, so that nothing a coordinator sends runs at a site."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from medfed.core.errors import UserError

CONTROLLER, EXECUTOR = "medfed.engines.flare.controller.FlareController", "medfed.engines.flare.executor.SiteExecutor"
TASKS = ("share", "train", "validate", "end")
CONNECTION_FILE, SITE_FILE = "medfed_coordinator.json", "medfed_site.json"  # in the local folders of server and site
NO_REPLY = "did not reply"  # how the reason begins where a site said nothing itself
TASK_REQUEST_INTERVAL_S = 0.1  # how often a site asks for work; FLARE's 2 s would be most of a short round


def allow_list() -> dict[str, object]:
    """What a participant's `local/resources.json` says of the classes that a job may name."""
    return {"format_version": 2, "class_allow_list": ["nvflare.", CONTROLLER, EXECUTOR]}


def coordinator_permissions() -> dict[str, object]:
    """What a hospital's `local/authorization.json` lets a coordinator do: start jobs and end them.

    By default FLARE lets it send code along with a job (no list of classes counts then), and read files.
    """
    denied = ("clone_job", "download_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr")
    return {"format_version": "1.0", "permissions": {
        "project_admin": {"submit_job": "any", "manage_job": "any", "view": "any", **dict.fromkeys(denied, "none")}}}


def check_names(names: Sequence[str]) -> None:
    """UserError for a site that FLARE's command lines and certificates could not name."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise UserError(f"NVIDIA FLARE cannot name a site {ascii(name)}; it takes letters from A to Z, digits, _ . "
                            "and -, so rename the site's folder")


def write_job(folder: Path, sites: Sequence[str], min_sites: int = 1) -> Path:
    """Write the job's folder; what it comes to is the same for every federation.

    Args:
        min_sites: FLARE does not start the job with fewer.
    """
    server = {"format_version": 2, "server": {"task_request_interval": TASK_REQUEST_INTERVAL_S},
              "workflows": [{"id": "relay", "path": CONTROLLER, "args": {}}], **_nothing_else()}  # fmt: skip
    site = {"format_version": 2, "executors": [{"tasks": list(TASKS), "executor": {"path": EXECUTOR, "args": {}}}],
            **_nothing_else()}  # fmt: skip
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


def _nothing_else() -> dict[str, list]:
    return {"components": [], "task_data_filters": [], "task_result_filters": []}
