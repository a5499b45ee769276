"""`FlareController` with FLARE's own task management and `FlareConnection`; the tests play the sites."""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medfed.engines.flare import connection
from medfed.engines.flare import controller as controller_module
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.controller import FlareController
from medfed.engines.flare.messages import META_KEY, PLAN_HEADER, to_message, to_shareable
from medfed.federation.message import Message, failed_reply

SITES, PLAN = ("BMC", "HK"), "0123456789ab"


class Server:
    """A FLARE server that runs the controller: requests and replies go through FLARE's own code."""

    def __init__(self, folder) -> None:
        self.clients = {name: Client(name, f"token of {name}") for name in SITES}
        self.engine = Mock(spec=ServerEngineSpec)
        self.engine.get_clients.return_value = list(self.clients.values())
        self.engine.get_workspace.return_value = SimpleNamespace(get_site_config_dir=lambda: str(folder))
        contexts = FLContextManager(self.engine, "server", "job", {}, {})
        self.engine.new_context.side_effect = contexts.new_context
        self.folder, self.controller, self.abort = folder, FlareController(), Signal()
        self.controller.set_communicator(WFCommServer())
        self.controller.communicator.initialize_run(contexts.new_context())
        self.context = contexts.new_context

    def start(self, settings: dict[str, str]):
        (self.folder / controller_module.CONNECTION_FILE).write_text(json.dumps(settings))
        args = (self.abort, self.context())
        self.thread = threading.Thread(target=self.controller.control_flow, args=args, daemon=True)
        self.thread.start()
        return SimpleNamespace(check=set, stop=self.stop)

    def stop(self) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.controller.communicator.finalize_run(self.context())

    def fetch(self, site: str) -> tuple[str, Message]:
        """Return what a site receives when it asks for work: the key of the task, and the request."""
        for _ in range(200):
            kind, key, task = self.controller.communicator.process_task_request(self.clients[site], self.context())
            if kind:
                self.plan = task.get_header(PLAN_HEADER)
                return key, to_message(task)
            time.sleep(0.02)
        raise AssertionError(f"no request for {site}")

    def context_of(self, site: str) -> FLContext:
        context, peer = self.context(), FLContext()
        peer.set_prop("__identity_name__", site, private=False)
        context.set_peer_context(peer)
        return context

    def reply(self, site: str, key: str, message: Message, kind: str = "train") -> None:
        """Send a reply, as FLARE's runner does it."""
        self.send(site, key, to_shareable(message), kind)

    def send(self, site: str, key: str, result: Shareable, kind: str = "train") -> None:
        context = self.context_of(site)
        context.set_prop(FLContextKey.TASK_ID, key, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
        self.controller.communicator.process_submission(self.clients[site], kind, key, result, context)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "GRACE_S", 0.2)
    return Server(tmp_path)


@pytest.fixture
def flare(server):
    connection = FlareConnection(server.start, load_timeout_s=0.0, plan=PLAN)
    yield connection
    connection.close()


@pytest.fixture
def patient_server(server, monkeypatch):
    """A server that also waits for a reply that comes a little after the timeout."""
    monkeypatch.setattr(controller_module, "GRACE_S", 1.0)
    return server


def request(number: int = 1, kind: str = "train") -> Message:
    return Message(kind, {"w": torch.ones(2)}, {}, {"round": number, "last": number - 1})


def update_of(site: str) -> Message:
    return Message("train", {"w": torch.full((2,), float(len(site)))}, {}, {"loss": 0.5})


