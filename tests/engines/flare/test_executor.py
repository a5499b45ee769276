"""The part of a site inside FLARE: what it does not reply to, and what the hospital is told."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from medfed.engines.flare import executor as executor_module
from medfed.engines.flare.job import SITE_FILE
from medfed.engines.flare.kit import STATE_FILE
from medfed.engines.flare.messages import PLAN_HEADER, to_message, to_shareable
from medfed.engines.parts.worker_process import WorkerFailed
from medfed.federation.message import Message

OURS, OTHER = "0123456789ab", "ffffffffffff"


def ask(*_) -> bytes:
    return Message("train", facts={"loss": 0.5}).to_bytes()


def fail(*_) -> bytes:
    raise WorkerFailed("was sent weights that do not fit its network")


@pytest.fixture
def reason(tmp_path, monkeypatch):
    """Why a site does not reply to a request of a plan; "" if it does."""
    (tmp_path / SITE_FILE).write_text(json.dumps({"HK": {"plan": OURS}}))
    (tmp_path / STATE_FILE).touch()
    workspace = SimpleNamespace(get_root_dir=lambda: str(tmp_path), get_site_config_dir=lambda: str(tmp_path))

    def execute(plan: str, ask, signal: Signal) -> str:
        monkeypatch.setattr(executor_module, "SiteWorker", lambda *_, **__: SimpleNamespace(ask=ask))
        context = FLContext()
        context.set_prop(FLContextKey.CLIENT_NAME, "HK")
        context.get_engine = lambda: SimpleNamespace(get_workspace=lambda: workspace)
        request = to_shareable(Message("train", facts={"round": 1, "last": 0}))
        request.set_header(PLAN_HEADER, plan)
        reply = to_message(executor_module.SiteExecutor().execute("train", request, context, signal))
        return str(reply.facts.get("why", ""))

    return execute


@pytest.mark.parametrize(
    ("plan", "ask", "why"),
    [
        (OURS, ask, ""),
        ("", ask, ""),
        (
            OTHER,
            ask,
            f"agreed to the plan {OURS}, but the coordinator uses the plan {OTHER}; both need the same plan.yaml",
        ),
        (OURS, fail, "was sent weights that do not fit its network"),
    ],
)
def test_a_request_of_another_plan_is_refused_and_the_hospital_learns_every_reason(tmp_path, reason, plan, ask, why):
    assert reason(plan, ask, Signal()) == why
    assert (tmp_path / STATE_FILE).read_text() == (f"did not reply to the coordinator: {why}" if why else "")


def test_a_job_that_is_replaced_is_no_refusal(tmp_path, reason):
    signal = Signal()
    signal.trigger(True)
    assert reason(OURS, fail, signal) and (tmp_path / STATE_FILE).read_text() == ""


def test_a_full_disk_does_not_end_the_job(tmp_path, reason, monkeypatch):
    def write_text(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    assert reason(OURS, fail, Signal()).startswith("was sent weights")
