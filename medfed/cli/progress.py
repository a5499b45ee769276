"""The progress bar of a federation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from tqdm import tqdm

OnTraining = Callable[[int, int], None]  # called with the trainings of sites that are done, and of all rounds
FILE_INTERVAL_S = 60.0  # between two states of the bar in a log file


class RoundProgress(AbstractContextManager):
    """Draw one progress bar that counts the updates of all sites over all rounds.

    The text of the bar shows the round, the site that trains, the training step and the last validation score.

    Args:
        rounds_done: number of rounds that are already finished.
        rounds: number of all rounds, including the finished ones.
        n_sites: number of sites that train in a round.
        quiet: True draws nothing.
        on_training: function that is called after each training of a site with (number of trainings done, number of
            trainings of the run); None calls nothing.
    """

    def __init__(
        self, rounds_done: int, rounds: int, n_sites: int, quiet: bool = False, on_training: OnTraining | None = None
    ) -> None:
        self._n_done, self._n_all, self._on_training = rounds_done * n_sites, rounds * n_sites, on_training
        self._rounds, self._round, self._score = rounds, rounds_done + 1, ""
        self._bar = tqdm(
            total=rounds * n_sites,
            initial=rounds_done * n_sites,
            disable=quiet,
            unit="site",
            mininterval=0.1 if sys.stderr is not None and sys.stderr.isatty() else FILE_INTERVAL_S,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} sites, {remaining} left",
        )

    def step(self, site: str, step: int, n_steps: int) -> None:
        """Show which site is training, and how many training steps this site has made in this round.

        Args:
            site: name of the site.
            step: number of steps that the site has made in this round.
            n_steps: number of steps that the site makes in a round.
        """
        self._bar.set_description_str(
            f"round {self._round}/{self._rounds}, {site} {step}/{n_steps}{self._score}", refresh=False
        )
        self._bar.update(0) if step < n_steps else self._bar.refresh()

    def site_replied(self, kind: str, site: str, index: int, n_sites: int) -> None:
        """Advance the bar by one if a site has finished its local training.

        Replies to other requests do not change the bar.

        Args:
            kind: kind of the request that the site has answered: "share", "train" or "validate". Only "train" counts.
            site: name of the site; not used.
            index: number of sites that have replied to the request, from 1; not used.
            n_sites: number of sites that were asked; not used.
        """
        if kind == "train":
            self._bar.update(1)
            self._n_done += 1
            if self._on_training:
                self._on_training(self._n_done, self._n_all)

    def round_done(self, history: dict) -> None:
        """Show the number of the next round, and the validation score of the round that has just ended.

        Args:
            history: the row of the finished round in `history.csv`, by column. It has the column "round" (the number of
                the round) and, if scores were computed, "validation_score".
        """
        self._round = int(history["round"]) + 1
        if history.get("validation_score") is not None:
            self._score = f", validation score {history['validation_score']:.3f}"

    def __exit__(self, *exception: object) -> None:
        """Close the bar."""
        self._bar.close()
