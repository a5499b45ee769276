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
    Line,
    Table,
)
from medfed.outputs.tables.comparison_notes import difference_text
from medfed.outputs.tables.joining import ALL_SITES, GAIN, OWN_TEST, UNSEEN, Joining, PairedMean, RowDifference
from medfed.outputs.tables.joining_text import difference_cell, unit_of
from medfed.tasks.scoring import ALL

MAX_NAMED_SITES = 6  # sites whose names are in the conclusions


def with_all_conclusions(
    table: Table, effort: Sequence[str], joining: Joining | None, baselines: Collection[str]
) -> Table:
    """Add to the conclusions of a table those about joining, pooling and the effort of rows above their baselines."""
    joined = joining_conclusions(joining, baselines, table.not_learned) if joining else []
    sentences = [*decisions_of(table.blocks, table.baseline), *joined, *(f"{note}." for note in effort)]
    return replace(table, conclusions=conclusions_of(sentences, table))


def joining_conclusions(joining: Joining, baselines: Collection[str], not_learned: Collection[str] = ()) -> list[str]:
    """One sentence for each structure and pair of rows with a federated one in `baselines`: the difference over all
    patients, and what it shows (nothing for a model that did not learn)."""
    sentences = []
    for structure, metric, name in joining.titles:
        pairs: dict[str, list[str]] = {}
        for one in joining.differences:
            if (one.structure, one.metric) == (structure, metric) and {one.first, one.second} & set(baselines):
                pairs.setdefault(f"{one.meaning} ({one.first} - {one.second})", []).append(
                    _shown(one, joining, not_learned)
                )
        title = f"{name} ({unit_of(joining, metric)})"
        sentences += [f"{title}, {pair}: {'; '.join(parts)}." for pair, parts in pairs.items()]
    return sentences


def _shown(one: RowDifference, joining: Joining, not_learned: Collection[str]) -> str:
    """A difference over all patients, what it shows, and the range of the sites or patients that it averages."""
    mean = one.by_site[ALL_SITES]
    text = f"{one.images} {_with_interval(mean)}"
    if mean.low is None:
        return f"{text} without an interval, so not decided"
    if {one.first, one.second} & set(not_learned):
        return f"{text}: {WITHDRAWN}"
    direction = _direction(mean, one.higher_is_better)
    what = "joining" if one.meaning == GAIN else "pooling"
    shown = f"{text}: {f'{what} is {direction}' if direction else UNDECIDED}"
    if one.images == OWN_TEST and len(one.by_site) > 2:
        by_site = sorted((of_site.mean, site) for site, of_site in one.by_site.items() if site != ALL_SITES)
        ends = " to ".join(f"{_with_interval(one.by_site[site])} at {site}" for _, site in (by_site[0], by_site[-1]))
        decided = any(_direction(one.by_site[site], one.higher_is_better) for _, site in by_site)
        if decided:
            return f"{shown}, by hospital {ends}"
        link = "but this is not decided at any single hospital" if direction else "and at no single hospital either"
        return f"{shown}, {link} ({ends})"
    if one.images == UNSEEN and one.meaning == GAIN:
        scores = [
            score
            for structure, label, at, of_model in joining.models
            if structure == one.structure
            for site, score in of_model.items()
            if site != at and label == one.second
        ]
        return (
            f"{shown}, in the mean over the hospitals' models, which score {min(scores):.2f} to {max(scores):.2f} "
            "there (the best of them is not compared)"
        )
    return shown


def _with_interval(mean: PairedMean) -> str:
    text, _, interval = difference_cell(mean)
    return f"{text} {interval}".rstrip()


def _direction(mean: PairedMean, higher_is_better: bool) -> str:
    """ "better" or "worse" if the interval is on one side of 0; "" otherwise."""
    if mean.low is None or mean.high is None or mean.low <= 0 <= mean.high:
        return ""
    return BETTER if (mean.low > 0) == higher_is_better else WORSE


