"""Printing results: the leave-one-site-out table (Markdown, text, CSV, JSON), and the one that closes a single run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.outputs.measures import CLASSIFICATION, HD95, WORST
from medfed.outputs.tables import class_table
from medfed.outputs.tables.comparison import PHANTOM, Block, Cell, Table, build_table, kind_of_data

__all__ = ["build_table", "closing_table", "to_csv", "to_json", "to_json_dict", "to_markdown", "to_text"]

TRANSDUCTIVE = {
    "tent": "the network adapted to each site's test images (Tent), without their labels",
    "batch_stats": "at sites that took no part BatchNorm used the statistics of each batch of test images",
    "nearest": "in a weak sense, sites that took no part got the BatchNorm nearest to their unlabelled test images",
}
Marked = tuple[str, str]  # a cell's text; "best", "second" or ""
OF_CLASSES = {shown[0] for shown in CLASSIFICATION.shown}


def to_markdown(table: Table) -> str:
    """Best of a column bold, second underlined."""
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    parts = ["  \n".join(f"**{line}**" if line == PHANTOM else line for line in table.head)]
    for block in table.blocks:
        head, *lines = cells(table, block)
        written = [[styles[mark].format(text.replace("|", "\\|")) for text, mark in line] for line in (head, *lines)]
        written.insert(1, ["---", *["---:"] * (len(head) - 1)])
        parts.append(f"### {block_title(block)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in written))
    parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def to_text(table: Table, isatty: bool = False) -> str:
    """Aligned for the terminal; with bold and underline if that is what it is written to."""
    parts = ["\n".join(table.head)]
    parts += [f"{block_title(block)}\n{aligned(cells(table, block), isatty)}" for block in table.blocks]
    parts.append("\n".join(f"note: {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts))


def to_csv(table: Table, role: str = "unseen") -> str:
    """One value a line, each with what it is; unknown is empty. `role` as `build_table` had it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = f"data selection structure metric unit method {role}_site mean sd n_seeds p n_pairs n_missed n_cases"
    writer.writerow(columns.split())
    for block in table.blocks:
        for line in block.lines:
            for site, cell in zip((*table.sites, "average"), (*line.cells, line.average)):
                last = (line.p, line.n, line.n_missed, line.n_cases) if site == "average" else (None,) * 4
                found = (cell.mean, cell.sd, cell.n_seeds) if cell else (None,) * 3
                facts = (table.data, table.selection, block.structure, block.metric, block.unit, line.method, site)
                values = (*facts, *found, *last)
                writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def to_json_dict(table: Table) -> dict:
    """The table as plain dicts and lists, None where unknown; Dice in %."""
    return json.loads(json.dumps(asdict(table), allow_nan=False))


def to_json(table: Table) -> str:
    """`to_json_dict` as text."""
    return json.dumps(to_json_dict(table), indent=2, ensure_ascii=False) + "\n"


def closing_table(summary: dict) -> str:
    """What a run prints at its end: a line a site and structure, seen sites first, their means, and the gap.

    Args:
        summary: of `medfed.metrics.summary.summarise`, or of `classification_summary` (a line a site, its images,
            people and scores), with `data` ("phantom" or "real") and `selection` added; `method`, `selected_round` and
            `rounds` are told where they are there.
    """
    if summary.get("task") == "classification":
        lines = [[(word, "") for word in line] for line in class_table.lines(summary)]
        head, notes = _closing_head(summary, class_table.SPREAD), [*class_table.NOTES, *_kept_entries(summary)]
        return "\n".join([*head, "", aligned(lines, False), "", *notes])
    head = ("site", "structure", "cases", "Dice %", "HD95", "ASSD", "missed")
    lines: list[list[Marked]] = [[(name, "") for name in head]]
    for role, shown in (("seen", "{}"), ("validation", "{} (VALIDATION)"), ("unseen", "{} (UNSEEN)")):
        for site, of_site in summary.get(role, {"sites": {}})["sites"].items():
            lines += [_closing_line(shown.format(site), name, group) for name, group in of_site.items()]
    for role, shown in (("seen", "seen"), ("unseen", "UNSEEN")):
        lines += [_closing_line(f"mean {shown}", name, group) for name, group in summary[role]["mean"].items()]
    for name, gap in summary["gap"].items():
        if gap["dice"] is not None:
            distance = next((f"{gap[f'hd95_{u}']:+.2f} {u}" for u in ("mm", "px") if gap[f"hd95_{u}"] is not None), "-")
            words = ("gap: seen - unseen", name, "", f"{100 * gap['dice']:+.2f}", distance, "", "")
            lines.append([(word, "") for word in words])
    head = _closing_head(summary, "± is the sd over cases")
    return "\n".join([*head, "", aligned(lines, False, n_left=2), "", *_closing_notes(summary)])


def _closing_head(summary: dict, spread: str) -> list[str]:
    method = f"{summary['method']}; " if "method" in summary else ""
    which = f" {summary['selected_round']} of {summary['rounds']}" if "selected_round" in summary else ""
    chosen = f"{method}round{which} by the rule '{summary['selection']}'; {spread}"
    return [kind_of_data(summary["data"]), chosen, *_clients(summary), *_privacy(summary)]


def _privacy(summary: dict) -> list[str]:
    """Such as: noise on what left the sites: epsilon 12.3 for delta 1e-05, of all that a site holds."""
    if not (found := summary.get("privacy")):
        return []
    worth = "no bound" if found["epsilon"] == "none" else f"epsilon {found['epsilon']:.3g} for delta {found['delta']:g}"
    return [f"noise on what left the sites: {worth}, of all that a site holds"]


