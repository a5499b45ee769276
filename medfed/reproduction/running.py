"""Run a table or figure of a paper: its comparisons, then our scores beside the paper's, and a figure of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from medfed import api
from medfed.core.files import write_atomically
from medfed.experiments.resume import check_cache_folder
from medfed.outputs.figures.figure import save_png
from medfed.outputs.figures.scores import score_bars, score_lines
from medfed.reproduction.entries import Entry, Paper, Part
from medfed.reproduction.results import no_result, paper_text, part_text
from medfed.results.comparison import TRIVIAL
from medfed.results.comparison import Comparison as Tables
from medfed.results.notes import PHANTOM

SMALL = "SMALL RUN: few, small images and few rounds, to see that everything works; it says nothing about the paper"
RESULT = "result.txt"


def run_entry(
    paper: Paper,
    entry: Entry,
    parts: Sequence[Part],
    out: Path,
    *,
    small: bool = False,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    show: Callable[[str], None] = print,
) -> int:
    """Run the comparisons of a table or figure, and write (`result.txt`) and show the scores beside those of the paper.

    Returns the number of runs that failed or were locked.
    """
    configs = [part.load() for part in parts]
    for config in configs:
        check_cache_folder(config.cache, config.data, out, config.source)
    texts, n_unfinished = list[str](), 0

    def add(*lines: str) -> None:
        texts.append("\n\n".join(filter(None, lines)))
        show(f"{texts[-1]}\n")

    add("\n".join([f"{paper.title}, {entry.heading}: {entry.title}", *[SMALL] * small]))
    for part, config in zip(parts, configs, strict=True):
        folder = out / (part.name + "-small" * small)
        comparison = api.compare(
            config,
            part.methods,
            folder,
            leave_two_out=bool(part.pairs),
            pairs=[pair.partition("/")[::2] for pair in part.pairs] or None,
            seeds=part.seeds,
            sites=list(part.sites) or None,
            vary=list(part.vary),
            resume=resume and folder.exists(),
            jobs=jobs,
            progress=progress,
            equal_effort=False,
        )
        n_unfinished += len(comparison.failed) + comparison.n_locked
        add(
            f"{part.name}: {part.command(folder)}",
            f"The images are {part.stand_in}." * bool(part.stand_in),
            PHANTOM * (comparison.tables.data == "phantom"),
            part_text(part, comparison),
            *_draw(f"{paper.title}, {entry.heading}", folder / entry.name, part, comparison.tables, small),
        )
    for overall in entry.overall:
        add(paper_text(overall.published()))
    departs = [f"departs from the paper: {text}" for text in entry.departs]
    add("\n".join([*departs, *[f"not made: {entry.missing}"] * bool(entry.missing)]))
    write_atomically(out / RESULT, "\n\n".join(filter(None, texts)) + "\n")
    show(f"All files are in {out}; this text is {out / RESULT}.")
    return n_unfinished


def _draw(title: str, path: Path, part: Part, tables: Tables, small: bool) -> list[str]:
    """Draw the scores of a part, and return a line for each figure; `path` begins the names."""
    lines, scores = [], tables.scores[~tables.scores.row.str.startswith(TRIVIAL)]
    draw = score_lines if part.vary else score_bars
    for block in (result.published() for result in part.results):
        of_block = scores[(scores.structure == block.structure) & (scores.metric == block.metric)]
        for role in block.roles:
            own = of_block[of_block.role == role]
            if own.empty or no_result(tables, block.structure, [role]):
                continue
            at, unit = "-validation" * (role == "validation"), own.unit.iloc[0]
            file = path.with_name(f"{path.name}-{block.structure}-{block.metric}{at}.png")
            marks = ["validation sites"] * bool(at) + ["SMALL RUN"] * small + ["PHANTOM"] * (tables.data == "phantom")
            label = f"{tables.metrics[block.metric].label}{f' ({unit})' * bool(unit)}"
            save_png(draw(own, label, ", ".join([title, *marks])), file)
            lines.append(f"figure: {file}")
    return lines