class Exchange(threading.Thread):
    """One exchange in a thread."""

    def __init__(self, flare: FlareConnection, message: Message, timeout_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.flare, self.message, self.timeout_s = flare, message, timeout_s
        self.start()

    def run(self) -> None:
        self.replies = self.flare.exchange(self.message.kind, dict.fromkeys(SITES, self.message), self.timeout_s)

    def done(self) -> dict[str, Message]:
        self.join(20)
        return self.replies


def test_the_reason_of_a_site_that_stopped_at_the_timeout_is_returned(flare, patient_server):
    exchange = Exchange(flare, request(), 1.0)
    keys = {site: patient_server.fetch(site)[0] for site in SITES}
    patient_server.reply("BMC", keys["BMC"], update_of("BMC"))
    time.sleep(1.2)
    patient_server.reply("HK", keys["HK"], failed_reply("was still working after 1 s"))
    assert exchange.done()["HK"] == failed_reply("was still working after 1 s")
    assert patient_server.plan == PLAN


def forged(facts: str = "{}", name: str = "w", array: object = None) -> Shareable:
    """Return a reply of a site that does not use medfed to make it."""
    part = DXO(DataKind.WEIGHTS, {name: np.ones(2) if array is None else array})
    header = f'{{"kind": "train", "facts": {facts}, "order": {{"weights": {json.dumps([name])}, "tensors": []}}}}'
    return DXO(DataKind.COLLECTION, {"weights": part}, {META_KEY: header}).to_shareable()


@pytest.mark.parametrize(
    "bad",
    [
        forged('{"loss": 1e999}'),
        forged("null"),
        forged('{"note": "\\ud800"}'),
        forged(name="\ud800"),
        forged(array=np.ones(2, complex)),
        forged(array=np.array("words")),
        Shareable(),
    ],
)
def test_a_reply_that_cannot_be_read_costs_its_site_the_round_and_no_other(server, bad):
    jobs = []

    def start(settings):
        jobs.append(settings)
        return server.start(settings)

    flare = FlareConnection(start)
    exchange = Exchange(flare, request(), 20)
    server.send("BMC", server.fetch("BMC")[0], bad)
    server.reply("HK", server.fetch("HK")[0], update_of("HK"))
    replies = exchange.done()
    flare.close()
    assert replies["HK"].kind == "train" and len(jobs) == 1
    assert replies["BMC"].kind == "failed" and "its reply cannot be read: " in replies["BMC"].facts["why"]


@pytest.mark.parametrize("kind", ["train", "validate"])
def test_a_late_reply_is_never_returned(flare, server, kind):
    exchange = Exchange(flare, request(), 0.2)
    late, _ = server.fetch("HK")
    server.reply("BMC", server.fetch("BMC")[0], update_of("BMC"))
    assert exchange.done()["HK"] == failed_reply("did not reply within 0.2 s")
    exchange = Exchange(flare, request(2, kind), 20)
    new, message = server.fetch("HK")
    assert message.facts["round"] == 2
    server.reply("HK", late, replace(update_of("HK"), weights={"w": torch.full((2,), 99.0)}))
    for site, key in (("BMC", server.fetch("BMC")[0]), ("HK", new)):
        server.reply(site, key, replace(update_of(site), kind=kind), kind)
    assert exchange.done()["HK"].weights["w"][0] == 2


def test_a_reply_that_is_received_twice_is_returned_once(flare, server):
    exchange = Exchange(flare, request(), 20)
    key, _ = server.fetch("BMC")
    server.reply("BMC", key, update_of("BMC"))
    for _ in range(3):
        server.reply("BMC", key, update_of("HK"))
    server.reply("HK", server.fetch("HK")[0], update_of("HK"))
    assert {site: reply.weights["w"][0] for site, reply in exchange.done().items()} == {"BMC": 3, "HK": 2}


def test_a_site_that_flare_gives_up_costs_the_round_only(flare, server):
    exchange = Exchange(flare, request())
    server.fetch("HK")
    server.reply("BMC", server.fetch("BMC")[0], update_of("BMC"))
    for task in server.controller.communicator._tasks:
        task.completion_status = TaskCompletionStatus.CLIENT_DEAD
    assert exchange.done()["HK"].facts["why"].startswith("did not reply: FLARE says ")


def test_a_site_whose_connection_is_lost_costs_the_round_only(server):
    """The coordinator's program says so; the same job carries the next exchange."""
    jobs, lost = [], set()

    def start(settings):
        jobs.append(server.start(settings))
        jobs[-1].check = lambda: lost
        return jobs[-1]

    flare = FlareConnection(start)
    exchange = Exchange(flare, request())
    server.fetch("HK")
    lost.add("HK")
    time.sleep(3 * connection.POLL_S)  # BMC, which still works, is waited for
    server.reply("BMC", server.fetch("BMC")[0], update_of("BMC"))
    replies = exchange.done()
    assert replies["BMC"].kind == "train"
    assert replies["HK"] == failed_reply("did not reply: it is no longer connected")
    lost.clear()
    exchange = Exchange(flare, request(2), 20)
    for site in SITES:
        server.reply(site, server.fetch(site)[0], update_of(site))
    assert {reply.kind for reply in exchange.done().values()} == {"train"} and len(jobs) == 1
    flare.close()


def test_a_sites_first_reply_may_also_take_the_time_to_read_its_data(server):
    controller, header = server.controller, {"timeout_s": 20.0, "load_timeout_s": 600.0}
    assert controller._timeout_s("HK", header) == 620 and controller._timeout_s("HK", {**header, "timeout_s": 0}) == 0
    flare = FlareConnection(server.start)
    exchange = Exchange(flare, request(), 20)
    key, _ = server.fetch("HK")
    server.reply("BMC", server.fetch("BMC")[0], update_of("BMC"))
    server.reply("HK", key, failed_reply("was still reading its data after 600 s"))
    exchange.done()
    assert [controller._timeout_s(site, header) for site in SITES] == [20, 20]
    flare.close()
