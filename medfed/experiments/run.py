"""Run one federation in a folder: train, score, draw figures and write the summary."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from medfed.cli.progress import OnTraining
from medfed.config.schema import Config, resolved
from medfed.core.determinism import deterministic
from medfed.core.errors import UserError
from medfed.datasets.splits import Split
from medfed.engines.parts.site_store import SiteStore
from medfed.experiments.evaluation import (
    assess_learning,
    boundary_distances,
    evaluate,
    match_of,
    score_trivial,
    score_unseen_rounds,
    unseen_weights,
)
from medfed.experiments.figures import draw_all
from medfed.experiments.notices import name_folder_of_full_disk, record_notices
from medfed.experiments.resume import (
    REMAINDERS,
    changed_settings,
    check_cache_folder,
    check_data,
    check_no_other_files,
    check_outside_data,
    check_run_folder,
    load_resume_state,
)
from medfed.experiments.setup import Experiment, build_experiment
from medfed.experiments.summary import summarise
from medfed.experiments.training import selected_state, train
from medfed.federation import privacy_accounting
from medfed.federation.ledger import sum_bytes
from medfed.federation.message import State
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.metrics.ratio import summarise_ratios, write_ratios
from medfed.outputs.environment import environment
from medfed.outputs.run_folder import BEGINNINGS, UNADAPTED, RunFolder
from medfed.results.row import read_row
from medfed.results.scores import table_of, write_scores


def default_folder(config: Config) -> Path:
    """Return `runs/CONFIG-METHOD-unseen_SITE-seedN`, with `-validation_SITE` if there is a validation site."""
    unseen, validation = config.federation.unseen_site or "none", config.federation.validation_site
    sites = f"unseen_{unseen}" + (f"-validation_{validation}" if validation else "")
    return Path("runs") / f"{Path(config.source).stem}-{config.method_name}-{sites}-seed{config.seed}"


def start_or_resume(
    config: Config,
    folder: RunFolder,
    resume: bool = False,
    accept_config_change: bool = False,
    quiet: bool = False,
    jobs: int | None = None,
) -> dict[str, object]:
    """Train and evaluate one federation in a locked folder, or continue its run, and return its `summary.json`.

    Args:
        resume: whether to continue the run in the folder. If false, a folder that holds a run is refused.
        accept_config_change: whether to continue although settings have changed, such as the number of rounds.
        jobs: how many sites work at the same time; None decides by the expected time. Results do not depend on it.
    """
    if not resume:
        check_outside_data(folder.path, config.data)
    if not resume and not any((folder.path / name).exists() for name in ("config.yaml", *REMAINDERS)):
        check_no_other_files(folder.path, (*BEGINNINGS, "run.lock", "timings.csv"))
    with folder.locked():
        check_run_folder(folder, resolved(config), resume, accept_config_change)
        try:
            return run(config, folder, quiet, jobs)
        except KeyboardInterrupt as stop:
            if str(stop) or not (folder.path / "config.yaml").is_file():
                raise
            raise type(stop)(
                f"stopped; {folder.path} holds all finished rounds. Continue with the same config and --resume"
            ) from stop


def run(
    config: Config,
    folder: RunFolder,
    quiet: bool = False,
    jobs: int | None = None,
    on_training: OnTraining | None = None,
    expected: str = "",
) -> dict[str, object]:
    """Do the remaining steps of a run in a locked folder that `check_run_folder` has accepted; return its
    `summary.json`. Nothing is computed if the run is complete and its config is unchanged. A note that ends with
    `expected` is saved, but not printed. `jobs` is as in `start_or_resume`."""
    is_complete = folder.is_finished() and (folder.path / "model.safetensors").is_file()
    if is_complete and not changed_settings(folder, resolved(config)):
        return folder.read_json("summary.json")
    check_cache_folder(config.cache, config.data, folder.path, config.source)
    with deterministic(config.training.threads), record_notices(folder, quiet, expected) as run_notices:
        run_notices += [notice for notice in config.notices if notice not in run_notices]
        experiment = build_experiment(config, folder.path / "sites", quiet, jobs)
        state = load_resume_state(folder, experiment.start)
        with name_folder_of_full_disk(folder):
            check_data(folder, experiment.dataset, experiment.splits, config.method.files)
            _check_selection(config.federation.selection, config.source, experiment.sites)
            _warn_of_settings(config.federation, len(experiment.sites))
            config.federation.check_quorum(len(experiment.engine.sites()))
            experiment.engine.restore(state.took_part)  # refuses a folder without the sites' files
            _begin(folder, config, experiment.clients, state.round, run_notices)
            last = train(config, experiment.engine, folder, state, experiment.task, quiet, on_training=on_training)
            SiteStore(folder.path / "sites").tidy(last.took_part)
            final = selected_state(folder, last, config.federation.selection, config.method)
            return _conclude(config, folder, experiment, final, run_notices, quiet)


def _conclude(
    config: Config, folder: RunFolder, experiment: Experiment, final: State, run_notices: list[str], quiet: bool
) -> dict[str, object]:
    """Score the final state, draw the figures, save the model, and write the summary."""
    result = evaluate(experiment, final.weights, quiet, match_of(config, final))
    scoring, ratios = experiment.task.scoring, result.ratios
    identity = identity_of(folder.path, config)
    write_scores(folder.path / "cases.csv", table_of(result.rows, scoring.metrics), identity)
    if result.unadapted:
        write_scores(folder.path / UNADAPTED, table_of(result.unadapted, scoring.metrics), identity)
    if ratios:
        write_ratios(folder.path / "ratios.csv", ratios)
    folder.save_model(unseen_weights(experiment.sites, final.weights))
    distances = boundary_distances(experiment, final.weights)
    if config.evaluation.unseen_every:
        score_unseen_rounds(experiment, folder, config.evaluation.unseen_every)
    try:
        draw_all(experiment, config.method, final, result, folder, distances)
    except Exception as error:  # a figure that fails must not lose a run of days
        warnings.warn(f"a figure could not be drawn: {error!r}", stacklevel=1)
    summary = summarise(config, experiment, final, result, run_notices)
    summary["learning"] = learning = assess_learning(experiment, final.weights)
    summary["trivial"] = score_trivial(experiment, str(learning["trivial_prediction"]))
    summary["sent_bytes"] = sum_bytes(folder.ledger())
    releases = privacy_accounting.count_releases(folder.ledger())
    if budget := privacy_accounting.format_budget(config.privacy, releases):
        summary["privacy"] = budget
    if ratios:
        summary["vertical_ratio"] = {"of": list(experiment.dataset.ratio_structures or ()), **summarise_ratios(ratios)}
    if distances:
        summary["boundary_distance"] = distances
    folder.finish(summary, config.evaluation.unseen_every)
    return summary


def identity_of(folder: Path, config: Config) -> dict[str, object]:
    """What tells a run apart from others, as columns of its scores; the varied settings of a comparison are columns."""
    row = read_row(folder, config.method_name)
    identity = {"method": row.method, "preset": config.preset, "seed": config.seed}
    identity |= {"unseen": config.federation.unseen_site or "", "trained_at": row.trained_at}
    return identity | dict(setting.split("=", 1) for setting in row.varied)


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


def _warn_of_settings(settings: Federation, n_sites: int) -> None:
    if not settings.unseen_site:
        warnings.warn(
            "federation.unseen_site is empty, so all scores are of sites that trained; name a site to measure "
            "generalisation",
            stacklevel=2,
        )
    if settings.clients_per_round > n_sites:
        warnings.warn(
            f"federation.clients_per_round: {settings.clients_per_round}, but there are {n_sites}; all train in "
            "every round",
            stacklevel=2,
        )


def _check_selection(selection: str, source: str, sites: Sequence[Site]) -> None:
    """UserError if a rule that selects a round by validation scores has no validation patients to score."""
    if selection == "source_validation" and not any(site.validation for site in sites):
        raise UserError(
            f"{source}: federation.selection: '{selection}' needs validation patients, and no source site has enough "
            "patients for a validation part; set federation.selection to last"
        )
