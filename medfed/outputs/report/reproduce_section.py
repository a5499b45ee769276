"""How to repeat what the page shows: the command, and the configs that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import Comparison, Run
from medfed.outputs.tables.comparison_row import ComparisonRow

SAME_BITS = (
    "Save the config as config.yaml, with its data where data.root says. The same versions on the same machine with "
    "the same number of threads (environment.json in the run's folder) give the same numbers."
)


def section(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Markup:
    """A command and a folded config a run; for a comparison one command, and the config of a run of each method."""
    parts = [lines(tag("h3", run.title), *_of_run(run)) for run in runs]
    parts += [_of_comparison(found) for found in comparisons if found.is_a_folder]
    return lines(tag("p", SAME_BITS), *parts)


def _of_run(run: Run) -> list[Markup]:
    command = "python -m medfed.train config.yaml --out runs/again"
    return [_code(command), _config(run)]


def _of_comparison(found: Comparison) -> Markup:
    first: dict[str, Run] = {}
    for run in found.runs:
        first.setdefault(run.method, run)
    seeds = sorted({run.summary["seed"] for run in found.runs})
    two = all(run.summary.get("validation_site") for run in found.runs)
    words = ["python", "-m", "medfed.evaluate", "config.yaml", f"--leave-{'two-sites' if two else 'one-site'}-out",
             "--methods", *dict.fromkeys(run.row.method for run in found.runs), *_vary([run.row for run in found.runs]),
             *_sites(found), "--seed", str(seeds[0]), "--seeds", str(len(seeds)),
             "--out", "runs/again"]  # fmt: skip
    said = "This trains and tests them all; any one run is repeated by its own config with python -m medfed.train."
    return lines(tag("h3", found.name), _code(shlex.join(words)), tag("p", said), *map(_config, first.values()))


def _vary(rows: Sequence[ComparisonRow]) -> list[str]:
    """`--vary KEY=V1,V2` for each varied setting."""
    values: dict[str, dict[str, None]] = {}
    for key, _, value in (one.partition("=") for row in rows for one in row.varied):
        values.setdefault(key, {})[value] = None
    return [word for key, found in values.items() for word in ("--vary", f"{key}={','.join(found)}")]


def _sites(found: Comparison) -> list[str]:
    """`--sites`, where not every site was left out."""
    left_out = {run.unseen for run in found.runs}
    known = left_out | {site for run in found.runs for site in run.summary.get("source_sites") or []}
    return ["--sites", *sorted(left_out)] if left_out != known else []


def _config(run: Run) -> Markup:
    digest = f"SHA-256 {run.summary.get('config_sha256', 'unknown')}"
    told = tag("p", tag("code", digest), class_="digest")
    return tag("details", tag("summary", f"config of {run.title}"), told, _code(run.config_text))


def _code(text: str) -> Markup:
    return tag("pre", tag("code", text), tabindex="0")
