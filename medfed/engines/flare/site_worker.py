"""The worker process of a site in a federation, which keeps running when a reply is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from medfed.engines.parts.worker_process import WorkerFailed, WorkerProcess

POLL_S = 0.05
CLOSE_TIMEOUT_S = 10.0


@dataclass
class _Request:
    header: Mapping[str, Any]
    body: bytes
    is_first: bool
    received_at: float
    reply: bytes = b""
    failure: WorkerFailed | None = None
    is_done: threading.Event = field(default_factory=threading.Event)


class SiteWorker:
    """A site's worker process that reads its data at once, and is never killed because a reply is late.

    A thread passes one request after another to the worker. If a reply is late, the caller stops waiting for it, the
    worker finishes its work, and the reply is dropped. The arguments are those of `WorkerProcess`.
    """

    def __init__(self, job: Mapping[str, Any], on_warning: Callable[[str], None]) -> None:
        self._process = WorkerProcess(job, on_warning=on_warning)
        self._changed = threading.Condition()
        self._next: _Request | None = None
        self._is_closed, self._is_new = False, True
        self._state = False, time.monotonic()  # whether the worker has read its data, and since when
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(
        self,
        header: Mapping[str, Any],
        body: bytes,
        timeout_s: float,
        load_timeout_s: float,
        stopped: Callable[[], bool],
    ) -> bytes:
        """Send a request to the worker and return its reply; `header` and `stopped` are those of `WorkerProcess.ask`.

        The worker may take `timeout_s` seconds from the receipt of the request; 0 waits without a limit. The time of
        the first request begins when the worker has read its data, for which it may take `load_timeout_s` seconds.
        WorkerFailed if the worker failed, is late or `stopped` returned True; in the last two cases it keeps running.
        """
        request = _Request(header, body, self._is_new, time.monotonic())
        self._is_new = False
        with self._changed:
            self._next = request
            self._changed.notify_all()
        while not request.is_done.wait(POLL_S):
            if why := "was stopped" if stopped() else self._late(request, timeout_s, load_timeout_s):
                with self._changed:
                    if self._next is request:
                        self._next = None
                raise WorkerFailed(why)
        if request.failure:
            raise request.failure
        return request.reply

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _late(self, request: _Request, timeout_s: float, load_timeout_s: float) -> str:
        """Return why the reply is late, as a clause; "" if it is not."""
        is_ready, since = self._state
        is_loading = request.is_first and not is_ready
        begin = since if request.is_first and (is_loading or since > request.received_at) else request.received_at
        waited_s = time.monotonic() - begin
        if not timeout_s or waited_s <= (load_timeout_s if is_loading else timeout_s):
            return ""
        doing = "working" if is_ready else "reading its data"
        return f"was still {doing} after {waited_s:.0f} s; it keeps running and can take part in a later round"

    def _work(self) -> None:
        """Let the worker read its data, and pass requests to it until this object is closed."""
        while True:
            with suppress(WorkerFailed):  # tried again with the next request, whose failure has the reason
                self._load()
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._is_closed)
                request, self._next = self._next, None
            if request is None or self._is_closed:
                break
            try:
                self._load()
                (request.reply,) = self._process.ask(request.header, request.body, stopped=lambda: self._is_closed)
            except WorkerFailed as error:
                request.failure = error
            request.is_done.set()
        self._process.close()

    def _load(self) -> None:
        """Start the worker process, which loads the site's images, unless it is running."""
        if not self._process.is_running():
            self._state = False, time.monotonic()
            try:
                self._process.start(lambda: self._is_closed)
            finally:
                self._state = True, time.monotonic()
