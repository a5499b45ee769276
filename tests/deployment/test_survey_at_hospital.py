"""A hospital describes its images only if it agreed, to no smaller group than it agreed, and once before round 1."""

import csv
from dataclasses import replace

import pytest

from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.dry_run import agreed_replies, format_report
from medfed.deployment.guard import Guard
from medfed.deployment.guarded_site import LEDGER, GuardedSite
from medfed.federation.message import Message
from medfed.federation.survey import SiteSurvey, survey_request
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation

FACTS = {"patients": 9, "images": 9, "measured_images": 9, "0.images": 9}
AGREED = Agreement(requests=("train", "survey"), min_patients=5)


@pytest.fixture
def site():
    (site,) = ToySegmentation().engine(FedAvg(), sites=("north",)).local_sites
    return replace(site, survey=SiteSurvey(9, 3, 1, lambda least: {**FACTS, "0.images": 9 if least == 5 else 2}))


def test_without_consent_the_survey_is_refused_by_name_and_the_training_goes_on(site, tmp_path):
    guarded = GuardedSite(replace(site), tmp_path, Agreement())
    with pytest.raises(Refused, match=r"was asked to 'survey', but agreed to share, train, .*\(agrees.requests\)"):
        guarded.reply(survey_request())
    assert ",up,survey," not in (tmp_path / LEDGER).read_text()
    request = Message("train", ToySegmentation().start(FedAvg()).weights, {}, {"round": 1, "last": 0})
    assert guarded.reply(request).kind == "train"
    with pytest.raises(Refused, match="was asked to 'train', but agreed to survey only"):
        (other := tmp_path / "survey").mkdir()
        GuardedSite(site, other, Agreement(("survey",))).reply(request)


def test_the_larger_minimum_counts_and_the_ledger_lists_what_left(site, tmp_path):
    guarded = GuardedSite(site, tmp_path, AGREED)
    assert guarded.reply(survey_request()).facts == FACTS
    with (tmp_path / LEDGER).open() as file:
        rows = [row for row in csv.DictReader(file) if row["direction"] == "up"]
    assert [row["name"] for row in rows] == ["; ".join(sorted(FACTS))] and {row["kind"] for row in rows} == {"survey"}
    other = GuardedSite(site, tmp_path / "other", replace(AGREED, min_patients=10))
    (tmp_path / "other").mkdir(exist_ok=True)
    assert other.reply(survey_request()).facts == {"too_few_patients": 1}
    site.survey.min_patients = 10
    assert Guard(AGREED, site).survey.min_patients == 10


def test_a_survey_is_for_the_time_before_round_1_and_holds_no_other_fact(site, tmp_path):
    guarded = GuardedSite(site, tmp_path, replace(AGREED, replies_per_round=1))
    with pytest.raises(
        Refused, match="was asked to survey in round 2, but the agreed plan does this before round 1 only"
    ):
        guarded.reply(Message("survey", facts={"round": 2, "last": 0}))
    guarded.site.survey.facts = lambda least: {"patient_7": 1}
    with pytest.raises(Refused, match="the fact 'patient_7' was about to leave"):
        guarded.reply(survey_request())
    guarded.site.survey.facts = lambda least: FACTS
    guarded.reply(survey_request())
    with pytest.raises(Refused, match="more than 1 times"):
        guarded.reply(survey_request())


def test_the_dry_run_lists_the_survey_only_if_the_hospital_agreed(site):
    for agreement, names in ((AGREED, set(FACTS)), (Agreement(), set())):
        sent = agreed_replies(site, agreement)
        assert {name for reply, _ in sent if reply.kind == "survey" for name in reply.facts} == names
        text = format_report(sent, Guard(agreement, site), "fedavg", 3)
        assert ("to which you did not agree: it is refused" in text) == (not names)
        assert ("leave once, before round 1" in text) == bool(names)
