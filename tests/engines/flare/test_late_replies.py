from medfed.engines.flare import late_replies
from medfed.engines.flare.late_replies import LateReplies


def asked(*sites: str) -> LateReplies:
    late = LateReplies()
    for site in sites:
        late.sent(f"key of {site}", site, "train", 3)
    return late


def test_the_first_answer_that_one_waits_for_is_nothing_to_tell_and_the_second_is_once():
    late = asked("HK")
    late.came("key of HK", "HK")
    assert late.notes() == []
    late.came("key of HK", "HK")
    late.came("key of HK", "HK")
    assert late.notes() == ["HK: its answer 'train' of round 3 came again; left out"] and late.notes() == []


def test_an_answer_after_the_end_says_how_late_and_a_reason_is_told(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(late_replies.time, "monotonic", lambda: now[0])
    late = asked("BMC", "HK")
    late.over({"BMC", "HK"})
    now[0] = 123.4
    late.came("key of BMC", "BMC")
    late.came("key of HK", "HK", "was stopped")
    assert late.notes() == [
        "BMC: its answer 'train' of round 3 came late, after 23 s; left out",
        "HK: its answer 'train' of round 3 came late, after 23 s (was stopped); left out",
    ]


def test_an_answer_that_came_as_one_stopped_waiting_is_told_as_late():
    """It came before the end, and nobody took it."""
    late = asked("BMC", "HK")
    for site in ("BMC", "HK"):
        late.came(f"key of {site}", site, "was stopped")
    late.over({"HK"})
    assert late.notes() == ["HK: its answer 'train' of round 3 came late, after 0 s (was stopped); left out"]
    late.over({"BMC", "HK"})
    assert late.notes() == [], "what was taken then is no news later"


def test_a_letter_that_goes_out_again_is_the_same_letter():
    late = asked("HK")
    late.over({"HK"})
    late.sent("key of HK", "HK", "train", 3)
    late.came("key of HK", "HK")
    assert len(late.notes()) == 1


def test_no_site_speaks_for_another_or_in_answer_to_nothing():
    late = asked("HK")
    late.over({"HK"})
    late.came("key of HK", "BMC")
    late.came("a key of its own", "HK")
    assert late.notes() == []


def test_only_so_many_letters_are_remembered(monkeypatch):
    monkeypatch.setattr(late_replies, "MAX_REQUESTS", 2)
    late = asked("BMC", "HK", "UCL")
    late.over({"BMC", "HK", "UCL"})
    for site in ("BMC", "HK", "UCL"):
        late.came(f"key of {site}", site)
    assert [note[:3] for note in late.notes()] == ["HK:", "UCL"]
