"""Average bundles that hospitals trained without medfed, for example with `python -m monai.bundle run`.

All hospitals start from the same bundle, train its weights, and send their bundle folders back. The coordinator checks
each hospital's weights as `medfed.federation.update_checks` checks the updates of a round, averages those that pass,
and writes them as a new bundle. The bundles are read as data; no code in them runs.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from medfed.core.errors import UserError, argument
from medfed.federation import ledger
from medfed.federation.message import Message, State, digest
from medfed.federation.method import Method
from medfed.federation.reply_checks import Expected
from medfed.federation.settings import Federation
from medfed.federation.update_checks import Rejection, find_failing_sites, validate_replies
from medfed.functional.aggregation import change_norm
from medfed.functional.weights import first_non_finite
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.fedavg import FedAvg
from medfed.methods.norm_clipping import NormClipping
from medfed.methods.trimmed_mean import TrimmedMean
from medfed.networks.vgg import read_state_dict
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.files import BundleFiles, open_bundle
from medfed.outputs.bundle.write import atomic_folder
from medfed.tasks.bundle_training import TRAINED

RULES: Mapping[str, type[Method]] = {
    "fedavg": FedAvg, "coordinate_median": CoordinateMedian, "trimmed_mean": TrimmedMean, "norm_clipping": NormClipping,
}  # fmt: skip
WEIGHT_FILES = ("models/model.pt", "models/model.safetensors")
TRAINED_FILE = f"models/{TRAINED}"  # what `configs/train.json` writes; `model.pt` is then the start
BUFFER_ENDINGS = ("running_mean", "running_var", "num_batches_tracked")  # of normalisation layers, not trained
SAME_KEYS = ("network_def", "preprocessing", "postprocessing")  # of inference.json, that no hospital should change
COPIED = ("LICENSE", "configs/", "docs/")
LEDGER = "docs/ledger.csv"
README = "docs/README.md"

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Aggregation:
    """The result of `aggregate_bundles`.

    Attributes:
        path: the folder of the new bundle.
        changes: by name of a site whose weights were used, the L2 norm of its change of the parameters.
        images: by name of the site, the number of training images with which it counts; empty if all sites count alike.
        rejected: the sites that were left out, and why.
        notices: sentences about bundles that are unusual but were used.
    """

    path: Path
    changes: dict[str, float]
    images: dict[str, int]
    rejected: list[Rejection]
    notices: list[str] = field(default_factory=list)


def aggregate_bundles(
    sites: Sequence[Path], start: Path, out: Path, *, images: Sequence[int] | None = None, rule: str = "fedavg",
    on_bad_update: Literal["stop", "drop"] = "stop", largest_change: float | None = Federation.largest_change,
) -> Aggregation:  # fmt: skip
    """Check the weights of several bundles, combine them, and write the result as a new bundle.

    The configs, the license and the texts of the new bundle are those of `start`. Its metadata say which sites took
    part, and it has no scores, because nobody has tested it yet. `docs/ledger.csv` lists every tensor that was read.

    Args:
        sites: folders (or zip files) of the bundles that the sites trained, one per site. The name of a folder is the
            name of the site.
        start: the bundle from which all sites started. The changes of the weights are measured from it.
        out: folder to create; it must not exist.
        images: number of training images of each site, in the order of `sites`, at least 1. None: all sites count
            alike.
        rule: how the weights are combined, a key of `RULES`: "fedavg" is the mean, weighted by the numbers of images.
        on_bad_update: what happens if a site's weights fail a check: "stop" raises an error, "drop" leaves the site
            out.
        largest_change: as `federation.largest_change`; None allows any change.

    Returns:
        The new bundle's folder, and what was used and left out.

    Raises:
        UserError: if a bundle is missing, damaged or of another network, if two sites have the same name, if no site or
            only rejected sites are left, if a check fails and `on_bad_update` is "stop", or if `out` exists.
    """
    names = _site_names(sites, start)
    if out.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with {argument('out')}")
    if images is not None and (len(images) != len(names) or min(images) < 1):
        raise UserError(f"{argument('images', ' '.join(map(str, images)))}: expected {len(names)} whole numbers above "
                        f"0, one for each of {', '.join(names)}")  # fmt: skip
    counts = list(images or [1] * len(names))
    with open_bundle(start) as files:
        config = files.json("configs/inference.json") if "configs/inference.json" in files.names else {}
        _check_network_def(config, start)
        state = _state_of(_read_weights(start))
    notices = [] if (problem := _start_problem(start)) is None else [problem]
    replies = {}
    for name, path, count in zip(names, sites, counts, strict=True):
        facts = {"round": 1, "examples": count, "steps": count, "loss": 0.0}  # a bundle does not state steps and loss
        replies[name] = Message("train", _read_weights(path, (TRAINED_FILE, *WEIGHT_FILES)), {}, facts)
        notices += _differences(name, path, config)
    method = RULES[rule]()
    used, rejected = _check(replies, state, largest_change, method)
    if rejected and (on_bad_update == "stop" or not used):
        raise UserError(f"{rejected[0]}; nothing was written; leave this site out with "
                        f"{argument('on_bad_update', 'drop')}, or ask it for another bundle")  # fmt: skip
    weights = method.aggregate(state, used)
    if entry := first_non_finite(weights):
        raise UserError(f"the combined weights contain NaN or infinite values, first in '{entry}'; nothing was written")
    changes = {name: change_norm(state.weights, reply.weights) for name, reply in used.items()}
    notices += [f"{name}: its weights are those of {start}; it has not trained" for name, norm in changes.items()
                if not norm]  # fmt: skip
    result = Aggregation(out, changes, dict(zip(names, counts, strict=True)) if images else {}, rejected, notices)
    _write(result, start, weights, {name: _digest(reply.weights) for name, reply in used.items()}, rule,
           ledger.message_rows(1, "up", replies))  # fmt: skip
    return result


def _site_names(sites: Sequence[Path], start: Path) -> list[str]:
    """Return the name of each site, the name of its folder or zip file; UserError if two are equal."""
    names = [path.resolve().stem if path.suffix == ".zip" else path.resolve().name for path in sites]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UserError(f"{sites[index]}: a second bundle of the site '{name}'; the folder's name is the site's "
                            "name, so rename one of them")  # fmt: skip
        if sites[index].resolve() == start.resolve():
            raise UserError(f"{sites[index]}: is the bundle that all sites started from; name the trained bundles")
    return names


def _read_weights(path: Path, candidates: Sequence[str] = WEIGHT_FILES) -> Weights:
    """Read the first of these files: a state dict, or a checkpoint of MONAI that holds it as `model`."""
    with open_bundle(path) as files:
        name = next((name for name in candidates if name in files.names), None)
        if name is None:
            raise UserError(f"{path}: has no {' or '.join(candidates)}; expected the bundle with its trained weights")
        if not name.endswith(".pt"):
            return read_state_dict(path / name) if path.is_dir() else safetensors.torch.load(_bytes(files, name))
        files.check_weights(name)
        try:
            content: Any = torch.load(io.BytesIO(_bytes(files, name)), map_location="cpu", weights_only=True)
        except Exception as error:  # PyTorch's own message advises to load the file in a way that runs code in it
            raise UserError(f"{path}: {name} cannot be read as weights ({type(error).__name__}); expected tensors by "
                            "name, as model.state_dict() returns") from None  # fmt: skip
    entries = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not entries or not all(isinstance(e, Tensor) for e in entries.values()):
        raise UserError(f"{path}: {name} is not a state dict; expected tensors by name, as model.state_dict() returns")
    return {str(key): entry.detach() for key, entry in entries.items()}


def _bytes(files: BundleFiles, name: str) -> bytes:
    with files.names[name]() as file:
        return file.read()


def _state_of(weights: Weights) -> State:
    """Return the state before the round; parameters are all entries except the buffers of normalisation layers."""
    parameters = frozenset(name for name in weights if not name.endswith(BUFFER_ENDINGS))
    return State(0, weights, parameters=parameters, local_keys=frozenset())


def _check_network_def(config: Any, start: Path) -> None:
    """Refuse a bundle whose network is only in `models/model.ts`, in which averaged weights cannot be stored."""
    if not isinstance(config, dict) or "_target_" not in (config.get("network_def") or {}) or (
        config["network_def"]["_target_"] == "torch.jit.load"
    ):
        raise UserError(f"{start}: configs/inference.json has no network_def that builds a network; the combined "
                        "weights could not be loaded into it")  # fmt: skip


def _start_problem(start: Path) -> str | None:
    """Return a notice if the bundle is not one of medfed's; its configs are then copied as they are."""
    try:
        check_bundle(start)
    except UserError as error:
        return f"{error}. The configs of {start} are copied unchanged and were not run; read them before you run them"
    return None


