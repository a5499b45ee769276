"""A site's half inside NVIDIA FLARE: it hands letters to the site's own process, and its answers back."""

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
from medfed.engines.flare.messages import SECONDS, register, to_message, to_shareable
from medfed.engines.site_process import SiteFailed, SiteProcess
from medfed.federation.message import Message, failed_reply


class SiteExecutor(Executor):
    """Takes no arguments: what runs here is said by a file of the site, not by the coordinator.

    The site works in a process of its own (`SiteProcess`), because FLARE ends the whole job where one of its processes
    dies; whatever happens there becomes a reply.
    """

    def __init__(self) -> None:
        super().__init__()
        register()
        self._process: SiteProcess | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """The site's process ends with the job."""
        if event_type == EventType.END_RUN and self._process:
            self._process.close()
        super().handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The site's answer; never raises."""
        try:
            letter = to_message(shareable).to_bytes()
            limit = shareable.get_header(SECONDS) or None  # after which nobody waits: it must not go on for ever
            answer = self._started(fl_ctx).ask(letter, limit, lambda: abort_signal.triggered)
            return to_shareable(Message.from_bytes(answer))
        except SiteFailed as why:
            return to_shareable(failed_reply(str(why)))
        except Exception as error:  # an error reply, for a dead job is worse
            self.log_exception(fl_ctx, "no answer")
            return to_shareable(failed_reply(f"{type(error).__name__}; the site's own log says more"))

    def _started(self, fl_ctx: FLContext) -> SiteProcess:
        if self._process is None:
            local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
            jobs = json.loads((local / SITE_FILE).read_text())
            name = fl_ctx.get_prop(FLContextKey.CLIENT_NAME)
            # A simulator has one local folder for all sites of this machine.
            self._process = SiteProcess(jobs[name], on_note=lambda text: self.log_warning(fl_ctx, text))
        return self._process
