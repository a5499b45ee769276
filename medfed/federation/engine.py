"""What the coordinator asks of an engine, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from medfed.federation.message import Message

OnReply = Callable[[str, str, int, int], None]  # called with (kind, site, replies so far, replies expected)
OnStep = Callable[[str, int, int], None]  # called with (site, training step, steps of this round)


class Engine(Protocol):
    """Carries messages to sites and replies back. An engine is one file in `medfed/engines`.

    Attributes:
        on_reply: called after each reply, for progress; None calls nothing.
        on_step: called after each training step of a site of this machine, for progress.
    """

    on_reply: OnReply | None
    on_step: OnStep | None

    def sites(self) -> list[str]:
        """The sites that take part, sorted. The validation site is not among them, and yet answers "validate"."""
        ...

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver one message to each named site, all of one kind.

        Returns:
            The replies by site, sorted by name: of kind `FAILED` where a site could not answer; a site may be absent.
        """
        ...

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Give each site the memory of the round that it last took part in (`State.took_part`); before going on."""
        ...

    def close(self) -> None:
        """End what runs for the sites. Nothing is exchanged after this."""
        ...
