"""A hospital's own privacy filters of FLARE, read as FLARE will read them, before anything is sent."""

from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyManager

from medfed.core.errors import UserError

ENCRYPTOR = "HEModelEncryptor"
RESULT, DATA = "task_result_filters", "task_data_filters"
IN_A_SCOPE, AROUND = {"name", "properties", RESULT, DATA}, {"format_version", "scopes", "default_scope", "components"}


def check_filters(path: Path) -> None:
    """UserError unless FLARE would apply what is in the `privacy.json` of a kit's `local` folder, to every job alike.

    FLARE passes over keys that it does not know, and filters nothing then; among several scopes the coordinator's job
    chooses; a filter that cannot be made, and an encrypted update, end the job at all sites, again and again.
    """
    if ENCRYPTOR in path.read_text(errors="replace"):
        raise UserError(f"{path}: {ENCRYPTOR} encrypts what leaves, and medfed's coordinator must see an update to "
                        "check it and to average it; take it out")
    try:
        manager = _made(path.parent)
        written = json.loads(path.read_text())
    except Exception as error:  # FLARE raises many kinds, and a hospital's own class may raise any
        raise UserError(f"{path}: FLARE cannot make its filters ({error}); mend it, or join without it") from error
    scope, names = manager.default_scope, ", ".join(sorted(manager.name_to_scopes)) or "none"
    if scope is None or len(manager.name_to_scopes) != 1:
        raise UserError(f"{path}: has the scopes {names}, the default_scope {scope.name if scope else 'none'}; "
                        "expected one scope that is default_scope too, as a coordinator's job may choose among several")
    own = written["scopes"][0]
    if strange := sorted((set(own) - IN_A_SCOPE) | (set(written) - AROUND)):
        raise UserError(f"{path}: has '{strange[0]}', which FLARE passes over; expected {RESULT} and {DATA}, in the "
                        "scope")
    results, data = scope.task_result_filters[FilterKey.OUT], scope.task_data_filters[FilterKey.IN]
    for key, made in ((RESULT, results), (DATA, data)):
        if len(made or ()) != (n := len(own.get(key) or ())):
            raise UserError(f"{path}: of {n} {key} FLARE would apply {len(made or ())} on the way; expected them "
                            "without a 'direction'")
    if not own.get(RESULT) and not own.get(DATA):
        raise UserError(f"{path}: scope '{scope.name}' filters nothing; expected filters under {RESULT}")


def _made(local: Path) -> PrivacyManager:
    """By FLARE itself, which also looks for classes in a folder of the site's."""
    sys.path.append(str(local / "custom"))
    logging.disable()  # of a traceback, before the same error comes
    try:
        with redirect_stdout(io.StringIO()):
            return create_privacy_manager(Workspace(str(local.parent)), names_only=False)
    finally:
        logging.disable(logging.NOTSET)
        sys.path.pop()
