"""Run one federation in a folder: train, score, draw figures and write the summary."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from medfed.cli.progress import RoundProgress
from medfed.config.schema import Config, to_yaml
from medfed.core.determinism import fix_bits
from medfed.core.errors import UserError
from medfed.datasets.splits import Split
from medfed.engines.in_process import InProcess
from medfed.experiments.evaluation import boundary_distances, evaluate, unseen_weights
from medfed.experiments.figures import draw_all
from medfed.experiments.resume import changes, check_data, load_resume_state
from medfed.experiments.setup import Experiment, build_experiment
from medfed.experiments.summary import summarise
from medfed.federation import privacy_accounting
from medfed.federation.message import State
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.metrics.ratio import summarise_ratios, write_ratios
from medfed.outputs.environment import environment
from medfed.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from medfed.engines.flare.engine import FlareEngine


def default_folder(config: Config) -> Path:
    """runs/CONFIG-METHOD-unseen_SITE[-validation_SITE]-seedN, so that two different runs do not meet."""
    unseen, validation = config.federation.unseen_site or "none", config.federation.validation_site
    apart = f"unseen_{unseen}" + (f"-validation_{validation}" if validation else "")
    return Path("runs") / f"{Path(config.source).stem}-{config.method_name}-{apart}-seed{config.seed}"


def run(config: Config, folder: RunFolder, quiet: bool = False) -> dict[str, object]:
    """Do whatever of a run is not done yet; the folder is locked and `open_run` let it. The content of summary.json."""
    if folder.is_finished() and (folder.path / "model.safetensors").is_file() and not changes(folder, config):
        return folder.read_json("summary.json")
    fix_bits()
    with notices(folder, quiet) as said:
        simulation = build_experiment(config, folder.path / "sites", quiet)
        state = load_resume_state(folder, simulation)
        with _full_disk_named(folder):
            check_data(folder, simulation, config)
            _check_selection(config, simulation)
            _say_what_surprises(config, simulation)
            _begin(folder, config, simulation, state, said)
            last = train(config, simulation.engine, folder, state, quiet)
            chosen = RULES[config.federation.selection](folder.history())
            final = last if chosen == last.round else folder.load_state(chosen)
            findings = evaluate(simulation, final.weights, quiet)
            rows, ratios = findings.rows, findings.ratios
            simulation.task.scoring.write_cases(folder.path / "cases.csv", rows)
            if ratios:
                write_ratios(folder.path / "ratios.csv", ratios)
            folder.save_model(unseen_weights(simulation.engine.members, final.weights))
            distances = boundary_distances(simulation, final.weights)
            try:
                draw_all(simulation, config.method, final, findings, folder, distances)
            except Exception as error:  # a picture is not worth the result of days
                warnings.warn(f"a picture could not be drawn: {error!r}", stacklevel=1)
            found = summarise(config, simulation, final, rows, said)
            by_site = privacy_accounting.releases(folder.ledger(), final.weights)
            if budget := privacy_accounting.format_budget(config.privacy, by_site):
                found["privacy"] = budget
            if ratios:
                found["vertical_ratio"] = {"of": list(simulation.dataset.ratio_of), **summarise_ratios(ratios)}
            if distances:
                found["boundary_distance"] = distances
            folder.write_json("summary.json", found)
    return found


def _begin(folder: RunFolder, config: Config, simulation: Experiment, state: State, said: list[str]) -> None:
    """Write down what runs, `config.yaml` last, as that makes it a run: one refused for its data leaves none behind."""
    (folder.path / "summary.json").unlink(missing_ok=True)  # of another config, where a change was accepted
    if (folder.path / "config.yaml").is_file():
        said += [f"the config was changed after round {state.round}: {change}" for change in changes(folder, config)]
        said += [
            f"went on after round {state.round} in another environment, with other {name}"
            for name, value in folder.read_json("environment.json").items()
            if value != environment()[name]
        ]
    folder.write_json("environment.json", environment())
    folder.write_json("notices.json", said)
    if simulation.clients:
        folder.write_json("clients.json", {name: _held(patients) for name, patients in simulation.clients.items()})
    folder.write_text("config.yaml", to_yaml(config))


def _held(patients: Split) -> dict[str, list[str]]:
    """Which cases a client holds, as SITE/CASE."""
    parts = {"train": patients.train, "validation": patients.validation}
    return {part: [f"{case.site}/{case.patient}" for case in cases] for part, cases in parts.items()}


def _say_what_surprises(config: Config, simulation: Experiment) -> None:
    n, wanted = len(simulation.engine.sites()), config.federation.clients_per_round
    if not config.federation.unseen_site:
        warnings.warn(
            "federation.unseen_site is empty: no score here is of a hospital that took no part; name one to measure "
            "that",
            stacklevel=2,
        )
    if wanted > n:
        warnings.warn(
            f"federation.clients_per_round: {wanted}, but there are {n}; all take part in every round", stacklevel=2
        )


def _check_selection(config: Config, simulation: Experiment) -> None:
    by_sources = config.federation.selection == "source_validation"
    if by_sources and not any(site.validation for site in simulation.engine.members):
        raise UserError(
            f"{config.source}: federation.selection: '{config.federation.selection}' needs validation patients, and no "
            "source site has enough patients to spare one; set it to last"
        )


def train(
    config: Config, engine: InProcess | FlareEngine, folder: RunFolder, state: State, quiet: bool,
    whole: Callable[[State], None] = lambda last: None,
) -> State:
    """Run the rounds that `state` has not seen, each committed to the folder; the state after the last one.

    Args:
        whole: called with that, while the engine still runs.
    """
    settings = config.federation
    if not folder.rounds():
        folder.save_state(state)
    folder.truncate(state.round)
    engine.restore(state.took_part)
    n_sites = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
    with RoundProgress(state.round, settings.rounds, n_sites, quiet) as progress:
        engine.on_answer = progress.answered
        for site in engine.members:
            site.progress = progress.step
        try:
            for done in federate(config.method, engine, state, settings, config.seed, config.training):
                best = RULES[settings.selection]([*folder.history(), done.history])
                folder.save_round(done, best)
                progress.round_done(done.history)
                state = done.state
            whole(state)
        except KeyboardInterrupt as stop:
            raise type(stop)(
                f"stopped in round {min(folder.rounds()[-1] + 1, settings.rounds)} of {settings.rounds}; {folder.path} "
                "holds all before it, and the sites that had finished. Go on with the same command and --resume"
            ) from stop
        finally:
            engine.close()
    engine.restore(state.took_part)  # the evaluator wants what the sites keep
    return state


@contextmanager
def notices(folder: RunFolder, quiet: bool) -> Iterator[list[str]]:
    """Show medfed's own warnings as one-line notes among the progress bars, once each, and keep their texts.

    Those of a run that has begun are kept on disk too: what was said in round 1 is not said again on resume.
    """
    begun, kept = ((folder.path / name).is_file() for name in ("config.yaml", "notices.json"))
    said: list[str] = folder.read_json("notices.json") if begun and kept else []
    shown: set[str] = set()

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        text = str(message)
        ours = category is UserWarning and "medfed" in Path(filename).parts
        if text in shown or not (ours or "deterministic" in text):
            return
        shown.add(text)
        if text not in said:
            said.append(text)
            if (folder.path / "config.yaml").is_file():
                folder.write_json("notices.json", said)
        if not quiet:
            tqdm.write(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield said


@contextmanager
def _full_disk_named(folder: RunFolder) -> Iterator[None]:
    """The system does not say which disk is full; the one with the run's folder is."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = error.filename or str(folder.path)
        raise
