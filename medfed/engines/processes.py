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

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver the requests to the sites, each of which works in a process of its own, and return their replies."""
        if self._workers is None:
            names = [*self.sites(), *([self.validation_site.name] if self.validation_site else [])]
            n_at_once = self.jobs or max(1, n_cores() // self.local_sites[0].settings.threads)
            timeout_s = self.settings.reply_timeout_s or None
            self._workers = WorkerPool([[name] for name in names], self._job(), n_at_once, _failed_replies, timeout_s)
        complete, replies = self._complete(messages)
        replies |= self._workers.deliver(kind, complete, self.on_reply, self.on_step)
        self.work_s = self._workers.work_s
        return dict(sorted(replies.items()))


def _failed_replies(sites: Sequence[str], error: WorkerFailed) -> dict[str, Message]:
    return dict.fromkeys(sites, failed_reply_to_error(error))
