"""Run a table or figure of a paper: its comparisons, then our scores beside the paper's, and a figure of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from medfed import api
from medfed.core.files import write_atomically
from medfed.experiments.resume import check_cache_folder
from medfed.outputs.figures.scores import save_score_bars, save_score_lines
from medfed.outputs.tables.run_notes import PHANTOM
from medfed.reproduction.commands import Command
from medfed.reproduction.entries import Entry, Paper
from medfed.reproduction.results import Outcome, overall_text

SMALL = "SMALL RUN: few, small images and few rounds, to see that everything works; it says nothing about the paper"
RESULT = "result.txt"


def run_entry(
    paper: Paper,
    entry: Entry,
    commands: Sequence[Command],
    out: Path,
    *,
    small: bool = False,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    show: Callable[[str], None] = print,
) -> int:
    """Run the comparisons of a table or figure, and write (`result.txt`) and show the scores beside those of the paper.

    Each comparison has a folder in `out` with the tables of `medfed.evaluate`. If `small`, every output says so. `jobs`
    is the number of runs at the same time; None lets medfed decide. Returns the number of runs that failed or were
    locked.
    """
    configs = [command.load() for command in commands]
    for config in configs:
        check_cache_folder(config.cache, config.data, out, config.source)
    texts, n_unfinished, outcomes = [heading(paper, entry, small)], 0, list[Outcome]()
    show(texts[0])
    for command, config in zip(commands, configs, strict=True):
        folder = folder_of(command, out, small)
        comparison = api.compare(
            config,
            command.choices(),
            folder,
            leave_two_out=command.leaves_two_out,
            pairs=[(pair.partition("/")[0], pair.partition("/")[2]) for pair in command.pairs] or None,
            seeds=command.seeds,
            sites=list(command.sites) or None,
            varied=command.varied(),
            resume=resume and folder.exists(),
            jobs=jobs,
            progress=progress,
            equal_effort=False,
        )
        n_unfinished += len(comparison.failed) + comparison.n_locked
        outcomes.append(outcome := Outcome(command, comparison))
        text = "\n\n".join(
            filter(
                None,
                [
                    part_heading(command, folder),
                    _data(outcome),
                    outcome.to_text(),
                    *_draw(paper, entry, outcome, folder, small),
                ],
            )
        )
        show(f"\n{text}")
        texts.append(text)
    for overall in entry.overall:
        texts.append(overall_text(entry, outcomes, overall))
        show(f"\n{texts[-1]}")
    departs = [
        *(f"departs from the paper: {text}" for text in entry.departs),
        *([f"not made: {entry.missing}"] if entry.missing else []),
    ]
    texts += ["\n".join(departs)] if departs else []
    show("".join(f"\n{text}" for text in departs) + f"\nAll files are in {out}; this text is {out / RESULT}.")
    write_atomically(out / RESULT, "\n\n".join(texts) + "\n")
    return n_unfinished


def heading(paper: Paper, entry: Entry, small: bool) -> str:
    """The lines above a result: the paper, the table or figure, and whether the run is small."""
    lines = [f"{paper.title}, {entry.heading}: {entry.title}", *[SMALL] * small]
    return "\n".join(lines)


def part_heading(command: Command, folder: Path) -> str:
    lines = [f"{command.part.name}: {command.to_text(folder)}"]
    lines += [f"The images are {command.stand_in}."] if command.stand_in else []
    return "\n".join(lines)


def folder_of(command: Command, out: Path, small: bool) -> Path:
    """The folder of one comparison; the name of a small one ends with "-small"."""
    return out / (command.part.name + "-small" * small)


def _data(outcome: Outcome) -> str:
    """The line that marks results on a phantom."""
    return PHANTOM if outcome.comparison.tables.unseen.data == "phantom" else ""


def _draw(paper: Paper, entry: Entry, outcome: Outcome, folder: Path, small: bool) -> list[str]:
    """Draw the scores of a part as the entry asks, and return a line for each figure."""
    part = outcome.command.part
    if part.chart == "none":
        return []
    save = {"bars": save_score_bars, "lines": save_score_lines}[part.chart]
    lines = []
    for result in part.results:
        for role in (role for role in result.roles if role in outcome.tables):
            table, at = outcome.tables[role], "-validation" * (role == "validation")
            blocks = [b for b in table.blocks if (b.structure, b.metric) == (result.structure, result.metric)]
            if blocks and not outcome.no_result(result.structure, [role]):
                path = folder / f"{entry.name}-{result.structure}-{result.metric}{at}.png"
                marks = [
                    *["validation sites"] * bool(at),
                    *["SMALL RUN"] * small,
                    *["PHANTOM"] * (table.data == "phantom"),
                ]
                save(table, blocks[0], path, ", ".join([f"{paper.title}, {entry.heading}", *marks]))
                lines.append(f"figure: {path}")
    return lines
