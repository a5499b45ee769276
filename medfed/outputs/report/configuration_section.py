"""The head of the page: which runs, which data, which rule, seeds and versions, and what the runs noticed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from medfed.outputs.report.blocks import table_block
from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import Comparison, Run

MANY = 12  # runs, or notices; more are folded up
RULES = {
    "last": "last: the last round, whatever its score",
    "source_validation": "source_validation: the round with the best mean validation score at the sites that train",
    "validation_site": "validation_site: the round with the best score at the validation site, which never trains",
}


def section(runs: Sequence[Run], comparisons: Sequence[Comparison], left_out: Sequence[str]) -> Markup:
    """Facts, a line a run, and notices.

    Args:
        left_out: figures that the page does not hold, and why.
    """
    table = _table(runs)
    folded = tag("details", tag("summary", f"All {len(runs)} runs"), table) if len(runs) > MANY else table
    notices = [*_notices(runs), *(f"{why} (a figure that is not in this page)" for why in left_out)]
    heading = tag("h3", "Notices")
    noticed = tag("ul", *(tag("li", notice) for notice in notices), class_="notes") if notices else tag("p", "None.")
    noticed = tag("details", tag("summary", f"All {len(notices)} notices"), noticed) if len(notices) > MANY else noticed
    return lines(_facts(runs), folded, heading, noticed)


def _facts(runs: Sequence[Run]) -> Markup:
    found = [
        ("Data", _each(f"{run.summary.get('dataset', 'unnamed')} ({run.data_label})" for run in runs)),
        ("Method", _each(run.method for run in runs)),
        ("Sites that trained", _all_sources(runs)),
        ("Unseen site", _each(run.unseen for run in runs)),
        ("Validation site", _each(run.summary.get("validation_site") or "none" for run in runs)),
        ("Started from", _each(_start(run) for run in runs)),
        ("Round chosen by", _each(RULES.get(run.summary["selection"], run.summary["selection"]) for run in runs)),
        ("Seeds", ", ".join(str(seed) for seed in sorted({run.summary["seed"] for run in runs}))),
        ("Versions", _each(_versions(run) for run in runs)),
    ]
    rows = (tag("div", tag("dt", name), tag("dd", value)) for name, value in found)
    return tag("dl", "\n", lines(*rows), "\n", class_="facts")


def _each(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _all_sources(runs: Sequence[Run]) -> str:
    found = list(dict.fromkeys(_sources(run) for run in runs))
    if len(found) == 1 or len({run.summary.get("dataset") for run in runs}) > 1:
        return "; ".join(found)
    sites = sorted({site for run in runs for site in run.summary.get("source_sites") or []})
    return f"{', '.join(sites)}: not all in each run, which leaves out its unseen site"


def _sources(run: Run) -> str:
    sites, patients = run.summary.get("source_sites") or [], run.summary.get("patients") or {}
    if clients := run.summary.get("clients"):
        return f"{clients['n']} clients of {len(sites)} sites, {clients['per_round']} a round ({clients['partition']})"
    n_train = [f"{site} ({patients[site]['train']} cases)" if site in patients else site for site in sites]
    return ", ".join(n_train)


def _start(run: Run) -> str:
    found = run.summary.get("start_weights")
    if found is None:
        return "random weights" if "start_weights" in run.summary else "not recorded"
    return f"{found['file']} (SHA-256 {found['sha256'][:12]})"


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted((run.summary.get("versions") or {}).items()))


def _table(runs: Sequence[Run]) -> Markup:
    head = ("method", "unseen site", "validation site", "seed", "round", "rounds", "rule", "config (SHA-256)")
    body = [
        [
            run.method, run.unseen, run.summary.get("validation_site") or "none", run.summary["seed"],
            run.summary.get("selected_round"), run.summary.get("rounds"), run.summary["selection"],
            tag("code", str(run.summary.get("config_sha256", "unknown"))[:12]),
        ]
        for run in runs
    ]  # fmt: skip
    return table_block("The runs", _each(run.data_label for run in runs), head, body, texts=(0, 1, 2, 6, 7))


def _notices(runs: Sequence[Run]) -> list[str]:
    """What the runs noticed, once each, with how many said it."""
    said = Counter(str(notice) for run in runs for notice in run.summary.get("notices") or [])
    said.update(notice for run in runs for notice in _own_notices(run))
    return [f"{notice} ({n} runs)" if n > 1 else notice for notice, n in said.items()]


def _own_notices(run: Run) -> Iterable[str]:
    digest = hashlib.sha256(run.config_text.encode()).hexdigest()
    if run.summary.get("config_sha256") not in (None, digest):
        yield f"{run.path / 'config.yaml'}: is not the config of this result; it was changed after the run"
