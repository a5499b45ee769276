"""Progress of a program: bars on a terminal, and now and then in a log file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

OnTraining = Callable[[int, int], None]  # called with the trainings of sites that are done, and of all rounds
LOG_INTERVAL_S = 30.0


def is_live() -> bool:
    """Whether standard error is a terminal or a notebook, where a person watches."""
    stream = sys.stderr
    return stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel"))


class ProgressBar(tqdm):
    """A bar of tqdm, which is drawn at most every 30 seconds if standard error is a file or a pipe."""

    def __init__(self, *args: Any, **options: Any) -> None:
        limits = {} if is_live() else {"mininterval": LOG_INTERVAL_S, "delay": LOG_INTERVAL_S}
        super().__init__(*args, dynamic_ncols=True, miniters=0, **limits, **options)

    def display(self, *args: Any, **options: Any) -> Any:
        """Draw the bar, and let `close` end its line even if a note drew it before `delay` had passed."""
        self.delay = 0
        return super().display(*args, **options)


def case_bar(text: str, quiet: bool) -> Callable[[Iterable], Iterable]:
    """Return what draws a bar over cases, with a text such as "reading"."""
    return lambda cases: ProgressBar(cases, desc=text, unit="case", disable=quiet, leave=False)


class RoundProgress(AbstractContextManager):
    """One bar that counts the trainings of all sites over all rounds; `rounds` includes the finished ones.

    `on_training` is called after each training of a site with (trainings done, trainings of the run).
    """

    def __init__(
        self, rounds_done: int, rounds: int, n_sites: int, quiet: bool = False, on_training: OnTraining | None = None
    ) -> None:
        self._n_done, self._n_all, self._on_training = rounds_done * n_sites, rounds * n_sites, on_training
        self._rounds, self._round, self._score = rounds, rounds_done + 1, ""
        self._bar = ProgressBar(
            total=rounds * n_sites,
            initial=rounds_done * n_sites,
            disable=quiet,
            unit="update",
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} updates, {remaining} left",
        )

    def step(self, site: str, step: int, n_steps: int) -> None:
        """Show the training step of a site in this round."""
        self._bar.set_description_str(
            f"round {self._round}/{self._rounds}, {site} {step}/{n_steps}{self._score}", refresh=False
        )
        self._bar.update(0)

    def site_replied(self, kind: str, site: str, index: int, n_sites: int) -> None:
        """Advance the bar if the site has answered a "train" request."""
        if kind == "train":
            self._bar.update(1)
            self._n_done += 1
            if self._on_training:
                self._on_training(self._n_done, self._n_all)

    def round_done(self, history: dict) -> None:
        """Show the next round, and the last validation score, from the finished round's row of `history.csv`."""
        self._round = int(history["round"]) + 1
        if history.get("validation_score") is not None:
            self._score = f", validation score {history['validation_score']:.3f}"

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
