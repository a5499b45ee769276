"""The interface between the round loop and an engine, which carries messages to the sites and replies back.

The engines are in `medfed.engines`; a config chooses one by `federation.engine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from medfed.federation.message import Message

OnReply = Callable[[str, str, int, int], None]  # called with (kind, site, replies so far, replies expected)
OnStep = Callable[[str, int, int], None]  # called with (site, training step, steps of this round)


class Engine(ABC):
    """Base class of engines: it delivers requests to sites and returns their replies.

    Attributes:
        on_reply: called after each reply with (kind, site, number of replies so far, number of requests); or None.
        on_step: called after each training step of a site on this machine with (site, step, steps of this round); or
            None.
        work_s: seconds that the sites worked on the last exchange, summed over the sites, even if they worked at the
            same time. None, or no such attribute, if the engine does not measure it.
    """

    on_reply: OnReply | None
    on_step: OnStep | None
    work_s: float | None

    @abstractmethod
    def sites(self) -> list[str]:
        """Return the sorted names of the sites that train; `exchange` also reaches the validation site."""

    @abstractmethod
    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver one request of this kind to each named site, wait, and return the replies, sorted by site.

        If a site could not reply, either its reply is of kind "failed" and says why, or the site is missing in the
        result.
        """

    @abstractmethod
    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Give each site back what it kept after its last accepted round (`State.took_part`).

        Called before the first round, and after the last round for the evaluation. Sites on this machine also get
        `weights`, those that they received last, so that a resumed run sends the same messages as an uninterrupted one;
        None leaves their weights as they are.
        """

    @abstractmethod
    def close(self) -> None:
        """End the processes of the sites and the connections to them; `exchange` must not be called afterwards."""
