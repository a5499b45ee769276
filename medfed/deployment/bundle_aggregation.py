"""Average bundles that hospitals trained without medfed, for example with `python -m monai.bundle run`.

All hospitals start from the same bundle and send their trained bundles back. Each hospital's weights pass the checks of
a round (`medfed.federation.checks`). The bundles are read as data; no code in them runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from medfed.cli.defaults import RULES
from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.federation import ledger
from medfed.federation.checks import Earlier, Expected, check_replies, find_failing_sites
from medfed.federation.message import Kind, Message, State, digest
from medfed.federation.method import Method
from medfed.federation.settings import Federation
from medfed.functional.weights import change_norm, first_non_finite
from medfed.networks.parts.bundle_config import PROGRAMS
from medfed.outputs.bundle.check import check_bundle, open_bundle
from medfed.outputs.bundle.write import atomic_folder
from medfed.tasks.bundle_training import TRAINED

METHODS: Mapping[str, type[Method]] = {rule: registry.resolve("methods", rule) for rule in RULES}
WEIGHT_FILES = ("models/model.pt", "models/model.safetensors")
TRAINED_FILE = f"models/{TRAINED}"  # what `configs/train.json` writes; `model.pt` is then the start
BUFFER_ENDINGS = ("running_mean", "running_var", "num_batches_tracked")  # of normalisation layers, not trained
SAME_KEYS = ("network_def", "preprocessing", "postprocessing")  # of inference.json, that no hospital should change
COPIED = ("LICENSE", "configs/", "docs/")
LEDGER = "docs/ledger.csv"
README = "docs/README.md"
TITLE = "# Combined weights"
MAX_VERSION_DIGITS = 9

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Aggregation:
    """The result of `aggregate_bundles`.

    Attributes:
        path: the folder of the new bundle.
        changes: by name of a site whose weights were used, the L2 norm of its change of the parameters.
        images: by name of a site that was used, its number of training images; empty if all sites count alike.
        rejected: by name of a site that was left out, a sentence that says why.
        notices: sentences about bundles that are unusual but were used.
    """

    path: Path
    changes: dict[str, float]
    images: dict[str, int]
    rejected: dict[str, str]
    notices: list[str] = field(default_factory=list)


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
    """Check the weights of several bundles, combine them, and write the result as a new bundle.

    The configs, the license and the texts of the new bundle are those of `start`. Its metadata say which sites took
    part, and it has no scores, because nobody has tested it yet. `docs/ledger.csv` lists what was read.

    Args:
        sites: folders of the bundles that the sites trained, one per site, named after the sites.
        start: the bundle from which all sites started. The changes of the weights are measured from it.
        out: folder to create; it must not exist.
        images: number of training images of each site, in the order of `sites`, at least 1. None: all sites count
            alike.
        rule: how the weights are combined, one of `RULES`: "fedavg" is the mean, weighted by the numbers of images.
        on_bad_update: what happens if a site's weights cannot be read or fail a check: "stop" raises UserError, "drop"
            leaves the site out.
        largest_change: as `federation.largest_change`, at least 1; None allows any change.
        allow_unchecked_configs: true copies the configs of a `start` that does not pass `check_bundle`, such as a
            bundle of others, and says so in the new bundle. They may run code at a hospital.
    """
    names = _site_names(sites, start, out)
    if images is not None and (len(images) != len(names) or min(images) < 1):
        raise UserError(
            f"--images {' '.join(map(str, images))[:60]}: expected {len(names)} whole numbers above 0, one for each of "
            f"{', '.join(names)}"
        )
    if largest_change is not None and not 1 <= largest_change < math.inf:
        raise UserError(f"--largest-change {largest_change}: expected a number of at least 1")
    config, unchecked = _start_config(start, allow_unchecked_configs)
    state = _state_of(_read_weights(start))
    if entry := first_non_finite(state.weights):
        raise UserError(f"{start}: the weights contain NaN or infinite values, first in '{entry}'; name another start")
    replies, rejected, notices = {}, {}, [unchecked] if unchecked else []
    for name, path, count in zip(names, sites, images or [1] * len(names), strict=True):
        facts = {"round": 1, "examples": count, "steps": count, "loss": 0.0}  # a bundle does not state steps and loss
        try:
            replies[name] = Message(Kind.TRAIN, _read_weights(path, (TRAINED_FILE, *WEIGHT_FILES)), {}, facts)
            notices += _differences(name, path, config)
        except UserError as error:
            replies.pop(name, None)
            rejected[name] = str(error)
    method = METHODS[rule]()
    used, failed, unusual = _check(replies, state, largest_change, method)
    notices += unusual
    rejected |= failed
    if rejected and (on_bad_update == "stop" or not used):
        raise UserError(
            f"{next(iter(rejected.values()))}; nothing was written; leave this site out with --on-bad-update drop, or "
            "ask it for another bundle"
        )
    weights = method.aggregate(state, used)
    if entry := first_non_finite(weights):
        raise UserError(f"the combined weights contain NaN or infinite values, first in '{entry}'; nothing was written")
    changes = {name: change_norm(state.weights, reply.weights) for name, reply in used.items()}
    if len(used) == 1:
        notices.append(f"only the weights of {next(iter(used))} are left, so nothing was combined")
    counts = {name: reply.facts["examples"] for name, reply in used.items()} if images else {}
    result = Aggregation(out, changes, counts, rejected, notices)
    _write(
        result,
        start,
        weights,
        {name: _digest(reply.weights) for name, reply in used.items()},
        rule,
        ledger.message_rows(1, "up", replies),
        unchecked,
    )
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


def _read_weights(path: Path, candidates: Sequence[str] = WEIGHT_FILES) -> Weights:
    """Read the first of these files: a state dict, or a checkpoint of MONAI that holds it as `model`."""
    files = open_bundle(path)
    name = next((name for name in candidates if name in files.names), None)
    if name is None:
        raise UserError(f"{path}: has no {' or '.join(candidates)}; expected the bundle with its trained weights")
    content: Any
    try:
        if name.endswith(".pt"):
            files.check_weights(name)
            content = torch.load(io.BytesIO(files.names[name].read_bytes()), map_location="cpu", weights_only=True)
        else:
            content = safetensors.torch.load(files.names[name].read_bytes())
    except UserError:
        raise
    except Exception as error:  # PyTorch's own message advises to load the file in a way that runs code in it
        raise UserError(
            f"{path}: {name} cannot be read as weights ({type(error).__name__}); expected tensors by "
            "name, as model.state_dict() returns"
        ) from None
    entries = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries or not all(isinstance(e, Tensor) for e in entries.values()):
        raise UserError(f"{path}: {name} is not a state dict; expected tensors by name, as model.state_dict() returns")
    for key, entry in entries.items():
        if entry.layout != torch.strided or entry.device.type != "cpu" or entry.is_quantized:
            raise UserError(
                f"{path}: {name}: '{str(key)[:60]}' is not a plain tensor of numbers; save the weights "
                "with torch.save(model.state_dict(), FILE)"
            )
    return {str(key): entry.detach() for key, entry in entries.items()}


def _state_of(weights: Weights) -> State:
    """Return the state before the round; parameters are all entries except the buffers of normalisation layers."""
    parameters = frozenset(name for name in weights if not name.endswith(BUFFER_ENDINGS))
    return State(0, weights, parameters=parameters, local_keys=frozenset())


def _start_config(start: Path, allow_unchecked: bool) -> tuple[dict[str, Any], str]:
    """Return `configs/inference.json` of the start, and a notice if its configs do not pass `check_bundle`.

    A bundle is refused if its network is only in a program (`PROGRAMS`), in which averaged weights cannot be stored.
    """
    files = open_bundle(start)
    config = files.json("configs/inference.json") if "configs/inference.json" in files.names else None
    definition = config.get("network_def") if isinstance(config, dict) else None
    target = definition.get("_target_") if isinstance(definition, dict) else None
    if isinstance(target, str) and target.startswith(PROGRAMS):
        raise UserError(
            f"{start}: network_def in configs/inference.json loads a program, which cannot take averaged weights; "
            "expected a network of monai.networks.nets without added layers of a method; train this network with medfed"
        )
    if not isinstance(config, dict) or not isinstance(target, str):
        raise UserError(
            f"{start}: configs/inference.json has no network_def that builds a network; the combined "
            "weights could not be loaded into it"
        )
    try:
        check_bundle(start)
    except UserError as error:
        if not allow_unchecked:
            raise UserError(
                f"{str(error)[:300]}; the new bundle would contain these configs, which may run code at a hospital; if "
                "you have read them, allow this with --allow-unchecked-configs"
            ) from None
        return config, "the configs are copied from the start and were not checked; read them before you run them"
    return config, ""


def _differences(name: str, path: Path, config: Mapping[str, Any]) -> list[str]:
    """Return a notice if a site's bundle has another network or other transforms than the start."""
    files = open_bundle(path)
    if "configs/inference.json" not in files.names:
        return []
    own = files.json("configs/inference.json")
    if not isinstance(own, dict):
        raise UserError(f"{path}: configs/inference.json is not an object of keys and values; copy the bundle again")
    differing = [key for key in SAME_KEYS if own.get(key) != config.get(key)]
    return [
        f"{name}: its configs/inference.json has another {key} than the start; it may have trained on other images"
        for key in differing
    ]


