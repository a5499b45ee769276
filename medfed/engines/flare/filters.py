"""Checks a hospital's own FLARE privacy filters before anything is sent.

The filters are read with FLARE's own code, because FLARE silently ignores much of what it does not understand.
"""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import PrivacyManager

from medfed.core.errors import UserError

ENCRYPTOR = "HEModelEncryptor"
RESULT, DATA = "task_result_filters", "task_data_filters"
SCOPE_KEYS = {"name", "properties", RESULT, DATA}
FILE_KEYS = {"format_version", "scopes", "default_scope"}
CLASS_KEYS = {"path", "class_path", "name"}  # FLARE creates an object from a dictionary with one of these keys


def check_filters(path: Path) -> None:
    """Raise UserError unless FLARE will apply all privacy filters of a hospital's `local/privacy.json` to every job.

    Without this check, mistakes in the file would stay unnoticed or stop the training. If a key is misspelt, FLARE
    ignores the key and filters nothing. If the file has several scopes (named groups of filters), a coordinator's job
    may choose one of the scopes. A filter that cannot be created, or that encrypts updates, ends the job at all sites.
    """
    if ENCRYPTOR in path.read_text(errors="replace"):
        raise UserError(
            f"{path}: the filter {ENCRYPTOR} encrypts updates, but medfed's coordinator must read an "
            "update to check and average it; remove the filter"
        )
    try:
        document = json.loads(path.read_text())
        _check_classes(path, document)
        manager = _create_manager(path.parent)
    except UserError:
        raise
    except Exception as error:  # FLARE raises many types of errors, and a hospital's own class may raise any
        raise UserError(
            f"{path}: FLARE cannot create the filters ({error}); correct the file, or join without it"
        ) from error
    scope, names = manager.default_scope, ", ".join(sorted(manager.name_to_scopes)) or "none"
    if scope is None or len(manager.name_to_scopes) != 1:
        raise UserError(
            f"{path}: the scopes are {names} and the default_scope is {scope.name if scope else 'none'}; "
            "expected exactly one scope that is also the default_scope, because a coordinator's job may "
            "choose among several"
        )
    block = document["scopes"][0]
    if unknown := sorted(set(block) - SCOPE_KEYS):
        raise UserError(f"{path}: FLARE ignores the key '{unknown[0]}'; expected {RESULT} and {DATA} inside the scope")
    applied_results, applied_data = scope.task_result_filters[FilterKey.OUT], scope.task_data_filters[FilterKey.IN]
    for key, applied in ((RESULT, applied_results), (DATA, applied_data)):
        if len(applied or ()) != (n := len(block.get(key) or ())):
            raise UserError(
                f"{path}: FLARE would ignore {n - len(applied or ())} of the {n} filters in '{key}' because of "
                "their key 'direction'; remove this key from every filter"
            )
    if not block.get(RESULT) and not block.get(DATA):
        raise UserError(f"{path}: the scope '{scope.name}' has no filters; expected filters under {RESULT}")


def _check_classes(path: Path, document: dict[str, Any]) -> None:
    """Refuse a class that is not a filter, because FLARE would create an object of any class with any arguments."""
    if unknown := sorted(set(document) - FILE_KEYS):
        raise UserError(f"{path}: the key '{unknown[0]}' is not allowed; expected {RESULT} and {DATA} inside the scope")
    entries = [entry for scope in document["scopes"] for key in (RESULT, DATA) for entry in scope.get(key) or ()]
    for entry in entries:
        module, _, name = entry["path"].rpartition(".")
        if not issubclass(getattr(import_module(module), name), Filter):
            raise UserError(
                f"{path}: '{entry['path']}' is not a filter of NVIDIA FLARE; expected a class with "
                "nvflare.apis.filter.Filter as its base class"
            )
        for argument, value in entry.get("args", {}).items():
            if isinstance(value, dict) and CLASS_KEYS & set(value):
                raise UserError(
                    f"{path}: the argument '{argument}' of '{entry['path']}' names a class, which FLARE "
                    "would create; expected numbers, texts and lists"
                )


def _create_manager(local: Path) -> PrivacyManager:
    """FLARE's manager of the privacy filters in a site's folder `local`; its log messages are hidden."""
    logging.disable()  # FLARE would log a traceback in addition to the error
    try:
        with redirect_stdout(io.StringIO()):
            return create_privacy_manager(Workspace(str(local.parent)), names_only=False)
    finally:
        logging.disable(logging.NOTSET)
