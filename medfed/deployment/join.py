"""A hospital's part in a federation: read its own file and the plan, and join over NVIDIA FLARE."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medfed.cli.progress import ProgressBar
from medfed.config import strict_yaml
from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, load
from medfed.core.bounds import load_settings
from medfed.core.errors import UserError
from medfed.core.files import exclusive_lock
from medfed.deployment import codec_files
from medfed.deployment.agreement import TRAIN, Agreement, check_reading
from medfed.deployment.guarded_site import MODEL
from medfed.deployment.hospital_state import begin_folder, is_begun
from medfed.engines.flare.kit import STATE_FILE, answers, hospital_process, server_address
from medfed.engines.flare.process import FlareProcess
from medfed.experiments.resume import check_cache_folder
from medfed.federation.settings import Cache

POLL_S = 0.5
LAST_REPLY_S = 3.0  # for the last reply to reach the coordinator
SERVER_CHECK_INTERVAL_S = 10.0  # until the client has joined
SILENCE_S = 60.0  # after which the user learns that the server does not answer
STRUCTURES = "named_structures"
COMMON = ("channels", "image_size", "patch_size", "spacing_mm", "standardise", STRUCTURES)  # of all hospitals' `data`
LOCK = "medfed.lock"  # in the kit
LOCAL_BLOCKS = ("data", "device", "cache")  # the only blocks of the plan that a hospital may change
# Of `data`, which have names as keys: the hospital's value replaces all of the plan's.
WHOLE_KEYS = ("mask", "by_site", "mask_values", "mask_colours")
CODE_KEYS = ("name", "engine", "metrics")  # keys of a plan whose values may name Python code


@dataclass(frozen=True)
class SiteFile:
    """The content of a hospital's own file, such as `HK.yaml`.

    The file may also have the blocks `data` and `device`, whose values replace the same values of the plan. The block
    `cache` comes from this file only, because the plan does not decide where a hospital stores images. Paths in the
    file are relative to the folder of the file.
    """

    site: str
    plan: str = "plan.yaml"  # the config that all sites agreed on, as the coordinator sent it
    kit: str = "kit"  # this site's startup kit of NVIDIA FLARE
    folder: str = "medfed_site"  # for the site's ledger, log, stored state and final model
    agrees: Agreement = Agreement()


def read_site_file(path: Path) -> tuple[SiteFile, Config]:
    """Read a hospital's YAML file, and the plan with the hospital's own `data`, `device` and `cache`.

    The paths in the result start with the folder of the file. UserError also if the plan names Python code from outside
    medfed, or sets what only the hospital may set (`check_reading`), or needs more than the hospital agreed to.
    """
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected keys and values, such as site, plan, kit and data")
    local = {key: document.pop(key) for key in LOCAL_BLOCKS if key in document}
    site_file = load_settings(SiteFile, document, str(path))
    paths: dict[str, Any] = {name: str(path.parent / getattr(site_file, name)) for name in ("plan", "kit", "folder")}
    site_file = replace(site_file, **paths)
    data = local.get("data")
    whole = {f"data.{key}": data.pop(key) for key in WHOLE_KEYS if key in data} if isinstance(data, dict) else {}
    values = dict(_dotted(local)) | whole
    for key in ("data.root", "data.dicom_salt", "cache.folder"):
        if isinstance(value := values.get(key), str) and value:
            values[key] = str(path.parent / value)
    values = {f"cache.{key}": value for key, value in asdict(Cache()).items()} | values
    if not Path(site_file.plan).is_file():
        raise UserError(f"{path}: plan: {site_file.plan} is missing; copy the plan from the coordinator to this path")
    _check_names(Path(site_file.plan))
    config = load(site_file.plan)
    check_reading(config, values, str(path))
    if config.federation.validation_site != site_file.site:  # its images are not here
        values |= {"federation.validation_site": "", "federation.selection": "last"}
    own = [Override(tuple(key.split(".")), value, "", str(path)) for key, value in values.items()]
    config, plan = changed(config, {}, own), config
    for key in COMMON:
        value, common = (getattr(data, key, None) for data in (config.data, plan.data))
        if value != common and not (key == STRUCTURES and None in (value, common)):  # another class of datasets
            raise UserError(
                f"{path}: data: {key.removeprefix('named_')} is {value}, but {common} in the plan; all hospitals need "
                "the same, so change the settings or the images, or ask the coordinator for another plan"
            )
    if TRAIN not in site_file.agrees.requests:
        raise UserError(
            f"{path}: agrees.requests: lacks '{TRAIN}', so that every request of the training would be "
            "refused; add it if you agree to train"
        )
    if site_file.agrees.rounds < config.federation.rounds:
        raise UserError(
            f"{path}: agrees.rounds: is {site_file.agrees.rounds}, but the plan has "
            f"{config.federation.rounds} rounds; increase it if you agree, or ask the coordinator"
        )
    config = codec_files.resolve_codecs(config, Path(site_file.plan).parent)
    check_cache_folder(config.cache, config.data, Path(site_file.folder), str(path))
    return site_file, replace(config, source=str(path))


def _check_names(plan: Path) -> None:
    """Refuse a plan that names code from outside medfed; a dotted name would import, and thus run, any package.

    This must happen before the plan is loaded.
    """
    document = strict_yaml.parse(strict_yaml.read(plan), str(plan))
    for key, value in _dotted(document if isinstance(document, dict) else {}):
        if key.rpartition(".")[2] in CODE_KEYS:
            for name in value if isinstance(value, list) else [value]:
                if "." in str(name):
                    raise UserError(
                        f"{plan}: {key}: '{name}' is code from outside medfed, which a plan may not name; "
                        "ask the coordinator for a plan with medfed's own methods, networks, datasets and "
                        "metrics"
                    )


def _dotted(block: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for all values of nested blocks, also of blocks in lists."""
    for name, value in block.items():
        dotted_key = f"{key}.{name}".removeprefix(".")
        blocks = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
        for inner in [value] if isinstance(value, Mapping) else blocks:
            yield from _dotted(inner, dotted_key)
        if not isinstance(value, Mapping) and not blocks:
            yield dotted_key, value


