"""Score a bundle at several sites as a federated job: a site replies with aggregates, never with scores of patients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.engines.in_process import InProcess
from medfed.engines.processes import Processes
from medfed.federation.engine import Engine
from medfed.federation.exchange import Exchange, Row
from medfed.federation.ledger import COLUMNS, format_sums, sum_bytes
from medfed.federation.message import Message, State
from medfed.federation.rounds import requests_with_last_round
from medfed.federation.settings import Federation
from medfed.outputs.bundle.write import atomic_folder
from medfed.outputs.csv_files import append_rows
from medfed.outputs.environment import versions
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_notes import data_label
from medfed.outputs.tables.table import align_columns
from medfed.scoring.arguments import DEFAULT_MIN_PATIENTS, ScoringInputs
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.bundle_tasks import BundleSegmentation, BundleTask, task_of_bundle, with_labels_of
from medfed.scoring.reply_check import check_scores
from medfed.scoring.score import SUMMARY, check_channels, name_notices
from medfed.scoring.site import COUNTS, IMAGES, PATIENTS, SCORE, TOO_FEW, ScoringSite
from medfed.tasks.scoring import ALL, RUN_TABLE

SETTINGS = Federation(rounds=1, quorum=1, on_bad_update="drop")  # a site that fails is named, and left out
SCORES = "scores.csv"


@dataclass
class ScoringProcesses(Processes):
    """Engine that scores each site in a process of its own, so that a failure of one site does not stop the others.

    Args:
        inputs: the bundle and the images, from which each process builds its site.
        min_patients: the minimum group size of each site.
    """

    inputs: ScoringInputs | None = None
    min_patients: Mapping[str, int] | None = None

    def _job(self) -> dict[str, Any]:
        assert self.inputs
        return {"scoring": asdict(self.inputs), "min_patients": dict(self.min_patients or {}), "directory": os.getcwd()}


@dataclass(frozen=True)
class SiteScores:
    """The replies of sites that scored a bundle.

    Attributes:
        task: the task of the bundle, with its metrics.
        facts: the numbers of each site that replied, by name of the site; `too_few_patients` alone if it has too few.
        silent: names of the sites without a valid reply.
        ledger: the rows of `ledger.csv`.
        summary: content of `summary.json`.
    """

    task: BundleTask
    facts: Mapping[str, Mapping[str, float]]
    silent: Sequence[str]
    ledger: Sequence[Row]
    summary: Mapping[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each site, output of the bundle, and metric, with "n", "mean" and "sd"."""
        rows = []
        for site, facts in self.facts.items():
            for key, name in outputs_of(self.task).items():
                for column in self.task.scoring.columns:
                    if (start := f"{key}.{column.key}") + ".n" in facts:
                        rows.append(
                            {"site": site, "structure": name, "metric": column.key}
                            | {word: facts.get(f"{start}.{word}") for word in ("n", "mean", "sd")}
                        )
        return rows

    def to_text(self) -> str:
        """Return the table of scores by site, for the terminal."""
        scoring, outputs = self.task.scoring, outputs_of(self.task)
        used = {row["metric"] for row in self.rows()}
        columns = [column for column in scoring.columns_in(RUN_TABLE) if column.key in used]
        counts = [key for key in COUNTS if any(f"{k}.{key}" in facts for facts in self.facts.values() for k in outputs)]
        table = [["site", "output", "patients", "images", *(c.key for c in columns), *counts]]
        for site, facts in self.facts.items():
            if TOO_FEW in facts:
                table.append([site, "", "fewer than its minimum", *[""] * (len(table[0]) - 3)])
                continue
            for key, name in outputs.items():
                if f"{key}.n" in facts:
                    scores = [_score(facts, f"{key}.{column.key}") for column in columns]
                    table.append(
                        [
                            site,
                            name,
                            str(facts[PATIENTS]),
                            str(facts[IMAGES]),
                            *scores,
                            *(str(facts.get(f"{key}.{count}", "")) for count in counts),
                        ]
                    )
        table += [[site, "", "no valid reply", *[""] * (len(table[0]) - 3)] for site in self.silent]
        text = align_columns([[(cell, "") for cell in line] for line in table], False, n_left=2)
        sent = format_sums(sum_bytes(self.ledger)["up"])
        return "\n".join(
            [
                data_label(self.summary["data"]),
                self.summary["bundle"]["name"],
                *self.summary["notices"],
                "",
                text,
                "",
                f"Each score is the {scoring.score_description}, ± is the standard deviation, () is the number of "
                "images with a value. A score of fewer patients than the site's minimum is not sent.",
                f"The sites sent {sent}.",
            ]
        )


def outputs_of(task: BundleTask) -> dict[str, str]:
    """Return the names of the bundle's outputs by their key in the facts; only "all" for classification.

    Args:
        task: the task of the bundle.
    """
    if not isinstance(task, BundleSegmentation):
        return {ALL: ALL}
    return {str(number): name for number, name in task.model.names.items() if name in task.predicted_names}


