"""Scores of the unseen site by round, measured after training, for a curve as in Figure 7 (a) of ELCFS.

This is a look at the target. Nobody may choose a round, a setting or a method by these scores, because the unseen site
would then no longer be unseen. medfed writes them to a file and a figure, and uses them for nothing else.
"""

from __future__ import annotations

from medfed.experiments.evaluation import unseen_samples
from medfed.experiments.setup import Experiment
from medfed.outputs.run_folder import UNSEEN_ROUNDS, RunFolder

NOTE = (
    "Measured at the unseen site after training. These scores look at the target: they must not choose a round, a "
    "setting or a method, and medfed uses them for this file and its figure only."
)


def score_unseen_rounds(experiment: Experiment, folder: RunFolder, every: int) -> None:
    """Score the unseen site with every n-th round's weights (`evaluation.unseen_every`), and write the scores."""
    samples, network = unseen_samples(experiment), experiment.network
    levels, rows = experiment.sites[0].architecture.decoder_levels, []
    for number in (number for number in folder.rounds() if number and number % every == 0):
        network.load_state_dict(folder.load_state(number).weights)
        for site, images in samples.items():
            rows.append({"round": number, "site": site, **experiment.task.validate(network, images, levels)})
    folder.write_json(UNSEEN_ROUNDS, {"note": NOTE, "rounds": rows})
