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
from medfed.engines.flare.messages import TIMEOUT_HEADER, register, to_message, to_shareable
from medfed.engines.worker_process import WorkerFailed, WorkerProcess
from medfed.federation.message import Message, failed_reply


class SiteExecutor(Executor):
    """FLARE executor that lets a site reply to the coordinator's requests.

    FLARE creates it by its class name, without arguments: which site runs is set by a file on the site's machine, not
    by the coordinator. The site runs in a process of its own (`WorkerProcess`), because FLARE ends the whole job if one
    of its own processes crashes; every error at the site becomes a reply of kind "failed".
    """

    def __init__(self) -> None:
        super().__init__()
        register()
        self._process: WorkerProcess | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Stop the site's process when FLARE ends the job.

        FLARE calls this method for each of its events.

        Args:
            event_type: FLARE's name of the event. Only `END_RUN` stops the process.
            fl_ctx: FLARE's context.
        """
        if event_type == EventType.END_RUN and self._process:
            self._process.close()
        super().handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the site's reply to a request that FLARE has received.

        This method never raises an exception. If the site fails, the reply is a message of kind "failed" with the
        reason.

        Args:
            task_name: FLARE's name of the task, which is the kind of the request; not used.
            shareable: the request as a FLARE message, as `to_shareable` returns it.
            fl_ctx: FLARE's context, which gives the name of the site and the path of the site's local folder.
            abort_signal: FLARE's signal that the task was cancelled. It stops the site's work.

        Returns:
            The reply as a FLARE message, as `to_shareable` returns it.
        """
        try:
            request = to_message(shareable)
            timeout_s = shareable.get_header(TIMEOUT_HEADER) or None  # later the coordinator no longer waits
            name = fl_ctx.get_prop(FLContextKey.CLIENT_NAME)
            header = {"kind": request.kind, "sites": {name: 0}}
            (reply,) = self._site_process(name, fl_ctx).ask(header, request.to_bytes(), timeout_s=timeout_s,
                                                            stopped=lambda: abort_signal.triggered)
            return to_shareable(Message.from_bytes(reply))
        except WorkerFailed as error:
            return to_shareable(failed_reply(str(error)))
        except Exception as error:  # a failed reply costs one round, an exception would end the job of all sites
            self.log_exception(fl_ctx, "the site could not reply")
            return to_shareable(failed_reply(f"{type(error).__name__}; the site's own log says more"))

    def _site_process(self, name: str, fl_ctx: FLContext) -> WorkerProcess:
        if self._process is None:
            local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
            jobs = json.loads((local / SITE_FILE).read_text())
            # By name, because FLARE's simulator has one local folder for all sites.
            self._process = WorkerProcess(jobs[name], on_warning=lambda text: self.log_warning(fl_ctx, text))
        return self._process
