"""The part of a site that runs inside NVIDIA FLARE: it passes each request to the site's own process."""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medfed.engines.flare.job import SITE_FILE
from medfed.engines.flare.messages import LOAD_TIMEOUT_HEADER, PLAN_HEADER, TIMEOUT_HEADER, to_message, to_shareable
from medfed.engines.flare.shared_kit import tell_hospital
from medfed.engines.flare.site_worker import SiteWorker
from medfed.engines.parts.worker_process import WorkerFailed
from medfed.federation.message import Message, failed_reply


class SiteExecutor(Executor):
    """FLARE executor that lets a site reply to the coordinator's requests.

    FLARE creates it by its class name, without arguments: which site runs is set by a file on the site's machine, not
    by the coordinator. The site runs in a process of its own (`SiteWorker`), because FLARE ends the whole job if one of
    its own processes crashes; every error at the site becomes a reply of kind "failed".
    """

    def __init__(self) -> None:
        super().__init__()
        self._worker: SiteWorker | None = None
        self._plan = ""  # checksum of the plan that the hospital agreed to

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the site's process when FLARE starts the job, and end it when FLARE ends the job."""
        if event_type == EventType.START_RUN:
            self._start_worker(fl_ctx)
        if event_type == EventType.END_RUN and self._worker:
            self._worker.close()
        super().handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the site's reply to a request, both as of `to_shareable`; never raise an error."""
        try:
            request = to_message(shareable)
            header = {"kind": request.kind, "sites": {fl_ctx.get_prop(FLContextKey.CLIENT_NAME): 0}}
            timeout_s, load_timeout_s = (
                shareable.get_header(name) or 0.0 for name in (TIMEOUT_HEADER, LOAD_TIMEOUT_HEADER)
            )
            worker = self._worker or self._start_worker(fl_ctx)
            if (plan := shareable.get_header(PLAN_HEADER)) and self._plan not in ("", plan):
                raise WorkerFailed(
                    f"agreed to the plan {self._plan}, but the coordinator uses the plan {plan}; both need the same "
                    "plan.yaml"
                )
            reply = worker.ask(header, request.to_bytes(), timeout_s, load_timeout_s, lambda: abort_signal.triggered)
            return to_shareable(Message.from_bytes(reply))
        except WorkerFailed as error:
            if not abort_signal.triggered:  # as it is when FLARE replaces the job
                tell_hospital(fl_ctx, f"did not reply to the coordinator: {error}")
            return to_shareable(failed_reply(str(error)))
        except Exception as error:  # a failed reply costs one round, an exception would end the job of all sites
            self.log_exception(fl_ctx, "the site could not reply")
            return to_shareable(failed_reply(f"{type(error).__name__}; the site's own log says more"))

    def _start_worker(self, fl_ctx: FLContext) -> SiteWorker:
        """Create the worker of this site from the site's file in FLARE's workspace."""
        local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
        jobs = json.loads((local / SITE_FILE).read_text())
        name = fl_ctx.get_prop(FLContextKey.CLIENT_NAME)  # FLARE's simulator has one local folder for all sites
        self._plan = jobs[name].get("plan", "")
        self._worker = SiteWorker(jobs[name], on_warning=lambda text: self.log_warning(fl_ctx, text))
        return self._worker
