"""The frames that a site's process sends when it cannot reply."""

import json

import pytest

from medfed.core.errors import UserError
from medfed.deployment.agreement import Refused
from medfed.deployment.worker import _frames
from medfed.engines.parts.worker_process import ERROR, READY, REPLY
from medfed.federation.message import Message

REQUEST = Message("train", facts={"round": 1}).to_bytes()
HEADER = {"kind": "train", "sites": {"BMC": 0}}
FILE = "data/BMC/patient_017.nii.gz: is cut short"


def content(frame: bytes) -> tuple[str, str]:
    assert frame[:1] == ERROR
    name, (text,) = json.loads(frame[1:])
    return name, text


def raising(error: Exception):
    def serve(header, bodies):
        raise error

    return serve


ERRORS = [UserError(FILE), ValueError(FILE), OSError(FILE), KeyError(FILE), RuntimeError(f"out of memory: {FILE}")]


@pytest.mark.parametrize("error", [*ERRORS, OSError(28, "No space left on device", FILE)])
def test_a_hospital_sends_no_details_of_an_error_but_logs_them(error, capfd):
    (frame,) = _frames(raising(error), HEADER, [REQUEST], is_hospital=True)
    kind, text = content(frame)
    assert text == "could not reply; the hospital's own log has the reason" and kind in ("UserError", "WorkerBug")
    log = capfd.readouterr().err
    assert "patient_017" in log and ("Traceback" in log) == (kind == "WorkerBug")
    (frame,) = _frames(raising(error), HEADER, [REQUEST], is_hospital=False)
    assert b"patient_017" in frame, "a simulation sends the details"


def test_a_refusal_is_sent_without_what_must_stay_at_the_hospital_and_a_reply_unchanged(capfd):
    refused = raising(Refused("was asked to 'run'"))
    (frame,) = _frames(refused, HEADER, [REQUEST], True)
    assert content(frame) == ("UserError", "was asked to 'run'")
    numbers = raising(Refused("the statistic 'mean' is of 2 patients", "the statistic 'mean' is of too few patients"))
    (frame,) = _frames(numbers, HEADER, [REQUEST], True)
    assert content(frame) == ("UserError", "the statistic 'mean' is of too few patients")
    assert "is of 2 patients" in capfd.readouterr().err, "only the hospital's own log has the number"
    reply, ready = _frames(lambda header, bodies: iter(bodies), HEADER, [REQUEST], True)
    assert reply == REPLY + REQUEST and ready.startswith(READY)
