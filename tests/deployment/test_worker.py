"""The frames that a site's process sends when it cannot reply."""

import pytest

from medfed.core.errors import UserError
from medfed.deployment.agreement import Refused
from medfed.deployment.worker import _reply_frame
from medfed.engines.site_process import ERROR, REPLY
from medfed.federation.message import Message

REQUEST = Message("train", facts={"round": 1}).to_bytes()
FILE = "data/BMC/patient_017.nii.gz: is cut short"


def raising(error: Exception):
    def reply(request: Message) -> Message:
        raise error

    return reply


@pytest.mark.parametrize(
    "error", [UserError(FILE), ValueError(FILE), OSError(FILE), RuntimeError(f"out of memory: {FILE}")]
)
def test_a_hospital_sends_no_details_of_an_error_but_logs_them(error, capfd):
    frame = _reply_frame(raising(error), REQUEST, is_hospital=True)
    assert frame == ERROR + b"could not reply; the hospital's own log has the reason"
    assert "patient_017" in capfd.readouterr().err
    frame = _reply_frame(raising(error), REQUEST, is_hospital=False)
    assert b"patient_017" in frame, "a simulation sends the details"


def test_a_refusal_and_a_reply_are_sent_unchanged():
    assert _reply_frame(raising(Refused("was asked to 'run'")), REQUEST, True) == ERROR + b"was asked to 'run'"
    assert _reply_frame(lambda message: message, REQUEST, True) == REPLY + REQUEST
