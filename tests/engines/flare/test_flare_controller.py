"""The relay with FLARE's own book of tasks beneath it and `FlareConnection` above; the sites are the test."""

import json
import re
import threading
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.signal import Signal

from medfed.engines.flare import controller as relay_module
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.controller import FlareController
from medfed.engines.flare.messages import to_message, to_shareable
from medfed.federation.message import Message, failed_reply

SITES = ("BMC", "HK")


class Server:
    """A FLARE server that runs the relay: letters out and answers in, through FLARE's own code."""

    def __init__(self, folder) -> None:
        self.clients = {name: Client(name, f"token of {name}") for name in SITES}
        self.engine = Mock(spec=ServerEngineSpec)
        self.engine.get_clients.return_value = list(self.clients.values())
        self.engine.get_workspace.return_value = SimpleNamespace(get_site_config_dir=lambda: str(folder))
        contexts = FLContextManager(self.engine, "server", "job", {}, {})
        self.engine.new_context.side_effect = contexts.new_context
        self.folder, self.relay, self.abort = folder, FlareController(), Signal()
        self.relay.set_communicator(WFCommServer())
        self.relay.communicator.initialize_run(contexts.new_context())
        self.context = contexts.new_context

    def start(self, line: dict[str, str]):
        (self.folder / relay_module.CONNECTION_FILE).write_text(json.dumps(line))
        args = (self.abort, self.context())
        self.thread = threading.Thread(target=self.relay.control_flow, args=args, daemon=True)
        self.thread.start()
        return SimpleNamespace(ended=lambda: None, stop=self.stop)

    def stop(self) -> None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.relay.communicator.finalize_run(self.context())

    def fetch(self, site: str) -> tuple[str, Message]:
        """What a site gets that asks for work: the key of the letter, and the letter."""
        for _ in range(200):
            kind, key, task = self.relay.communicator.process_task_request(self.clients[site], self.context())
            if kind:
                return key, to_message(task)
            time.sleep(0.02)
        raise AssertionError(f"no letter for {site}")

    def asking(self, site: str) -> FLContext:
        context, peer = self.context(), FLContext()
        peer.set_prop("__identity_name__", site, private=False)
        context.set_peer_context(peer)
        return context

    def asked_first(self, site: str, key: str) -> bool:
        """Whether the task still stands, as FLARE's client asks before it sends its result."""
        return self.relay.communicator.process_task_check(task_id=key, fl_ctx=self.asking(site)) is not None

    def answer(self, site: str, key: str, message: Message, kind: str = "train") -> None:
        """As FLARE's runner does it when a result comes."""
        context, result = self.asking(site), to_shareable(message)
        context.set_prop(FLContextKey.TASK_ID, key, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
        self.relay.handle_event(EventType.BEFORE_PROCESS_SUBMISSION, context)
        self.relay.communicator.process_submission(self.clients[site], kind, key, result, context)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(relay_module, "GRACE_S", 1.0)
    return Server(tmp_path)


def letter(number: int = 1, kind: str = "train") -> Message:
    return Message(kind, {"w": torch.ones(2)}, {}, {"round": number, "last": number - 1})


def of(site: str) -> Message:
    return Message("train", {"w": torch.full((2,), float(len(site)))}, {}, {"loss": 0.5})


class Exchange(threading.Thread):
    """One exchange in the background, with whatever was warned of."""

    def __init__(self, line: FlareConnection, message: Message, seconds: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.line, self.message, self.seconds = line, message, seconds
        self.start()

    def run(self) -> None:
        self.answers = self.line.exchange(self.message.kind, dict.fromkeys(SITES, self.message), self.seconds)

    def done(self) -> dict[str, Message]:
        self.join(20)
        return self.answers


def test_answers_that_come_in_time_count_and_nothing_is_told(server):
    line = FlareConnection(server.start)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        going = Exchange(line, letter(), 20)
        for site in SITES:
            server.answer(site, server.fetch(site)[0], of(site))
        assert {site: answer.weights["w"][0] for site, answer in going.done().items()} == {"BMC": 3, "HK": 2}
        line.close()


def test_what_comes_a_little_late_is_left_out_with_that_reason(server):
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 1.0)
    key, _ = server.fetch("HK")
    server.answer("BMC", server.fetch("BMC")[0], of("BMC"))
    time.sleep(1.2)
    server.answer("HK", key, of("HK"))
    answers = going.done()
    line.close()
    assert answers["BMC"].kind == "train" and answers["HK"].kind == "failed"
    assert answers["HK"].facts["why"].startswith("its answer came late, after 1.")
    assert answers["HK"].facts["why"].endswith(" s where it had 1 s")


def test_an_answer_that_came_in_time_counts_though_the_line_was_busy_until_it_was_over(server, monkeypatch):
    send, both, over = relay_module._send, threading.Event(), threading.Event()

    def busy(*given) -> None:
        """Sends the first answer until the second is there, and the exchange over."""
        assert both.wait(20)
        send(*given)
        over.set()

    monkeypatch.setattr(relay_module, "_send", busy)
    monkeypatch.setattr(relay_module, "_over", lambda began, seconds: over.is_set())
    line = FlareConnection(server.start)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        going = Exchange(line, letter(), 60)
        for site in SITES:
            server.answer(site, server.fetch(site)[0], of(site))
        both.set()
        assert [answer.kind for answer in going.done().values()] == ["train", "train"]
        line.close()


def test_a_site_that_stopped_in_time_is_heard_and_is_not_as_one_that_is_gone(server):
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 1.0)
    keys = {site: server.fetch(site)[0] for site in SITES}
    server.answer("BMC", keys["BMC"], of("BMC"))
    time.sleep(1.2)
    server.answer("HK", keys["HK"], failed_reply("was not done in time and was stopped"))
    assert going.done()["HK"] == failed_reply("was not done in time and was stopped")
    line.close()


