"""Train one federation round by round, and save every round in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from medfed.cli.progress import OnTraining, RoundProgress
from medfed.config.schema import Config
from medfed.experiments.survey import survey_before_training
from medfed.federation.engine import Engine
from medfed.federation.exchange import Row
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.federation.settings import Federation
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import SENT, read_row
from medfed.tasks.task import Task


def train(
    config: Config,
    engine: Engine,
    folder: RunFolder,
    state: State,
    task: Task,
    quiet: bool,
    finish: Callable[[State], None] = lambda last: None,
    on_training: OnTraining | None = None,
) -> State:
    """Run the rounds after `state.round`, save each in the run's folder, and return the last state.

    Args:
        engine: it is closed at the end.
        folder: rows of its tables that belong to rounds after `state.round` are removed first.
        finish: called with the state after the last round, while the engine is still open.
        on_training: called after each training of a site with the numbers of trainings done and of the run.
    """
    surveyed = _survey(config.federation, engine, task, folder, quiet) if state.round == 0 else []
    settings, sends = config.federation, read_row(folder.path, config.method_name).arrangement not in SENT
    folder.truncate(state.round)
    if not folder.rounds():
        folder.save_state(state)
    engine.restore(state.took_part, state.weights if state.round else None)
    n_sites = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
    with RoundProgress(state.round, settings.rounds, n_sites, quiet, on_training) as progress:
        engine.on_reply, engine.on_step = progress.site_replied, progress.step
        try:
            for done in federate(config.method, engine, state, settings, config.seed, config.training):
                best = RULES[settings.selection]([*folder.history(), done.history])
                done, surveyed = replace(done, ledger=[*surveyed, *done.ledger]), []
                done = done if sends else replace(done, ledger=[])  # nothing is exchanged: the messages stay here
                folder.save_round(done, best, config.evaluation.unseen_every)
                progress.round_done(done.history)
                state = done.state
            finish(state)
        except KeyboardInterrupt as stop:
            raise type(stop)(
                f"stopped in round {min(folder.rounds()[-1] + 1, settings.rounds)} of {settings.rounds}; {folder.path} "
                "holds the finished rounds, and the results of the sites that had finished their part of the stopped "
                "round. Continue with the same config and --resume"
            ) from stop
        finally:
            engine.close()
    engine.restore(state.took_part)  # the evaluation needs the entries that stay at the sites
    return state


def _survey(settings: Federation, engine: Engine, task: Task, folder: RunFolder, quiet: bool) -> Sequence[Row]:
    """Return the ledger's rows of the survey before round 1; none if `federation.survey` is "none"."""
    if not settings.surveys:
        return []
    try:
        return survey_before_training(engine, task, folder, settings.survey == "stop", quiet)
    except BaseException:
        engine.close()
        raise


def selected_state(folder: RunFolder, last: State, rule: str, method: Method) -> State:
    """Return the state after the round that `rule` (`federation.selection`) selects, with the weights that are scored.
    The method may choose other weights than the global weights of this round (`result_weights`)."""
    chosen = RULES[rule](folder.history())
    state = last if chosen == last.round else folder.load_state(chosen)
    return replace(state, weights=method.result_weights(state))
