"""The coordinator's half inside NVIDIA FLARE: it hands letters to sites and answers back, and decides nothing."""

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

from medfed.engines.flare.connection import NOTE
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY
from medfed.engines.flare.late_replies import LateReplies
from medfed.engines.flare.messages import SECONDS, register, to_message, to_shareable
from medfed.federation.message import Message, failed_reply

POLL_S = 0.05
GRACE_S = 5.0  # after its time is over, for a site to say that it stopped: it is there, then
MAX_REASON_CHARACTERS = 300  # letters of a reason


class FlareController(Controller):
    """Runs in FLARE's server, beside whatever program of the coordinator holds the other end of the line.

    The round loop, its checkpoints and all decisions are in that program, so that this job may end and start again.
    """

    def __init__(self) -> None:
        super().__init__(task_check_period=POLL_S)
        register()
        self._late = LateReplies()

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """A site asks, before it sends an answer, whether its task still stands, and sends none where it does not."""
        super().set_communicator(communicator)
        check = communicator.process_task_check

        def checked(task_id: str, fl_ctx: FLContext) -> ClientTask | None:
            task = check(task_id, fl_ctx)
            if task is None:
                self._late.came(task_id, fl_ctx.get_peer_context().get_identity_name())
            return task

        communicator.process_task_check = checked

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to tidy up."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Carry letters until the other end of the line closes, or FLARE stops the job."""
        where = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / CONNECTION_FILE
        told = json.loads(where.read_text())
        with Client(told["address"], "AF_UNIX", authkey=bytes.fromhex(told["key"])) as line:
            while not abort_signal.triggered:
                try:
                    self._tell(line)
                    if not line.poll(POLL_S):
                        continue
                    request = json.loads(line.recv_bytes())
                    letters = [line.recv_bytes() for _ in range(request["n_letters"])]
                    self._carry(line, request, letters, abort_signal, fl_ctx)
                except (EOFError, ConnectionError):  # the other end is done with this job
                    return

    def _carry(
        self, line: Connection, request: dict, letters: list[bytes], abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        """One exchange: a task a site, all at once; each answer goes over the line as it comes, then an empty frame."""
        answers: queue.Queue[tuple[float, str, Message]] = queue.Queue()
        seconds, tasks = request["seconds"], self._tasks_of(request, letters, answers, fl_ctx)
        for site in sorted(set(request["sites"]) - set(tasks)):
            _send(line, site, failed_reply(f"{NO_REPLY}: it is not connected"))
        began, open_sites, given_up = time.monotonic(), set(tasks), set()
        for site in sorted(tasks):
            self.broadcast(tasks[site], fl_ctx, targets=[site], min_responses=1)
        while open_sites and not abort_signal.triggered and not _over(began, seconds):
            self._tell(line)
            if line.poll():  # nothing comes during an exchange but its end
                raise EOFError
            try:
                came, site, message = answers.get(timeout=POLL_S)
            except queue.Empty:
                came, (site, message) = began, _given_up(open_sites, tasks)
                given_up.add(site)
            if site in open_sites:
                open_sites.discard(site)
                _send(line, site, _in_time(message, came - began, seconds))
        if abort_signal.triggered:
            raise ConnectionAbortedError("FLARE stops this job")
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        while not answers.empty():  # what came while the line was busy with others' answers
            came, site, message = answers.get()
            if site in open_sites:
                open_sites.discard(site)
                _send(line, site, _in_time(message, came - began, seconds))
        self._late.over(open_sites | given_up)
        for site in sorted(open_sites):
            _send(line, site, failed_reply(f"{NO_REPLY} within {seconds:g} s"))
        self._tell(line)
        line.send_bytes(b"")

    def _tasks_of(
        self, request: dict, letters: list[bytes], answers: queue.Queue[tuple[float, str, Message]], fl_ctx: FLContext
    ) -> dict[str, Task]:
        """FLARE's tasks by site, for those that are there; what is answered goes into `answers` with its time."""
        messages = [Message.from_bytes(letter) for letter in letters]
        shareables = [to_shareable(message) for message in messages]
        for shareable in shareables:
            shareable.set_header(SECONDS, request["seconds"])
        number = messages[0].facts["round"] if messages else 0

        def sent(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._late.sent(client_task.id, client_task.client.name, request["kind"], number)

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers.put((time.monotonic(), client_task.client.name, _read(client_task.result)))
            client_task.result = None  # hundreds of megabytes, and nobody else wants them

        # After `_over`, which has the better reason.
        timeout = int(request["seconds"] + GRACE_S) + 1 if request["seconds"] else 0
        there = {client.name for client in fl_ctx.get_engine().get_clients()}
        return {site: Task(request["kind"], shareables[index], timeout=timeout, after_task_sent_cb=sent,
                           result_received_cb=received)
                for site, index in request["sites"].items() if site in there}  # fmt: skip

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Every answer that is sent passes here, also one that FLARE then drops because its task is over."""
        if event_type == EventType.BEFORE_PROCESS_SUBMISSION:
            key, result = fl_ctx.get_prop(FLContextKey.TASK_ID), fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            succeeded = result.get_return_code() == ReturnCode.OK
            why = "" if succeeded else _read(result).facts["why"][:MAX_REASON_CHARACTERS]
            self._late.came(key, fl_ctx.get_peer_context().get_identity_name(), why)
        super().handle_event(event_type, fl_ctx)

    def _tell(self, line: Connection) -> None:
        for note in self._late.notes():
            line.send_bytes(NOTE + note.encode())

    def process_result_of_unknown_task(
        self, client: Site, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer to no letter of this job; one that is late has been told of."""
        self.log_warning(fl_ctx, f"{client.name}: an answer came to no letter of this job; left out")


def _over(began: float, seconds: float) -> bool:
    return bool(seconds) and time.monotonic() - began > seconds + GRACE_S


def _in_time(message: Message, took: float, seconds: float) -> Message:
    """The answer, if it came in time; a reason may come a little later."""
    if not seconds or took <= seconds or message.kind == "failed":
        return message
    return failed_reply(f"its answer came late, after {took:.1f} s where it had {seconds:g} s")


def _given_up(sites: set[str], tasks: dict[str, Task]) -> tuple[str, Message]:
    """A site that FLARE no longer waits for, as where it is dead, and the message that says so; no site else."""
    for site in sorted(sites):
        if (status := tasks[site].completion_status) not in (None, TaskCompletionStatus.OK):
            return site, failed_reply(f"{NO_REPLY}: FLARE says {getattr(status, 'value', status)}")
    return "", failed_reply("")


def _read(result: Shareable) -> Message:
    try:
        return to_message(result)
    except Exception as error:  # whatever a site sends must not end the job of the others
        return failed_reply(f"its answer cannot be read: {error}")


def _send(line: Connection, site: str, message: Message) -> None:
    line.send_bytes(site.encode())
    line.send_bytes(message.to_bytes())
