"""Finds out that two programs use the same startup kit, which FLARE does not tell the user at either end.

The program that joined last takes the place of the other one. Then both connect again and again, because FLARE's server
closes the connection of one program when the other connects. The server answers the heartbeats of the replaced program
with an error that FLARE's client ignores, and writes it into its log.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState

from medfed.engines.flare.kit import STATE_FILE

SHARED = (
    "; if it is yours, end it, press Ctrl-C here and repeat the command, and if it is not, tell the coordinator that "
    "the kit was stolen"
)
REPLACED = re.compile(rb"Failed to re-activate the client:(\S+): already registered with another token")
ERROR = "already registered"  # in the reply to a heartbeat of a client that was replaced
MAX_LOST, LOST_WITHIN_S = 3, 180.0


def sites_with_shared_kits(log: bytes) -> set[str]:
    """Return the names of the sites whose startup kit is used by two programs, from the log of FLARE's server.

    A program that was killed and joined again is not reported, because the killed program sends no heartbeats.
    """
    return {name.decode() for name in REPLACED.findall(log)}


def tell_hospital(fl_ctx: FLContext, text: str) -> None:
    """Let the program that joined, if there is one, show a text to its user."""
    file = Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / STATE_FILE
    with suppress(OSError):  # an error would end the job of all sites
        if file.is_file():
            file.write_text(text)


class KitReporter(FLComponent, EndpointMonitor):
    """FLARE component of a client: a file in the workspace says that it has joined, or why its kit may be shared."""

    def __init__(self) -> None:
        super().__init__()
        self._lost_at: list[float] = []

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at the connection and at the server's replies to heartbeats, from the client's registration on."""
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            self._file = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()) / STATE_FILE
            self._file.touch()
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            cell.core_cell.communicator.register_monitor(self)
            send = cell.send_request

            def send_and_look(*arguments: Any, **keywords: Any) -> Any:
                reply = send(*arguments, **keywords)
                if ERROR in str(reply.get_header(MessageHeaderKey.ERROR)):
                    self._file.write_text(
                        f"another program has joined with this startup kit and takes part instead of this one{SHARED}"
                    )
                return reply

            cell.send_request = send_and_look

    def state_change(self, endpoint: Endpoint) -> None:
        """Count the lost connections to the server; one that was refused, as no server runs, was never ready."""
        if endpoint.name == FQCN.ROOT_SERVER and endpoint.state == EndpointState.DISCONNECTED:
            now = time.monotonic()
            self._lost_at = [lost_at for lost_at in self._lost_at if now - lost_at < LOST_WITHIN_S] + [now]
            if len(self._lost_at) >= MAX_LOST:
                self._file.write_text(
                    f"the connection was lost {MAX_LOST} times in {LOST_WITHIN_S:g} s; unless the network is "
                    f"unreliable, another program uses this startup kit{SHARED}"
                )