def late_one(server, line, answer: Message) -> str:
    """Round 1, in which HK is late; its answer comes when all is over. The key of its letter."""
    going = Exchange(line, letter(), 1.0)
    key, _ = server.fetch("HK")
    server.answer("BMC", server.fetch("BMC")[0], of("BMC"))
    assert going.done()["HK"] == failed_reply("did not reply within 1 s")
    server.answer("HK", key, answer)
    return key


def test_a_late_answer_is_told_in_the_next_exchange_and_counts_in_none(server):
    line = FlareConnection(server.start)
    late_one(server, line, replace(of("HK"), weights={"w": torch.full((2,), 99.0)}))
    with pytest.warns(UserWarning) as told:
        going = Exchange(line, letter(2), 20)
        for site in SITES:
            key, message = server.fetch(site)
            assert message.facts["round"] == 2
            server.answer(site, key, of(site))
        answers = going.done()
    line.close()
    assert answers["HK"].weights["w"][0] == 2
    assert [re.sub(r"\d+ s", "N s", str(one.message)) for one in told] == [
        "HK: its answer 'train' of round 1 came late, after N s; left out"]  # fmt: skip
    assert "medfed" in told[0].filename, "the run's notices take medfed's own warnings alone"


def test_one_that_comes_during_the_next_exchange_is_told_with_it(server):
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 1.0)
    key, _ = server.fetch("HK")
    server.answer("BMC", server.fetch("BMC")[0], of("BMC"))
    going.done()
    with pytest.warns(UserWarning, match="HK: its answer 'train' of round 1 came late"):
        going = Exchange(line, letter(1, "validate"), 20)
        new, _ = server.fetch("HK")
        server.answer("HK", key, of("HK"))
        server.answer("BMC", server.fetch("BMC")[0], Message("validate"), "validate")
        server.answer("HK", new, Message("validate"), "validate")
        assert {answer.kind for answer in going.done().values()} == {"validate"}
    line.close()


def test_what_came_after_the_last_exchange_is_told_at_the_end(server):
    line = FlareConnection(server.start)
    late_one(server, line, failed_reply("was stopped"))
    time.sleep(0.3)
    with pytest.warns(UserWarning, match=r"came late, after \d+ s \(was stopped\); left out"):
        line.close()


def test_an_answer_that_comes_twice_counts_once_and_is_told_once(server):
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 20)
    key, _ = server.fetch("BMC")
    server.answer("BMC", key, of("BMC"))
    with pytest.warns(UserWarning) as told:
        for _ in range(3):
            server.answer("BMC", key, of("HK"))
        server.answer("HK", server.fetch("HK")[0], of("HK"))
        answers = going.done()
        line.close()
    assert answers["BMC"].weights["w"][0] == 3
    assert [str(one.message) for one in told] == ["BMC: its answer 'train' of round 1 came again; left out"]


def test_an_answer_of_a_site_that_flare_gave_up_is_told(server):
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 20)
    key, _ = server.fetch("HK")
    server.answer("BMC", server.fetch("BMC")[0], of("BMC"))
    for task in server.relay.communicator._tasks:
        task.completion_status = relay_module.TaskCompletionStatus.CLIENT_DEAD
    assert going.done()["HK"].facts["why"].startswith("did not reply: FLARE says ")
    server.answer("HK", key, of("HK"))
    time.sleep(0.3)
    with pytest.warns(UserWarning, match="HK: its answer 'train' of round 1 came late"):
        line.close()


def test_a_site_that_asks_whether_it_is_late_is_told_of_though_it_then_sends_nothing(server):
    """FLARE's own clients do."""
    line = FlareConnection(server.start)
    going = Exchange(line, letter(), 1.0)
    keys = {site: server.fetch(site)[0] for site in SITES}
    assert all(server.asked_first(site, key) for site, key in keys.items())
    server.answer("BMC", keys["BMC"], of("BMC"))
    assert going.done()["HK"].kind == "failed"
    time.sleep(0.3)
    assert not server.asked_first("HK", keys["HK"])
    time.sleep(0.3)
    with pytest.warns(UserWarning) as told:
        line.close()
    assert len(told) == 1 and "HK: its answer 'train' of round 1 came late" in str(told[0].message)
