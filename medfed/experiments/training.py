"""Train one federation round by round, and save every round in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from medfed.cli.progress import OnTraining, RoundProgress
from medfed.config.schema import Config
from medfed.core.errors import argument
from medfed.experiments.survey import survey_before_training
from medfed.federation.engine import Engine
from medfed.federation.exchange import Row
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.federation.settings import Federation
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import SENT, read_row
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
    """Run the remaining rounds of a federation, and save each round in the run's folder.

    Args:
        config: the config of the run.
        engine: delivers messages to the sites; it is closed at the end.
        folder: the run's folder. Rows of its tables that belong to rounds after `state.round` are removed first.
        state: the coordinator's state from which training continues.
        task: the task, with the names that the table of the survey shows (`federation.survey`).
        quiet: True draws no progress bar.
        finish: function that is called with the state after the last round, while the engine is still open.
        on_training: function that is called after each training of a site with (number of trainings done, number of
            trainings of the run); None calls nothing.

    Returns:
        The coordinator's state after the last round.

    Raises:
        UserError: if the survey before round 1 finds a severe mismatch and `federation.survey` is "stop".
        KeyboardInterrupt: if the user interrupts the training; the message says how to continue.
    """
    surveyed = _survey(config.federation, engine, task, folder, quiet) if state.round == 0 else []
    settings, sends = config.federation, read_row(folder.path, config.method_name).arrangement not in SENT
    if not folder.rounds():
        folder.save_state(state)
    folder.truncate(state.round)
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
                f"round. Continue with the same config and {argument('resume', True)}"
            ) from stop
        finally:
            engine.close()
    engine.restore(state.took_part)  # the evaluation needs the entries that stay at the sites
    return state


def _survey(settings: Federation, engine: Engine, task: Task, folder: RunFolder, quiet: bool) -> Sequence[Row]:
    """Return the rows of the ledger of the survey before round 1; none if `federation.survey` is "none"."""
    if not settings.surveys:
        return []
    try:
        return survey_before_training(engine, task, folder, settings.survey == "stop", quiet)
    except BaseException:
        engine.close()
        raise


def selected_state(folder: RunFolder, last: State, rule: str, method: Method) -> State:
    """Return the coordinator's state after the round that is the result of the run, with the weights that are scored.

    Args:
        folder: the run's folder, which has the validation scores of all rounds and the saved states.
        last: the state after the last round.
        rule: how the round is chosen, a value of the setting `federation.selection`: "last", "source_validation" or
            "validation_site".
        method: the method, which may choose other weights than the global weights of this round (`result_weights`).
    """
    chosen = RULES[rule](folder.history())
    state = last if chosen == last.round else folder.load_state(chosen)
    return replace(state, weights=method.result_weights(state))
