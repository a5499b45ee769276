"""A hospital reads its own file, checks its data and joins a federation over FLARE."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from medfed.config import strict_yaml, validation
from medfed.config.schema import Config, changed, load
from medfed.core.errors import UserError
from medfed.core.files import exclusive_lock
from medfed.deployment import codec_files
from medfed.deployment.agreement import Agreement
from medfed.deployment.guarded_site import MODEL
from medfed.engines.flare.job import EXECUTOR, SITE_FILE, coordinator_permissions
from medfed.engines.flare.kit import Kit

POLL_S = 0.5
LAST_REPLY_S = 3.0  # for the last answer to reach the coordinator
LOCK = "medfed.lock"  # in the kit
OWN = ("data", "device")  # what a hospital decides of the plan; all else is the federation's
CHOOSE_CODE = ("name", "engine", "metrics")  # keys of a plan whose values are names of code


@dataclass(frozen=True)
class SiteFile:
    """A hospital's own file; beside these keys it holds what of the plan is the hospital's own (`data`, `device`).

    Args:
        site: its name in the federation.
        plan: the config that all sites agreed on, as the coordinator sent it; relative to this file, as `kit` and
            `folder`.
        kit: FLARE's startup kit of this site.
        folder: for its ledger, its log, the final model, and what it must not lose when it is stopped.
        agrees: what may leave.
    """

    site: str
    plan: str = "plan.yaml"
    kit: str = "kit"
    folder: str = "medfed_site"
    agrees: Agreement = Agreement()


def read_site_file(path: Path) -> tuple[SiteFile, Config]:
    """A hospital's file, with paths as seen from here, and the plan with this hospital's own values."""
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected blocks of keys and values, such as site, plan, kit, data")
    agrees = document.get("agrees")
    if isinstance(agrees, dict) and "answers_per_round" in agrees:
        raise UserError(f"{path}: agrees.answers_per_round: this key is now called replies_per_round; rename it")
    own = {key: document.pop(key) for key in OWN if key in document}
    hospital = validation.load_settings(SiteFile, document, str(path))
    places: dict[str, Any] = {name: str(path.parent / getattr(hospital, name)) for name in ("plan", "kit", "folder")}
    hospital = replace(hospital, **places)
    values = dict(_dotted(own))
    if isinstance(values.get("data.root"), str):
        values["data.root"] = str(path.parent / values["data.root"])
    if not Path(hospital.plan).is_file():
        raise UserError(f"{path}: plan: {hospital.plan} is missing; the coordinator sends it, so put it there")
    _check_names(Path(hospital.plan))
    config = load(hospital.plan)
    if config.federation.validation_site != hospital.site:  # it has no folder here
        values |= {"federation.validation_site": "", "federation.selection": "last"}
    config = changed(config, values)
    if hospital.agrees.rounds < config.federation.rounds:
        raise UserError(f"{path}: agrees.rounds: {hospital.agrees.rounds}, but the plan has {config.federation.rounds} "
                        "rounds; raise it, or talk to the coordinator")
    config = codec_files.resolve_codecs(config, Path(hospital.plan).parent)
    return hospital, replace(config, source=str(path))


def _check_names(plan: Path) -> None:
    """Before the plan is loaded: a dotted name in it would import, and so run, whatever is installed here."""
    document = strict_yaml.parse(strict_yaml.read(plan), str(plan))
    for key, value in _dotted(document if isinstance(document, dict) else {}):
        if key.rpartition(".")[2] in CHOOSE_CODE:
            for name in value if isinstance(value, list) else [value]:
                if "." in str(name):
                    raise UserError(f"{plan}: {key}: '{name}' is code from outside medfed, which no plan may name; ask "
                                    "the coordinator for one with medfed's own methods, networks, datasets and metrics")


def _dotted(block: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested blocks, also of those in lists, by dotted key."""
    for name, value in block.items():
        here = validation.join_key(key, name)
        blocks = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
        for inner in [value] if isinstance(value, Mapping) else blocks:
            yield from _dotted(inner, here)
        if not isinstance(value, Mapping) and not blocks:
            yield here, value


def join_federation(hospital: SiteFile, config_yaml: str, file: str, quiet: bool) -> None:
    """Start FLARE's client with this hospital's kit, and wait for the federation's end.

    Args:
        config_yaml: the plan with this hospital's own values.
        file: the hospital's file, for messages.

    Raises:
        UserError: if it is over already, or FLARE or the kit is missing, or another process takes part with this kit,
            or FLARE's client ends early.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("joining needs NVIDIA FLARE, which is not installed; pip install -e '.[nvflare]' in medfed's "
                        "folder")
    folder, kit = Path(hospital.folder), Kit(Path(hospital.kit), (EXECUTOR,), coordinator_permissions())
    kit.check()
    with lock_kit(kit.path) as lock:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MODEL).is_file():
            raise UserError(f"{folder / MODEL}: is the model of a federation that is over; to take part in another, "
                            "give `folder` another name")
        job = {"config": config_yaml, "source": file, "site": hospital.site,
               "folder": str(folder.resolve()), "directory": os.getcwd(), "threads": torch.get_num_threads(),
               "agreement": asdict(hospital.agrees)}  # fmt: skip
        kit.write(SITE_FILE, {hospital.site: job})
        plan = hashlib.sha256(Path(hospital.plan).read_bytes()).hexdigest()
        print(f"Joining as {hospital.site} with the plan {plan[:12]}. Ctrl-C leaves; the same command comes back.")
        _take_part(hospital.site, kit, folder, quiet, lock)


def lock_kit(kit: Path) -> AbstractContextManager[int]:
    """Lock a kit, so that a second program with the same kit is refused at once; gives the lock's descriptor.

    FLARE's client inherits the descriptor, since it may outlive this process.
    """
    return exclusive_lock(kit / LOCK, lambda holder: UserError(
        f"{kit}: {holder}, or a FLARE client that it started, takes part with this kit already; wait for it, or end it "
        f"(Ctrl-C; pkill -f {kit}), and come back"
    ))  # fmt: skip


def _take_part(site: str, kit: Kit, folder: Path, quiet: bool, lock: int) -> None:
    """Run FLARE's client until the model is there."""
    kit.start(folder / "flare.log", lock)
    try:
        with tqdm(desc=f"{site}: taking part", bar_format="{desc}, {elapsed}", disable=quiet) as bar:
            while not (folder / MODEL).is_file():
                if kit.ended():
                    raise UserError(f"FLARE's client ended before the federation did; see {folder / 'flare.log'}, then "
                                    "come back with the same command")
                time.sleep(POLL_S)
                bar.update(0)
                bar.refresh()
        time.sleep(LAST_REPLY_S)
    finally:
        kit.stop()
