"""The table that closes a run of classification; `outputs.tables.table.closing_table` prints its lines and notes."""

from __future__ import annotations

from medfed.metrics.classification_summary import ALL
from medfed.outputs.measures import AUROC, ECE

COLUMNS = (("accuracy", "accuracy %"), ("auroc", "AUROC %"), ("balanced_accuracy", "balanced %"), ("ece", "ECE %"))
SPREAD = "[] is the 95 % interval over people; ± is the sd over sites"
NOTES = (f"{AUROC}.", f"{ECE}.", "Balanced accuracy is the mean recall over the classes that a site has.")


def lines(summary: dict) -> list[tuple[str, ...]]:
    """The head, a line a site, seen sites first, the means over sites, and the gap; `summary` of the whole run."""
    found = [("site", "images", "people", *(name for _, name in COLUMNS))]
    for role, shown in (("seen", "{}"), ("validation", "{} (VALIDATION)"), ("unseen", "{} (UNSEEN)")):
        of_role = summary.get(role, {"sites": {}})["sites"]
        found += [_line(shown.format(site), group[ALL]) for site, group in of_role.items()]
    for role, shown in (("seen", "mean seen"), ("unseen", "mean UNSEEN")):
        found += [_line(shown, group) for group in summary[role]["mean"].values()]
    for gap in summary["gap"].values():
        if gap["accuracy"] is not None:
            words = ["-" if gap[metric] is None else f"{100 * gap[metric]:+.2f}" for metric in ("accuracy", "auroc")]
            found.append(("gap: seen - unseen", "", "", *words, "", ""))
    return found


def _line(site: str, group: dict) -> tuple[str, ...]:
    return (site, str(group["n"]), str(group["n_subjects"]), *(_score(group[metric]) for metric, _ in COLUMNS))


def _score(found: dict) -> str:
    if found["mean"] is None:
        return "-"
    spread = ""
    if found.get("low") is not None:
        spread = f" [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"
    elif found.get("sd") is not None:
        spread = f" ± {100 * found['sd']:.2f}"
    return f"{100 * found['mean']:.2f}{spread}"
