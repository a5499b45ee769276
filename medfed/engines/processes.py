"""The engine `processes`: each site runs in a process of its own on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medfed.core.machine import n_cores
from medfed.engines.in_process import InProcess
from medfed.engines.parts.worker_pool import WorkerPool
from medfed.engines.parts.worker_process import WorkerFailed
from medfed.federation.message import Message, failed_reply_to_error


@dataclass
class Processes(InProcess):
    """Engine that runs each site in a process of its own; the results are bit-identical to those of `InProcess`.

    If a site crashes, runs out of memory, raises an error or exceeds `federation.reply_timeout_s`, its reply is
    "failed". Its process is started again with the next request, and continues from its files. `jobs` is the largest
    number of sites that work at the same time; None is the number of CPU cores divided by `training.threads`. The
    objects in `local_sites` never reply, but receive, for the evaluation, the entries of the network that stay at the
    sites.
    """

    def _first_workers(self) -> WorkerPool:
        groups = [[site.name] for site in self._all_sites()]
        n_at_once = self.jobs or max(1, n_cores() // self.local_sites[0].settings.threads)
        timeout_s = self.settings.reply_timeout_s or None
        return WorkerPool(groups, self._job(), n_at_once, self._replies_after_failure, timeout_s)

    def _replies_after_failure(self, sites: Sequence[str], error: WorkerFailed) -> Mapping[str, Message]:
        return dict.fromkeys(sites, failed_reply_to_error(error))
