"""A hospital sends the sums of a "quality" reply only if it agreed, once, and for models that fit its network."""

import csv
from dataclasses import replace

import pytest
import torch

from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.dry_run import format_report, outgoing_rows
from medfed.deployment.guarded_site import LEDGER, GuardedSite
from medfed.federation.message import Message
from medfed.federation.quality_facts import QUALITY, fact_names, with_site_names
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation

AGREED = Agreement(requests=("train", QUALITY), rounds=2, replies_per_round=1)


@pytest.fixture
def site(monkeypatch):
    (site,) = ToySegmentation().engine(FedAvg(), sites=("north",)).local_sites
    monkeypatch.setattr("medfed.federation.site.quality_facts", lambda *given: {"0.n": given[-1]})
    return replace(site, min_patients=3)


def request(number=3, **entries):
    weights = ToySegmentation().start(FedAvg()).weights
    return Message(QUALITY, weights, with_site_names({"south": {**weights, **entries}}), {"round": number, "last": 2})


def test_without_consent_the_request_is_refused_and_with_consent_the_ledger_lists_the_reply(site, tmp_path):
    with pytest.raises(Refused, match=r"was asked to 'quality', but agreed to share, train, .*\(agrees.requests\)"):
        GuardedSite(replace(site), tmp_path / "silent", Agreement(rounds=2)).reply(request())
    guarded = GuardedSite(site, tmp_path, replace(AGREED, min_patients=7))
    assert guarded.reply(request()).facts == {"0.n": 7}, "the larger minimum counts"
    with (tmp_path / LEDGER).open() as file:
        rows = [row for row in csv.DictReader(file) if row["direction"] == "up"]
    assert [(row["kind"], row["name"]) for row in rows] == [(QUALITY, "0.n")]


def test_it_is_answered_after_any_round_but_only_once_in_a_federation(site, tmp_path):
    guarded = GuardedSite(site, tmp_path, AGREED)
    with pytest.raises(Refused, match="a request of round 4, but agreed to rounds 1 to 3"):
        guarded.reply(request(4))
    guarded.reply(request(3))
    for number in (2, 3):
        with pytest.raises(Refused, match="more than 1 times"):
            guarded.reply(replace(request(number), facts={"round": number, "last": number - 1}))


def test_local_models_that_do_not_fit_are_refused(site, tmp_path):
    guarded = GuardedSite(site, tmp_path, AGREED)
    name, entry = next(iter(ToySegmentation().start(FedAvg()).weights.items()))
    for damaged, why in (
        (torch.zeros(2, 2), "local model of 'south' that does not fit"),
        (torch.full_like(entry, torch.nan), "not finite"),
    ):
        with pytest.raises(Refused, match=why):
            guarded.reply(request(**{name: damaged}))


def test_a_fact_that_is_not_a_sum_does_not_leave(site, tmp_path, monkeypatch):
    monkeypatch.setattr("medfed.federation.site.quality_facts", lambda *given: {"dice.patient_7": 0.5})
    with pytest.raises(Refused, match=r"the fact 'dice.patient_7' was about to leave"):
        GuardedSite(site, tmp_path, AGREED).reply(request())
    assert "image.size.mean" not in fact_names() and {"0.n", "99.xy"} <= fact_names()


def test_the_dry_run_lists_the_sums_and_says_who_gets_the_local_model(site):
    for agreement, names in ((AGREED, ["0.n"]), (Agreement(), [])):
        rows = outgoing_rows(site, agreement)
        assert [row["name"] for row in rows if row["kind"] == QUALITY] == names
        text = format_report(rows, site, "fedavg", 3, agreement)
        assert ("last local model to the other hospitals" in text) == bool(names)
