"""Answers that come when nobody waits any more: FLARE drops them by itself, and here is what is told of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_REQUESTS = 10_000  # that are remembered; FLARE itself knows no more


@dataclass
class _Letter:
    site: str
    kind: str
    round: int
    sent: float
    is_open: bool = True
    came: float | None = None
    why: str = ""


@dataclass
class LateReplies:
    """Which letters one waits for, and notes of whatever else comes in answer; of each letter one note at most.

    FLARE's threads tell what is sent and what comes, and the relay's reads the notes.
    """

    _letters: dict[str, _Letter] = field(default_factory=dict, init=False)
    _notes: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def sent(self, key: str, site: str, kind: str, number: int) -> None:
        """A letter of round `number` goes to a site, which will answer by this key; maybe not for the first time."""
        with self._lock:
            self._letters.setdefault(key, _Letter(site, kind, number, time.monotonic()))
            if len(self._letters) > MAX_REQUESTS:
                del self._letters[next(iter(self._letters))]

    def came(self, key: str, site: str, why: str = "") -> None:
        """An answer from a site, or in its place why there is none."""
        with self._lock:
            letter = self._letters.get(key)
            if letter is None or letter.site != site:
                return
            is_first = letter.came is None
            if is_first:
                letter.came, letter.why = time.monotonic(), why
            if not (is_first and letter.is_open):
                self._tell(key, "again" if not is_first else _late(letter))

    def over(self, sites: Collection[str]) -> None:
        """Nobody waits any more for answers to the letters that were sent; what these sites answered came too late."""
        with self._lock:
            for key, letter in list(self._letters.items()):
                if letter.is_open and letter.site in sites and letter.came is not None:
                    self._tell(key, _late(letter))
                letter.is_open = False

    def notes(self) -> list[str]:
        """Those that were not read yet."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def _tell(self, key: str, how: str) -> None:
        letter = self._letters.pop(key)
        why = f" ({letter.why})" if letter.why else ""
        self._notes.put(f"{letter.site}: its answer '{letter.kind}' of round {letter.round} came {how}{why}; left out")


def _late(letter: _Letter) -> str:
    return "late" if letter.came is None else f"late, after {letter.came - letter.sent:.0f} s"