def _differences(name: str, path: Path, config: Mapping[str, Any]) -> list[str]:
    """Return a notice if a site's bundle has another network or other transforms than the start."""
    with open_bundle(path) as files:
        if "configs/inference.json" not in files.names:
            return []
        own = files.json("configs/inference.json")
    differing = [key for key in SAME_KEYS if isinstance(own, dict) and own.get(key) != config.get(key)]
    return [f"{name}: its configs/inference.json has another {key} than the start; it may have trained on other images"
            for key in differing]  # fmt: skip


def _check(
    replies: Mapping[str, Message], state: State, largest_change: float | None, method: Method
) -> tuple[dict[str, Message], list[Rejection]]:
    """Return the replies that pass the checks of a round and that the rule can use, and the rejected sites."""
    requests = dict.fromkeys(replies, Message("train", state.weights, {}, {"round": 1}))
    expected = Expected("train", 1, state.weights, {}, state.parameters, largest_change, Federation.largest_count,
                        local_keys=frozenset())  # fmt: skip
    used, rejected = validate_replies(requests, replies, expected)
    rejected += find_failing_sites(lambda one: method.aggregate(state, one), used, "train", 1)
    failed = {rejection.site for rejection in rejected}
    return {name: reply for name, reply in used.items() if name not in failed}, rejected


