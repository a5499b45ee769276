"""The part of the coordinator that runs inside NVIDIA FLARE: it passes requests to the sites and replies back.

The controller makes no decisions. The round loop, its checkpoints and all checks are in the coordinator's own program,
which holds the other end of the connection (`FlareConnection`); this FLARE job can therefore end and be replaced at any
time.
"""

from __future__ import annotations

import json
import queue
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from nvflare.apis.client import Client as Site
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec

from medfed.engines.flare.connection import WARNING
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY
from medfed.engines.flare.late_replies import LateReplies
from medfed.engines.flare.messages import LOAD_TIMEOUT_HEADER, TIMEOUT_HEADER, register, to_message, to_shareable
from medfed.federation.message import Message, failed_reply

POLL_S = 0.05
GRACE_S = 5.0  # after the timeout, for a site to report that it stopped; such a site is still connected
MAX_REASON_CHARACTERS = 300

ReplyQueue = queue.Queue[tuple[float, str, Message]]  # (time of receipt, site, reply)


class FlareController(Controller):
    """FLARE controller that carries requests and replies between the coordinator's program and the sites.

    FLARE creates it by its class name. The local folder of FLARE's server must hold the file `CONNECTION_FILE` with the
    address and the key of the coordinator's program.
    """

    def __init__(self) -> None:
        super().__init__(task_check_period=POLL_S)
        register()
        self._late_replies = LateReplies()
        self._has_replied: set[str] = set()  # sites that have read their data, or said why not

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """Make the communicator record each question about a closed task as a late reply.

        Before a site sends a reply, the site asks FLARE whether the task is still open. If it is closed, the site sends
        nothing.
        """
        super().set_communicator(communicator)
        check = communicator.process_task_check

        def check_and_record(task_id: str, fl_ctx: FLContext) -> ClientTask | None:
            """Record whose late reply FLARE is about to discard, then call FLARE's own check of a reply's task."""
            task = check(task_id, fl_ctx)
            if task is None:
                self._late_replies.record_reply(task_id, fl_ctx.get_peer_context().get_identity_name())
            return task

        communicator.process_task_check = check_and_record

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Pass requests and replies on, until the coordinator's program closes the connection or the job stops."""
        path = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / CONNECTION_FILE
        settings = json.loads(path.read_text())
        with Client(settings["address"], "AF_UNIX", authkey=bytes.fromhex(settings["key"])) as connection:
            while not abort_signal.triggered:
                try:
                    self._send_warnings(connection)
                    if not connection.poll(POLL_S):
                        continue
                    header = json.loads(connection.recv_bytes())
                    requests = [connection.recv_bytes() for _ in range(header["n_requests"])]
                    self._carry(connection, header, requests, abort_signal, fl_ctx)
                except (EOFError, ConnectionError):  # the coordinator's program has closed the connection
                    return

    def _carry(
        self, connection: Connection, header: dict, requests: list[bytes], abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        """Carry one exchange: send a task to each site, forward each reply when it is received, then an empty frame."""
        replies: ReplyQueue = queue.Queue()
        timeouts = {site: self._timeout_s(site, header) for site in header["sites"]}
        tasks = self._create_tasks(header, requests, timeouts, replies, fl_ctx)
        for site in sorted(set(header["sites"]) - set(tasks)):
            _send(connection, site, failed_reply(f"{NO_REPLY}: it is not connected"))
        start, open_sites, given_up = time.monotonic(), set(tasks), set()
        for site in sorted(tasks):
            self.broadcast(tasks[site], fl_ctx, targets=[site], min_responses=1)
        while any(not _is_over(start, timeouts[site]) for site in open_sites) and not abort_signal.triggered:
            self._send_warnings(connection)
            if connection.poll():  # the coordinator's program sends nothing during an exchange, so it has closed
                raise EOFError
            try:
                received_at, site, message = replies.get(timeout=POLL_S)
            except queue.Empty:
                received_at, (site, message) = start, _given_up(open_sites, tasks)
                given_up.add(site)
            if site in open_sites:
                open_sites.discard(site)
                self._has_replied |= {site} - given_up
                _send(connection, site, _reject_if_late(message, received_at - start, timeouts[site]))
        if abort_signal.triggered:
            raise ConnectionAbortedError("FLARE stops this job")
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        while not replies.empty():  # received in time, while other replies were being forwarded
            received_at, site, message = replies.get()
            if site in open_sites:
                open_sites.discard(site)
                _send(connection, site, _reject_if_late(message, received_at - start, timeouts[site]))
        self._late_replies.close_requests(open_sites | given_up)
        for site in sorted(open_sites):
            _send(connection, site, failed_reply(f"{NO_REPLY} within {timeouts[site]:g} s"))
        self._send_warnings(connection)
        connection.send_bytes(b"")

    def _timeout_s(self, site: str, header: dict) -> float:
        """Return the seconds until a site must have replied; 0 for no limit. Its first reply also waits for its data.

        The site itself measures the same time and reports at its end (`SiteWorker`). A site that does not is silent.
        """
        loading_s = 0.0 if site in self._has_replied else header["load_timeout_s"]
        return header["timeout_s"] + loading_s if header["timeout_s"] else 0.0

    def _create_tasks(
        self, header: dict, requests: list[bytes], timeouts: dict[str, float], replies: ReplyQueue, fl_ctx: FLContext
    ) -> dict[str, Task]:
        """Return FLARE's tasks of the connected sites, by the name of the site; each reply is put into `replies`."""
        messages = [Message.from_bytes(request) for request in requests]
        shareables = [to_shareable(message) for message in messages]
        for shareable in shareables:
            shareable.set_header(TIMEOUT_HEADER, header["timeout_s"])
            shareable.set_header(LOAD_TIMEOUT_HEADER, header["load_timeout_s"])
        number = messages[0].facts["round"] if messages else 0

        def on_sent(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._late_replies.record_request(client_task.id, client_task.client.name, header["kind"], number)

        def on_received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            replies.put((time.monotonic(), client_task.client.name, _read(client_task.result)))
            client_task.result = None  # frees hundreds of megabytes that are not needed any more

        # FLARE's own timeout is longer than `_is_over`, which reports a better reason.
        limits = {site: int(seconds + GRACE_S) + 1 if seconds else 0 for site, seconds in timeouts.items()}
        connected = {client.name for client in fl_ctx.get_engine().get_clients()}
        return {
            site: Task(
                header["kind"],
                shareables[index],
                timeout=limits[site],
                after_task_sent_cb=on_sent,
                result_received_cb=on_received,
            )
            for site, index in header["sites"].items()
            if site in connected
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record every reply that FLARE receives from a site, because FLARE drops a late one silently."""
        if event_type == EventType.BEFORE_PROCESS_SUBMISSION:
            key, result = fl_ctx.get_prop(FLContextKey.TASK_ID), fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            succeeded = result.get_return_code() == ReturnCode.OK
            failure = "" if succeeded else _read(result).facts["why"][:MAX_REASON_CHARACTERS]
            self._late_replies.record_reply(key, fl_ctx.get_peer_context().get_identity_name(), failure)
        super().handle_event(event_type, fl_ctx)

    def _send_warnings(self, connection: Connection) -> None:
        """Send the warnings about late replies to the coordinator."""
        for text in self._late_replies.take_warnings():
            connection.send_bytes(WARNING + text.encode())

    def process_result_of_unknown_task(
        self, client: Site, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Write a warning to FLARE's log about a reply to a request that this job did not send."""
        self.log_warning(fl_ctx, f"{client.name}: sent a reply to a request that this job did not send; it is not used")


def _is_over(start: float, timeout_s: float) -> bool:
    return bool(timeout_s) and time.monotonic() - start > timeout_s + GRACE_S


def _reject_if_late(message: Message, duration_s: float, timeout_s: float) -> Message:
    """Return the message, or a failed reply in its place if it is late; a failed reply itself is never too late."""
    if not timeout_s or duration_s <= timeout_s or message.kind == "failed":
        return message
    return failed_reply(f"its reply was received after {duration_s:.1f} s, but only {timeout_s:g} s were allowed")


def _given_up(sites: set[str], tasks: dict[str, Task]) -> tuple[str, Message]:
    """Return a site that FLARE no longer waits for, such as a dead one, and a failed reply; ("", ...) if none."""
    for site in sorted(sites):
        if (status := tasks[site].completion_status) not in (None, TaskCompletionStatus.OK):
            return site, failed_reply(f"{NO_REPLY}: FLARE says {getattr(status, 'value', status)}")
    return "", failed_reply("")


def _read(result: Shareable) -> Message:
    """The reply in FLARE's result; a reply of kind "failed" if it cannot be read."""
    try:
        return to_message(result)
    except Exception as error:  # no reply of one site may end the job of all sites
        return failed_reply(f"its reply cannot be read: {error}")


def _send(connection: Connection, site: str, message: Message) -> None:
    """Send a site's name and message to the coordinator, as two frames."""
    connection.send_bytes(site.encode())
    connection.send_bytes(_encoded(message))


def _encoded(message: Message) -> bytes:
    """Return the bytes of a reply, or those of a failed reply if it cannot be encoded."""
    try:
        return message.to_bytes()
    except Exception as error:  # no reply of one site may end the job of all sites
        return failed_reply(f"its reply cannot be read: {error}").to_bytes()
