"""Finds out that two programs use the same startup kit, which FLARE does not tell the user at either end.

The program that joined last takes the place of the other one. Then both connect again and again. FLARE's server writes
this into its log, and answers the heartbeats of the replaced program with an error that FLARE's client ignores.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

from medfed.engines.flare.kit import REPLACED_FILE

REPLACED = re.compile(rb"Failed to re-activate the client:(\S+): already registered with another token")
JOINED_AGAIN = re.compile(rb"Client: (\S+) already registered\. Re-login")
EVICTED = re.compile(rb"is evicted for \S+ from endpoint (\S+) for exceeding limit")
MIN_EVICTIONS = 2  # one may be the connection of a program that was killed and joined again
ERROR = "already registered"  # in the reply to a heartbeat of a client that was replaced


def sites_with_shared_kits(log: bytes) -> set[str]:
    """Return the names of the sites whose startup kit is used by two programs, from the log of FLARE's server.

    A program that was killed and joined again is not reported, because the killed program sends no heartbeats.
    """
    n_evictions: dict[bytes, int] = {}
    for line in log.splitlines():
        if found := JOINED_AGAIN.search(line):
            n_evictions[found[1]] = 0
        elif (found := EVICTED.search(line)) and found[1] in n_evictions:
            n_evictions[found[1]] += 1
    fighting = {name for name, n in n_evictions.items() if n >= MIN_EVICTIONS}
    return {name.decode() for name in fighting.union(REPLACED.findall(log))}


class ReplacedClientReporter(FLComponent):
    """FLARE component of a client: while another program has the client's place, a file in the workspace says so.

    FLARE creates it by its class name, without arguments, because the hospital's file `resources.json` lists it.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at the server's reply to each heartbeat, from the registration of the client on."""
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            file = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()) / REPLACED_FILE
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            send = cell.send_request

            def send_and_look(*arguments: Any, **keywords: Any) -> Any:
                """Send as before, and record in a file whether FLARE's server reports that another program has this
                site's place."""
                reply = send(*arguments, **keywords)
                if ERROR in str(reply.get_header(MessageHeaderKey.ERROR)):
                    file.touch()
                else:
                    file.unlink(missing_ok=True)
                return reply

            cell.send_request = send_and_look
