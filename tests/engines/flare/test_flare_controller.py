"""`FlareController` with FLARE's own task management and `FlareConnection`; the tests play the sites."""

import json
import re
import threading
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from medfed.engines.flare import controller as controller_module
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.controller import FlareController
from medfed.engines.flare.messages import META_KEY, to_message, to_shareable
from medfed.federation.message import Message, failed_reply

SITES = ("BMC", "HK")


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
        return SimpleNamespace(end_reason=lambda: None, stop=self.stop)

    def stop(self) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.controller.communicator.finalize_run(self.context())

    def fetch(self, site: str) -> tuple[str, Message]:
        """Return what a site receives when it asks for work: the key of the task, and the request."""
        for _ in range(200):
            kind, key, task = self.controller.communicator.process_task_request(self.clients[site], self.context())
            if kind:
                return key, to_message(task)
            time.sleep(0.02)
        raise AssertionError(f"no request for {site}")

    def context_of(self, site: str) -> FLContext:
        context, peer = self.context(), FLContext()
        peer.set_prop("__identity_name__", site, private=False)
        context.set_peer_context(peer)
        return context

    def is_task_open(self, site: str, key: str) -> bool:
        """Return whether the task is still open, which FLARE's client asks before it sends its result."""
        return self.controller.communicator.process_task_check(task_id=key, fl_ctx=self.context_of(site)) is not None

    def reply(self, site: str, key: str, message: Message, kind: str = "train") -> None:
        """Send a reply, as FLARE's runner does it."""
        self.send(site, key, to_shareable(message), kind)

    def send(self, site: str, key: str, result: Shareable, kind: str = "train") -> None:
        context = self.context_of(site)
        context.set_prop(FLContextKey.TASK_ID, key, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
        self.controller.handle_event(EventType.BEFORE_PROCESS_SUBMISSION, context)
        self.controller.communicator.process_submission(self.clients[site], kind, key, result, context)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "GRACE_S", 0.2)
    return Server(tmp_path)


@pytest.fixture
def flare(server):
    connection = FlareConnection(server.start, load_timeout_s=0.0)
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


def without_hk(server, flare, timeout_s: float) -> tuple[Exchange, str]:
    """Begin round 1, fetch both tasks and let BMC reply; return the exchange and the key of HK's task."""
    exchange = Exchange(flare, request(), timeout_s)
    key, _ = server.fetch("HK")
    server.reply("BMC", server.fetch("BMC")[0], update_of("BMC"))
    return exchange, key


def test_replies_in_time_are_returned_without_a_warning(flare, server):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exchange = Exchange(flare, request(), 20)
        for site in SITES:
            server.reply(site, server.fetch(site)[0], update_of(site))
        assert {site: reply.weights["w"][0] for site, reply in exchange.done().items()} == {"BMC": 3, "HK": 2}
        flare.close()


def test_a_reply_a_little_late_is_replaced_by_the_reason(flare, patient_server):
    exchange, key = without_hk(patient_server, flare, 1.0)
    time.sleep(1.2)
    patient_server.reply("HK", key, update_of("HK"))
    replies = exchange.done()
    assert replies["BMC"].kind == "train" and replies["HK"].kind == "failed"
    assert replies["HK"].facts["why"].startswith("its reply was received after 1.")
    assert replies["HK"].facts["why"].endswith(" s, but only 1 s were allowed")


