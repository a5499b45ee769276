"""Finds replies that are late or repeated, which FLARE drops silently, so that the user can be warned."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_REQUESTS = 10_000  # requests that are remembered; FLARE itself does not remember more


@dataclass
class _Request:
    site: str
    kind: str
    round: int
    sent_at: float
    is_open: bool = True  # whether the controller still waits for the reply
    replied_at: float | None = None
    failure: str = ""


@dataclass
class LateReplies:
    """Records requests and their replies, and produces a warning for a reply that is received too late or twice.

    All methods may be called by different threads. A request is open from `record_request` until `close_requests`. The
    first reply to an open request causes no warning; any other reply does, with at most one warning for each request.
    `key` is FLARE's identifier of the task, unique for each request.
    """

    _requests: dict[str, _Request] = field(default_factory=dict, init=False)
    _warnings: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def record_request(self, key: str, site: str, kind: str, number: int) -> None:
        """Record that a request is sent to a site; recording the same key again changes nothing."""
        with self._lock:
            self._requests.setdefault(key, _Request(site, kind, number, time.monotonic()))
            if len(self._requests) > MAX_REQUESTS:
                del self._requests[next(iter(self._requests))]

    def record_reply(self, key: str, site: str, failure: str = "") -> None:
        """Record a reply; warn if it is late or repeated. It is ignored if the site has no request with this key.

        `failure` is the reason of a failed reply, or "".
        """
        with self._lock:
            request = self._requests.get(key)
            if request is None or request.site != site:
                return
            is_first = request.replied_at is None
            if is_first:
                request.replied_at, request.failure = time.monotonic(), failure
            if not (is_first and request.is_open):
                self._warn(key, "twice" if not is_first else _delay(request))

    def close_requests(self, unused: Collection[str]) -> None:
        """Close all requests so far; also warn of received replies of `unused` sites, which were not used."""
        with self._lock:
            for key, request in list(self._requests.items()):
                if request.is_open and request.site in unused and request.replied_at is not None:
                    self._warn(key, _delay(request))
                request.is_open = False

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call, one sentence each, and remove them."""
        return [self._warnings.get() for _ in range(self._warnings.qsize())]

    def _warn(self, key: str, how: str) -> None:
        """Store a warning that a reply was not used; `how` says how it was received."""
        request = self._requests.pop(key)
        failure = f" ({request.failure})" if request.failure else ""
        self._warnings.put(
            f"{request.site}: its reply '{request.kind}' of round {request.round} was received {how}{failure}; it is "
            "not used"
        )


def _delay(request: _Request) -> str:
    """Such as "late, after 12 s", counted from the request."""
    return "late" if request.replied_at is None else f"late, after {request.replied_at - request.sent_at:.0f} s"
