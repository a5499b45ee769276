"""The lines above a comparison table and the notes below it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import product

from medfed.metrics.failures import SHARE_METHOD
from medfed.metrics.intervals import METHOD, MIN_PATIENTS
from medfed.metrics.metric import DISTANCE, DISTANCE_UNITS
from medfed.outputs.tables.block_statistics import Key, Runs
from medfed.outputs.tables.comparison_data import MIN_SEEDS, Block, Difference, Line
from medfed.outputs.tables.run_notes import data_label
from medfed.tasks.scoring import COMPARISON, Scoring

COLUMN = {  # meaning of a column, by the role of its site
    "unseen": "the unseen site",
    "validation": "the validation site, which did not train either",
}
INTERVAL = (
    f"[] is the 95 % interval over patients ({METHOD}); it is about new patients of these sites, scored by these "
    "trained models, and too narrow if there are rare failures that no patient here shows"
)
RANK = (
    "rank: by the average; [] has 95 % of the ranks in 2000 bootstrap samples of patients, and the percentage says "
    "in how many of them the method is first"
)
FAILURES = (
    "failures: patients out of all for whom the failure is possible, as the mean over seeds; [] is the 95 % interval "
    f"of their share ({SHARE_METHOD}), in which all patients are independent and equally likely to fail"
)
VERDICT = (
    "better or worse: the corrected p is below 0.05, the 95 % interval of the average difference over patients is on "
    f"one side of 0, and all seeds have its sign (with fewer than {MIN_SEEDS} seeds, the verdict has their number); a "
    "method that is worse than the baseline of less effort is never better; over seeds: the 95 % interval of the mean "
    "of the seeds' differences (Student t); detectable: the smallest true difference that this comparison finds with "
    "a probability of 80 %"
)


def head_of(
    data: str, selection: str, seeds: Sequence[int], blocks: Sequence[Block], scoring: Scoring, role: str
) -> tuple[str, ...]:
    """The lines above a table: data, meaning of the columns, rule of selection, seeds and units."""
    spread = ", ± sd over seeds" if len(seeds) > 1 else ""
    return (
        data_label(data),
        f"each column is {COLUMN[role]}; round selected by the rule '{selection}'; "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        f"mean over seeds of the {scoring.score_description}{spread}{_units(scoring, blocks)}",
        *scoring.notes_in(COMPARISON),
    )


def _units(scoring: Scoring, blocks: Sequence[Block]) -> str:
    """The units of the distances, for example "; distances in: mm"; "" for a task without distances."""
    if not any(metric.unit == DISTANCE for metric in scoring.metrics_in(COMPARISON)):
        return ""
    units = dict.fromkeys(block.unit for block in blocks if block.unit in DISTANCE_UNITS.values())
    return f"; distances in: {' and '.join(units) or 'none known'}"


def notes_of(
    runs: Runs,
    planned: Set[Key],
    baselines: Mapping[str, str | None],
    sites: Sequence[str],
    seeds: Sequence[int],
    baseline: str,
    blocks: Sequence[Block],
    scoring: Scoring,
    role: str,
) -> tuple[str, ...]:
    """Notes about missing runs, different images, the intervals, the test, and empty cells. `planned` and the keys of
    `runs` are (method, site, seed); `baselines` has the row that a method is compared with, None for a reference."""
    missing = sorted((planned or {*product(baselines, sites, seeds)}) - set(runs))
    notes = [*_missing_notes(missing, baselines, role)]
    if missing and len(seeds) > 1:
        notes.append(
            "the differences and ranks are over the runs that the compared methods all have, so that they may "
            "not be the differences of the printed scores"
        )
    for site in sites:
        images = {frozenset(row["image"] for row in rows) for key, rows in runs.items() if key[1] == site}
        if len(images) > 1:
            notes.append(f"{site}: the runs do not score the same images, so their means cannot be compared")
    compared = {method: label for method, label in baselines.items() if label is not None}
    for absent in dict.fromkeys(label for label in compared.values() if label not in baselines and len(compared) > 1):
        methods = ", ".join(sorted(method for method, label in compared.items() if label == absent))
        notes.append(f"{absent} was not run, so these methods are not compared with it: {methods}")
    lines = [line for block in blocks for line in block.lines]
    notes += _interval_notes(lines, sites)
    if any(line.rank for line in lines):
        notes.append(RANK)
    if n_tests := max((block.n_tests for block in blocks), default=0):
        same = " with the same varied settings" if any(", " in label for label in compared.values()) else ""
        same += " or FedAvg of equal effort" * any("@steps=" in label for label in compared.values())
        notes += [
            f"p: two-sided Wilcoxon signed-rank test against {baseline}{same}, over {scoring.tested_population}; "
            f"corrected by Holm's method for the number of tests of a block ({n_tests} for the average, "
            f"{n_tests * len(sites)} for single sites), not for the number of metrics",
            VERDICT,
            *_test_notes(lines, sites),
        ]
    notes.append(f"{scoring.failure_heading}: out of the scores of all images, seeds and models of a row")
    n_of_site = {
        site: [
            len({row[name] for key, rows in runs.items() if key[1] == site for row in rows})
            for name in ("patient", "image")
        ]
        for site in sites
    }
    notes.append(
        "tested: "
        + "; ".join(
            f"{site}: {patients} patients with {images} images" for site, (patients, images) in n_of_site.items()
        )
    )
    notes += [FAILURES] * bool(scoring.failure_titles)
    if any(None in line.cells for line in lines):
        notes.append(f"-: not run, or {scoring.missing_score_reason}; there is no average in this case")
    return tuple(notes)


def _missing_notes(missing: Sequence[Key], shown: Collection[str], role: str) -> Iterator[str]:
    """Yield a sentence for each planned run that is missing; `shown` are the methods with a row."""
    for method in dict.fromkeys(method for method, _, _ in missing):
        if method not in shown:
            yield f"not run: {method}, at no {role} site and with no seed, so it has no row"
            continue
        seeds_of_site: dict[str, list[int]] = {}
        for _, site, seed in (key for key in missing if key[0] == method):
            seeds_of_site.setdefault(site, []).append(seed)
        for site, seeds in seeds_of_site.items():
            yield f"not run: {method}, {role} {site}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _interval_notes(lines: Sequence[Line], sites: Sequence[str]) -> Iterator[str]:
    """The method of the intervals, and the sites without an interval."""
    if any(cell and cell.low is not None for line in lines for cell in line.cells):
        yield INTERVAL
    for place, site in enumerate(sites):
        cells = [line.cells[place] for line in lines]
        n = max((cell.n_patients for cell in cells if cell), default=0)
        if 0 < n < MIN_PATIENTS:
            yield (
                f"{site}: n = {n}: no interval; at least {MIN_PATIENTS} patients are needed, here and for an "
                "interval of the average"
            )
        elif any(cell and cell.n_patients and cell.low is None for cell in cells):
            yield f"{site}: no interval where all patients have the same value, because their spread is unknown"


def _test_notes(lines: Sequence[Line], sites: Sequence[str]) -> Iterator[str]:
    """Why there is no p value, or why it cannot be significant."""
    tests = [(line.method, line.difference) for line in lines if line.difference and line.difference.n is not None]
    methods_by_reason: dict[tuple[str, str], list[str]] = {}
    for method, difference in tests:
        if difference.reason:
            what = "no p" if difference.p is None else "no decision"
            methods_by_reason.setdefault((what, difference.reason), []).append(method)
    for (what, reason), methods in methods_by_reason.items():
        yield f"{what} for some metric, because {reason}: {', '.join(dict.fromkeys(methods))}"
    for place, site in enumerate(sites):
        at_site = [line.differences[place] for line in lines if line.differences]
        tested = [difference for difference in at_site if difference and difference.n is not None]
        if len(sites) > 1 and tested and all(difference.reason for difference in tested):
            yield f"{site}: no decision at this site alone: {tested[0].reason}"


def difference_text(difference: Difference, decimals: int) -> str:
    """A difference with its interval, for example "+2.10 [0.80, 3.40]"."""
    text = f"{difference.mean:+.{decimals}f}"
    if difference.low is None:
        return text
    return f"{text} [{difference.low:.{decimals}f}, {difference.high:.{decimals}f}]"
