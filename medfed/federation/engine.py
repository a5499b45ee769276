"""The interface between the round loop and an engine, which carries messages to the sites and replies back.

The round loop (`medfed.federation.rounds`) calls an engine through this interface only, so that one loop serves
simulations in one process, sites in processes of their own, and real hospitals over NVIDIA FLARE. Each engine is one
class in `medfed.engines`; the config chooses it by `federation.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from medfed.federation.message import Message

OnReply = Callable[[str, str, int, int], None]  # called with (kind, site, replies so far, replies expected)
OnStep = Callable[[str, int, int], None]  # called with (site, training step, steps of this round)


class Engine(Protocol):
    """Interface of an engine: it delivers requests to sites and returns their replies.

    Attributes:
        on_reply: function that is called after each reply with (kind, site, number of replies so far, number of
            requests), to show progress; None calls nothing.
        on_step: function that is called after each training step of a site on this machine with (site, step, steps of
            this round), to show progress; None calls nothing.
        work_s: seconds that the sites worked on the requests of the last exchange, summed over the sites, even if they
            worked at the same time. None, or no such attribute, if the engine does not measure it.
    """

    on_reply: OnReply | None
    on_step: OnStep | None
    work_s: float | None

    def sites(self) -> list[str]:
        """Return the names of the sites that train, sorted.

        The validation site, which never trains, is not in this list. `exchange` can still deliver "validate" requests
        to it.
        """
        ...

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver one request to each named site, wait, and return the replies.

        Args:
            kind: the kind of all these requests: "share", "train", "validate" or "end".
            messages: dictionary from the name of a site to its request.

        Returns:
            Dictionary from the name of a site to its reply, sorted by name. If a site could not reply, either its entry
            is a message of kind "failed" with the reason, or the site is missing from the dict.
        """
        ...

    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Give each site back what the site kept after its last accepted round.

        An example is the state of the site's optimiser. Sites that are simulated on this machine also get the weights
        that they received last, so that a resumed run sends the same messages as an uninterrupted run. The method is
        called before the first round, so that a run can be resumed, and after the last round, for the evaluation.

        Args:
            took_part: dictionary from the name of a site to the number of its last accepted round (`State.took_part`).
            weights: the global weights after the last finished round; None does not change the weights of the sites.
        """
        ...

    def close(self) -> None:
        """End the processes of the sites and the connections to them.

        `exchange` must not be called afterwards.
        """
        ...
