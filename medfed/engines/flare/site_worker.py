"""The worker process of a site in a federation, which keeps running when a reply is late."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from medfed.engines.parts.worker_process import WorkerFailed, WorkerProcess

POLL_S = 0.05
CLOSE_TIMEOUT_S = 10.0

Request = tuple[Future[bytes], Mapping[str, Any], bytes]  # (reply, header, message)


class SiteWorker:
    """A site's worker process that reads its data at once, and is never killed because a reply is late.

    A thread passes one request after another to the worker. If a reply is late, the caller stops waiting for it, the
    worker finishes its work, and the reply is dropped. The arguments are those of `WorkerProcess`.
    """

    def __init__(self, job: Mapping[str, Any], on_warning: Callable[[str], None]) -> None:
        self._process = WorkerProcess(job, on_warning=on_warning)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
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
        reply, is_first, received_at = Future[bytes](), self._is_new, time.monotonic()
        self._is_new = False
        self._requests.put((reply, header, body))
        while not wait([reply], POLL_S).done:
            is_ready, since = self._state
            is_loading = is_first and not is_ready
            begin = since if is_first and (is_loading or since > received_at) else received_at
            waited_s = time.monotonic() - begin
            is_late = timeout_s and waited_s > (load_timeout_s if is_loading else timeout_s)
            if is_late or stopped():
                reply.cancel()  # if the worker has not begun
                doing = "working" if is_ready else "reading its data"
                late = f"was still {doing} after {waited_s:.0f} s; it keeps running and can take part in a later round"
                raise WorkerFailed(late if is_late else "was stopped")
        return reply.result()

    def close(self) -> None:
        self._is_closed = True
        self._requests.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        """Let the worker read its data, and pass requests to it until this object is closed."""
        while not self._is_closed:
            with suppress(WorkerFailed):  # tried again with the next request, whose failure has the reason
                self._load()
            if (request := self._requests.get()) is None:
                break
            reply, header, body = request
            if reply.set_running_or_notify_cancel():
                try:
                    self._load()
                    (content,) = self._process.ask(header, body, stopped=lambda: self._is_closed)
                    reply.set_result(content)
                except Exception as error:
                    reply.set_exception(error)
        self._process.close()

    def _load(self) -> None:
        """Start the worker process, which loads the site's images, unless it is running."""
        if not self._process.is_running():
            self._state = False, time.monotonic()
            try:
                self._process.start(lambda: self._is_closed)
            finally:
                self._state = True, time.monotonic()