def _check(
    replies: Mapping[str, Message], state: State, largest_change: float | None, method: Method
) -> tuple[dict[str, Message], dict[str, str], list[str]]:
    """Return the replies that pass the checks of a round and that the rule can use, the other sites, and notices."""
    requests = dict.fromkeys(replies, Message(Kind.TRAIN, state.weights, {}, {"round": 1}))
    expected = Expected(Kind.TRAIN, 1, state.weights, state.parameters, largest_change, local_keys=frozenset())
    used, rejected, notices = check_replies(requests, replies, expected, Earlier())
    rejected += find_failing_sites(lambda one: method.aggregate(state, one), used, Kind.TRAIN, 1)
    flag = f"--largest-change {largest_change}"
    reasons = {one.site: f"{one.site}: its bundle {one.reason}" for one in rejected}
    reasons = {site: reason.replace("federation.largest_change", flag) for site, reason in reasons.items()}
    notices = [notice.replace("federation.largest_change", "--largest-change") for notice in notices]
    return {name: reply for name, reply in used.items() if name not in reasons}, reasons, notices


def _write(
    result: Aggregation,
    start: Path,
    weights: Weights,
    digests: Mapping[str, str],
    rule: str,
    rows: list[dict[str, object]],
    unchecked: str,
) -> None:
    """Write the new bundle: the texts and configs of the start, the combined weights and the ledger."""
    files = open_bundle(start)
    with atomic_folder(result.path.resolve()) as folder:
        for name in files.names:
            if name.startswith(COPIED) and not name.startswith(LEDGER):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files.names[name], target)
        (folder / "models").mkdir()
        torch.save(weights, folder / "models" / "model.pt")
        metadata = files.json("configs/metadata.json") if "configs/metadata.json" in files.names else {}
        about = {
            "rule": rule,
            "sites": dict(digests),
            "images": result.images,
            "weights_of_start": _digest_of(start),
            "left_out": result.rejected,
            **({"not_checked": unchecked} if unchecked else {}),
        }
        metadata = _new_metadata(metadata, about, _digest(weights))
        (folder / "configs" / "metadata.json").write_text(json.dumps(metadata, indent=4) + "\n", encoding="utf-8")
        (folder / "docs").mkdir(exist_ok=True)
        _write_ledger(folder / LEDGER, rows)
        old = (folder / README).read_text(encoding="utf-8", errors="replace") if README in files.names else ""
        if old.startswith(TITLE):  # the start was combined as well; only the text of the first bundle is kept
            old = "".join(old.partition("\n# ")[1:]).lstrip("\n")
        (folder / README).write_text(_readme(result, start, rule, unchecked, old), encoding="utf-8")
        if not unchecked:
            check_bundle(folder)


