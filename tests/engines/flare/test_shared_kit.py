"""Two programs with one startup kit, with what FLARE's server writes and replies."""

import io
import logging
import warnings
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.fed.server.client_manager import ClientManager

from medfed.deployment.join import MAX_LOST, _KitWatch
from medfed.engines.flare.engine import FlareEngine
from medfed.engines.flare.kit import REPLACED_FILE
from medfed.engines.flare.process import FlareProcess
from medfed.engines.flare.shared_kit import ReplacedClientReporter, sites_with_shared_kits
from medfed.federation.settings import Federation


def heartbeat(manager: ClientManager, token: str, name: str = "HK") -> str | None:
    """Let FLARE's server handle a heartbeat; return the error that it sends back."""
    context = FLContext()
    manager.heartbeat(token, name, name, context)
    return context.get_prop(FLContextKey.COMMUNICATION_ERROR)


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def manager(log) -> ClientManager:
    result = ClientManager("medfed")
    result.logger = logging.Logger("server", logging.INFO)
    result.logger.addHandler(logging.StreamHandler(log))
    assert heartbeat(result, "first") is None
    assert heartbeat(result, "other", "BMC") is None
    return result


def test_the_coordinator_finds_the_site_of_a_shared_kit_in_the_servers_log(manager, log, tmp_path):
    assert sites_with_shared_kits(log.getvalue().encode()) == set()
    heartbeat(manager, "second")
    assert sites_with_shared_kits(log.getvalue().encode()) == {"HK"}
    engine = FlareEngine(["BMC", "HK"], FlareProcess(tmp_path, "server"), tmp_path, tmp_path, Federation())
    (tmp_path / "server.log").write_text(log.getvalue())
    with pytest.warns(UserWarning, match="HK: it seems that two programs use its startup kit") as warned:
        engine._report_shared_kits()
        engine._report_shared_kits()
    assert len(warned) == 1
    FlareEngine([], engine.server, tmp_path, tmp_path, Federation())._report_shared_kits()  # lines of an earlier run


def test_a_hospital_is_told_while_another_program_has_its_place(manager, tmp_path):
    replies = [None, heartbeat(manager, "second"), heartbeat(manager, "second"), None]
    assert replies[1]
    messages = [SimpleNamespace(get_header={MessageHeaderKey.ERROR: error}.get) for error in replies]
    cell = SimpleNamespace(send_request=lambda **_: messages.pop(0))
    context = FLContext()
    context.set_prop(FLContextKey.SITE_OBJ, SimpleNamespace(cell=cell))
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, SimpleNamespace(get_root_dir=lambda: str(tmp_path)))
    ReplacedClientReporter().handle_event(EventType.AFTER_CLIENT_REGISTER, context)
    watch, seen = _KitWatch("HK", FlareProcess(tmp_path, "client"), tmp_path / "log"), []
    with pytest.warns(UserWarning, match="HK: another program has joined with this startup kit") as warned:
        while messages:
            cell.send_request(topic="heartbeat")
            watch.look()
            seen.append((tmp_path / REPLACED_FILE).exists())
    assert seen == [False, True, True, False] and len(warned) == 1


SERVER_LOG = """\
2026 - sfm_endpoint - INFO - Connection CN00002 is evicted for CN00003 from endpoint HK for exceeding limit 1
2026 - ClientManager - INFO - Client: HK already registered. Re-login the client with a new token.
2026 - sfm_endpoint - INFO - Connection CN00003 is evicted for CN00004 from endpoint HK for exceeding limit 1
2026 - sfm_endpoint - INFO - Connection CN00003 is evicted for CN00004 from endpoint BMC for exceeding limit 1
2026 - sfm_endpoint - INFO - Connection CN00004 is evicted for CN00005 from endpoint HK for exceeding limit 1
"""


def test_two_programs_that_take_each_others_connection_are_reported():
    lines = SERVER_LOG.splitlines()
    assert sites_with_shared_kits(SERVER_LOG.encode()) == {"HK"}
    assert sites_with_shared_kits("\n".join(lines[:4]).encode()) == set(), "a killed program that joined again"
    assert sites_with_shared_kits("\n".join(lines[2:] * 3).encode()) == set(), "an unreliable network"


def connections(seconds: float) -> str:
    """FLARE's lines about a connection that ends after some seconds."""
    return (
        "2026-01-01 08:00:00,250 - conn_manager - INFO - Connection [CN00003 N/A => localhost:8002] is created: PID 9\n"
        f"2026-01-01 08:00:{seconds + 0.25:06.3f}".replace(".", ",")
        + " - GrpcDriver - INFO - CLIENT: finished connection [CN00003 Not Connected]\n"
    )


REGISTERED = "2026-01-01 08:00:00,000 - FederatedClient - INFO - Successfully registered client:HK for project medfed\n"


def watch_after(log, *lines: str) -> None:
    """Let the hospital's watch look at FLARE's log after each of these parts."""
    log.write_text(MAX_LOST * connections(2))
    watch = _KitWatch("HK", FlareProcess(log.parent, "client"), log)
    watch.look()  # without a warning, because these lines are of an earlier start
    for part in lines:
        with open(log, "a") as file:
            file.write(part)
        watch.look()


def test_a_hospital_that_loses_its_connection_again_and_again_is_told(tmp_path):
    with pytest.warns(UserWarning, match="HK: the connection was lost 3 times in 180 s") as warned:
        watch_after(tmp_path / "log", REGISTERED, *(MAX_LOST + 2) * [connections(2)])
    assert len(warned) == 1


def test_a_coordinator_that_does_not_run_is_not_a_stolen_kit(tmp_path):
    """FLARE's client then tries again and again, before it has ever been connected or after the coordinator ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch_after(tmp_path / "log", *5 * [connections(30)])
        watch_after(tmp_path / "log", REGISTERED, connections(30), *5 * [connections(0.005)])
