"""Progress of a program: bars on a terminal, and a plain line now and then in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from tqdm import tqdm

OnTraining = Callable[[int, int], None]  # called with the trainings of sites that are done, and of all rounds
LINE_INTERVAL_S = 30.0  # between two lines of a program whose progress does not go to a terminal
LINE, LINE_WITHOUT_TOTAL = "{percentage:3.0f}%, {n_fmt}/{total_fmt}, {remaining} left", "{n_fmt}, {elapsed}"


class ProgressBar(tqdm):
    """A bar of tqdm, which becomes plain lines if standard error is no terminal, for example a log file.

    A program then prints a line at most every 30 seconds, which shows all open bars, the outermost first. In a Jupyter
    notebook, bars are drawn as on a terminal.
    """

    _last_line_s: ClassVar[float] = time.monotonic()  # of all bars of the program

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, dynamic_ncols=True, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar, or print a line; tqdm calls this method."""
        if _can_redraw():
            return bool(super().display(msg, pos))
        now_s = time.monotonic()
        if msg is None and now_s - ProgressBar._last_line_s >= LINE_INTERVAL_S:
            ProgressBar._last_line_s = now_s
            own = [bar for bar in tqdm._instances if isinstance(bar, ProgressBar)]
            bars = [bar for bar in own if hasattr(bar, "pos")]  # another thread may be creating one
            outermost_first = sorted(bars, key=lambda bar: abs(bar.pos))
            print("; ".join(bar._line() for bar in outermost_first), file=sys.stderr, flush=True)
        return False

    def clear(self, nolock: bool = False) -> None:
        """Remove the bar before another text is printed there; tqdm calls this method."""
        if _can_redraw():
            super().clear(nolock)

    def close(self) -> None:
        if not _can_redraw():
            self.leave = False
        super().close()

    def _line(self) -> str:
        """The state of the bar as text without the bar itself."""
        own = self.bar_format and self.bar_format.replace("|{bar}|", ",")
        form = own or ("{desc}: " if self.desc else "") + (LINE if self.total else LINE_WITHOUT_TOTAL)
        return " ".join(self.format_meter(**self.format_dict | {"bar_format": form}).split())


def _can_redraw() -> bool:
    """Whether a text on standard error can be replaced by another one."""
    stream = sys.stderr
    return stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel"))


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
        self._bar.update(0) if step < n_steps else self._bar.refresh()

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
