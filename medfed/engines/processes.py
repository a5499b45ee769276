"""The engine `processes`: each site runs in a process of its own on this machine.

An error, a crash or a lack of memory at one site therefore does not stop the other sites or the coordinator.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import torch

from medfed.engines.in_process import InProcess
from medfed.engines.site_process import SiteFailed, SiteProcess
from medfed.engines.site_store import SiteStore
from medfed.federation.message import Message, failed_reply


@dataclass
class Processes(InProcess):
    """Engine that runs each site in a process of its own.

    Each process builds its site from the config and stores the site's replies and kept tensors in `folder/SITE`. As
    many sites work at the same time as the machine has cores for, each with as many threads as this process, so that
    the results are bit-identical to those of `InProcess`.

    If a site crashes, raises an error or exceeds the setting `federation.reply_timeout_s`, its reply has the kind
    "failed". Its process is started again with the next request, and continues from its files.

    The arguments are those of `InProcess`. The objects in `local_sites` never reply to requests; after the training
    they receive the entries of the network that stay at the sites, for the evaluation.
    """

    _processes: dict[str, SiteProcess] = field(default_factory=dict, init=False)
    _stopping: bool = field(default=False, init=False)
    _callback_lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let the sites reply to their requests, several at the same time.

        The number of sites that work at the same time is the number of CPU cores divided by the number of threads of
        this process, and at least 1.

        Args:
            kind: the kind of all these requests: "share", "train" or "validate".
            messages: the requests by the name of the site.

        Returns:
            The replies, by the name of the site, sorted by name. If a site fails, or does not reply within
            `federation.reply_timeout_s` seconds (0: no limit), its entry is a message of kind "failed" with the reason.
        """
        replies = {}
        n_workers = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
        with ThreadPoolExecutor(n_workers) as pool:
            try:
                jobs = {pool.submit(self._ask, name, messages[name]): name for name in sorted(messages)}
                for index, job in enumerate(as_completed(jobs), start=1):
                    replies[jobs[job]] = job.result()
                    if self.on_reply:
                        self.on_reply(kind, jobs[job], index, len(messages))
            except BaseException:
                self._stopping = True  # makes the pool's threads return, for which leaving the `with` block waits
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return dict(sorted(replies.items()))

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Load the network entries that stay at each site (`Site.local_keys`) into the site objects of this process.

        The entries are read from each site's folder. The evaluation, which runs in this process, needs these entries.
        The sites' own processes do not need this call, because each request names the site's last accepted round.

        Args:
            took_part: the number of each site's last accepted round, by the name of the site (`State.took_part`).

        Raises:
            UserError: if the file of a site is missing or damaged.
        """
        for site in self.local_sites:
            store = SiteStore(self.sites_folder / site.name)
            store.restore([site], {site.name: number} if (number := took_part.get(site.name)) else {})
            site.memory = site.memory if site.local_keys else {}

    def close(self) -> None:
        """End the processes of all sites."""
        self._stopping = True
        for process in self._processes.values():
            process.close()

    @property
    def sites_folder(self) -> Path:
        """The engine's folder (`folder`), which contains one folder for each site, with the site's files.

        Raises:
            ValueError: if the engine was created without a folder.
        """
        if self.folder is None:
            raise ValueError("folder is None, but sites in processes of their own need a folder for their files")
        return self.folder

    def _ask(self, name: str, request: Message) -> Message:
        process = self._processes[name] = self._processes.get(name) or self._process(name)
        try:
            timeout_s = self.settings.reply_timeout_s or None
            return Message.from_bytes(process.ask(request.to_bytes(), timeout_s, lambda: self._stopping))
        except SiteFailed as error:
            return failed_reply(str(error))

    def _job(self, name: str) -> dict[str, object]:
        """Return the description from which the site's process builds the site (`medfed.deployment.worker`)."""
        return {"config": self.config_yaml, "source": self.source, "site": name,
                "folder": str(self.sites_folder.resolve() / name),
                "directory": os.getcwd(), "threads": torch.get_num_threads()}  # fmt: skip

    def _process(self, name: str) -> SiteProcess:
        report = self.on_step

        # The callbacks write to files and to the terminal, and are called by several threads.
        def on_step(site: str, step: int, n_steps: int) -> None:
            with self._callback_lock:
                if report:
                    report(site, step, n_steps)

        def on_warning(text: str) -> None:
            with self._callback_lock:
                warnings.warn(text, stacklevel=2)

        return SiteProcess(self._job(name), on_step if report else None, on_warning)
