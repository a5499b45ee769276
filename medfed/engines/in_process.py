"""The engine `in_process`: the sites work in this process, one after another, or divided among worker processes.

Messages are converted to bytes and back in both cases, so that a site receives nothing but what is in the message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from medfed.core.errors import UserError, WorkerBug
from medfed.core.machine import max_processes
from medfed.engines.parts.site_store import SiteStore
from medfed.engines.parts.worker_pool import WorkerPool, balanced_groups
from medfed.engines.parts.worker_process import WorkerFailed, can_be_imported, n_workers_worth_it
from medfed.federation.encoding import InvalidMessage
from medfed.federation.engine import Engine, OnReply, OnStep
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message, failed_reply_to_error, weights_digest
from medfed.federation.model_transfer import ReceivedWeights
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

FIRST_TRAINING_S = 2.0  # how much longer the first training of a process takes, as libraries load parts of themselves


@dataclass
class InProcess(Engine):
    """Engine that runs all sites in this process, or in worker processes; the default for simulations.

    The result does not depend on `jobs`, the number of sites that work at the same time: above 1, this number of
    workers start with the first request. With None, they start after a round here, if they are expected to save time in
    the other rounds: as many as cores, free memory and sites allow, and none on a GPU.
    """

    local_sites: list[Site]
    folder: Path | None = None  # of the sites' files; without, nothing can be resumed, undone, or given to workers
    validation_site: ValidationSite | None = None
    settings: Federation = Federation()
    config_yaml: str = ""  # the whole config, from which workers build their sites
    source: str = ""  # the name of the config in error messages of workers
    jobs: int | None = 1
    reading_s: float = 0.0  # how long it took to read the images of all sites, which each worker reads again
    on_reply: OnReply | None = None
    on_step: OnStep | None = None
    work_s: float | None = field(default=None, init=False)
    _store: SiteStore | None = field(default=None, init=False)
    _workers: WorkerPool | None = field(default=None, init=False)
    _has_trained: bool = field(default=False, init=False)
    _received: ReceivedWeights = field(default_factory=ReceivedWeights, init=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self._store = SiteStore(self.folder)

    def sites(self) -> list[str]:
        return sorted(site.name for site in self.local_sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let each site reply; the sites of one process work one after another, in the order of `local_sites`.

        A site's UserError becomes a "failed" reply if `federation.on_bad_update` is "drop", and is raised otherwise.
        UserError also if a site's file is missing or damaged, or a worker process ends; OSError and MemoryError also
        come from workers.
        """
        complete, replies = self._complete(messages)
        self._workers = self._workers or self._first_workers()
        if self._workers:
            replies |= self._workers.deliver(kind, complete, self.on_reply, self.on_step)
            self.work_s = self._workers.work_s
            return dict(sorted(replies.items()))
        # CPU time, because other programs that use the cores make waiting longer, but not the workers faster.
        start, cpu_start = time.perf_counter(), time.thread_time()
        order = [site.name for site in self._all_sites()]
        in_order = {name: complete[name] for name in sorted(complete, key=order.index)}
        for n_replies, (name, reply) in enumerate(self.replies(kind, in_order), start=1):
            replies[name] = Message.from_bytes(reply)
            if self.on_reply:
                self.on_reply(kind, name, n_replies, len(complete))
        self.work_s = time.perf_counter() - start
        if kind == Kind.TRAIN and self.jobs is None and complete:
            n_workers = self._n_workers_worth_it(time.thread_time() - cpu_start, complete)
            self._workers = self._start_workers(n_workers) if n_workers > 1 else None
            self._has_trained = True
        return dict(sorted(replies.items()))

    def replies(self, kind: str, messages: Mapping[str, Message]) -> Iterator[tuple[str, bytes]]:
        """Let each site of this process reply; yield its name and the bytes of its reply, in the order of `messages`.

        The iterator must be used until it ends, because only then is the last file written.
        """
        by_name: dict[str, Site | ValidationSite] = {site.name: site for site in self._all_sites()}
        if self._store and messages and kind == Kind.TRAIN:
            self._store.begin_round(self.local_sites, messages.keys(), _round(messages))
        sent: Message | None = None
        request, written = b"", Future[None]()
        written.set_result(None)
        with ThreadPoolExecutor(1) as disk:  # writes a site's files while the next site trains
            for name in messages:
                if messages[name] is not sent:  # most requests are the same object
                    sent, request = messages[name], messages[name].to_bytes()
                reply, save = self._deliver(by_name[name], request)
                written.result()  # raises the error of a failed write, such as a full disk
                if save:
                    written = disk.submit(save)
                yield name, reply
        written.result()

    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Restore what the sites kept after their last accepted round (`Engine.restore`), from their files.

        Worker processes read the files of their sites themselves. This process then keeps only the memory of sites with
        network entries that are never sent, because the evaluation needs these entries.
        """
        if weights is not None:
            self._received.keep(weights_digest(weights), weights, [site.name for site in self._all_sites()])
        if self._store:
            self._store.restore(self.local_sites, took_part)
            if self._workers:
                self._free_memory()

    def close(self) -> None:
        if self._workers:
            self._workers.close()

    def _all_sites(self) -> list[Site | ValidationSite]:
        return [*self.local_sites, *([self.validation_site] if self.validation_site else [])]

    def _complete(self, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, Message]]:
        """Return the requests with their weights, and a reply "weights_needed" for each site that never received them.

        The engine keeps the weights for its sites, which are on this machine, so that no worker must remember them.
        """
        complete, missing = self._received.complete(messages)
        return complete, dict.fromkeys(missing, Message(WEIGHTS_NEEDED))

    def _n_workers_worth_it(self, round_s: float, messages: Mapping[str, Message]) -> int:
        """Return how many workers to start for the later rounds, if this one took `round_s` seconds; 1 is none."""
        if self.folder is None:
            return 1
        round_s -= 0.0 if self._has_trained else FIRST_TRAINING_S
        rest_s = round_s * (self.settings.rounds - _round(messages))
        return n_workers_worth_it(rest_s, self.reading_s, lambda: self._max_workers(len(messages)))

    def _max_workers(self, n_sites: int) -> int:
        """Return how many workers cores and free memory allow, from 1 to `n_sites`; 1 on a GPU."""
        site = self.local_sites[0]
        if next(site.network.parameters()).device.type != "cpu" or not can_be_imported(self.config_yaml):
            return 1  # sites share a GPU only if the user asks for it
        return min(n_sites, max_processes(site.settings.threads))

    def _first_workers(self) -> WorkerPool | None:
        """Return the workers with which a run begins; None if the sites work in this process."""
        jobs = self.jobs or 1
        return self._start_workers(jobs) if self.folder is not None and jobs > 1 else None

    def _start_workers(self, n_workers: int) -> WorkerPool:
        """Return worker processes for all sites; each starts with its first request."""
        self._free_memory()
        n_images = {site.name: len(site.training) for site in self.local_sites}
        if self.validation_site:
            n_images[self.validation_site.name] = len(self.validation_site.samples)
        groups = balanced_groups(n_images, n_workers)
        return WorkerPool(groups, self._job(), len(groups), self._replies_after_failure)

    def _job(self) -> dict[str, str]:
        """Return what the workers build their sites from (`medfed.deployment.worker.serve`)."""
        if self.folder is None:
            raise ValueError("folder is None, but sites in other processes need a folder for their files")
        folder = str(self.folder.resolve())
        return {"config": self.config_yaml, "source": self.source, "folder": folder, "directory": os.getcwd()}

    def _replies_after_failure(self, sites: Sequence[str], error: WorkerFailed) -> Mapping[str, Message]:
        """Raise the error of a site in a worker, or an error that names the sites of a worker that ended."""
        if error.reported and not isinstance(error.reported, WorkerBug):
            raise error.reported from error
        failed = f"the worker process of {', '.join(sites)} failed: {error}"
        if error.reported:
            raise WorkerBug(f"{failed}; its traceback is above") from error
        raise UserError(f"{failed}; continue with --resume, and with a smaller --jobs if memory ran out") from error

    def _free_memory(self) -> None:
        """Free the memory of sites that work in other processes, apart from entries that the evaluation needs."""
        for site in self.local_sites:
            site.memory = site.memory if site.local_keys else {}

    def _deliver(self, site: Site | ValidationSite, request: bytes) -> tuple[bytes, Callable[[], None] | None]:
        """Return the site's reply, and the function that writes its new files; None if there are none."""
        message = Message.from_bytes(request)
        if isinstance(site, Site):
            site.progress = self.on_step or site.progress
            if self._store and message.kind == Kind.TRAIN:
                return self._store.train(site, request, partial(self._reply, site))
            if self._store and site.local_keys and "last" in message.facts:
                self._store.restore_memory(site, message.facts["last"])
        return self._reply(site, message), None

    def _reply(self, site: Site | ValidationSite, request: Message) -> bytes:
        """Return the bytes of the site's reply; after a UserError, of a "failed" reply if the federation allows it."""
        try:
            try:
                return site.reply(request).to_bytes()
            except InvalidMessage as error:
                raise UserError(f"{site.name}: its reply cannot be sent: {error}") from error
        except UserError as error:
            if self.settings.on_bad_update != "drop":
                raise
            return failed_reply_to_error(error).to_bytes()


def _round(messages: Mapping[str, Message]) -> int:
    return next(iter(messages.values())).facts["round"]
