"""A bundle's `docs/README.md`: what the model is, how well it did at each site, and what it is not for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medfed.tasks.segmentation import Segmentation

ROLES = {"unseen": "took no part", "seen": "took part"}
ORIGIN = {
    "phantom": "trained and tested on synthetic phantom data, not for clinical use",
    "real": "trained on real images, not for clinical use",
}
UNKNOWN = "not stated"
PICTURES = "8-bit pictures without alpha, grey or colour as in training; a note on orientation (EXIF) is not followed"
VOLUMES = "NIfTI files whose header tells the orientation truly"


def model_card(
    template: Path,
    task: Segmentation,
    title: str,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any],
    versions: Mapping[str, str],
    input_is_2d: bool,
    has_script: bool,
) -> str:
    """The template's text with its {placeholders} filled.

    Args:
        provenance, summary: as `medfed.outputs.bundle.write_bundle` takes them.
        versions: what to install, by package.
        has_script: whether there is a `models/model.ts`.
    """
    text = (template / "docs" / "README.md").read_text()
    sites = provenance.get("sites") or []
    values = {
        "title": title,
        "origin": ORIGIN.get(provenance.get("data"), "the origin of its images is not stated, not for clinical use"),
        "structures": ", ".join(task.structures),
        "dataset": provenance.get("dataset", UNKNOWN),
        "sites": ", ".join(sites) or UNKNOWN,
        "unseen_site": provenance.get("unseen_site") or "none",
        "method": " - ".join(filter(None, (provenance.get("method", UNKNOWN), provenance.get("method_about")))),
        "rounds": provenance.get("rounds", UNKNOWN),
        "selected_round": provenance.get("selected_round", UNKNOWN),
        "selection": provenance.get("selection", UNKNOWN),
        "seed": provenance.get("seed", UNKNOWN),
        "scores": scores_table(summary),
        "intensity": _intensity(task),
        "image_size": task.image_size,
        "threshold": f"{task.evaluation.threshold:g}",
        "largest": "; only the largest connected piece of each structure" if task.evaluation.largest_component else "",
        "files": "`.png` pictures (or others: `--image_pattern '*.jpg'`)" if input_is_2d else "`.nii.gz` volumes",
        "masks": _masks(task, input_is_2d),
        "kind": PICTURES if input_is_2d else VOLUMES,
        "script": "" if has_script else "There is no `models/model.ts`: this network could not be scripted.\n\n",
        "requirements": " ".join(f"{name}=={number}" for name, number in versions.items()),
    }
    return text.format(**values)


def scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """Means over sites by role, structure and metric, for `eval_metrics`; what is unknown is left out."""
    found = {}
    for role in ROLES:
        for structure, group in summary.get(role, {}).get("mean", {}).items():
            for metric in ("dice", "hd95_mm"):
                if (mean := group.get(metric, {}).get("mean")) is not None:
                    found[f"{role}_{structure}_{metric}"] = round(mean, 6)
    return found


def scores_table(summary: Mapping[str, Any]) -> str:
    """One row a site and structure, sites that took no part first."""
    rows = list(_rows(summary))
    if not rows:
        return "No scores were kept with this run."
    header = "| site | in the training | structure | patients | missed | Dice | HD95 |"
    return "\n".join([header, "|---|---|---|---|---|---|---|", *rows])


def _rows(summary: Mapping[str, Any]) -> Iterator[str]:
    for role, words in ROLES.items():
        for site, structures in summary.get(role, {}).get("sites", {}).items():
            for structure, group in structures.items():
                counts = f"{group['n']} | {group['n_missed']}"
                name = site.replace("|", "\\|")
                yield f"| {name} | {words} | {structure} | {counts} | {_dice(group)} | {_distance(group)} |"


def _dice(group: Mapping[str, Any]) -> str:
    found = group["dice"]
    if found["mean"] is None:
        return "unknown"
    interval = "" if found["low"] is None else f" ({found['low']:.3f} to {found['high']:.3f})"
    return f"{found['mean']:.3f}{interval}"


def _distance(group: Mapping[str, Any]) -> str:
    for metric, unit in (("hd95_mm", "mm"), ("hd95_px", "pixels")):
        if group[metric]["mean"] is not None:
            return f"{group[metric]['mean']:.2f} {unit}"
    return "unknown"


def _intensity(task: Segmentation) -> str:
    if task.intensity_range is None:
        return "percentiles 0.5 and 99.5 of the volume become 0 and 1"
    return "stored intensities {:g} and {:g} become 0 and 1".format(*task.intensity_range)


def _masks(task: Segmentation, input_is_2d: bool) -> str:
    ending, values = (".png", "0 and 255") if input_is_2d else (".nii.gz", "0 and 1")
    names = ", ".join(f"`NAME_{structure}{ending}`" for structure in task.structures)
    return f"{names}, with the values {values}"