def join_federation(site_file: SiteFile, config: Config, plan: str, quiet: bool) -> None:
    """Connect this hospital to the coordinator through NVIDIA FLARE, and wait for the final model.

    `plan` is the checksum of the plan. UserError if another process uses the startup kit, or FLARE's client ends before
    the federation.
    """
    folder, kit = Path(site_file.folder), Path(site_file.kit)
    with lock_kit(kit):
        check_output_folder(folder, config.source)
        begin_folder(folder)
        job = {
            "config": config.yaml,
            "source": config.source,
            "sites": [site_file.site],
            "folder": str(folder.resolve()),
            "directory": os.getcwd(),
            "agreement": asdict(site_file.agrees),
            "plan": plan,
        }
        client = hospital_process(kit, folder, site_file.site, job)
        print(f"Joining as {site_file.site} with the plan {plan}. Press Ctrl-C to leave; the same command joins again.")
        _take_part(site_file.site, client, folder, quiet)


def check_output_folder(folder: Path, file: str) -> None:
    """Raise UserError, before anything is written, if the folder has a final model or is not one of this hospital's."""
    if (folder / MODEL).is_file():
        raise UserError(
            f"{folder / MODEL}: is the model of a federation that is over; to join another federation, "
            f"change `folder` in {file}"
        )
    is_begun(folder)


def lock_kit(kit: Path) -> AbstractContextManager[int]:
    """Lock a startup kit, so that no second program can use it; the context yields the lock's file descriptor."""
    return exclusive_lock(
        kit / LOCK,
        lambda holder: UserError(
            f"{kit}: {holder} uses this kit already; wait until it ends, or end it, and repeat the command"
        ),
    )


def _take_part(site: str, client: FlareProcess, folder: Path, quiet: bool) -> None:
    """Run FLARE's client until the final model has been received."""
    state, shown = client.workspace / STATE_FILE, {""}
    address, answered_at = server_address(client.workspace), time.monotonic()
    check_at = answered_at + SERVER_CHECK_INTERVAL_S
    client.start(folder / "flare.log")

    def tell(text: str) -> None:
        """Show a text, once."""
        if text not in shown:
            shown.add(text)
            warnings.warn(f"{site}: {text}", stacklevel=3)

    try:
        with ProgressBar(desc=f"{site}: waiting for {address}", bar_format="{desc}, {elapsed}", disable=quiet) as bar:
            while not (folder / MODEL).is_file():
                if client.has_ended():
                    raise UserError(
                        f"FLARE's client ended before the federation; see {folder / 'flare.log'}, then "
                        "join again with the same command"
                    )
                if has_joined := state.is_file():
                    bar.set_description_str(f"{site}: taking part", refresh=False)
                    tell(state.read_text())
                if (now := time.monotonic()) >= check_at:
                    check_at = now + (SILENCE_S if has_joined else SERVER_CHECK_INTERVAL_S)
                    answered_at = now if _answers(client.workspace, has_joined) else answered_at
                if now - answered_at >= SILENCE_S:
                    tell(
                        f"the coordinator's server {address} does not answer; this program keeps trying; if the "
                        "federation has begun, ask the coordinator whether it is over, and for model.safetensors, and "
                        "press Ctrl-C to leave"
                    )
                time.sleep(POLL_S)
                bar.update(0)
        time.sleep(LAST_REPLY_S)
    finally:
        client.stop()


def _answers(kit: Path, has_joined: bool) -> bool:
    """As `answers`; once the client has joined, a server with other certificates is one that does not answer."""
    try:
        return answers(kit)
    except UserError:
        if not has_joined:
            raise
        return False
