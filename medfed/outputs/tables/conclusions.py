"""What can and what cannot be concluded from a comparison, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from medfed.metrics.significance import ALPHA, smallest_p
from medfed.outputs.tables.comparison_data import (
    BETTER,
    UNDECIDED,
    UNTESTED,
    WITHDRAWN,
    WORSE,
    Block,
    Table,
)
from medfed.outputs.tables.comparison_notes import difference_text
from medfed.outputs.tables.joining import ALL_SITES, Joining
from medfed.outputs.tables.joining_text import difference_cell, unit_of
from medfed.tasks.scoring import ALL


def with_all_conclusions(
    table: Table, effort: Sequence[str], joining: Joining | None, baselines: Collection[str]
) -> Table:
    """Return a comparison table with the conclusions about joining, pooling and effort before the last one.

    The last conclusion says to what all of them apply.

    Args:
        table: the comparison table.
        effort: a note for each row that took more optimiser steps or images than its baseline.
        joining: the differences between the federated rows and `local` and `pooled`; None without such rows.
        baselines: labels of the baselines; several if settings are varied.
    """
    joined = joining_conclusions(joining, baselines) if joining else []
    more = [*joined, *(f"{note}." for note in effort)]
    return replace(table, conclusions=(*table.conclusions[:-1], *more, *table.conclusions[-1:]))


def joining_conclusions(joining: Joining, baselines: Collection[str]) -> list[str]:
    """Return one sentence for each structure and pair of rows: the difference over all patients, with its interval.

    Args:
        joining: the differences.
        baselines: labels of the only federated rows that the sentences are about.
    """
    sentences = []
    for structure, metric, name in joining.titles:
        pairs: dict[str, list[str]] = {}
        for one in joining.differences:
            if (one.structure, one.metric) == (structure, metric) and {one.first, one.second} & set(baselines):
                text, _, interval = difference_cell(one.by_site[ALL_SITES])
                parts = pairs.setdefault(f"{one.meaning} ({one.first} - {one.second})", [])
                parts.append(f"{one.images} {text} {interval or 'without an interval, so not decided'}")
        title = f"{name} ({unit_of(joining, metric)})"
        sentences += [f"{title}, {pair}: {'; '.join(parts)}." for pair, parts in pairs.items()]
    return sentences


def conclusions_of(
    blocks: Sequence[Block], baseline: str, n_sites: int, n_seeds: int, data: str, not_learned: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what can and what cannot be concluded from the main metric, in sentences; empty for a single method.

    Args:
        blocks: the statistics. The first block of each structure is that of the task's main metric.
        baseline: label of the method with which the others are compared.
        n_sites: number of sites.
        n_seeds: number of seeds.
        data: "phantom" (synthetic images) or "real".
        not_learned: labels of the methods with a model that did not learn.
    """
    main = {block.structure: block for block in reversed(blocks)}
    sentences = [_decision(block, baseline) for block in reversed(main.values())]
    if not any(sentences):
        return ()
    sites, models = (f"{n} {what}{'s' * (n > 1)}" for n, what in ((n_sites, "site"), (n_seeds, "seed")))
    end = "; the images are synthetic, so nothing follows for patients." if data == "phantom" else "."
    scope = f"This is about new patients of the {sites} and about the models of {models}"
    sentences.append(f"{scope}, not about other sites or about training again{end}")
    if not_learned:
        methods = ", ".join(not_learned)
        sentences.insert(0, f"Models of {methods} DID NOT LEARN: their scores decide nothing about a method, and a "
                            "comparison with them has no verdict.")  # fmt: skip
    return tuple(filter(None, sentences))


def _decision(block: Block, baseline: str) -> str:
    """Return what is decided for one block; "" if no method is compared."""
    compared = [(line.method, line.difference) for line in block.lines if line.difference is not None]
    if not compared:
        return ""
    name = block.name if block.structure == ALL else f"{block.structure}, {block.name}"
    unit = {"%": " points", "": ""}.get(block.unit, f" {block.unit}")
    parts = []
    for verdict in (BETTER, WORSE, UNDECIDED, UNTESTED, WITHDRAWN):
        of_verdict = [(method, difference) for method, difference in compared if difference.verdict == verdict]
        if methods := [f"{method} ({difference_text(d, block.decimals)}{unit})" for method, d in of_verdict]:
            than = f" than {baseline}" if verdict in (BETTER, WORSE) else ""
            parts.append(f"{verdict}{than}: {', '.join(methods)}")
    text = f"{name}: {'; '.join(parts)}."
    tested = [difference.n for _, difference in compared if difference.n is not None]
    if tested and (smallest := smallest_p(max(tested), len(tested))) >= ALPHA:
        return (f"{text} With {max(tested)} patients and {len(tested)} compared methods no corrected p can be below "
                f"{smallest:.2g}, so no method can be called better or worse; compare fewer methods.")  # fmt: skip
    undecided = [difference for _, difference in compared if difference.verdict == UNDECIDED]
    if visible := [difference.detectable for difference in undecided if difference.detectable is not None]:
        return (f"{text} Not decided does not mean equal: only a difference of about {max(visible):.{block.decimals}f}"
                f"{unit} or more would probably be found.")  # fmt: skip
    return f"{text} Without an interval of the difference, nothing can be decided." if undecided else text