def conclusions_of(sentences: Sequence[str], table: Table) -> tuple[str, ...]:
    """Add to `sentences` a first conclusion about models that did not learn, and a last one about the scope."""
    if not sentences:
        return ()
    methods = ", ".join(table.not_learned)
    first = [
        f"Models of {methods} DID NOT LEARN: their scores decide nothing about a method, and a comparison with "
        "them has no verdict."
    ] * bool(methods)
    where = ", ".join(table.sites) if len(table.sites) <= MAX_NAMED_SITES else f"the {len(table.sites)} sites"
    end = "; the images are SYNTHETIC, so nothing follows for patients." if table.data == "phantom" else "."
    seeds = f"{len(table.seeds)} seed{'s' * (len(table.seeds) > 1)}"
    last = (
        f"The verdicts and 'unseen' are about new patients of {where}, 'own test' about new patients of the "
        f"hospitals that train, and all about these models ({seeds}); nothing is shown for other hospitals or for "
        f"another training{end}"
    )
    return (*first, *sentences, last)


def decisions_of(blocks: Sequence[Block], baseline: str) -> list[str]:
    """A sentence for each structure: which methods are better or worse than the baseline in the main metric."""
    main = {block.structure: block for block in reversed(blocks)}
    return [sentence for block in reversed(main.values()) if (sentence := _decision(block, baseline))]


def _differences_of(line: Line, decimals: int, unit: str, baseline: str) -> str:
    """A method's difference, and the one from the baseline if it is compared with FedAvg of equal effort."""
    assert line.difference
    text = f"{difference_text(line.difference, decimals)}{unit}"
    if line.from_baseline is None:
        return text
    less = f"{difference_text(line.from_baseline, decimals)}{unit}"
    return f"{text} from {line.against}; {less} from {baseline} of less effort"


def _decision(block: Block, baseline: str) -> str:
    """What is decided for one block; "" if no method is compared."""
    compared = [(line.method, line.difference) for line in block.lines if line.difference is not None]
    if not compared and not any(line.from_baseline for line in block.lines):
        return ""
    name = block.name if block.structure == ALL else f"{block.structure}, {block.name}"
    unit = {"%": " points", "": ""}.get(block.unit, f" {block.unit}")
    has_varied = any(", " in method for method, _ in compared)
    reference = f"{baseline}{' of equal effort' * any(line.from_baseline for line in block.lines)}"
    reference += " with the same varied settings" * has_varied
    groups: dict[str, list[str]] = {}
    for verdict in (BETTER, WORSE, UNDECIDED, UNTESTED, WITHDRAWN):
        for line in block.lines:
            if line.difference and line.difference.verdict == verdict:
                than = f" than {reference}" if verdict in (BETTER, WORSE) else ""
                text = f"{line.method} ({_differences_of(line, block.decimals, unit, baseline)})"
                groups.setdefault(f"{line.difference.verdict_text}{than}", []).append(text)
    for line in block.lines:
        if line.from_baseline and line.difference is None:
            text = f"{line.method} ({difference_text(line.from_baseline, block.decimals)}{unit} from {baseline})"
            groups.setdefault("no verdict without a run of FedAvg of equal effort", []).append(text)
    parts = [f"{verdict}: {', '.join(texts)}" for verdict, texts in groups.items()]
    none = f"better than {reference}: none; " if {d.verdict for _, d in compared} & {WORSE, UNDECIDED} else ""
    text = f"{name}: {'' if parts[0].startswith(BETTER) else none}{'; '.join(parts)}."
    tested = [difference.n for _, difference in compared if difference.n is not None]
    if tested and (smallest := smallest_p(max(tested), len(tested))) >= ALPHA:
        return (
            f"{name}: no method can be called better or worse than {baseline}, because with {max(tested)} patients "
            f"and {len(tested)} compared methods no corrected p can be below {smallest:.2g}; more patients are "
            "needed, or fewer methods that are chosen before their scores are seen. Differences, with intervals "
            f"that are not corrected for the number of methods: {'; '.join(parts)}."
        )
    undecided = [difference for _, difference in compared if difference.verdict == UNDECIDED]
    if visible := [difference.detectable for difference in undecided if difference.detectable is not None]:
        return (
            f"{text} Not decided does not mean equal: only a difference of about {max(visible):.{block.decimals}f}"
            f"{unit} or more would probably be found."
        )
    return f"{text} Without an interval of the difference, nothing can be decided." if undecided else text
