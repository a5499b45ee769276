"""The scores of a run by site, from its summary, and the comparison of methods, as tables of the page."""

from __future__ import annotations

from medfed.metrics.classification_summary import ALL
from medfed.outputs.measures import HD95, WORST
from medfed.outputs.report.blocks import Cell, table_block
from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import ROLES, Comparison, Run
from medfed.outputs.tables.class_table import COLUMNS
from medfed.outputs.tables.class_table import NOTES as CLASS_NOTES
from medfed.outputs.tables.comparison import Table
from medfed.outputs.tables.table import TRANSDUCTIVE, block_title, cells

SHOWN = {"seen": "seen", "validation": "validation", "unseen": "UNSEEN"}
INTERVAL = "[] is the 95 % interval over patients (bootstrap); ± is the standard deviation"
CLASS_INTERVAL = "[] is the 95 % interval over people (bootstrap); ± is the standard deviation over sites"


def scores_of_run(run: Run) -> Markup:
    """A line a site (and structure), the means over sites below, and what the columns mean."""
    if run.task == "classification":
        head = ("site", "role", "images", "people", *(name for _, name in COLUMNS))
        body, foot = _class_lines(run.summary)
        notes, texts = (f"{CLASS_INTERVAL}.", *CLASS_NOTES), (0, 1)
    else:
        head = ("site", "role", "structure", "cases", "Dice %", "HD95", "ASSD", "missed")
        body, foot = _mask_lines(run.summary)
        notes, texts = (f"{INTERVAL}.", f"{HD95}.", f"{WORST}."), (0, 1, 2)
    table = table_block(f"Scores by site: {run.method}, {_rule(run)}", run.data_label, head, body, foot, texts)
    return lines(table, _notes(notes + _kept(run.summary)))


def compared(comparison: Comparison) -> list[Markup]:
    """A table a role, structure and measure: best bold, second underlined, the test against the baseline."""
    label, found = comparison.runs[0].data_label, []
    for role, table in comparison.tables:
        for block in table.blocks:
            head, *body = cells(table, block)
            caption = f"Methods on {'sites left out' if role == 'unseen' else 'validation sites'}: {block_title(block)}"
            rows = [[Cell(text, _sorted_by(text), mark) for text, mark in row] for row in body]
            found.append(table_block(f"{caption}; rule '{table.selection}', {_seeds(table)}", label,
                                     [name for name, _ in head], rows))
        found.append(_notes((*_after_the_first(table), *table.notes)))
    return found


def _after_the_first(table: Table) -> tuple[str, ...]:
    """The head of a table without its line on the kind of data, which each caption has."""
    return ("Best of a column bold, second underlined.", *table.head[1:])


def _seeds(table: Table) -> str:
    return f"seed{'s' if len(table.seeds) > 1 else ''} {', '.join(map(str, table.seeds))}"


def _rule(run: Run) -> str:
    found = run.summary
    chosen = f"round {found.get('selected_round')} of {found.get('rounds')}"
    return f"{chosen} by the rule '{found['selection']}', seed {found['seed']}"


def _sorted_by(text: str) -> float | None:
    """The number that a cell begins with; None for a name or a dash."""
    try:
        return float(text.lstrip("<").split(" ")[0].split("/")[0])
    except ValueError:
        return None


def _notes(notes: tuple[str, ...]) -> Markup:
    return tag("ul", *(tag("li", note) for note in notes), class_="notes")


def _kept(summary: dict) -> tuple[str, ...]:
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    unseen = "those of the source site nearest to it" if "nearest" in by else "their average"
    kept = f"Source sites are scored with the entries that they keep, the unseen site with {unseen}."
    adapted = (f"TRANSDUCTIVE: {TRANSDUCTIVE.get(name, name)}." for name in by)
    return (kept,) * bool(summary.get("sites_kept_entries")) + tuple(adapted)


def _class_lines(summary: dict) -> tuple[list, list]:
    body = [
        _class_line(site, role, group[ALL])
        for role in ROLES for site, group in summary.get(role, {"sites": {}})["sites"].items()
    ]  # fmt: skip
    foot = [_class_line("mean over sites", role, group) for role in ROLES
            for group in summary.get(role, {}).get("mean", {}).values()]  # fmt: skip
    return body, foot


def _class_line(site: str, role: str, group: dict) -> list[object]:
    return [site, SHOWN[role], group["n"], group["n_subjects"], *(_score(group[metric]) for metric, _ in COLUMNS)]


def _mask_lines(summary: dict) -> tuple[list, list]:
    body = [
        _mask_line(site, role, structure, group)
        for role in ROLES
        for site, of_site in summary.get(role, {"sites": {}})["sites"].items()
        for structure, group in of_site.items()
    ]
    foot = [_mask_line("mean over sites", role, structure, group)
            for role in ROLES for structure, group in summary.get(role, {}).get("mean", {}).items()]  # fmt: skip
    return body, foot


def _mask_line(site: str, role: str, structure: str, group: dict) -> list[object]:
    distances = (_distance(group, name) for name in ("hd95", "assd"))
    return [site, SHOWN[role], structure, group["n"], _score(group["dice"]), *distances, group["n_missed"]]


def _score(found: dict, factor: float = 100, unit: str = "") -> Cell:
    """The mean with its interval, or its spread, times a factor."""
    if found["mean"] is None:
        return Cell("-")
    spread = ""
    if found.get("low") is not None:
        spread = f" [{factor * found['low']:.1f}, {factor * found['high']:.1f}]"
    elif found.get("sd") is not None:
        spread = f" ± {factor * found['sd']:.2f}"
    return Cell(f"{factor * found['mean']:.2f}{unit}{spread}", found["mean"])


def _distance(group: dict, name: str) -> Cell:
    """In the unit that all cases (of a mean: all sites) with a Dice have; else a dash."""
    count = "n_sites" if "n_sites" in group["dice"] else "n"
    for unit in ("mm", "px"):
        found = group[f"{name}_{unit}"]
        if found["mean"] is not None and found[count] == group["dice"][count]:
            return _score(found, 1, f" {unit}")
    return Cell("-")
