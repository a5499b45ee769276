"""What a comparison of methods measures: masks by Dice and distances, classes by accuracy and AUROC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from medfed.metrics import classification_summary
from medfed.metrics.classification import SCORES
from medfed.metrics.summary import paired_significance

HD95 = "HD95 is the larger of the two directed 95th percentiles of the surface distances (MONAI's definition)"
WORST = "A missed organ or a false alarm counts as Dice 0 and the diagonal of the image; absent from both is left out"
AUROC = "AUROC: of two classes that of the second, of more the mean of one against the rest; not defined for one class"
ECE = "ECE is the expected calibration error over 15 equal bins of the top probability (Guo et al. 2017)"
Rows = Sequence[dict]


@dataclass(frozen=True)
class Measures:
    """One kind of task, as `medfed.outputs.tables.comparison` needs to know it.

    shown: (metric, name, unit, factor, whether higher is better), in the order of the blocks.
    value: a metric over all cases of a site; None where unknown.
    paired: the test of a metric between the rows of two methods, all seeds together.
    """

    shown: tuple[tuple[str, str, str, float, bool], ...]
    value: Callable[[Rows, str], float | None]
    paired: Callable[[Rows, Rows, str], dict]
    is_known: Callable[[dict, str], bool]
    is_failure: Callable[[dict], bool]
    is_case: Callable[[dict], bool]
    averaged: str  # what a cell is a mean of
    units: Callable[[Sequence[str]], str]  # what the head says of the units of the blocks
    explained: tuple[str, ...]
    unknown: str  # why a cell may be empty, besides a run that is missing
    tested: str  # over whom a p value is


def of(task: str) -> Measures:
    """Those of "segmentation" or "classification"."""
    return {"segmentation": SEGMENTATION, "classification": CLASSIFICATION}[task]


def _mean_of(rows: Rows, metric: str) -> float | None:
    values = [row[metric] for row in rows if row["status"] != "absent"]
    return None if not values or None in values else fmean(values)


def _paired_masks(rows_a: Rows, rows_b: Rows, metric: str) -> dict:
    return paired_significance(_over_seeds(rows_a, metric), _over_seeds(rows_b, metric), metric)


def _over_seeds(rows: Rows, metric: str) -> list[dict]:
    """Each unseen patient once, the metric averaged over the seeds that know it."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault((row["site"], row["patient"], row["structure"]), []).append(row)
    known = ([row for row in rows if row[metric] is not None] for rows in found.values())
    return [rows[0] | {metric: fmean(row[metric] for row in rows)} for rows in known if rows]


def _paired_classes(rows_a: Rows, rows_b: Rows, metric: str) -> dict:
    if metric != "accuracy":
        return {"p": None, "n": None, "reason": f"{metric} belongs to a site and not to a person, so it has no pairs"}
    return classification_summary.paired_significance(rows_a, rows_b)


SEGMENTATION = Measures(
    shown=(
        ("dice", "Dice", "%", 100, True),
        ("hd95_mm", "HD95", "mm", 1, False),
        ("hd95_px", "HD95", "px", 1, False),
        ("hd_mm", "HD", "mm", 1, False),
        ("hd_px", "HD", "px", 1, False),
    ),
    value=_mean_of,
    paired=_paired_masks,
    is_known=lambda row, metric: row[metric] is not None,
    is_failure=lambda row: row["status"] == "missed",
    is_case=lambda row: row["status"] != "absent",
    averaged="mean over cases",
    units=lambda units: f"; distances in: {' and '.join(dict.fromkeys(u for u in units if u != '%')) or 'none known'}",
    explained=(HD95, WORST),
    unknown="not all of a site's cases have this unit",
    tested="all n unseen patients (each averaged over seeds first)",
)
CLASSIFICATION = Measures(
    shown=(("accuracy", "accuracy", "%", 100, True), ("auroc", "AUROC", "%", 100, True)),
    value=classification_summary.value,
    paired=_paired_classes,
    is_known=lambda row, metric: metric in SCORES,
    is_failure=lambda row: not row["correct"],
    is_case=lambda row: True,
    averaged="score over a site's images",
    units=lambda units: "",
    explained=(AUROC,),
    unknown="the site has images of one class only",
    tested="the share of images told right of each of all n unseen people (over all seeds)",
)
