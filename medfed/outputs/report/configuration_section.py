"""The first section of the page: its runs, data, rule, seeds and versions, and the notices of the runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.run_data import Run

MAX_UNFOLDED = 12  # runs, or notices; more are folded up
RULES = {  # evaluation.selection: its description
    "last": "last: the last round, whatever its score",
    "source_validation": "source_validation: the round with the best mean validation score at the sites that train",
    "validation_site": "validation_site: the round with the best score at the validation site, which never trains",
}


@dataclass(frozen=True)
class Configuration:
    """The first section: facts as (name, value), runs and notices; a folded list is shown only after a click."""

    facts: list[tuple[str, str]]
    runs: Table
    runs_are_folded: bool
    notices: list[str]
    notices_are_folded: bool


def describe_configuration(runs: Sequence[Run], left_out: Sequence[str]) -> Configuration:
    """Describe how the runs were configured; `left_out` names each figure that the report does not show, with the
    reason."""
    notices = [*_notices(runs), *(f"figure not in this page: {reason}" for reason in left_out)]
    return Configuration(_facts(runs), _table(runs), len(runs) > MAX_UNFOLDED, notices, len(notices) > MAX_UNFOLDED)


def _facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(name, value) of what the reader should know of all runs: data, method, sites, start and versions."""
    return [
        ("Data", _distinct(f"{run.summary.get('dataset', 'unnamed')} ({run.data_label})" for run in runs)),
        ("Method", _distinct(run.method for run in runs)),
        ("Sites that trained", _sites_of_all(runs)),
        ("Unseen site", _distinct(run.unseen for run in runs)),
        ("Validation site", _distinct(run.summary.get("validation_site") or "none" for run in runs)),
        ("Initial weights", _distinct(_initial_weights(run) for run in runs)),
        ("Round chosen by", _distinct(RULES.get(run.summary["selection"], run.summary["selection"]) for run in runs)),
        ("Seeds", ", ".join(str(seed) for seed in sorted({run.summary["seed"] for run in runs}))),
        ("Versions", _distinct(_versions(run) for run in runs)),
    ]


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _sites_of_all(runs: Sequence[Run]) -> str:
    """The sites that trained, in all runs together."""
    by_run = list(dict.fromkeys(_training_sites(run) for run in runs))
    if len(by_run) == 1 or len({run.summary.get("dataset") for run in runs}) > 1:
        return "; ".join(by_run)
    sites = sorted({site for run in runs for site in run.summary.get("source_sites") or []})
    return f"{', '.join(sites)}; each run leaves out its unseen site"


def _training_sites(run: Run) -> str:
    """The sites that trained with their numbers of patients, or the number of clients."""
    sites, patients = run.summary.get("source_sites") or [], run.summary.get("patients") or {}
    if clients := run.summary.get("clients"):
        number = f"{clients['n']} clients of {len(sites)} sites, {clients['per_round']} per round"
        return f"{number} ({clients['partition']})"
    return ", ".join(f"{site} ({patients[site]['train']} patients)" if site in patients else site for site in sites)


def _initial_weights(run: Run) -> str:
    start = run.summary.get("start_weights")
    if start is None:
        return "random" if "start_weights" in run.summary else "not recorded"
    return f"{start['file']} (SHA-256 {start['sha256'][:12]})"


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted((run.summary.get("versions") or {}).items()))


def _table(runs: Sequence[Run]) -> Table:
    """One row per run: its sites, seed, selected round and the checksum of its config."""
    head = ("method", "unseen site", "validation site", "seed", "round", "rounds", "rule", "config (SHA-256)")
    body = [
        [
            run.method,
            run.unseen,
            run.summary.get("validation_site") or "none",
            run.summary["seed"],
            run.summary.get("selected_round"),
            run.summary.get("rounds"),
            run.summary["selection"],
            Cell("", code=str(run.summary.get("config_sha256", "unknown"))[:12]),
        ]
        for run in runs
    ]
    label = _distinct(run.data_label for run in runs)
    return Table("The runs", label, head, rows_of_cells(body), text_columns=(0, 1, 2, 6, 7))


def _notices(runs: Sequence[Run]) -> list[str]:
    """Each notice of the runs once, with the number of runs that recorded it."""
    counts = Counter(str(notice) for run in runs for notice in run.summary.get("notices") or [])
    counts.update(notice for run in runs for notice in _config_notices(run))
    return [f"{notice} ({n} runs)" if n > 1 else notice for notice, n in counts.items()]


def _config_notices(run: Run) -> Iterable[str]:
    """Yield a sentence if the config was changed after the run."""
    sha256 = hashlib.sha256(run.config_text.encode()).hexdigest()
    if run.summary.get("config_sha256") not in (None, sha256):
        yield f"{run.path / 'config.yaml'}: was changed after the run and is not the config of this result"
