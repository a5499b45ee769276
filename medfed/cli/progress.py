"""Progress bars of a federation: sites within rounds, with the time left."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tqdm import tqdm


class RoundProgress(AbstractContextManager):
    """One bar that counts sites over all rounds; its text says the round, the site, its step and the last score.

    Args:
        rounds_done, rounds: rounds that are finished already, and in all.
        n_sites: sites that train in a round.
        quiet: draw nothing.
    """

    def __init__(self, rounds_done: int, rounds: int, n_sites: int, quiet: bool = False) -> None:
        self._rounds, self._round, self._score = rounds, rounds_done + 1, ""
        self._bar = tqdm(
            total=rounds * n_sites,
            initial=rounds_done * n_sites,
            disable=quiet,
            unit="site",
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} sites, {remaining} left",
        )

    def step(self, site: str, step: int, n_steps: int) -> None:
        """A site made a training step."""
        self._bar.set_description_str(
            f"round {self._round}/{self._rounds}, {site} {step}/{n_steps}{self._score}", refresh=False
        )
        self._bar.update(0) if step < n_steps else self._bar.refresh()

    def site_replied(self, kind: str, site: str, index: int, n_sites: int) -> None:
        """A site answered a message."""
        if kind == "train":
            self._bar.update(1)

    def round_done(self, history: dict) -> None:
        """A round is complete and on disk."""
        self._round = int(history["round"]) + 1
        if history.get("validation_score") is not None:
            self._score = f", validation score {history['validation_score']:.3f}"

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
