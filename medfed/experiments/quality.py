"""After training with `federation.predict_quality`: keep the local models, and collect the sums for `medfed.score`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from medfed.config.schema import Config
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.experiments.setup import Experiment, local_entries
from medfed.experiments.training import selected_state
from medfed.federation.engine import Engine
from medfed.federation.message import State
from medfed.federation.privacy import Privacy
from medfed.federation.quality import ask_quality, to_json
from medfed.outputs.run_folder import QUALITY_JSON, RunFolder
from medfed.tasks.task import Task


def check_quality(config: Config, experiment: Experiment) -> None:
    """Check before training that the setting `federation.predict_quality` fits the other settings and the data.

    Args:
        config: the config of the run.
        experiment: the sites, the network and the task.

    Raises:
        UserError: if the setting is true and the local models cannot be used. The message says why.
    """
    if not config.federation.predict_quality:
        return
    why = why_no_quality(config, experiment.task, experiment.network, len(experiment.sites))
    if not why and not any(site.validation for site in experiment.sites):
        why = "no site has validation patients; set data.validation_ratio above 0"
    if why:
        raise UserError(f"{config.source}: federation.predict_quality: is true, but {why}; set it to false")


def why_no_quality(config: Config, task: Task, network: nn.Module, n_sites: int) -> str:
    """Return why the local models of a run cannot predict the Dice; "" if they can.

    Args:
        config: the config of the run.
        task: the task.
        network: the network.
        n_sites: number of the sites that train.
    """
    if config.privacy != Privacy():
        return "the section privacy adds noise to the updates, and the sums would be sent without noise"
    if not task.uses_decoder:
        return f"the data are for {task.name}, and the Dice is predicted for segmentation only"
    if local_entries(config, network):
        name = registry.name_of("methods", type(config.method))
        return f"{name} keeps entries of the network at the sites, so that no update is a complete model"
    if n_sites < 2:
        return "only one site trains, and each site is predicted with the local models of the others"
    return ""


def collect_quality(config: Config, engine: Engine, structures: Sequence[str], folder: RunFolder, last: State) -> None:
    """Write `local_models.safetensors` and `quality.json` while the engine is still open.

    The models are those of the round that is the result of the run. Its number is not asked of the sites again: the
    request has the number of the round after the last one, so that a resumed run replaces its rows of the ledger.

    Args:
        config: the config of the run.
        engine: carries the requests and the replies.
        structures: the names of the structures.
        folder: the run's folder.
        last: the state after the last round.
    """
    if not config.federation.predict_quality:
        return
    final = selected_state(folder, last, config.federation.selection, config.method)
    local_models = folder.load_local_models(final.round)
    by_site, ledger = ask_quality(engine, config.federation, final, local_models, last.round + 1, len(structures))
    folder.append_ledger(ledger, last.round)
    folder.save_result_models(local_models)
    more = {"round": final.round, "min_patients": config.data.min_patients}
    folder.write_json(QUALITY_JSON, to_json(by_site, structures, **more))
