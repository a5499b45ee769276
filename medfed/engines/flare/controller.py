"""The part of the coordinator that runs inside NVIDIA FLARE: it passes requests to the sites and replies back.

The controller makes no decisions. The round loop, its checkpoints and all checks are in the coordinator's own program,
which holds the other end of the connection (`FlareConnection`); this FLARE job can therefore end and be replaced at any
time.
"""

from __future__ import annotations

import json
import math
import queue
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from nvflare.apis.client import Client as Site
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medfed.engines.flare.connection import END
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY
from medfed.engines.flare.messages import LOAD_TIMEOUT_HEADER, PLAN_HEADER, TIMEOUT_HEADER, to_message, to_shareable
from medfed.federation.message import Message, failed_reply

POLL_S = 0.05
GRACE_S = 5.0  # after the timeout, for a site to report that it is late; such a site is still connected

ReplyQueue = queue.SimpleQueue[tuple[str, bytes]]  # (site, reply)


class FlareController(Controller):
    """FLARE controller that carries requests and replies between the coordinator's program and the sites.

    FLARE creates it by its class name. The local folder of FLARE's server must hold the file `CONNECTION_FILE` with the
    address at which to listen for the coordinator's program, and the key that this program must know.
    """

    def __init__(self) -> None:
        super().__init__(task_check_period=POLL_S)
        self._has_replied: set[str] = set()  # sites that have read their data, or said why not

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Pass requests and replies on, until the coordinator's program closes the connection or the job stops."""
        path = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / CONNECTION_FILE
        settings = json.loads(path.read_text())
        with (
            Listener(settings["address"], "AF_UNIX", authkey=bytes.fromhex(settings["key"])) as listener,
            listener.accept() as connection,
        ):
            try:
                while not abort_signal.triggered:
                    if connection.poll(POLL_S) and (frame := connection.recv_bytes()) != END:  # END may cross ours
                        header = json.loads(frame)
                        requests = [connection.recv_bytes() for _ in range(header["n_requests"])]
                        self._carry(connection, header, requests, abort_signal, fl_ctx)
            except (EOFError, ConnectionError):  # the coordinator's program has closed the connection
                return

    def _carry(
        self, connection: Connection, header: dict, requests: list[bytes], abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        """Carry one exchange: send a task to each site, forward each reply when it is received, then send `END`.

        If the coordinator's program sends `END` first, no reply of the remaining sites can come any more.
        """
        replies: ReplyQueue = queue.SimpleQueue()
        tasks = self._create_tasks(header, requests, replies)
        connected = {client.name for client in fl_ctx.get_engine().get_clients()}
        for site in sorted(tasks):
            if site in connected:
                self.broadcast(tasks[site], fl_ctx, targets=[site], min_responses=1)
            else:
                replies.put((site, failed_reply(f"{NO_REPLY}: it is not connected").to_bytes()))
        left = set(tasks)
        while left and not abort_signal.triggered:
            if connection.poll():
                connection.recv_bytes()
                for site in left:
                    replies.put((site, failed_reply(f"{NO_REPLY}: it is no longer connected").to_bytes()))
            try:
                site, reply = replies.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if site in left:
                left.remove(site)
                connection.send_bytes(site.encode())
                connection.send_bytes(reply)
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        if left:
            raise ConnectionAbortedError("FLARE stops this job")
        connection.send_bytes(END)

    def _create_tasks(self, header: dict, requests: list[bytes], replies: ReplyQueue) -> dict[str, Task]:
        """Return FLARE's task of each site; its reply, or the reason why there is none, is put into `replies`."""
        shareables = [to_shareable(Message.from_bytes(request)) for request in requests]
        for shareable in shareables:
            shareable.set_header(TIMEOUT_HEADER, header["timeout_s"])
            shareable.set_header(LOAD_TIMEOUT_HEADER, header["load_timeout_s"])
            shareable.set_header(PLAN_HEADER, header["plan"])

        def on_received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._has_replied.add(client_task.client.name)
            replies.put((client_task.client.name, _read(client_task.result)))
            client_task.result = None  # frees hundreds of megabytes that are not needed any more

        def on_done(task: Task, fl_ctx: FLContext) -> None:
            (site,), status = task.targets, task.completion_status
            if status != TaskCompletionStatus.OK:
                is_late = status == TaskCompletionStatus.TIMEOUT
                why = f" within {timeouts[site]:g} s" if is_late else f": FLARE says {getattr(status, 'value', status)}"
                replies.put((site, failed_reply(NO_REPLY + why).to_bytes()))

        timeouts = {site: self._timeout_s(site, header) for site in header["sites"]}
        return {
            site: Task(
                header["kind"],
                shareables[index],
                timeout=math.ceil(timeouts[site] + GRACE_S) if timeouts[site] else 0,
                result_received_cb=on_received,
                task_done_cb=on_done,
            )
            for site, index in header["sites"].items()
        }

    def _timeout_s(self, site: str, header: dict) -> float:
        """Return the seconds until a site must have replied; 0 for no limit. Its first reply also waits for its data.

        The site itself measures the same time and reports at its end (`SiteWorker`). A site that does not is silent.
        """
        loading_s = 0.0 if site in self._has_replied else header["load_timeout_s"]
        return header["timeout_s"] + loading_s if header["timeout_s"] else 0.0

    def process_result_of_unknown_task(
        self, client: Site, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Write a warning to FLARE's log about a reply that is late or repeated."""
        self.log_warning(fl_ctx, f"{client.name}: its reply '{task_name}' was received late or twice; it is not used")


def _read(result: Shareable) -> bytes:
    """The reply in FLARE's result, as bytes; a reply of kind "failed" if it cannot be read."""
    try:
        return to_message(result).to_bytes()
    except Exception as error:  # no reply of one site may end the job of all sites
        return failed_reply(f"its reply cannot be read: {error}").to_bytes()
