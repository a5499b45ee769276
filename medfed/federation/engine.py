"""What the coordinator asks of an engine, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from medfed.federation.message import Message


class Engine(Protocol):
    """Carries messages to sites and answers back."""

    def sites(self) -> list[str]:
        """The sites that take part, sorted. A validation site is not among them, and yet answers "validate"."""
        ...

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver one message to each named site, all of one kind; the answers by site, sorted by name."""
        ...