def test_a_reply_in_time_is_returned_though_it_is_forwarded_after_the_timeout(flare, server, monkeypatch):
    send, both, over = controller_module._send, threading.Event(), threading.Event()

    def busy(*arguments) -> None:
        """Send the first reply only when the second has been received; then the exchange is over."""
        assert both.wait(20)
        send(*arguments)
        over.set()

    monkeypatch.setattr(controller_module, "_send", busy)
    monkeypatch.setattr(controller_module, "_is_over", lambda start, timeout_s: over.is_set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exchange = Exchange(flare, request(), 60)
        for site in SITES:
            server.reply(site, server.fetch(site)[0], update_of(site))
        both.set()
        assert [reply.kind for reply in exchange.done().values()] == ["train", "train"]
        flare.close()


def test_the_reason_of_a_site_that_stopped_at_the_timeout_is_returned(flare, patient_server):
    exchange, key = without_hk(patient_server, flare, 1.0)
    time.sleep(1.2)
    patient_server.reply("HK", key, failed_reply("did not finish in time and was stopped"))
    assert exchange.done()["HK"] == failed_reply("did not finish in time and was stopped")


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


def reply_late(server, flare, reply: Message) -> str:
    """Run round 1, in which HK replies after the exchange is over; return the key of its task."""
    exchange, key = without_hk(server, flare, 1.0)
    assert exchange.done()["HK"] == failed_reply("did not reply within 1 s")
    server.reply("HK", key, reply)
    return key


def test_a_late_reply_is_reported_in_the_next_exchange_and_never_returned(flare, server):
    reply_late(server, flare, replace(update_of("HK"), weights={"w": torch.full((2,), 99.0)}))
    with pytest.warns(UserWarning) as warned:
        exchange = Exchange(flare, request(2), 20)
        for site in SITES:
            key, message = server.fetch(site)
            assert message.facts["round"] == 2
            server.reply(site, key, update_of(site))
        replies = exchange.done()
    flare.close()
    assert replies["HK"].weights["w"][0] == 2
    assert [re.sub(r"\d+ s", "N s", str(one.message)) for one in warned] == [
        "HK: its reply 'train' of round 1 was received late, after N s; it is not used"
    ]
    assert "medfed" in warned[0].filename, "the run records only warnings of medfed itself"


def test_a_late_reply_during_the_next_exchange_is_reported_with_it(flare, server):
    exchange, key = without_hk(server, flare, 1.0)
    exchange.done()
    with pytest.warns(UserWarning, match="HK: its reply 'train' of round 1 was received late"):
        exchange = Exchange(flare, request(1, "validate"), 20)
        new, _ = server.fetch("HK")
        server.reply("HK", key, update_of("HK"))
        server.reply("BMC", server.fetch("BMC")[0], Message("validate"), "validate")
        server.reply("HK", new, Message("validate"), "validate")
        assert {reply.kind for reply in exchange.done().values()} == {"validate"}


def test_a_late_reply_after_the_last_exchange_is_reported_when_the_connection_is_closed(flare, server):
    reply_late(server, flare, failed_reply("was stopped"))
    time.sleep(0.3)
    with pytest.warns(UserWarning, match=r"was received late, after \d+ s \(was stopped\); it is not used"):
        flare.close()


def test_a_reply_that_is_received_twice_is_returned_once_and_reported_once(flare, server):
    exchange = Exchange(flare, request(), 20)
    key, _ = server.fetch("BMC")
    server.reply("BMC", key, update_of("BMC"))
    with pytest.warns(UserWarning) as warned:
        for _ in range(3):
            server.reply("BMC", key, update_of("HK"))
        server.reply("HK", server.fetch("HK")[0], update_of("HK"))
        replies = exchange.done()
        flare.close()
    assert replies["BMC"].weights["w"][0] == 3
    (warning,) = warned
    assert str(warning.message) == "BMC: its reply 'train' of round 1 was received twice; it is not used"


def test_a_reply_of_a_site_that_flare_gave_up_is_reported(flare, server):
    exchange, key = without_hk(server, flare, 20)
    for task in server.controller.communicator._tasks:
        task.completion_status = controller_module.TaskCompletionStatus.CLIENT_DEAD
    assert exchange.done()["HK"].facts["why"].startswith("did not reply: FLARE says ")
    server.reply("HK", key, update_of("HK"))
    time.sleep(0.3)
    with pytest.warns(UserWarning, match="HK: its reply 'train' of round 1 was received late"):
        flare.close()


def test_a_site_that_asks_whether_its_task_is_open_is_reported_though_it_sends_no_reply(flare, server):
    """FLARE's clients ask before they send."""
    exchange = Exchange(flare, request(), 1.0)
    keys = {site: server.fetch(site)[0] for site in SITES}
    assert all(server.is_task_open(site, key) for site, key in keys.items())
    server.reply("BMC", keys["BMC"], update_of("BMC"))
    assert exchange.done()["HK"].kind == "failed"
    time.sleep(0.3)
    assert not server.is_task_open("HK", keys["HK"])
    time.sleep(0.3)
    with pytest.warns(UserWarning) as warned:
        flare.close()
    assert len(warned) == 1 and "HK: its reply 'train' of round 1 was received late" in str(warned[0].message)


def test_a_sites_first_reply_may_also_take_the_time_to_read_its_data(server):
    controller, header = server.controller, {"timeout_s": 20.0, "load_timeout_s": 600.0}
    assert controller._timeout_s("HK", header) == 620 and controller._timeout_s("HK", {**header, "timeout_s": 0}) == 0
    flare = FlareConnection(server.start)
    exchange, key = without_hk(server, flare, 20)
    server.reply("HK", key, failed_reply("was still reading its data after 600 s"))
    exchange.done()
    assert [controller._timeout_s(site, header) for site in SITES] == [20, 20]
    flare.close()
