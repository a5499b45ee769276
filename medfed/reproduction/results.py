"""Our scores beside the numbers that the paper printed, as text."""

from __future__ import annotations

from collections.abc import Sequence

from medfed.api import Comparison
from medfed.outputs.published.beside import Scores, beside, our_scores
from medfed.outputs.published.tables import PublishedBlock, load_table
from medfed.outputs.tables.cost import NOTE, cost_rows
from medfed.reproduction.entries import Entry, Part
from medfed.results.comparison import TRIVIAL
from medfed.results.comparison import Comparison as Tables
from medfed.results.render import score_tables
from medfed.results.row import BASELINE
from medfed.results.scores import ALL
from medfed.results.statistics import AVERAGE
from medfed.results.text_tables import text_table, to_terminal

CHECKED = ("dice", "accuracy")  # metrics in which FedAvg must be above the trivial predictor


def no_result(tables: Tables, structure: str, roles: Sequence[str] = ("unseen",)) -> str:
    """Why the scores of a structure are no result; "" if FedAvg is above the trivial predictor on average. If a setting
    is varied, the best row of FedAvg counts."""
    table = tables.scores[(tables.scores.structure == structure) & (tables.scores.site == AVERAGE)]
    table = table[table.metric.isin(CHECKED)]
    planned = [label for label in tables.rows if label.partition(", ")[0] == BASELINE]
    for role in roles:
        of_role = table[table.role == role].set_index("row")["mean"]
        fedavg, trivial = of_role[of_role.index.isin(planned)], of_role[of_role.index.str.startswith(TRIVIAL)]
        if len(fedavg) < max(1, len(planned)):
            return "no result: FedAvg has not finished at each site"
        if (trivial >= fedavg.max()).any():
            return (
                f"no result: FedAvg reaches {fedavg.max():.2f} %, and a trivial predictor {trivial.iloc[0]:.2f} % "
                f"({trivial.index[0].removeprefix(f'{TRIVIAL}: ')}); train longer or on more images"
            )
    return ""


def part_text(part: Part, comparison: Comparison) -> str:
    """The scores of a finished part, each beside the paper's number, and the files with more."""
    texts = [result_text(comparison.tables, result.published()) for result in part.results]
    if part.costs:
        head, *rows = cost_rows(comparison.costs)
        texts += [f"{to_terminal(text_table('cost, ours', head, rows))}\n  note: {NOTE}"]
        texts += map(paper_text, part.published_costs())
    for name in part.figures:
        drawn = [path for run in comparison.runs if (path := run.folder / "figures" / name).is_file()]
        texts += [f"figure: {path}" for path in drawn] or [f"figure: no run has written {name}"]
    texts += [f"failed: {name}: {why}" for name, why in comparison.failed.items()]
    return "\n\n".join(texts)


def result_text(tables: Tables, block: PublishedBlock) -> str:
    """The numbers of a block, with ours in the same columns; ours apart if there are no such sites or settings."""
    ours, reason = our_scores(tables, block), no_result(tables, block.structure, block.roles)
    own = [table for role in block.roles for table in score_tables(tables, role, block.structure, block.metric)]
    name = block.metric if block.structure == ALL else f"{block.structure} {block.metric}"
    if missing := [role for role in block.roles if not tables.sites(role)]:
        texts = [f"{name}: these runs have no {missing[0]} site"]
    elif not own:
        texts = [f"{name}: these runs have no such score"]
    elif reason:
        texts = [f"{name}, {' and '.join(block.roles)} sites: {reason}"]
    elif ours is not None:
        return paper_text(block, ours, tables.metrics[block.metric].decimals)
    else:
        texts = list(map(to_terminal, own))
    return "\n\n".join([*texts, *[paper_text(block)] * bool(block.rows)])


def paper_text(block: PublishedBlock, ours: Scores | None = None, decimals: int = 2) -> str:
    """The paper's numbers of a block, with ours if there are any, and its notes."""
    return "\n".join([to_terminal(beside(block, ours, decimals)), *(f"  {note}" for note in block.footnotes)])


def printed_numbers(entry: Entry) -> list[str]:
    """The paper's numbers of all blocks of an entry."""
    blocks = [block for name in entry.printed for block in load_table(name).blocks]
    for part in entry.parts:
        blocks += [result.published() for result in part.results if result.table] + part.published_costs()
    return list(map(paper_text, [*blocks, *(result.published() for result in entry.overall)]))
