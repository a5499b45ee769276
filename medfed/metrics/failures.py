"""Shares of patients for whom a segmentation failed, with exact binomial intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from scipy import stats

from medfed.metrics.intervals import LEVEL
from medfed.metrics.mask_metric import ABSENT, FALSE_ALARM, MISSED, OK
from medfed.metrics.summary import present_roles

LOW_DICE = "low_dice"
KINDS = (LOW_DICE, MISSED, FALSE_ALARM)
SHARE_METHOD = "exact binomial, Clopper and Pearson 1934"


@dataclass(frozen=True)
class Share:
    """The share, `count` of `n` patients, for whom something failed, and the ends of its 95 % interval in [0, 1].

    With several images, models or seeds, `count` adds up the fraction of each patient's scores that failed.
    """

    count: float
    n: int
    low: float
    high: float

    @property
    def text(self) -> str:
        """The count out of the number of patients, for example "3/40"."""
        return f"{self.count:g}/{self.n}" if self.count == round(self.count) else f"{self.count:.1f}/{self.n}"

    @property
    def interval_text(self) -> str:
        """The interval in percent, for example "[2, 20] %"."""
        return f"[{100 * self.low:.0f}, {100 * self.high:.0f}] %"


def share_of(failed: Sequence[float]) -> Share | None:
    """Compute the share of failed patients, given one number in [0, 1] each, with its Clopper-Pearson 95 % interval.

    See "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 1934,
    https://doi.org/10.1093/biomet/26.4.404. The coverage is at least 95 %, also for few patients and without any
    failure, if patients are independent and equally likely to fail. `scipy.stats.binomtest` gives the same interval,
    but takes no fractions of several models.
    """
    n, count = len(failed), round(sum(failed), 9)
    if not n:
        return None
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, count, n - count + 1)) if count > 0 else 0.0
    high = float(stats.beta.isf(tail, count + 1, n - count)) if count < n else 1.0
    return Share(float(count), n, low, high)


def failure_shares(rows: Iterable[Mapping], dice_below: float) -> dict[str, Share | None]:
    """Compute the shares of failures of one structure from its rows of `cases.csv`; None without patients.

    "low_dice": the Dice is below the limit, of all patients with the structure in the true or predicted mask (a missed
    structure and a false alarm have the Dice 0); "missed": the predicted mask is empty, of all patients with the
    structure; "false_alarm": the predicted mask is not empty, of all patients without the structure.
    """
    of_patient: dict[str, dict[tuple, list[bool]]] = {kind: {} for kind in KINDS}
    for row in rows:
        patient, status = (row["site"], row["patient"]), row["status"]
        if status != ABSENT and row.get("dice") is not None:
            of_patient[LOW_DICE].setdefault(patient, []).append(row["dice"] < dice_below)
        kind = MISSED if status in (OK, MISSED) else FALSE_ALARM
        of_patient[kind].setdefault(patient, []).append(status == kind)
    return {kind: share_of([fmean(values) for values in patients.values()]) for kind, patients in of_patient.items()}


def summarise_failures(rows: Sequence[Mapping], dice_below: float) -> dict:
    """Summarise the failures of a run from all rows of `cases.csv`.

    Returns "dice_below", "interval_method", and for each role {"sites": {SITE: {STRUCTURE: SHARES}}, "all": {STRUCTURE:
    SHARES}}, where "all" has the patients of all sites of the role. SHARES are those of `failure_shares`.
    """
    summary: dict = {"dice_below": dice_below, "interval_method": SHARE_METHOD}
    for role in present_roles(rows):
        of_role = [row for row in rows if row["role"] == role]
        sites = {
            site: _by_structure([row for row in of_role if row["site"] == site], dice_below)
            for site in sorted({row["site"] for row in of_role})
        }
        summary[role] = {"sites": sites, "all": _by_structure(of_role, dice_below)}
    return summary


def _by_structure(rows: Sequence[Mapping], dice_below: float) -> dict[str, dict]:
    """Return the shares of failures of each structure as JSON values."""
    shares = {
        structure: failure_shares([row for row in rows if row["structure"] == structure], dice_below)
        for structure in sorted({row["structure"] for row in rows})
    }
    return {
        structure: {kind: None if share is None else asdict(share) for kind, share in of_structure.items()}
        for structure, of_structure in shares.items()
    }
