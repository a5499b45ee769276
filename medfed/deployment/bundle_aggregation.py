"""Average bundles that hospitals trained without medfed, for example with `python -m monai.bundle run`.

All hospitals start from the same bundle and send their trained bundles back. Each hospital's weights pass the checks of
a round (`medfed.federation.checks`). The bundles are read as data; no code in them runs.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.federation.checks.expected import Earlier, Expected
from medfed.federation.checks.replies import check_replies, find_failing_sites
from medfed.federation.ledger import COLUMNS, message_rows
from medfed.federation.message import Kind, Message, State, digest
from medfed.federation.method import Method
from medfed.federation.settings import Federation
from medfed.functional.weights import change_norm, first_non_finite
from medfed.networks.parts.bundle_config import PROGRAMS
from medfed.networks.parts.pretrained import read_state_dict
from medfed.outputs.bundle.check import BundleFiles, check_bundle, open_bundle
from medfed.outputs.bundle.model_card import as_plain_markdown
from medfed.outputs.bundle.write import atomic_folder
from medfed.outputs.run_files import append_rows
from medfed.tasks.bundle_training import TRAINED

WEIGHT_FILES = ("models/model.pt", "models/model.safetensors")
TRAINED_FILE = f"models/{TRAINED}"  # what `configs/train.json` writes; `model.pt` is then the start
BUFFER_ENDINGS = ("running_mean", "running_var", "num_batches_tracked")  # of normalisation layers, not trained
INFERENCE, METADATA, LEDGER, README = (
    "configs/inference.json",
    "configs/metadata.json",
    "docs/ledger.csv",
    "docs/README.md",
)
SAME_KEYS = ("network_def", "preprocessing", "postprocessing")  # of inference.json, that no hospital should change
COPIED = ("LICENSE", "configs/", "docs/")
TITLE = "# Combined weights"
VERSION = re.compile(r"(.*\.)?([0-9]{1,9})")
UNCHECKED = "the configs are copied from the start and were not checked; read them before you run them"


@dataclass(frozen=True)
class Aggregation:
    """What a new bundle was made of, as its metadata state it."""

    rule: str
    sites: dict[str, str]  # by name of a site whose weights were used, their checksum
    images: dict[str, int]  # the number of training images of these sites; empty if all sites count alike
    changes: dict[str, float]  # the L2 norm of the change of the weights at these sites
    weights_of_start: str  # the checksum of the weights from which all sites started
    left_out: dict[str, str]  # by name of a site that was left out, a sentence that says why
    notices: list[str]  # sentences about bundles that are unusual but were used


def aggregate_bundles(
    sites: Sequence[Path],
    start: Path,
    out: Path,
    *,
    images: Sequence[int] | None = None,
    rule: str = "fedavg",
    on_bad_update: Literal["stop", "drop"] = "stop",
    largest_change: float | None = Federation.largest_change,
    allow_unchecked_configs: bool = False,
) -> Aggregation:
    """Check the weights of the sites' bundles, combine them, and write the result with the configs of `start`.

    The arguments are the flags of `python -m medfed.aggregate`.
    """
    names = _site_names(sites, start, out)
    if images is not None and (len(images) != len(names) or min(images) < 1):
        raise UserError(
            f"--images {' '.join(map(str, images))[:60]}: expected {len(names)} whole numbers above 0, one for each of "
            f"{', '.join(names)}"
        )
    if largest_change is not None and not 1 <= largest_change < math.inf:
        raise UserError(f"--largest-change {largest_change}: expected a number of at least 1")
    files = open_bundle(start)
    weights = _read_weights(files, WEIGHT_FILES)
    if entry := first_non_finite(weights):
        raise UserError(f"{start}: the weights contain NaN or infinite values, first in '{entry}'; name another start")
    config, is_checked = _start_config(files, allow_unchecked_configs)
    parameters = frozenset(name for name in weights if not name.endswith(BUFFER_ENDINGS))
    state = State(0, weights, parameters=parameters, local_keys=frozenset())
    replies, rejected, notices = {}, {}, [] if is_checked else [UNCHECKED]
    for name, path, count in zip(names, sites, images or [1] * len(names), strict=True):
        facts = {"round": 1, "examples": count, "steps": count, "loss": 0.0}  # a bundle does not state steps and loss
        try:
            bundle = open_bundle(path)
            differences = _differences(name, bundle, config)
            replies[name] = Message(Kind.TRAIN, _read_weights(bundle, (TRAINED_FILE, *WEIGHT_FILES)), {}, facts)
            notices += differences
        except UserError as error:
            rejected[name] = name + str(error).removeprefix(str(path))  # no folder of this computer
    method: Method = registry.resolve("methods", rule)()
    used, failed, unusual = _check(replies, state, largest_change, method)
    rejected |= failed
    if rejected and (on_bad_update == "stop" or not used):
        raise UserError(
            f"{next(iter(rejected.values()))}; nothing was written; leave this site out with --on-bad-update drop, or "
            "ask it for another bundle"
        )
    if len(used) == 1:
        unusual.append(f"only the weights of {next(iter(used))} are left, so nothing was combined")
    result = Aggregation(
        rule,
        sites={name: _digest(reply.weights) for name, reply in used.items()},
        images={name: reply.facts["examples"] for name, reply in used.items()} if images else {},
        changes={name: change_norm(weights, reply.weights) for name, reply in used.items()},
        weights_of_start=_digest(weights),
        left_out=rejected,
        notices=notices + unusual,
    )
    combined = method.aggregate(state, used)
    if entry := first_non_finite(combined):
        raise UserError(f"the combined weights contain NaN or infinite values, first in '{entry}'; nothing was written")
    with atomic_folder(out.resolve()) as folder:
        _write(folder, files, combined, result)
        append_rows(folder / LEDGER, COLUMNS, message_rows(1, "up", replies))
        if is_checked:
            check_bundle(folder)
    return result


def _site_names(sites: Sequence[Path], start: Path, out: Path) -> list[str]:
    """Return the name of each site, the name of its folder; UserError if the paths contradict others."""
    if out.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with --out")
    for path in (*sites, start):
        if path.resolve() in out.resolve().parents:
            raise UserError(f"{out}: lies in the bundle {path}; choose another folder with --out")
    for path in sites:
        if path.resolve() == start.resolve():
            raise UserError(f"{path}: is the bundle that all sites started from; name the trained bundles")
    names = [path.absolute().name for path in sites]
    try:
        site_names.check(names)
    except ValueError as error:
        raise UserError(f"{error} (the name of a bundle's folder is the name of the site)") from None
    return names


def _read_weights(files: BundleFiles, candidates: Sequence[str]) -> dict[str, Tensor]:
    """Read the first of these files that the bundle has."""
    name = next((name for name in candidates if name in files.names), None)
    if name is None:
        raise UserError(f"{files.path}: has no {' or '.join(candidates)}; expected the bundle with its trained weights")
    if not (weights := read_state_dict(files.names[name], "model")):
        raise UserError(f"{files.names[name]}: is empty; expected the bundle with its trained weights")
    return weights


def _start_config(files: BundleFiles, allow_unchecked: bool) -> tuple[dict[str, Any], bool]:
    """Return `configs/inference.json` of the start, and whether its configs pass `check_bundle`."""
    config = _config(files)
    definition = config.get("network_def")
    target = definition.get("_target_") if isinstance(definition, dict) else None
    if not isinstance(target, str) or target.startswith(PROGRAMS):
        raise UserError(
            f"{files.path}: {INFERENCE} has no network_def that builds a network, or it loads a program, which cannot "
            "take averaged weights; expected a network of monai.networks.nets; train this network with medfed"
        )
    try:
        check_bundle(files.path)
    except UserError as error:
        if not allow_unchecked:
            raise UserError(
                f"{str(error)[:300]}; the new bundle would contain these configs, which may run code at a hospital; if "
                "you have read them, allow this with --allow-unchecked-configs"
            ) from None
        return config, False
    return config, True


def _config(files: BundleFiles) -> dict[str, Any]:
    """The values of `configs/inference.json`; empty without this file."""
    config = files.json(INFERENCE) if INFERENCE in files.names else {}
    if not isinstance(config, dict):
        raise UserError(f"{files.path}: {INFERENCE} is not an object of keys and values; copy the bundle again")
    return config


def _differences(name: str, files: BundleFiles, config: Mapping[str, Any]) -> list[str]:
    """Return a notice if a site's bundle has another network or other transforms than the start."""
    own = _config(files)
    return [
        f"{name}: its {INFERENCE} has another {key} than the start; it may have trained on other images"
        for key in SAME_KEYS
        if own and own.get(key) != config.get(key)
    ]