def _write(
    result: Aggregation, start: Path, weights: Weights, digests: Mapping[str, str], rule: str,
    rows: list[dict[str, object]],
) -> None:  # fmt: skip
    """Write the new bundle: the texts and configs of the start, the combined weights and the ledger."""
    with open_bundle(start) as files, atomic_folder(result.path.resolve()) as folder:
        for name in files.names:
            if name.startswith(COPIED):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with files.names[name]() as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        (folder / "models").mkdir()
        torch.save(weights, folder / "models" / "model.pt")
        metadata = files.json("configs/metadata.json") if "configs/metadata.json" in files.names else {}
        about = {"rule": rule, "sites": dict(digests), "images": result.images, "weights_of_start": _digest_of(start),
                 "left_out": {rejection.site: str(rejection) for rejection in result.rejected}}  # fmt: skip
        metadata = _new_metadata(metadata, about, _digest(weights))
        (folder / "configs" / "metadata.json").write_text(json.dumps(metadata, indent=4) + "\n", encoding="utf-8")
        (folder / "docs").mkdir(exist_ok=True)
        _write_ledger(folder / LEDGER, rows)
        old = (folder / README).read_text(encoding="utf-8") if README in files.names else ""
        (folder / README).write_text(_readme(result, start, rule, old), encoding="utf-8")
        if not any(str(start) in notice for notice in result.notices):
            check_bundle(folder)


def _new_metadata(metadata: dict[str, Any], about: dict[str, Any], weights_sha256: str) -> dict[str, Any]:
    """Return metadata with the next version, without scores, and with the sites that took part."""
    *first, last = str(metadata.get("version", "0.0.0")).split(".")
    version = ".".join([*first, str(int(last) + 1)]) if last.isdigit() else f"{metadata['version']}.1"
    changelog = {version: f"weights combined from {len(about['sites'])} sites", **metadata.get("changelog", {})}
    provenance = {**metadata.get("medfed_provenance", {}), "weights_sha256": weights_sha256, "aggregation": about}
    return {**metadata, "version": version, "changelog": changelog, "eval_metrics": {}, "medfed_provenance": provenance}


def _write_ledger(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ledger.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _readme(result: Aggregation, start: Path, rule: str, old: str) -> str:
    """Return the bundle's text: what was combined, and the text of the start, whose scores no longer hold."""
    lines = ["# Combined weights", "",
             f"The weights were combined from {len(result.changes)} sites with the rule `{rule}`; all sites started "
             f"from the bundle `{start.name}`. Nobody has tested them yet: scores below are those of the start.", "",
             "| site | training images | change of the weights (L2 norm) |", "|---|---|---|"]  # fmt: skip
    lines += [f"| {name} | {result.images.get(name, 'not stated')} | {norm:.4g} |"
              for name, norm in result.changes.items()]  # fmt: skip
    lines += ["", *(f"Left out: {rejection}." for rejection in result.rejected)]
    return "\n".join([*lines, "", old])


def _digest(weights: Weights) -> str:
    return digest(safetensors.torch.save({name: entry.contiguous() for name, entry in weights.items()}))


def _digest_of(path: Path) -> str:
    return _digest(_read_weights(path))
