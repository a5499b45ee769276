"""What a site's own process says when it has no answer."""

import pytest

from medfed.core.errors import UserError
from medfed.deployment.agreement import Refused
from medfed.deployment.worker import _reply_frame
from medfed.engines.site_process import ANSWER, SAID
from medfed.federation.message import Message

LETTER = Message("train", facts={"round": 1}).to_bytes()
FILE = "data/BMC/patient_017.nii.gz: is cut short"


def raising(error: Exception):
    def answer(message: Message) -> Message:
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [UserError(FILE), ValueError(FILE), OSError(FILE), RuntimeError(f"out of memory: {FILE}")]
)
def test_a_hospital_tells_that_it_could_not_and_its_own_log_tells_why(error, capfd):
    said = _reply_frame(raising(error), LETTER, of_hospital=True)
    assert said == SAID + b"could not do it; the hospital's own log says why"
    assert "patient_017" in capfd.readouterr().err
    said = _reply_frame(raising(error), LETTER, of_hospital=False)
    assert b"patient_017" in said, "a simulation says it where it is seen"


def test_what_a_hospital_refuses_is_told_and_an_answer_passes():
    assert _reply_frame(raising(Refused("was asked to 'run'")), LETTER, True) == SAID + b"was asked to 'run'"
    assert _reply_frame(lambda message: message, LETTER, True) == ANSWER + LETTER
