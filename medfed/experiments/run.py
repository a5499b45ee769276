"""Run one federation in a folder: train, score, draw figures and write the summary."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from medfed.cli.progress import OnTraining
from medfed.config.schema import Config, resolved
from medfed.core.determinism import deterministic
from medfed.core.errors import UserError
from medfed.datasets.duplicates import file_sha256
from medfed.datasets.splits import Split
from medfed.engines.parts.site_store import SiteStore
from medfed.engines.parts.worker_process import check_can_be_imported
from medfed.experiments.evaluation import (
    assess_learning,
    evaluate,
    match_of,
    score_trivial,
    score_unseen_rounds,
    unseen_bn_of,
    unseen_weights,
)
from medfed.experiments.figures import draw_all
from medfed.experiments.resume import (
    changed_settings,
    check_cache_folder,
    check_data,
    check_new_run,
    check_outside_data,
    check_resumed_run,
)
from medfed.experiments.setup import Experiment, build_experiment, describe_images
from medfed.experiments.sites import ONE_SITE
from medfed.experiments.training import record_notices, selected_state, train
from medfed.federation import privacy_accounting
from medfed.federation.ledger import sum_bytes
from medfed.federation.message import State
from medfed.federation.settings import Federation
from medfed.metrics.ratio import summarise_ratios, write_ratios
from medfed.outputs.callback import Callbacks
from medfed.outputs.environment import environment, versions
from medfed.outputs.run_folder import UNADAPTED, RunFolder
from medfed.results.notes import adaptation_of
from medfed.results.row import ROW_FILE, ComparisonRow, read_row
from medfed.results.run_scores import n_absent, run_scores
from medfed.results.scores import table_of, write_scores
from medfed.tasks.results import EvaluationResult


def run(
    config: Config,
    folder: RunFolder,
    resume: bool = False,
    accept_config_change: bool = False,
    quiet: bool = False,
    jobs: int | None = None,
    on_training: OnTraining | None = None,
    row: ComparisonRow | None = None,
) -> None:
    """Train and evaluate one federation in a locked folder, or continue its run (`medfed.run`); `row` is its row of a
    comparison. Nothing is computed if the run is finished and its config is unchanged."""
    if not folder.is_finished():
        check_can_be_imported(config.yaml, jobs)
    callbacks = Callbacks(config.tracking, config.source)
    if not resume:
        check_outside_data(folder.path, config.data)
        check_new_run(folder)
    with folder.locked():
        if resume:
            check_resumed_run(folder, resolved(config), accept_config_change)
        if row is not None:
            write_row(folder, row, config)
        if folder.is_finished() and not changed_settings(folder, resolved(config)):
            return
        check_cache_folder(config.cache, config.data, folder.path, config.source)
        expected = ONE_SITE if row is not None and row.trained_at else ""
        try:
            with deterministic(config.training.threads), record_notices(folder, quiet, expected) as run_notices:
                _train_and_conclude(config, folder, run_notices, quiet, jobs, on_training, callbacks)
        except KeyboardInterrupt as stop:
            if str(stop) or not (folder.path / "config.yaml").is_file():
                raise
            raise type(stop)(
                f"stopped; {folder.path} holds all finished rounds. Continue with the same config and --resume"
            ) from stop


def write_row(folder: RunFolder, row: ComparisonRow, config: Config) -> None:
    """Write `row.json`. The row of a finished run changes if a later command compares it with another row."""
    if not folder.is_finished():
        folder.write_json(ROW_FILE, asdict(row))
    elif read_row(folder.path, row.method) != row:
        folder.reopen()  # a process that is killed before `finish` leaves a run that is concluded again
        folder.write_json(ROW_FILE, asdict(row))
        folder.finish(folder.read_summary(), config.evaluation.unseen_every)


def _train_and_conclude(
    config: Config,
    folder: RunFolder,
    run_notices: list[str],
    quiet: bool,
    jobs: int | None,
    on_training: OnTraining | None,
    callbacks: Callbacks,
) -> None:
    federation, source = config.federation, config.source
    run_notices += [notice for notice in config.notices if notice not in run_notices]
    experiment = build_experiment(config, folder.path / "sites", quiet, jobs)
    state = replace(folder.newest_state() or experiment.start, local_keys=experiment.start.local_keys)
    if state.round > federation.rounds:
        raise UserError(
            f"{source}: federation.rounds: is {federation.rounds}, but the run in {folder.path} has finished "
            f"{state.round} rounds; expected at least as many, or choose another folder with --out"
        )
    check_data(folder, experiment.dataset, experiment.splits, config.method.files)
    if federation.selection == "source_validation" and not any(site.validation for site in experiment.sites):
        raise UserError(
            f"{source}: federation.selection: '{federation.selection}' needs validation patients, and no source site "
            "has enough patients for a validation part; set federation.selection to last"
        )
    if not federation.unseen_site:
        warnings.warn(
            "federation.unseen_site is empty, so all scores are of sites that trained; name a site to measure "
            "generalisation",
            stacklevel=2,
        )
    if federation.clients_per_round > len(experiment.sites):
        warnings.warn(
            f"federation.clients_per_round: {federation.clients_per_round}, but there are {len(experiment.sites)}; all "
            "train in every round",
            stacklevel=2,
        )
    federation.check_quorum(len(experiment.engine.sites()))
    experiment.engine.restore(state.took_part)  # refuses a folder without the sites' files
    _begin(folder, config, experiment.clients, state.round, run_notices)
    last = train(
        config, experiment.engine, folder, state, experiment.task, quiet, on_training=on_training, callbacks=callbacks
    )
    SiteStore(folder.path / "sites").tidy(last.took_part)
    final = selected_state(folder, last, federation.selection, config.method)
    _conclude(config, folder, experiment, final, run_notices, quiet, callbacks)


def _begin(
    folder: RunFolder, config: Config, clients: Mapping[str, Split], rounds_done: int, run_notices: list[str]
) -> None:
    """Write the files that describe the run; `config.yaml` comes last, because a folder without it holds no run."""
    folder.forget_conclusions()  # of the config before an accepted change
    if (folder.path / "config.yaml").is_file():
        changed = changed_settings(folder, resolved(config))
        run_notices += [f"the config was changed after round {rounds_done}: {change}" for change in changed]
        run_notices += [
            f"continued after round {rounds_done} in another environment, with other {name}"
            for name, value in folder.read_json("environment.json").items()
            if value != environment().get(name)
        ]
    folder.write_json("environment.json", environment())
    folder.write_json("notices.json", run_notices)
    if clients:
        folder.write_json("clients.json", {name: _cases_of(patients) for name, patients in clients.items()})
    folder.write_text("config.yaml", config.yaml)


def _cases_of(patients: Split) -> dict[str, list[str]]:
    """Return the training and validation cases of a client, as SITE/CASE."""
    parts = {"train": patients.train, "validation": patients.validation}
    return {part: [f"{case.site}/{case.name}" for case in cases] for part, cases in parts.items()}


def _conclude(
    config: Config,
    folder: RunFolder,
    experiment: Experiment,
    final: State,
    run_notices: list[str],
    quiet: bool,
    callbacks: Callbacks,
) -> None:
    """Score the final state, draw the figures, save the model, and write the summary."""
    result = evaluate(experiment, final.weights, quiet, match_of(config, final))
    scoring, identity = experiment.task.scoring, identity_of(folder.path, config)
    write_scores(folder.path / "cases.csv", table_of(result.rows, scoring.metrics), identity)
    if result.unadapted:
        write_scores(folder.path / UNADAPTED, table_of(result.unadapted, scoring.metrics), identity)
    if result.ratios:
        write_ratios(folder.path / "ratios.csv", result.ratios)
    folder.save_model(unseen_weights(experiment.sites, final.weights))
    if config.evaluation.unseen_every:
        score_unseen_rounds(experiment, folder, config.evaluation.unseen_every)
    try:
        draw_all(experiment, config.method, final, result, folder)
    except Exception as error:  # a figure that fails must not lose a run of days
        warnings.warn(f"a figure could not be drawn: {error!r}", stacklevel=1)
    summary = _summarise(config, experiment, final, result)
    summary["learning"] = learning = assess_learning(experiment, final.weights)
    summary["trivial"] = score_trivial(experiment, str(learning["trivial_prediction"]))
    summary["sent_bytes"] = sum_bytes(folder.ledger())
    releases = privacy_accounting.count_releases(folder.ledger(), config.privacy)
    if budget := privacy_accounting.format_budget(config.privacy, releases, is_simulation=True):
        summary["privacy"] = budget
    callbacks.end({**summary, "notices": run_notices})
    folder.finish({**summary, "notices": run_notices}, config.evaluation.unseen_every)


def identity_of(folder: Path, config: Config) -> dict[str, object]:
    """What tells a run apart from others, as columns of its scores; the varied settings of a comparison are columns."""
    row = read_row(folder, config.method_name)
    identity = {"method": row.method, "preset": config.preset, "seed": config.seed}
    identity |= {"unseen": config.federation.unseen_site or "", "trained_at": row.trained_at}
    return identity | dict(setting.split("=", 1) for setting in row.varied)


def _summarise(config: Config, experiment: Experiment, final: State, result: EvaluationResult) -> dict[str, object]:
    """Return most of `summary.json`: the scores, and everything that a reader of the scores should know."""
    federation, dataset, scoring = config.federation, experiment.dataset, experiment.task.scoring
    is_matched = config.evaluation.match != "none" and bool(result.unadapted)  # not without shared statistics
    adaptation: list[str] = ["tent"] * config.evaluation.tent + [config.evaluation.match] * is_matched
    unseen_bn, pretrained = unseen_bn_of(experiment.sites), config.network.weights_file()
    transductive = adaptation + [unseen_bn] * (unseen_bn == "batch_stats")
    table = table_of(result.rows, scoring.metrics)
    summary: dict[str, object] = {
        **scoring.describe(),
        "scores": run_scores(table, scoring),
        "n_absent": n_absent(table),
        "data": "phantom" if dataset.is_phantom else "real",
        "dataset": dataset.card.title,
        "method": config.method_name,
        "unseen_site": federation.unseen_site or None,
        "source_sites": sorted(site for site, patients in experiment.splits.items() if patients.train),
        "patients": {
            site: {part: len({case.patient for case in getattr(s, part)}) for part in ("train", "validation", "test")}
            for site, s in experiment.splits.items()
        },
        "images": describe_images(experiment.task, dataset, next(iter(experiment.splits.values())).train[0]),
        "selection": federation.selection,
        "selected_round": final.round,
        "rounds": federation.rounds,
        "seed": config.seed,
        "precision": config.training.precision,
        "deterministic": config.deterministic,
        "config_sha256": hashlib.sha256(config.yaml.encode()).hexdigest(),
        "versions": versions(),
        "start_weights": pretrained and {"file": pretrained.name, "sha256": file_sha256(pretrained)},
        "sites_kept_entries": any(site.local_keys for site in experiment.sites),
        "method_summary": config.method.summarise(final),
        "transductive": bool(transductive),
    }
    if federation.validation_site:
        summary["validation_site"] = federation.validation_site
    if experiment.clients:
        summary["clients"] = _describe_clients(federation, experiment.clients)
    if transductive:
        summary["transductive_by"] = transductive
    if adaptation:
        unadapted = table_of(result.unadapted, scoring.metrics)
        summary["adaptation"] = adaptation_of(adaptation[0], scoring, table[table.role == "unseen"], unadapted)
    if result.ratios:
        summary["vertical_ratio"] = {"of": list(dataset.ratio_structures or ()), **summarise_ratios(result.ratios)}
    return summary


def _describe_clients(federation: Federation, clients: Mapping[str, Split]) -> dict[str, object]:
    n, images = len(clients), sorted(len(patients.train) for patients in clients.values())
    return {
        "n": n,
        "per_round": min(federation.clients_per_round or n, n),
        "partition": federation.partition_label(),
        "training_images": {"fewest": images[0], "median": median(images), "most": images[-1]},
    }
