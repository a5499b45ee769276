"""Train one federation in a folder, round by round; a run that was stopped goes on after its last round."""

from __future__ import annotations

from collections.abc import Callable

from medfed.cli.progress import RoundProgress
from medfed.config.schema import Config
from medfed.federation.engine import Engine
from medfed.federation.message import State
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.outputs.run_folder import RunFolder


def train(
    config: Config, engine: Engine, folder: RunFolder, state: State, quiet: bool,
    finish: Callable[[State], None] = lambda last: None,
) -> State:
    """Run the rounds that `state` has not seen, each committed to the folder; return the state after the last one.

    Args:
        finish: called with the last state while the engine still runs.

    Raises:
        KeyboardInterrupt: of the same type, with a sentence that says how to go on.
    """
    settings = config.federation
    if not folder.rounds():
        folder.save_state(state)
    folder.truncate(state.round)
    engine.restore(state.took_part)
    n_sites = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
    with RoundProgress(state.round, settings.rounds, n_sites, quiet) as progress:
        engine.on_reply, engine.on_step = progress.site_replied, progress.step
        try:
            for done in federate(config.method, engine, state, settings, config.seed, config.training):
                best = RULES[settings.selection]([*folder.history(), done.history])
                folder.save_round(done, best)
                progress.round_done(done.history)
                state = done.state
            finish(state)
        except KeyboardInterrupt as stop:
            raise type(stop)(
                f"stopped in round {min(folder.rounds()[-1] + 1, settings.rounds)} of {settings.rounds}; {folder.path} "
                "holds all before it, and the sites that had finished. Go on with the same command and --resume"
            ) from stop
        finally:
            engine.close()
    engine.restore(state.took_part)  # the evaluator needs what the sites keep
    return state


def selected_state(folder: RunFolder, last: State, rule: str) -> State:
    """The state of the round that a rule of `medfed.federation.selection` chooses; `last` is that of the last round."""
    chosen = RULES[rule](folder.history())
    return last if chosen == last.round else folder.load_state(chosen)
