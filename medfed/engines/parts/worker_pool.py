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


def balanced_groups(sizes: Mapping[str, int], n_groups: int) -> list[list[str]]:
    """Divide sites among at most `n_groups` groups with about the same number of images (`sizes`), largest first."""
    groups: list[list[str]] = [[] for _ in range(min(n_groups, len(sizes)))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(groups, key=lambda group: (sum(sizes[site] for site in group), len(group))).append(name)
    return [sorted(group) for group in groups]


def encode_requests(messages: Mapping[str, Message]) -> tuple[dict[str, int], list[bytes]]:
    """Return each site's index into the list of the different requests, and this list as bytes."""
    different = list({id(message): message for message in messages.values()}.values())
    indices = {id(message): index for index, message in enumerate(different)}
    return {name: indices[id(message)] for name, message in messages.items()}, [one.to_bytes() for one in different]


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
    """Worker processes, each of which hosts a group of sites. A process is started with its first request."""

    groups: Sequence[Sequence[str]]  # the names of the sites of each worker
    job: Mapping[str, Any]  # what all workers build their sites from (`medfed.deployment.worker.serve`)
    n_at_once: int  # how many workers work at the same time
    # Called with the names of a failed worker's sites that have not replied: returns their replies, or raises an error.
    on_failure: Callable[[Sequence[str], WorkerFailed], Mapping[str, Message]]
    timeout_s: float | None = None  # for all replies of a worker to an exchange
    work_s: float = field(default=0.0, init=False)  # that the sites worked on the last exchange, summed over the sites
    processes: dict[str, WorkerProcess] = field(default_factory=dict, init=False)  # by the first site of their group
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _callback_lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def deliver(
        self, kind: str, messages: Mapping[str, Message], on_reply: OnReply | None, on_step: OnStep | None
    ) -> dict[str, Message]:
        """Return the sites' replies to their requests; several workers work at the same time.

        Warnings of the sites are shown at the end, in the order of their names.
        """
        replies: dict[str, Message] = {}
        warned: dict[str, list[str]] = {}
        self.work_s = 0.0

        def receive(name: str, reply: Message) -> None:
            with self._callback_lock:  # the callbacks write to files and to the terminal
                replies[name] = reply
                if on_reply:
                    on_reply(kind, name, len(replies), len(messages))

        def show_step(site: str, step: int, n_steps: int) -> None:
            with self._callback_lock:
                if on_step:
                    on_step(site, step, n_steps)

        def ask(group: Sequence[str]) -> None:
            left = sorted(name for name in group if name in messages)
            indices, bodies = encode_requests({name: messages[name] for name in left})
            last = left[-1]  # a warning after the last reply counts as one of the last site
            process = self.processes.setdefault(group[0], WorkerProcess({**self.job, "sites": list(group)}))
            process.on_step = show_step
            process.on_warning = lambda text: warned.setdefault((left or [last])[0], []).append(text)
            header = {"kind": kind, "sites": indices}
            try:
                for reply in process.ask(header, *bodies, timeout_s=self.timeout_s, stopped=self._stopping.is_set):
                    receive(left.pop(0), Message.from_bytes(reply))
                with self._callback_lock:
                    self.work_s += process.work_s
            except WorkerFailed as error:
                for name, failure in self.on_failure(left, error).items():
                    receive(name, failure)

        asked = [group for group in self.groups if not messages.keys().isdisjoint(group)]
        try:
            do_at_once(self.n_at_once, ask, asked, self._stopping.set)
        finally:
            for name in sorted(warned):
                for text in warned[name]:
                    warnings.warn(text, stacklevel=2)
        return replies

    def close(self) -> None:
        self._stopping.set()
        for process in self.processes.values():
            process.close()
