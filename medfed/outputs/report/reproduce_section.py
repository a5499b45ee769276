"""The last section of the page: the commands and configs that repeat the runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report.run_data import Comparison, Run
from medfed.results.row import BASELINE, ComparisonRow

INTRODUCTION = (
    "Save the config as config.yaml and put the data into the folder that its data.root names. The same versions on "
    "the same machine with the same number of threads (see environment.json in the run's folder) give the same numbers."
)


@dataclass(frozen=True)
class ConfigFile:
    """The text of a run's `config.yaml`; `sha256` is "unknown" if the run did not record it."""

    title: str
    sha256: str
    text: str


@dataclass(frozen=True)
class Recipe:
    """How to repeat a run or a comparison: a command line and the config of the run, or of one run of each method."""

    title: str
    command: str
    configs: list[ConfigFile]
    note: str = ""


@dataclass(frozen=True)
class Recipes:
    introduction: str
    recipes: list[Recipe]


def recipes_for(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Recipes:
    """A command for each run, and for each comparison that `medfed.evaluate` wrote."""
    command = "python -m medfed.train config.yaml --out runs/again"
    recipes = [Recipe(run.title, command, [_config(run)]) for run in runs]
    recipes += [_comparison_recipe(comparison) for comparison in comparisons if comparison.is_a_folder]
    return Recipes(INTRODUCTION, recipes)


def _comparison_recipe(comparison: Comparison) -> Recipe:
    """The command that repeats a comparison, with the config of each method."""
    runs = comparison.runs
    first_runs: dict[str, Run] = {}
    for run in runs:
        first_runs.setdefault(run.method, run)
    seeds = sorted({run.summary["seed"] for run in runs})
    two_sites = all(run.summary.get("validation_site") for run in runs)
    command = [
        "python",
        "-m",
        "medfed.evaluate",
        "config.yaml",
        f"--leave-{'two-sites' if two_sites else 'one-site'}-out",
        "--methods",
        *dict.fromkeys(run.row.method for run in runs),
        *_vary_options([run.row for run in runs]),
        *_sites_option(comparison),
        *_baseline_option(comparison),
        "--seed",
        str(seeds[0]),
        "--seeds",
        str(len(seeds)),
        "--out",
        "runs/again",
    ]
    note = "This trains and evaluates every method. To repeat one run, use its own config with python -m medfed.train."
    return Recipe(comparison.name, shlex.join(command), [_config(run) for run in first_runs.values()], note)


def _vary_options(rows: Sequence[ComparisonRow]) -> list[str]:
    """`--vary KEY=VALUE1,VALUE2` for each varied setting."""
    values: dict[str, dict[str, None]] = {}
    for key, _, value in (setting.partition("=") for row in rows for setting in row.varied):
        values.setdefault(key, {})[value] = None
    return [word for key, of_key in values.items() for word in ("--vary", f"{key}={','.join(of_key)}")]


def _sites_option(comparison: Comparison) -> list[str]:
    """`--sites` with the unseen sites, or nothing if every site was left out once."""
    left_out = {run.unseen for run in comparison.runs}
    known = left_out | {site for run in comparison.runs for site in run.summary.get("source_sites") or []}
    return ["--sites", *sorted(left_out)] if left_out != known else []


def _baseline_option(comparison: Comparison) -> list[str]:
    """`--baseline NAME`, or nothing for the default."""
    return ["--baseline", comparison.baseline] if comparison.baseline != BASELINE else []


def _config(run: Run) -> ConfigFile:
    return ConfigFile(run.title, run.summary.get("config_sha256", "unknown"), run.config_text)
