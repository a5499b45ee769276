"""Format the leave-one-site-out table as Markdown, text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.metrics.failures import Share
from medfed.outputs.tables.comparison_data import CONCLUSIONS, Cell, Difference, Line, Table
from medfed.outputs.tables.run_notes import PHANTOM
from medfed.outputs.tables.table_rows import MarkedText, titled_tables


def to_markdown(table: Table) -> str:
    """The best method of a column is bold, the second best underlined; intervals stand behind the scores."""
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    parts = ["  \n".join(f"**{line}**" if line == PHANTOM else line for line in table.head)]
    if table.conclusions:
        parts.append(f"### {CONCLUSIONS}\n\n" + "\n".join(f"- {sentence}" for sentence in table.conclusions))
    for title, (head, *lines) in titled_tables(table):
        written = [
            [styles[cell.mark].format(cell.text.replace("|", "\\|")) + f" {cell.more}".rstrip() for cell in line]
            for line in (head, *lines)
        ]
        written.insert(1, ["---", *["---:"] * (len(head) - 1)])
        parts.append(f"### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in written))
    parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def to_text(table: Table, isatty: bool = False) -> str:
    """Text with aligned columns, intervals below the scores; on a terminal, the best of a column is bold, the second
    underlined."""
    parts = ["\n".join(table.head)]
    for title, rows in titled_tables(table):
        parts.append(f"{title}\n{align_columns(with_second_lines(rows), isatty)}")
    parts.append("\n".join(f"note: {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts))


def with_second_lines(rows: Sequence[Sequence[MarkedText]]) -> list[list[MarkedText]]:
    """Put the intervals of each row into a second row below it."""
    lines = []
    for row in rows:
        lines.append([MarkedText(cell.text, cell.mark) for cell in row])
        if any(cell.more for cell in row):
            lines.append([MarkedText(cell.more) for cell in row])
    return lines


def to_csv(table: Table, role: str = "unseen") -> str:
    """One line for each structure, metric, method and site, and one for the site "average"; unknown values are empty.

    The average's line has the difference from the baseline of less effort, failures and cases, the worst site, and the
    rank. Below, each kind of failure is a metric: the share of patients in percent, at the site "all" those of all
    sites.
    """
    text = io.StringIO()
    columns = f"data selection structure metric unit method {role}_site mean sd n_seeds low high n_patients"
    columns += " compared_with difference difference_low difference_high n_pairs p p_holm verdict detectable"
    columns += " seeds_low seeds_high baseline_difference baseline_difference_low baseline_difference_high"
    names = f"{columns} n_missed n_cases worst_site rank rank_low rank_high first_share".split()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for block in table.blocks:
        for line in block.lines:
            differences = line.differences or (None,) * len(table.sites)
            cells = zip((*table.sites, "average"), (*line.cells, line.average), (*differences, line.difference))
            for site, cell, difference in cells:
                key = (table.data, table.selection, block.structure, block.metric, block.unit, line.method, site)
                values = (*key, *_score_fields(cell), line.against, *_difference_fields(difference))
                other = line.from_baseline if site == "average" else None
                values += (other.mean, other.low, other.high) if other else (None,) * 3
                values += _line_fields(line) if site == "average" else ()
                texts = [f"{value:.6f}" if isinstance(value, float) else value for value in values]
                writer.writerow(dict(zip(names, texts)))
    for failures in table.failures:
        for of_method in failures.lines:
            for site, share in zip((*table.sites, "all"), (*of_method.sites, of_method.total)):
                key = (table.data, table.selection, failures.structure, failures.kind, "%", of_method.method, site)
                numbers = [None if number is None else f"{100 * number:.6f}" for number in _share_numbers(share)]
                shown = dict(zip(("mean", "low", "high"), numbers)) | ({"n_patients": share.n} if share else {})
                writer.writerow({**dict(zip(names, key)), **shown})
    return text.getvalue()


def _share_numbers(share: Share | None) -> tuple[float | None, float | None, float | None]:
    """(share, lower limit, upper limit); None for each without a share."""
    return (share.count / share.n, share.low, share.high) if share else (None,) * 3


def _score_fields(cell: Cell | None) -> tuple:
    """The fields of a score in a CSV file; None for each without a score."""
    return (cell.mean, cell.sd, cell.n_seeds, cell.low, cell.high, cell.n_patients) if cell else (None,) * 6


def _difference_fields(difference: Difference | None) -> tuple:
    """The fields of a difference in a CSV file; None for each without a difference."""
    if difference is None:
        return (None,) * 10
    d = difference
    return d.mean, d.low, d.high, d.n, d.p, d.p_holm, d.verdict_text, d.detectable, d.seeds_low, d.seeds_high


def _line_fields(line: Line) -> tuple:
    """The fields of a line that are not of one site: failures, worst site and rank."""
    rank = (line.rank.rank, line.rank.low, line.rank.high, line.rank.first_share) if line.rank else (None,) * 4
    return line.n_missed, line.n_cases, line.worst_site, *rank


def to_json_dict(table: Table) -> dict:
    """Plain dicts and lists with the names of the fields of `Table`; metrics in "%", such as Dice, are in percent."""
    return json.loads(json.dumps(asdict(table), allow_nan=False))


def to_json(table: Table) -> str:
    return json.dumps(to_json_dict(table), indent=2, ensure_ascii=False) + "\n"


def align_columns(lines: Sequence[Sequence[tuple]], ansi: bool, n_left: int = 1) -> str:
    """Format rows of cells (text, mark, ...) as aligned text; the first `n_left` columns are aligned to the left."""
    widths = [max(len(text) for text, *_ in column) for column in zip(*lines)]
    codes = {"best": "\033[1m{}\033[0m", "second": "\033[4m{}\033[0m"} if ansi else {}
    written = []
    for line in lines:
        padded = []
        for index, ((text, mark, *_), width) in enumerate(zip(line, widths)):
            pad = " " * (width - len(text))
            styled = codes.get(mark, "{}").format(text)
            padded.append(styled + pad if index < n_left else pad + styled)
        written.append("  ".join(padded).rstrip())
    return "\n".join(["  " + text for text in written])