def build_scoring_sites(
    inputs: ScoringInputs, names: Sequence[str], min_patients: Mapping[str, int]
) -> list[ScoringSite]:
    """Build sites that score a bundle on their own images.

    Args:
        inputs: the bundle and the images.
        names: names of the sites; none for all of the dataset.
        min_patients: the minimum group size of each site; a site that is missing here has the default.

    Raises:
        UserError: if the bundle or the images cannot be used.
    """
    dataset = inputs.load_dataset()
    known = dataset.site_names()
    if missing := [name for name in names if name not in known]:
        raise UserError(f"{inputs.folder}: has no images of the site '{missing[0]}'. {suggestion(missing[0], known)}")
    model = load_bundle(Path(inputs.bundle), pick_device(inputs.device))
    cases = dataset.cases_by_site(list(names) or known)
    check_channels(model, dataset)
    task, assigned = task_of_bundle(model, dataset, dict(inputs.named))
    return [
        ScoringSite(
            name,
            model,
            task,
            assigned,
            dataset,
            with_labels_of(task, dataset, of_site),
            min_patients.get(name, DEFAULT_MIN_PATIENTS),
        )
        for name, of_site in cases.items()
    ]


def score_at_sites(
    inputs: ScoringInputs, min_patients: Mapping[str, int], engine_name: str = "in_process"
) -> SiteScores:
    """Score a bundle at all sites of a dataset through an engine, as a coordinator does.

    Args:
        inputs: the bundle and the images.
        min_patients: the minimum group size of each site.
        engine_name: one of `medfed.scoring.arguments.ENGINES`.

    Returns:
        The scores.

    Raises:
        UserError: if the bundle or the images cannot be used, or if no site has a valid reply.
    """
    sites = build_scoring_sites(inputs, (), min_patients)
    engine = (
        InProcess([], settings=SETTINGS, scoring_sites=sites)
        if engine_name == "in_process"
        else ScoringProcesses([], settings=SETTINGS, scoring_sites=sites, inputs=inputs, min_patients=min_patients)
    )
    try:
        data = "phantom" if sites[0].dataset.is_phantom else "real"
        about = {"data": data, "dataset": sites[0].dataset.card.title}
        notices = name_notices(sites[0].model, sites[0].assigned, engine.sites())
        return collect_scores(engine, sites[0].task, about, notices)
    finally:
        engine.close()


def collect_scores(
    engine: Engine, task: BundleTask, about: Mapping[str, str], notices: Sequence[str] = ()
) -> SiteScores:
    """Ask all sites of an engine for their scores, check the replies, and record them in the ledger.

    Args:
        engine: carries the requests to the sites and the replies back.
        task: the task of the bundle, which has the network.
        about: "data" ("phantom", "real" or "not stated") and "dataset" (the name of the images) for the summary.
        notices: what a reader of the scores should know.

    Raises:
        UserError: if no site has a valid reply.
    """
    state = State.of(task.model.network)
    exchange = Exchange(engine, SETTINGS)
    replies = exchange.ask(requests_with_last_round(SCORE, state, engine.sites(), 1), state)

    def check_all(by_site: Mapping[str, Message]) -> None:
        for reply in by_site.values():
            check_scores(task, reply)

    _, accepted = exchange.apply(check_all, replies)
    ledger, _, _ = exchange.take_records()
    facts = {site: reply.facts for site, reply in accepted.items()}
    silent = [site for site in engine.sites() if site not in accepted]
    summary = {
        **about,
        "bundle": dict(task.model.facts),
        "sites": facts,
        "outputs": outputs_of(task),
        "no_valid_reply": silent,
        "notices": list(notices),
        "versions": versions(),
    }
    return SiteScores(task, facts, silent, ledger, summary)


def write_site_scores(scores: SiteScores, out: Path) -> None:
    """Write `scores.csv`, `ledger.csv` and `summary.json`. If an error occurs, no folder is left.

    Args:
        scores: the scores of the sites.
        out: the folder to create.

    Raises:
        UserError: if the folder cannot be written.
    """
    with atomic_folder(out) as folder:
        append_rows(folder / SCORES, ("site", "structure", "metric", "n", "mean", "sd"), scores.rows())
        append_rows(folder / "ledger.csv", COLUMNS, scores.ledger)
        RunFolder(folder).write_json(SUMMARY, scores.summary)


def _score(facts: Mapping[str, float], start: str) -> str:
    """Format a score as "0.812 ± 0.050 (24)"."""
    if f"{start}.mean" not in facts:
        return ""
    sd = facts.get(f"{start}.sd")
    return f"{facts[f'{start}.mean']:.4g}{'' if sd is None else f' ± {sd:.3g}'} ({facts[f'{start}.n']})"