def _check(
    replies: Mapping[str, Message], state: State, largest_change: float | None, method: Method
) -> tuple[dict[str, Message], dict[str, str], list[str]]:
    """Return the replies that pass the checks of a round and that the rule can use, the other sites, and notices."""
    requests = dict.fromkeys(replies, Message(Kind.TRAIN, state.weights, {}, {"round": 1}))
    expected = Expected(Kind.TRAIN, 1, state.weights, state.parameters, largest_change, local_keys=frozenset())
    used, rejected, notices = check_replies(requests, replies, expected, Earlier())
    rejected += find_failing_sites(lambda one: method.aggregate(state, one), used, Kind.TRAIN, 1)
    setting, flag = "federation.largest_change", "--largest-change"
    reasons = {
        one.site: f"{one.site}: its bundle {one.reason}".replace(setting, f"{flag} {largest_change}")
        for one in rejected
    }
    accepted = {name: reply for name, reply in used.items() if name not in reasons}
    return accepted, reasons, [notice.replace(setting, flag) for notice in notices]


def _write(folder: Path, start: BundleFiles, weights: dict[str, Tensor], result: Aggregation) -> None:
    """Write the texts and configs of the start, the combined weights, and what they were combined from."""
    for name, file in start.names.items():
        if name.startswith(COPIED) and not name.startswith(LEDGER):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)
    for name in ("models", "docs"):
        (folder / name).mkdir(exist_ok=True)
    torch.save(weights, folder / "models" / "model.pt")
    old_metadata = start.json(METADATA) if METADATA in start.names else {}
    metadata = _metadata(old_metadata if isinstance(old_metadata, dict) else {}, result, _digest(weights))
    (folder / METADATA).write_text(json.dumps(metadata, indent=4) + "\n", encoding="utf-8")
    text = (folder / README).read_text(encoding="utf-8", errors="replace") if README in start.names else ""
    if text.startswith(TITLE):  # the start was combined as well; only the text of the first bundle is kept
        text = "".join(text.partition("\n# ")[1:]).lstrip("\n")
    lines = [
        TITLE,
        "",
        f"The weights of {as_plain_markdown(', '.join(result.sites))} were combined with the rule `{result.rule}`; all "
        f"sites started from the bundle {as_plain_markdown(start.path.absolute().name)}. Nobody has tested them yet: "
        "scores below are those of the start.",
        "",
        *(f"* Left out: {as_plain_markdown(reason)}." for reason in result.left_out.values()),
        *(f"* {as_plain_markdown(notice)}." for notice in result.notices),
        "",
        text,
    ]
    (folder / README).write_text("\n".join(lines), encoding="utf-8")


def _metadata(old: dict[str, Any], result: Aggregation, weights_sha256: str) -> dict[str, Any]:
    """Return metadata with the next version, without scores, and with the sites that took part."""
    version = str(old.get("version", "0.0.0"))
    match = VERSION.fullmatch(version)
    version = f"{match[1] or ''}{int(match[2]) + 1}" if match else f"{version}.1"
    changelog, provenance = (
        value if isinstance(value := old.get(key), dict) else {} for key in ("changelog", "medfed_provenance")
    )
    return {
        **old,
        "version": version,
        "changelog": {version: f"weights combined from {', '.join(result.sites)}", **changelog},
        "eval_metrics": {},
        "medfed_provenance": {**provenance, "weights_sha256": weights_sha256, "aggregation": asdict(result)},
    }


def _digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of the weights as a safetensors file."""
    return digest(safetensors.torch.save({name: entry.contiguous() for name, entry in weights.items()}))
