"""A bundle's `docs/README.md`: what the model is, how well it did at each site, and what it is not for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from medfed.outputs.bundle import class_card
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation

ROLES = {"unseen": "took no part", "seen": "took part"}
ORIGIN = {
    "phantom": "trained and tested on synthetic phantom data, not for clinical use",
    "real": "trained on real images, not for clinical use",
}
UNKNOWN = "not stated"
VOLUMES = "NIfTI files whose header tells the orientation truly"
KEPT = "Sites that took part are scored with the entries that each keeps; the bundle has their average."
TRANSDUCTIVE = {
    "tent": "These scores are transductive: the network adapted to the test images of each site while predicting "
    "(Tent). The bundle does not adapt, so it may score otherwise.",
    "batch_stats": "Scores of sites that took no part are transductive: BatchNorm used the statistics of each batch of "
    "their test images. The bundle has the average of the sites' statistics, so it may score otherwise.",
    "nearest": "Scores of sites that took no part are transductive in a weak sense: they got the BatchNorm of the "
    "source site whose statistics are nearest to those of their unlabelled test images. The bundle has the average, so "
    "it may score otherwise.",
}


def model_card(
    template: Path,
    task: Segmentation | Classification,
    module: nn.Module,
    title: str,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any],
    versions: Mapping[str, str],
    input_is_2d: bool,
    has_script: bool,
) -> str:
    """The template's text with its {placeholders} filled.

    Args:
        module: the trained network.
        provenance, summary: as `medfed.outputs.bundle.write.write_bundle` takes them. Of the summary, `transductive`,
            `transductive_by`, `sites_kept_entries`, `method_facts` and `vertical_ratio` are told where they are there.
        versions: what to install, by package.
        has_script: whether there is a `models/model.ts`.
    """
    text = (template / "docs" / "README.md").read_text()
    sites, facts = provenance.get("sites") or [], summary.get("method_facts") or {}
    values = {
        "title": title,
        "origin": ORIGIN.get(provenance.get("data"), "the origin of its images is not stated, not for clinical use"),
        "dataset": provenance.get("dataset") or UNKNOWN,
        "sites": ", ".join(sites) or UNKNOWN,
        "unseen_site": provenance.get("unseen_site") or "none",
        "method": " - ".join(filter(None, (provenance.get("method", UNKNOWN), provenance.get("method_about")))),
        "rounds": provenance.get("rounds", UNKNOWN),
        "selected_round": provenance.get("selected_round", UNKNOWN),
        "selection": provenance.get("selection", UNKNOWN),
        "seed": provenance.get("seed", UNKNOWN),
        "notes": notes(summary),
        "facts": "".join(f"\n- {name.replace('_', ' ').capitalize()}: {_fact(value)}" for name, value in facts.items()),
        "image_size": task.image_size,
        "script": "" if has_script else "There is no `models/model.ts`: this network could not be scripted.\n\n",
        "requirements": " ".join(f"{name}=={number}" for name, number in versions.items()),
    }
    if isinstance(task, Classification):
        return text.format(**values, **class_card.values(task, summary, module))
    return text.format(**values, **_values(task, summary, input_is_2d))


def notes(summary: Mapping[str, Any]) -> str:
    """What a reader of the scores must know beside them, a paragraph each, or nothing."""
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    found = [TRANSDUCTIVE[name] for name in by] + [KEPT] * bool(summary.get("sites_kept_entries"))
    if start := summary.get("start_weights"):
        found.append(f"Training started from the weights in {start['file']} (SHA-256 {start['sha256']}).")
    if name := summary.get("validation_site"):
        chose = "the round was chosen on it" if summary.get("selection") == "validation_site" else "it was only scored"
        found.append(f"{name} did not train; {chose}.")
    if clients := summary.get("clients"):
        found.append(f"The sites' people were handed out to {clients['n']} clients ({clients['partition']}), "
                     f"{clients['per_round']} of them a round.")
    if ratio := summary.get("vertical_ratio"):
        inner, outer = ratio["of"]
        errors = [(words, ratio[role]["mean_error"]) for role, words in ROLES.items() if role in ratio]
        told = ", ".join(f"{error:.3f} (sites that {words})" for words, error in errors if error is not None)
        found += [f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {told}."] * bool(told)
    return "".join(f"\n\n{note}" for note in found)


def scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """Means over sites by role, structure and metric, for `eval_metrics`; what is unknown is left out."""
    ratio = summary.get("vertical_ratio") or {}
    found = {}
    for role in ROLES:
        if (error := ratio.get(role, {}).get("mean_error")) is not None:
            found[f"{role}_vertical_{'_to_'.join(ratio['of'])}_error"] = round(error, 6)
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


def _values(task: Segmentation, summary: Mapping[str, Any], input_is_2d: bool) -> dict[str, object]:
    """For the {placeholders} that only a model of masks has."""
    each = "channel" if input_is_2d else "slice"
    return {
        "structures": ", ".join(task.structures),
        "scores": scores_table(summary),
        "intensity": _intensity(task),
        "standardised": f"; every {each} to zero mean and unit variance" if task.standardised else "",
        "threshold": f"{task.evaluation.threshold:g}",
        "largest": "; only the largest connected piece of each structure" if task.evaluation.largest_component else "",
        "masks": _masks(task, input_is_2d),
        "kind": class_card.kind(task.channels) if input_is_2d else VOLUMES,
    }


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _intensity(task: Segmentation) -> str:
    if task.intensity_range is None:
        return "percentiles 0.5 and 99.5 of the volume become 0 and 1"
    return "stored intensities {:g} and {:g} become 0 and 1".format(*task.intensity_range)


def _masks(task: Segmentation, input_is_2d: bool) -> str:
    ending, values = (".png", "0 and 255") if input_is_2d else (".nii.gz", "0 and 1")
    names = ", ".join(f"`NAME_{structure}{ending}`" for structure in task.structures)
    return f"{names}, with the values {values}"
