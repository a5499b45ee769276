"""The secret of a hospital and the list of what left: nobody who sends the hospital a folder can know or write them."""

import pytest

from medfed.core.errors import UserError
from medfed.deployment.agreement import Agreement
from medfed.deployment.guarded_site import GuardedSite
from medfed.deployment.hospital_state import (
    REPLIES,
    SentReply,
    begin_folder,
    hospital_secret,
    read_replies,
    secret_path,
    write_replies,
)
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Each test is a hospital of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def guarded_site(folder) -> GuardedSite:
    (site,) = ToySegmentation().engine(FedAvg(), sites=("north",)).local_sites
    return GuardedSite(site, folder, Agreement())


def test_the_secret_is_outside_of_the_folder_and_the_same_after_a_restart(tmp_path, monkeypatch):
    (folder := tmp_path / "sent").mkdir()
    first = guarded_site(folder).site.noise_key
    assert len(first) == 32 and guarded_site(folder).site.noise_key == first and not any(folder.iterdir())
    assert secret_path() == tmp_path / "state" / "medfed" / "noise.key" and secret_path().read_bytes() == first
    assert secret_path().stat().st_mode & 0o077 == 0, "only its owner can read it"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert guarded_site(folder).site.noise_key != first, "another hospital"


def test_without_the_variable_the_secret_is_in_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert secret_path() == tmp_path / ".local" / "state" / "medfed" / "noise.key"


SENT = {
    "without a sign of the hospital": lambda own: "{}",
    "of another hospital": lambda own: own.replace('"hospital": "', '"hospital": "0'),
    "cut off": lambda own: own[:-5],
    "of other values": lambda own: own.replace("[1,", "[[], 1,"),
    "not an object": lambda own: "[1]",
}


@pytest.mark.parametrize("case", SENT)
def test_a_list_of_replies_that_this_hospital_did_not_write_is_not_used(tmp_path, case):
    """It would reset what was counted, and with it the limits of the agreement."""
    replies = [SentReply(1, "train", "a" * 64, 10, 1.0, None)]
    write_replies(tmp_path, replies)
    assert guarded_site(tmp_path).guard.replies == replies
    file = tmp_path / REPLIES
    file.write_text(SENT[case](file.read_text()))
    for use in (guarded_site, begin_folder):
        with pytest.raises(
            UserError, match="answered.json: is damaged, or was not written by this hospital, .* nothing"
        ):
            use(tmp_path)


def test_a_folder_begins_empty_and_is_then_recognised(tmp_path):
    folder = tmp_path / "medfed_north"
    begin_folder(folder)
    (folder / "ledger.csv").touch()
    begin_folder(folder)
    assert read_replies(folder) == [] and guarded_site(folder).guard.replies == []


def test_a_secret_that_is_damaged_or_cannot_be_written_is_told(tmp_path, monkeypatch):
    hospital_secret()
    secret_path().write_bytes(b"short")
    with pytest.raises(UserError, match="noise.key: is damaged: it has 5 bytes, but 32 are expected"):
        hospital_secret()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be used for this hospital's secret .* set the environment variable"):
        hospital_secret()