def _clients(summary: dict) -> list[str]:
    """Such as: 30 clients of 3 sites, 10 a round, partition: dirichlet 0.5."""
    if not (found := summary.get("clients")):
        return []
    n_sites = len(summary["source_sites"])
    of = f"{found['n']} clients of {n_sites} site{'s' if n_sites > 1 else ''}"
    return [f"{of}, {found['per_round']} a round, partition: {found['partition']}"]


def _closing_line(site: str, structure: str, group: dict) -> list[Marked]:
    dice = _with_spread(group["dice"], 100)
    distances = [_known_distance(group, name) for name in ("hd95", "assd")]
    words = (site, structure, str(group["n"]), dice, *distances, str(group["n_missed"]))
    return [(word, "") for word in words]


def _with_spread(found: dict, factor: float = 1) -> str:
    if found["mean"] is None:
        return "-"
    spread = f" ± {factor * found['sd']:.2f}" if found.get("sd") is not None else ""
    return f"{factor * found['mean']:.2f}{spread}"


def _known_distance(group: dict, name: str) -> str:
    """In the unit that all cases (of a mean: all sites) with a Dice have; else a dash."""
    count = "n_sites" if "n_sites" in group["dice"] else "n"
    for unit in ("mm", "px"):
        found = group[f"{name}_{unit}"]
        if found["mean"] is not None and found[count] == group["dice"][count]:
            return f"{_with_spread(found)} {unit}"
    return "-"


def _closing_notes(summary: dict) -> list[str]:
    total = {
        key: sum(group[key] for role in ("seen", "unseen") for group in summary[role]["mean"].values())
        for key in ("n_false_alarm", "n_absent")
    }
    notes = [f"{HD95}.", f"{WORST}."]
    if total["n_false_alarm"]:
        notes.append(f"False alarms (found where the reference has nothing): {total['n_false_alarm']}.")
    if total["n_absent"]:
        notes.append(f"Cases without the structure in reference and prediction, in no mean: {total['n_absent']}.")
    if ratio := summary.get("vertical_ratio"):
        inner, outer = ratio["of"]
        errors = [(word, ratio[word]["mean_error"]) for word in ("seen", "unseen")]
        told = ", ".join(f"{word} {error:.3f}" for word, error in errors if error is not None)
        notes.append(f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {told} (ratios.csv).")
    return [*notes, *_kept_entries(summary)]


def _kept_entries(summary: dict) -> list[str]:
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    unseen = "those of the source site nearest to it" if "nearest" in by else "their average"
    kept = f"Source sites are scored with the entries that they keep, the unseen site with {unseen}."
    return [kept] * bool(summary.get("sites_kept_entries")) + [f"TRANSDUCTIVE: {TRANSDUCTIVE[name]}." for name in by]


def block_title(block: Block) -> str:
    better = "higher" if block.higher_is_better else "lower"
    name = block.name if block.metric in OF_CLASSES else f"{block.structure}: {block.name}"
    return f"{name} ({block.unit}), {better} is better"


def cells(table: Table, block: Block) -> list[list[Marked]]:
    """Head and lines as texts with marks."""
    failed = "wrong" if block.metric in OF_CLASSES else "missed"
    head = ["method", *table.sites, "average", f"p against {table.baseline} (n)", failed]
    tested = any(line.n is not None for line in block.lines)
    columns = list(zip(*[(*line.cells, line.average) for line in block.lines]))
    marks = zip(*[_marked(column, block.higher_is_better) for column in columns])
    lines = []
    for line, marked in zip(block.lines, marks):
        test = "" if line.n is None else f"{_p(line.p)} ({line.n})"
        lines.append([(line.method, ""), *marked, (test, ""), (f"{line.n_missed}/{line.n_cases}", "")])
    table_of = [[(name, "") for name in head], *lines]
    return table_of if tested else [[*line[:-2], line[-1]] for line in table_of]


def _marked(column: Sequence[Cell | None], higher: bool) -> list[Marked]:
    """Best and second by the value as printed, so that equal print shares a mark; nothing to mark for one method."""
    printed = [None if cell is None else round(cell.mean, 2) for cell in column]
    ranked = sorted({value for value in printed if value is not None}, reverse=higher)
    marks = dict(zip(ranked, ("best", "second"))) if len(column) - printed.count(None) > 1 else {}
    return [(_printed(cell), marks.get(value, "")) for cell, value in zip(column, printed)]


def _printed(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.mean:.2f}" + (f" ± {cell.sd:.2f}" if cell.sd is not None else "")


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def aligned(lines: Sequence[Sequence[Marked]], ansi: bool, n_left: int = 1) -> str:
    """Columns padded to their widest text; the first `n_left` to the left, numbers to the right."""
    widths = [max(len(text) for text, _ in column) for column in zip(*lines)]
    codes = {"best": "\033[1m{}\033[0m", "second": "\033[4m{}\033[0m"} if ansi else {}
    written = []
    for line in lines:
        padded = []
        for index, ((text, mark), width) in enumerate(zip(line, widths)):
            pad = " " * (width - len(text))
            styled = codes.get(mark, "{}").format(text)
            padded.append(styled + pad if index < n_left else pad + styled)
        written.append("  ".join(padded).rstrip())
    return "\n".join(["  " + text for text in written])
