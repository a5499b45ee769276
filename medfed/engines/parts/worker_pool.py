"""Worker processes that host the sites of a run: the sites of one worker work one after another.

`InProcess` gives several sites to each worker, `Processes` one.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, TypeVar

from medfed.engines.parts.worker_process import WorkerFailed, WorkerProcess
from medfed.federation.engine import OnReply, OnStep
from medfed.federation.message import Message

T = TypeVar("T")
OnFailure = Callable[[Sequence[str], WorkerFailed], Mapping[str, Message]]  # called with the sites without a reply


def balanced_groups(sizes: Mapping[str, int], n_groups: int) -> list[list[str]]:
    """Divide sites among at most `n_groups` non-empty groups with about the same number of images (`sizes`).

    The sites are assigned by size, the largest first, each to the group that has the fewest images so far.
    """
    groups: list[list[str]] = [[] for _ in range(min(n_groups, len(sizes)))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(groups, key=lambda group: (sum(sizes[site] for site in group), len(group))).append(name)
    return [sorted(group) for group in groups]


def encode_requests(messages: Mapping[str, Message]) -> tuple[dict[str, int], list[bytes]]:
    """Return each site's index into the list of the different requests, and this list as bytes."""
    indices: dict[int, int] = {}
    encoded: list[bytes] = []
    for message in messages.values():
        if id(message) not in indices:
            indices[id(message)] = len(encoded)
            encoded.append(message.to_bytes())
    return {name: indices[id(message)] for name, message in messages.items()}, encoded


def do_at_once(n: int, work: Callable[[T], object], items: Iterable[T], stop: Callable[[], object]) -> None:
    """Call `work` with each item, in `n` threads. After an error or Ctrl+C, `stop` must make the threads return."""
    with ThreadPoolExecutor(n) as pool:
        try:
            for job in as_completed([pool.submit(work, item) for item in items]):
                job.result()
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass
class WorkerPool:
    """Worker processes, each of which hosts a group of sites. A process is started with its first request.

    Args:
        groups: the names of the sites of each worker.
        job: what all workers build their sites from (`medfed.deployment.worker.serve`), without `sites`.
        n_at_once: how many workers work at the same time.
        on_failure: called if a worker fails, with the names of its sites that have not replied and the error. It
            returns the replies of these sites by name, or raises an error, which ends the exchange.
        timeout_s: seconds for all replies of a worker to an exchange; None has no limit.

    Attributes:
        work_s: seconds that the sites worked on the requests of the last exchange, summed over the sites.
        processes: the worker processes that were started, by the first site of their group.
    """

    groups: Sequence[Sequence[str]]
    job: Mapping[str, Any]
    n_at_once: int
    on_failure: OnFailure
    timeout_s: float | None = None
    work_s: float = field(default=0.0, init=False)
    processes: dict[str, WorkerProcess] = field(default_factory=dict, init=False)
    _on_step: OnStep | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)
    _callback_lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _warnings: dict[str, list[str]] = field(default_factory=dict, init=False)  # of this exchange, by name of the site

    def deliver(
        self, kind: str, messages: Mapping[str, Message], on_reply: OnReply | None, on_step: OnStep | None
    ) -> dict[str, Message]:
        """Return the sites' replies to their requests, sorted by name; several workers work at the same time.

        Warnings of the sites are shown at the end, in the order of the names, as if one site worked after another.
        """
        replies: dict[str, Message] = {}
        self._on_step, self.work_s = on_step, 0.0

        def receive(name: str, reply: Message) -> None:
            with self._callback_lock:  # the callbacks write to files and to the terminal
                replies[name] = reply
                if on_reply:
                    on_reply(kind, name, len(replies), len(messages))

        asked = [[name for name in group if name in messages] for group in self.groups]
        parts = [{name: messages[name] for name in sorted(names)} for names in asked]
        try:
            do_at_once(self.n_at_once, lambda part: self._ask(kind, part, receive), filter(None, parts), self._stop)
        finally:
            self._show_warnings()
        return dict(sorted(replies.items()))

    def _stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._stop()
        for process in self.processes.values():
            process.close()

    def job_of(self, sites: Iterable[str]) -> dict[str, Any]:
        """Return `job` with the names of a worker's sites, which the worker receives when its process starts."""
        return {**self.job, "sites": list(sites)}

    def _ask(self, kind: str, messages: Mapping[str, Message], receive: Callable[[str, Message], None]) -> None:
        """Send requests to the sites of one group, and pass each reply on as it arrives, in the order of the names."""
        process, left = self._process_of(next(iter(messages))), list(messages)
        indices, bodies = encode_requests(messages)
        last = left[-1]  # a warning after the last reply counts as one of the last site
        process.on_warning = lambda text: self._warnings.setdefault((left or [last])[0], []).append(text)
        try:
            for reply in process.ask(
                {"kind": kind, "sites": indices}, *bodies, timeout_s=self.timeout_s, stopped=lambda: self._stopping
            ):
                receive(left.pop(0), Message.from_bytes(reply))
            with self._callback_lock:
                self.work_s += process.work_s
        except WorkerFailed as error:
            for name, failure in self.on_failure(left, error).items():
                receive(name, failure)

    def _process_of(self, site: str) -> WorkerProcess:
        """The process of the group to which a site belongs; it is created for the first request."""
        group = next(group for group in self.groups if site in group)
        if group[0] not in self.processes:
            self.processes[group[0]] = WorkerProcess(self.job_of(group), self._show_step)
        return self.processes[group[0]]

    def _show_step(self, site: str, step: int, n_steps: int) -> None:
        with self._callback_lock:
            if self._on_step:
                self._on_step(site, step, n_steps)

    def _show_warnings(self) -> None:
        for name in sorted(self._warnings):
            for text in self._warnings.pop(name):
                warnings.warn(text, stacklevel=2)
