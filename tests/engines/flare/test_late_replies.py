from medfed.engines.flare import late_replies
from medfed.engines.flare.late_replies import LateReplies


def with_requests(*sites: str) -> LateReplies:
    late = LateReplies()
    for site in sites:
        late.record_request(f"key of {site}", site, "train", 3)
    return late


def test_the_warning_of_a_late_reply_has_the_delay_and_the_sites_reason(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(late_replies.time, "monotonic", lambda: now[0])
    late = with_requests("BMC", "HK")
    late.close_requests({"BMC", "HK"})
    now[0] = 123.4
    late.record_reply("key of BMC", "BMC")
    late.record_reply("key of HK", "HK", "was stopped")
    assert late.take_warnings() == [
        "BMC: its reply 'train' of round 3 was received late, after 23 s; it is not used",
        "HK: its reply 'train' of round 3 was received late, after 23 s (was stopped); it is not used",
    ]


def test_a_reply_that_was_received_but_not_used_is_reported_as_late():
    late = with_requests("BMC", "HK")
    for site in ("BMC", "HK"):
        late.record_reply(f"key of {site}", site, "was stopped")
    late.close_requests({"HK"})
    (warning,) = late.take_warnings()
    assert warning == "HK: its reply 'train' of round 3 was received late, after 0 s (was stopped); it is not used"
    late.close_requests({"BMC", "HK"})
    assert late.take_warnings() == [], "a reply that was used is not reported later"


def test_a_request_that_is_sent_again_counts_as_the_same_request():
    late = with_requests("HK")
    late.close_requests({"HK"})
    late.record_request("key of HK", "HK", "train", 3)
    late.record_reply("key of HK", "HK")
    assert len(late.take_warnings()) == 1


def test_a_reply_with_the_key_of_another_site_or_an_unknown_key_is_ignored():
    late = with_requests("HK")
    late.close_requests({"HK"})
    late.record_reply("key of HK", "BMC")
    late.record_reply("a key of its own", "HK")
    assert late.take_warnings() == []


def test_only_the_latest_requests_are_remembered(monkeypatch):
    monkeypatch.setattr(late_replies, "MAX_REQUESTS", 2)
    late = with_requests("BMC", "HK", "UCL")
    late.close_requests({"BMC", "HK", "UCL"})
    for site in ("BMC", "HK", "UCL"):
        late.record_reply(f"key of {site}", site)
    assert [warning[:3] for warning in late.take_warnings()] == ["HK:", "UCL"]