def _new_metadata(metadata: Any, about: dict[str, Any], weights_sha256: str) -> dict[str, Any]:
    """Return metadata with the next version, without scores, and with the sites that took part."""
    content: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
    changelog, provenance = (
        value if isinstance(value := content.get(key), dict) else {} for key in ("changelog", "medfed_provenance")
    )
    *first, last = str(content.get("version", "0.0.0")).split(".")
    is_number = last.isascii() and last.isdecimal() and len(last) < MAX_VERSION_DIGITS
    version = ".".join([*first, str(int(last) + 1)] if is_number else [*first, last, "1"])
    changelog = {version: f"weights combined from {_count(len(about['sites']))}", **changelog}
    provenance = {**provenance, "weights_sha256": weights_sha256, "aggregation": about}
    return {**content, "version": version, "changelog": changelog, "eval_metrics": {}, "medfed_provenance": provenance}


def _count(n: int) -> str:
    """Such as "1 site" or "3 sites"."""
    return f"{n} site{'s' * (n != 1)}"


def _write_ledger(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ledger.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _readme(result: Aggregation, start: Path, rule: str, unchecked: str, old: str) -> str:
    """Return the bundle's text: what was combined, and the text of the start, whose scores no longer hold."""
    lines = [
        TITLE,
        "",
        f"The weights were combined from {_count(len(result.changes))} with the rule `{rule}`; all sites started "
        f"from the bundle `{start.name}`. Nobody has tested them yet: scores below are those of the start.",
        "",
        "| site | training images | change of the weights (L2 norm) |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {result.images.get(name, 'not stated')} | {norm:.4g} |" for name, norm in result.changes.items()
    ]
    lines += ["", *(f"Left out: {reason}." for reason in result.rejected.values())]
    lines += [f"**{unchecked[0].upper()}{unchecked[1:]}.**"] if unchecked else []
    return "\n".join([*lines, "", old])


def _digest(weights: Weights) -> str:
    """SHA-256 of the weights as a safetensors file."""
    return digest(safetensors.torch.save({name: entry.contiguous() for name, entry in weights.items()}))


def _digest_of(path: Path) -> str:
    return _digest(_read_weights(path))
