"""A process a site, on this machine: what a site does wrong, or runs out of, is no end of the others."""

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
    """Each site builds itself from the plan in a process of its own, and keeps its memory in `folder/SITE`.

    The members of this process never answer; after training they hold what the sites keep, for the evaluator. A site
    has as many threads as this process, so that its bits are those of `in_process`; as many sites work at once as the
    machine has cores for. A site that dies, says no or is late (`federation.reply_timeout_s`) is `failed`, starts again
    when it is next asked, and goes on from its files.
    """

    _processes: dict[str, SiteProcess] = field(default_factory=dict, init=False)
    _stopping: bool = field(default=False, init=False)
    _telling: threading.Lock = field(default_factory=threading.Lock, init=False)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """All sites at once, as far as there are cores."""
        answers = {}
        at_once = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
        with ThreadPoolExecutor(at_once) as pool:
            try:
                jobs = {pool.submit(self._ask, name, messages[name]): name for name in sorted(messages)}
                for index, job in enumerate(as_completed(jobs), start=1):
                    answers[jobs[job]] = job.result()
                    if self.on_reply:
                        self.on_reply(kind, jobs[job], index, len(messages))
            except BaseException:
                self._stopping = True  # the pool waits for its threads
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return dict(sorted(answers.items()))

    def restore(self, took_part: Mapping[str, int]) -> None:
        """As `InProcess`, each member from its own folder, of which what it keeps of the network stays.

        The sites themselves go by the letters.
        """
        for site in self.local_sites:
            store = SiteStore(self.place / site.name)
            store.restore([site], {site.name: number} if (number := took_part.get(site.name)) else {})
            site.memory = site.memory if site.local_keys else {}

    def close(self) -> None:
        """End the sites' processes."""
        self._stopping = True
        for process in self._processes.values():
            process.close()

    @property
    def place(self) -> Path:
        """The folder, which this engine cannot work without."""
        if self.folder is None:
            raise ValueError("sites in processes of their own need a folder for their files, got none")
        return self.folder

    def _ask(self, name: str, message: Message) -> Message:
        process = self._processes[name] = self._processes.get(name) or self._process(name)
        try:
            limit = self.settings.reply_timeout_s or None
            return Message.from_bytes(process.ask(message.to_bytes(), limit, lambda: self._stopping))
        except SiteFailed as why:
            return failed_reply(str(why))

    def _job(self, name: str) -> dict[str, object]:
        """What the site's process builds it from."""
        return {"config": self.config_yaml, "source": self.source, "site": name,
                "folder": str(self.place.resolve() / name),
                "directory": os.getcwd(), "threads": torch.get_num_threads()}  # fmt: skip

    def _process(self, name: str) -> SiteProcess:
        report = self.on_step

        def on_step(site: str, step: int, n_steps: int) -> None:
            with self._telling:
                if report:
                    report(site, step, n_steps)

        def on_note(text: str) -> None:
            with self._telling:  # whoever listens writes a file
                warnings.warn(text, stacklevel=2)

        return SiteProcess(self._job(name), on_step if report else None, on_note)
