"""The coordinator's half inside NVIDIA FLARE: it hands letters to sites and answers back, and decides nothing."""

from __future__ import annotations

import json
import queue
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from nvflare.apis.client import Client as Site
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medfed.engines.flare.job import LINE_FILE, NO_ANSWER
from medfed.engines.flare.messages import SECONDS, register, to_message, to_shareable
from medfed.federation.message import Message, failed

CHECK_SECONDS = 0.05


class Relay(Controller):
    """Runs in FLARE's server, beside whatever program of the coordinator holds the other end of the line.

    The round loop, its checkpoints and all decisions are in that program, so that this job may end and start again.
    """

    def __init__(self) -> None:
        super().__init__(task_check_period=CHECK_SECONDS)
        register()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to tidy up."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Carry letters until the other end of the line closes, or FLARE stops the job."""
        where = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / LINE_FILE
        told = json.loads(where.read_text())
        with Client(told["address"], "AF_UNIX", authkey=bytes.fromhex(told["key"])) as line:
            while not abort_signal.triggered:
                if not line.poll(CHECK_SECONDS):
                    continue
                try:
                    request = json.loads(line.recv_bytes())
                    letters = [line.recv_bytes() for _ in range(request["n_letters"])]
                    self._carry(line, request, letters, abort_signal, fl_ctx)
                except (EOFError, ConnectionError):  # the other end is done with this job
                    return

    def _carry(
        self, line: Connection, request: dict, letters: list[bytes], abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        """One exchange: a task a site, all at once; each answer goes over the line as it comes, then an empty frame."""
        answers: queue.Queue[tuple[str, Message]] = queue.Queue()
        there = {client.name for client in fl_ctx.get_engine().get_clients()}
        open_sites = set(request["sites"]) & there

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers.put((client_task.client.name, _read(client_task.result)))
            client_task.result = None  # hundreds of megabytes, and nobody else wants them

        shareables = [to_shareable(Message.from_bytes(letter)) for letter in letters]
        for shareable in shareables:
            shareable.set_header(SECONDS, request["seconds"])
        until = time.monotonic() + request["seconds"] if request["seconds"] else None
        timeout = int(request["seconds"]) + 1 if until else 0  # after `until`, which has the better reason
        tasks = {}
        for site in sorted(open_sites):
            shareable = shareables[request["sites"][site]]
            tasks[site] = Task(request["kind"], shareable, timeout=timeout, result_received_cb=received)
            self.broadcast(tasks[site], fl_ctx, targets=[site], min_responses=1)
        for site in sorted(set(request["sites"]) - there):
            _send(line, site, failed(f"{NO_ANSWER}: it is not connected"))
        while open_sites and not abort_signal.triggered and (until is None or time.monotonic() < until):
            if line.poll():  # nothing comes during an exchange but its end
                raise EOFError
            try:
                site, message = answers.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                site, message = _given_up(open_sites, tasks)
            if site in open_sites:
                open_sites.discard(site)
                _send(line, site, message)
        if abort_signal.triggered:
            raise ConnectionAbortedError("FLARE stops this job")
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        for site in sorted(open_sites):
            _send(line, site, failed(f"{NO_ANSWER} within {request['seconds']:g} s"))
        line.send_bytes(b"")

    def process_result_of_unknown_task(
        self, client: Site, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late, or twice."""
        message = _read(result)
        number = message.facts.get("round", "unknown")
        self.log_warning(fl_ctx, f"{client.name}: its answer '{task_name}' of round {number} came late or twice; left out")


def _given_up(sites: set[str], tasks: dict[str, Task]) -> tuple[str, Message]:
    """A site that FLARE no longer waits for, as where it is dead, and the message that says so; no site else."""
    for site in sorted(sites):
        if (status := tasks[site].completion_status) not in (None, TaskCompletionStatus.OK):
            return site, failed(f"{NO_ANSWER}: FLARE says {getattr(status, 'value', status)}")
    return "", failed("")


def _read(result: Shareable) -> Message:
    try:
        return to_message(result)
    except Exception as error:  # noqa: BLE001  whatever a site sends must not end the job of the others
        return failed(f"its answer cannot be read: {error}")


def _send(line: Connection, site: str, message: Message) -> None:
    line.send_bytes(site.encode())
    line.send_bytes(message.to_bytes())
