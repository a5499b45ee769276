"""`FlareEngine` with a FLARE server that the tests play: sites that are killed, come back, or cannot be reached."""

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from medfed.cli import progress
from medfed.core.errors import UserError
from medfed.engines.flare import engine as engine_module
from medfed.engines.flare.engine import FlareEngine
from medfed.engines.flare.process import FlareProcess
from medfed.federation.message import Message
from medfed.federation.settings import Federation

SITES = ("BMC", "HK", "UCL")
NOT_CONNECTED = "did not reply: it is not connected"


class Server:
    """A FLARE server, as its admin console shows it; a dead site stays registered."""

    def __init__(self) -> None:
        self.tokens = {site: f"{site} 1" for site in SITES}
        self.dead: set[str] = set()
        self.jobs: list[set[str]] = []
        self.n_sessions, self.error, self.hangs, self.misses = 0, "", False, 0

    def session(self, *_, **__) -> SimpleNamespace:
        self.n_sessions += 1
        return SimpleNamespace(
            do_command=self.do_command,
            get_client_job_status=self.states,
            submit_job=self.submit,
            get_job_meta=lambda job_id: {"status": "FINISHED:COMPLETED"},
            close=lambda: None,
        )

    def do_command(self, command: str) -> dict:
        if self.error:
            raise ConnectionError(self.error)
        rows = [[site, site, site, "True", token, "today"] for site, token in self.tokens.items()]
        clients = [{"type": "table", "rows": [["CLIENT", "FQCN", "FQSN", "LEAF", "TOKEN", "LAST"], *rows]}]
        jobs = {"type": "table", "rows": [["JOB_ID", "APP NAME"]]}
        return {"data": [{"type": "string", "data": "Engine status"}, jobs, *(clients if rows else [])]}

    def states(self) -> list[dict[str, str]]:
        if self.hangs:
            raise TimeoutError("no answer of the server")
        dead = self.dead | ({"HK"} if self.misses > 0 else set())
        self.misses -= 1
        return [{"client_name": site, "status": "no_reply" if site in dead else "no_jobs"} for site in self.tokens]

    def submit(self, path: str) -> str:
        self.jobs.append(set(self.tokens) - self.dead)
        return str(len(self.jobs))

    def kill(self, site: str) -> None:
        self.dead.add(site)

    def register_again(self, site: str) -> None:
        self.dead.discard(site)
        self.tokens[site] += "+"


@pytest.fixture
def server(monkeypatch) -> Server:
    server = Server()
    monkeypatch.setattr(engine_module, "new_secure_session", server.session)
    monkeypatch.setattr(engine_module, "POLL_S", 0.01)
    return server


@pytest.fixture
def engine(server, tmp_path, monkeypatch) -> FlareEngine:
    (tmp_path / "local").mkdir()
    engine = FlareEngine(list(SITES), FlareProcess(tmp_path, "server"), tmp_path, tmp_path, Federation(), 0.05)
    jobs = []

    def exchange(kind, messages, *_):
        if not jobs:
            jobs.append(engine._submit({}))
        return {site: Message(kind) for site in messages}

    flare = SimpleNamespace(exchange=exchange, is_open=lambda: bool(jobs), close=jobs.clear)
    monkeypatch.setattr(engine, "_flare", flare)
    return engine


def kinds(engine: FlareEngine, *asked: str) -> dict[str, str]:
    replies = engine.exchange("train", dict.fromkeys(asked or SITES, Message("train")))
    assert list(replies) == sorted(asked or SITES)
    return {site: reply.facts.get("why", reply.kind) for site, reply in replies.items()}


def test_it_shows_for_whom_it_waits(engine, server, monkeypatch, capsys):
    monkeypatch.setattr(progress, "is_live", lambda: True)
    engine.quiet = False
    server.kill("HK")
    with pytest.warns(UserWarning, match="HK did not join within 0.05 s; the run starts without"):
        kinds(engine)
    assert "waiting for HK, " in capsys.readouterr().err


def test_a_dead_site_is_not_asked_and_the_job_goes_on(engine, server):
    assert set(kinds(engine).values()) == {"train"}
    server.kill("HK")
    for _ in range(3):
        assert kinds(engine) == {"BMC": "train", "HK": NOT_CONNECTED, "UCL": "train"}
    assert server.jobs == [set(SITES)] and server.n_sessions == 1


def test_one_missed_answer_or_a_client_that_hangs_leaves_no_site_out(engine, server):
    assert set(kinds(engine).values()) == {"train"}
    server.misses = 1
    assert set(kinds(engine).values()) == {"train"}
    server.hangs = True
    assert set(kinds(engine).values()) == {"train"} and len(server.jobs) == 1


def test_a_job_is_replaced_once_when_a_site_has_registered_again(engine, server):
    kinds(engine)
    server.kill("HK")
    server.kill("UCL")
    kinds(engine, "BMC", "HK")
    kinds(engine, "BMC")
    server.register_again("HK")
    assert kinds(engine, "BMC", "UCL") == {"BMC": "train", "UCL": NOT_CONNECTED}
    for _ in range(3):
        assert kinds(engine, "BMC", "HK") == {"BMC": "train", "HK": "train"}
    assert server.jobs == [set(SITES), {"BMC", "HK"}], "the job that is submitted does not wait for UCL, which is dead"


def test_a_site_whose_network_failed_is_asked_again_by_the_same_job(engine, server):
    kinds(engine)
    server.kill("HK")
    assert kinds(engine)["HK"] == NOT_CONNECTED
    server.dead.clear()
    assert kinds(engine)["HK"] == "train" and len(server.jobs) == 1


def test_during_an_exchange_a_site_is_given_up_if_two_checks_do_not_reach_it(engine, server, monkeypatch):
    kinds(engine)
    monkeypatch.setattr(engine_module, "CHECK_INTERVAL_S", 0.0)
    job = engine._submit({})
    monkeypatch.setattr(job, "_status", lambda: "RUNNING")
    assert job.check() == set()
    server.kill("HK")
    assert [job.check(), job.check()] == [set(), {"HK"}]
    server.register_again("HK")
    assert job.check() == {"HK"}, "the program that registered again has no part in this job"


def test_a_run_waits_for_its_sites_and_starts_without_one_that_does_not_join(engine, server, monkeypatch):
    server.tokens.pop("HK")
    with pytest.warns(UserWarning, match="HK did not join within 0.05 s; the run starts without"):
        assert kinds(engine)["HK"] == NOT_CONNECTED
    server.tokens.clear()
    monkeypatch.setattr(engine, "_has_waited", False)
    with pytest.raises(UserError, match="no site joined within 0.05 s"):
        kinds(engine)


def test_a_session_that_flare_closed_is_opened_again(engine, server, monkeypatch):
    server.error = "session_inactive"
    clock = SimpleNamespace(sleep=lambda _: setattr(server, "error", ""), monotonic=float)
    monkeypatch.setattr(engine_module, "time", clock)
    assert set(kinds(engine).values()) == {"train"} and server.n_sessions == 2


def test_a_server_that_does_not_reply_is_named(engine, server, monkeypatch):
    monkeypatch.setattr(engine_module, "CONNECT_TIMEOUT_S", 0.05)
    server.error = "no route"
    with pytest.raises(UserError, match=r"the FLARE server does not reply \(no route\); see .*server.log"):
        kinds(engine)
    engine.server.has_ended = lambda: True
    with pytest.raises(UserError, match="the FLARE server ended; see .*server.log"):
        kinds(engine)
