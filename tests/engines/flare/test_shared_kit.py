"""Two programs with one startup kit, with what FLARE's server writes and replies."""

import io
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.private.fed.server.client_manager import ClientManager

from medfed.engines.flare import shared_kit
from medfed.engines.flare.engine import FlareEngine
from medfed.engines.flare.kit import STATE_FILE
from medfed.engines.flare.process import FlareProcess
from medfed.engines.flare.shared_kit import KitReporter, sites_with_shared_kits
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


@pytest.fixture
def cell() -> SimpleNamespace:
    """The connection of FLARE's client; its `monitors` are those that look at it."""
    monitors = []
    core = SimpleNamespace(communicator=SimpleNamespace(register_monitor=monitors.append))
    return SimpleNamespace(core_cell=core, monitors=monitors)


@pytest.fixture
def state_file(tmp_path, cell):
    """Register a client, which has the `cell`, with a `KitReporter`."""
    context = FLContext()
    context.set_prop(FLContextKey.SITE_OBJ, SimpleNamespace(cell=cell))
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, SimpleNamespace(get_root_dir=lambda: str(tmp_path)))
    cell.send_request = lambda **_: None
    KitReporter().handle_event(EventType.BEFORE_CLIENT_REGISTER, context)
    assert not (tmp_path / STATE_FILE).exists()
    return tmp_path / STATE_FILE, context


def test_a_hospital_is_told_while_another_program_has_its_place(manager, state_file, cell):
    file, context = state_file
    replies = [None, heartbeat(manager, "second"), None]
    assert replies[1]
    messages = [SimpleNamespace(get_header={MessageHeaderKey.ERROR: error}.get) for error in replies]
    cell.send_request = lambda **_: messages.pop(0)
    KitReporter().handle_event(EventType.AFTER_CLIENT_REGISTER, context)
    seen = []
    while messages:
        cell.send_request(topic="heartbeat")
        seen.append(file.read_text())
    reason = "another program has joined with this startup kit and takes part instead of this one; if it is yours, end"
    assert seen[0] == "" and seen[1].startswith(reason) and seen[1] == seen[2]


@pytest.mark.parametrize(
    ("names", "is_reported"), [(3 * ["server"], True), (2 * ["server"], False), (["job"] * 5, False)]
)
def test_a_hospital_that_loses_its_connection_again_and_again_is_told(state_file, cell, names, is_reported):
    """A coordinator that is killed and resumed costs one connection."""
    file, context = state_file
    KitReporter().handle_event(EventType.AFTER_CLIENT_REGISTER, context)
    for name in names:
        for state in (EndpointState.READY, EndpointState.DISCONNECTED):
            endpoint = Endpoint(name)
            endpoint.state = state
            cell.monitors[0].state_change(endpoint)
    assert file.read_text().startswith("the connection was lost 3 times in 180 s") is is_reported


def test_lost_connections_on_different_days_are_not_a_stolen_kit(state_file, cell, monkeypatch):
    file, context = state_file
    KitReporter().handle_event(EventType.AFTER_CLIENT_REGISTER, context)
    endpoint = Endpoint("server")
    endpoint.state = EndpointState.DISCONNECTED
    for day in range(5):
        monkeypatch.setattr(shared_kit, "time", SimpleNamespace(monotonic=lambda day=day: 86400.0 * day))
        cell.monitors[0].state_change(endpoint)
    assert file.read_text() == ""
