"""The engine `in_process`: the sites work in this process, one after another, or divided among worker processes.

Messages are converted to bytes and back in both cases, so that a site receives nothing but what is in the message.
"""

from __future__ import annotations

import os
import time
from collections import Counter
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
from medfed.engines.parts.worker_process import WorkerFailed, can_be_imported, check_can_be_imported, n_workers_worth_it
from medfed.federation.encoding import InvalidMessage
from medfed.federation.engine import Engine, OnReply, OnStep
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message, failed_reply_to_error
from medfed.federation.model_transfer import ReceivedWeights, weights_digest
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

Commit = Callable[[], None]  # moves a site's new file to its final place
FIRST_TRAINING_S = 2.0  # how much longer the first training of a process takes, as libraries load parts of themselves


@dataclass
class InProcess(Engine):
    """Engine that runs all sites in this process, or in worker processes; the default for simulations.

    Args:
        folder: folder of the sites' files (`SiteStore`). With None, a run cannot be resumed, work of a rejected reply
            is not undone at the site, and all sites work in this process.
        config_yaml: the whole config as YAML text, from which worker processes build their sites.
        source: the name of the config in error messages of worker processes.
        jobs: how many sites work at the same time; above 1, this number of worker processes start with the first
            request. None: worker processes start after the first sites have trained here, if they are expected to save
            time: as many as cores, free memory and sites allow, and none on a GPU. The result does not depend on
            `jobs`.
        shares_folder: whether other processes, with other sites, use the folder at the same time.
        reading_s: seconds that it took to read the images of all sites, which each worker process reads again.
    """

    local_sites: list[Site]
    folder: Path | None = None
    validation_site: ValidationSite | None = None
    settings: Federation = Federation()
    config_yaml: str = ""
    source: str = ""
    jobs: int | None = 1
    shares_folder: bool = False
    reading_s: float = 0.0
    on_reply: OnReply | None = None
    on_step: OnStep | None = None
    work_s: float | None = field(default=None, init=False)
    _store: SiteStore | None = field(default=None, init=False)
    _workers: WorkerPool | None = field(default=None, init=False)
    _has_trained: bool = field(default=False, init=False)
    _received: ReceivedWeights = field(default_factory=ReceivedWeights, init=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self._store = SiteStore(self.folder, self.shares_folder)

    def sites(self) -> list[str]:
        return sorted(site.name for site in self.local_sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let each site reply; the sites of one process work one after another, in the order of their names.

        A site's UserError becomes a "failed" reply if `federation.on_bad_update` is "drop", and is raised otherwise.
        UserError also if a site's file is missing or damaged, or a worker process ends; OSError and MemoryError also
        come from workers.
        """
        complete, replies = self._complete(messages)
        start = time.perf_counter()
        if self._workers is None and self.folder is not None and self.jobs is not None and self.jobs > 1:
            self._start_workers(self.jobs)
        replies |= {} if self._workers else self._exchange_here(kind, complete)
        self.work_s = time.perf_counter() - start
        if self._workers and (left := {name: complete[name] for name in complete if name not in replies}):
            replies |= self._workers.deliver(kind, left, self.on_reply, self.on_step)
            self.work_s += self._workers.work_s
        return dict(sorted(replies.items()))

    def replies(
        self, kind: str, messages: Mapping[str, Message], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str, bytes]]:
        """Let each site of this process reply; yield its name and the bytes of its reply, sorted by name.

        The iterator must be used until it ends, because only then are the last files moved to their final places.
        `stopped` is called before each site; True ends the work.
        """
        by_name = self._by_name()
        number = next(iter(messages.values())).facts.get("round", 0) if messages else 0
        store = self._store if messages and kind == Kind.TRAIN else None
        if store:
            store.begin_round(self.local_sites, messages.keys(), number)
        trained: list[Site] = []
        commits: list[Future[None]] = []
        requests = _Requests(messages)
        with ThreadPoolExecutor(1) as disk:  # writes a site's file to the disk while the next site trains
            for name in sorted(messages):
                if stopped():
                    break
                site = by_name[name]
                reply, commit = self._deliver(site, requests.take(name))
                commits += [disk.submit(commit)] if commit else []
                trained += [site] if isinstance(site, Site) else []
                yield name, reply
        for written in commits:
            written.result()  # raises the error of a failed write, such as a full disk
        if store:
            store.end_round(trained, number)

    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Restore what the sites kept after their last accepted round (`Engine.restore`), from their files.

        Worker processes read the files of their sites themselves. This process then keeps only the memory of sites with
        network entries that are never sent, because the evaluation needs these entries.
        """
        if weights is not None:
            self._received.keep(weights_digest(weights), weights, self._by_name())
        if self._store:
            self._store.restore(self.local_sites, took_part)
            if self._workers:
                self._free_memory()

    def close(self) -> None:
        if self._workers:
            self._workers.close()

    def _complete(self, messages: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, Message]]:
        """Put the weights back into requests whose weights came with an earlier request.

        The engine keeps the weights for its sites, which are on this machine, so that a worker needs no memory of them.
        Also returns the reply "weights_needed" of each site that did not receive the weights.
        """
        complete, missing = self._received.complete(messages)
        return complete, dict.fromkeys(missing, Message(WEIGHTS_NEEDED))

    def _exchange_here(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let the sites of this process reply, until it is worth starting workers for the others."""
        replies: dict[str, Message] = {}
        n_workers, start = 1, time.thread_time()

        def is_worth_it() -> bool:
            """Whether worker processes would finish the remaining work sooner than this process."""
            return n_workers > 1

        for name, reply in self.replies(kind, messages, stopped=is_worth_it):
            replies[name] = Message.from_bytes(reply)
            if self.on_reply:
                self.on_reply(kind, name, len(replies), len(messages))
            # CPU time, because other programs that use the cores make waiting longer, but not the workers faster.
            start, site_s = time.thread_time(), time.thread_time() - start
            if kind == Kind.TRAIN and self.jobs is None:
                site_s -= 0.0 if self._has_trained else FIRST_TRAINING_S
                self._has_trained = True
                n_workers = self._n_workers_worth_it(site_s, messages, len(messages) - len(replies))
        if n_workers > 1:
            self._start_workers(n_workers)
        return replies

    def _n_workers_worth_it(self, site_s: float, messages: Mapping[str, Message], n_left: int) -> int:
        """Return how many workers to start for the rest of the run, if a site trains `site_s` seconds; 1 is none."""
        if self.folder is None:
            return 1
        number = next(iter(messages.values())).facts["round"]
        rest_s = site_s * (n_left + (self.settings.rounds - number) * len(messages))
        return n_workers_worth_it(rest_s, self.reading_s, lambda: self._max_workers(len(messages)))

    def _max_workers(self, n_sites: int) -> int:
        """Return how many workers cores and free memory allow, from 1 to `n_sites`; 1 on a GPU."""
        site = self.local_sites[0]
        if next(site.network.parameters()).device.type != "cpu" or not can_be_imported(self.config_yaml):
            return 1  # sites share a GPU only if the user asks for it
        return min(n_sites, max_processes(site.settings.threads))

    def _start_workers(self, n_workers: int) -> None:
        """Create worker processes for all sites; each starts with its first request."""
        check_can_be_imported(self.config_yaml, n_workers)
        groups = balanced_groups(self._n_images(), n_workers)
        self._workers = WorkerPool(groups, self._job(), len(groups), self._end_run)
        self._free_memory()

    def _n_images(self) -> dict[str, int]:
        """Number of training images of each site, and of validation images of the validation site."""
        n_images = {site.name: len(site.training) for site in self.local_sites}
        if self.validation_site:
            n_images[self.validation_site.name] = len(self.validation_site.samples)
        return n_images

    def _job(self) -> dict[str, str]:
        """Return what the workers build their sites from (`medfed.deployment.worker.serve`)."""
        if self.folder is None:
            raise ValueError("folder is None, but sites in other processes need a folder for their files")
        return {
            "config": self.config_yaml,
            "source": self.source,
            "folder": str(self.folder.resolve()),
            "directory": os.getcwd(),
        }

    def _end_run(self, sites: Sequence[str], error: WorkerFailed) -> dict[str, Message]:
        """Raise the error of a site in a worker, or an error that names the sites of a worker that ended."""
        if isinstance(error.reported, WorkerBug):
            names = ", ".join(sites)
            raise WorkerBug(f"the worker process of {names} failed: {error}; its traceback is above") from error
        if error.reported:
            raise error.reported from error
        raise UserError(
            f"the worker process of {', '.join(sites)} failed: {error}; continue with --resume, and with a smaller "
            "--jobs if memory ran out"
        ) from error

    def _free_memory(self) -> None:
        """Free the memory of sites that work in other processes, apart from entries that the evaluation needs."""
        for site in self.local_sites:
            site.memory = site.memory if site.local_keys else {}

    def _by_name(self) -> dict[str, Site | ValidationSite]:
        by_name: dict[str, Site | ValidationSite] = {site.name: site for site in self.local_sites}
        if self.validation_site:
            by_name[self.validation_site.name] = self.validation_site
        return by_name

    def _deliver(self, site: Site | ValidationSite, request: bytes) -> tuple[bytes, Commit | None]:
        """Return the site's reply, and the function that commits its new file; None if no file was written."""
        message = Message.from_bytes(request)
        if not isinstance(site, Site):
            return self._reply(site, message), None
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


class _Requests:
    """Converts requests to bytes: a request to several sites only once, any other request just before its delivery."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self._messages = messages
        self._n_receivers = Counter(id(message) for message in messages.values())
        self._encoded: dict[int, bytes] = {}

    def take(self, name: str) -> bytes:
        """Return the bytes of the request to the site of this name."""
        message = self._messages[name]
        request = self._encoded.get(id(message)) or message.to_bytes()
        if self._n_receivers[id(message)] > 1:
            self._encoded[id(message)] = request
        return request
