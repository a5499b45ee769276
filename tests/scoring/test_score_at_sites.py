"""Sites that score a bundle return aggregates only, and nothing of fewer patients than their minimum."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked_workers import fork_workers
from scored_bundles import exported, foreign_bundle, seeded, write_classes, write_photographs

from medfed.config.schema import load_dataset
from medfed.coordinator import main
from medfed.core.errors import UserError
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guarded_site import GuardedSite
from medfed.engines.in_process import InProcess
from medfed.federation.message import Message, State
from medfed.federation.rounds import requests_with_last_round
from medfed.networks.densenet import DenseNetwork
from medfed.scoring import federated
from medfed.scoring.arguments import ScoringInputs, minimum_of_sites
from medfed.scoring.bundle_tasks import task_of_outputs
from medfed.scoring.reply_check import check_scores
from medfed.scoring.score import score_bundle
from medfed.scoring.site import aggregates
from medfed.tasks.classification import Classification

AGREED = Agreement(("score",), rounds=1, replies_per_round=1, min_patients=7)


@pytest.fixture
def inputs(tmp_path):
    """A bundle of others, and images of two sites: "here" has 6 patients, one without the structure, "there" 4."""
    write_photographs(tmp_path / "data", n=6)
    write_photographs(tmp_path / "more", n=4)
    (tmp_path / "more" / "here").rename(tmp_path / "data" / "there")
    return ScoringInputs(str(foreign_bundle(tmp_path / "tools")), str(tmp_path / "data"), {})


def request_of(site):
    return requests_with_last_round("score", State.of(site.network), [site.name], 1)[site.name]


def test_the_coordinator_gets_the_mean_and_the_standard_deviation_that_a_hospital_would_compute(inputs):
    scores = federated.score_at_sites(inputs, {"here": 5, "there": 1})
    rows = score_bundle(Path(inputs.bundle), inputs.load_dataset()).rows
    for site in ("here", "there"):
        dice = [row["dice"] for row in rows if row["site"] == site and row["dice"] is not None]
        facts = scores.facts[site]
        assert (facts["patients"], facts["1.dice.n"]) == ({"here": 6, "there": 4}[site], len(dice))
        assert facts["1.dice.mean"] == pytest.approx(np.mean(dice))
        assert facts["1.dice.sd"] == pytest.approx(np.std(dice, ddof=1))
    (row,) = [row for row in scores.rows() if (row["site"], row["metric"]) == ("there", "dice")]
    assert (row["structure"], row["mean"]) == ("Tool", scores.facts["there"]["1.dice.mean"])
    sent = {row["name"] for row in scores.ledger if row["direction"] == "up"}
    assert {row["dtype"] for row in scores.ledger if row["direction"] == "up"} == {"fact"}  # no tensor leaves a site
    assert sent == set().union(*scores.facts.values())


def test_a_site_with_fewer_patients_than_its_minimum_says_only_that(inputs):
    scores = federated.score_at_sites(inputs, {"here": 6, "there": 5})
    assert scores.facts["there"] == {"too_few_patients": 1}
    assert "there" in scores.to_text() and "fewer than its minimum" in scores.to_text()
    (line,) = [row["name"] for row in scores.ledger if (row["site"], row["direction"]) == ("there", "up")]
    assert line == "too_few_patients"


def test_a_metric_of_fewer_patients_than_the_minimum_is_left_out_and_without_the_main_metric_the_counts():
    group = {"n": 6, "n_missed": 1, "dice": {"n": 6, "mean": 0.5, "sd": 0.1}, "hd": {"n": 5, "mean": 1.0, "sd": 0.2}}
    dice = {"n": 6, "n_missed": 1, "dice.n": 6, "dice.mean": 0.5, "dice.sd": 0.1}
    assert aggregates(group, {"dice": 6, "hd": 5}, 6) == dice
    assert aggregates(group, {"dice": 6, "hd": 5}, 5) == {**dice, "hd.n": 5, "hd.mean": 1.0, "hd.sd": 0.2}
    assert aggregates(group, {"dice": 3, "hd": 3}, 6) == {}  # six images of three patients


def test_images_of_one_patient_are_one_patient(inputs):
    for site in federated.build_scoring_sites(inputs, (), {"here": 4, "there": 1}):
        site.cases = [replace(case, patient=str(place // 2)) for place, case in enumerate(site.cases)]
        facts = site.reply(request_of(site)).facts
        expected = {"here": {"too_few_patients": 1}, "there": {"patients": 2, "images": 4}}[site.name]
        assert expected.items() <= facts.items() and ("1.dice.mean" in facts) == (site.name == "there")


def test_the_same_scores_come_from_processes_and_one_that_fails_is_named(inputs, tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    expected = federated.score_at_sites(inputs, {"here": 1, "there": 1})
    (tmp_path / "data" / "there" / "images" / "0.png").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="there: its scoring of round 1 was not received"):
        scores = federated.score_at_sites(inputs, {"here": 1, "there": 1}, "processes")
    assert scores.facts == {"here": expected.facts["here"]} and scores.silent == ["there"]


def test_a_reply_with_an_impossible_or_incomplete_score_is_left_out(inputs):
    sites = federated.build_scoring_sites(inputs, (), {"here": 1, "there": 1})
    whole = {"patients": 4, "images": 4, "1.n": 4, "1.dice.n": 4, "1.dice.mean": 0.5, "1.dice.sd": 0.1}
    task = task_of_outputs(sites[0].model)
    check_scores(task, Message("score", facts=whole))
    check_scores(task, Message("score", facts={"patients": 4, "images": 4}))
    check_scores(task, Message("score", facts={"too_few_patients": 1}))
    wrong = [
        whole | change
        for change in (
            {"1.dice.mean": 1.5},
            {"1.n": 2.5},
            {"1.n": 5},
            {"1.n": 10**17},
            {"1.dice.n": 0},
            {"1.dice.n": 5},
            {"1.dice.sd": -0.1},
            {"patient_7": 1},
            {"patients": 0},
            {"patients": 5},
            {"too_few_patients": 1},
            {"too_few_patients": 0},
            {"images": 10**17},
        )
    ]
    lacking = [
        {key: number for key, number in whole.items() if key != name}
        for name in ("patients", "images", "1.dice.n", "1.dice.mean")
    ]
    for facts in [*wrong, *lacking, {}, {"too_few_patients": 0}, {"too_few_patients": 2}]:
        with pytest.raises(ValueError, match="which no site can have|lacks"):
            check_scores(task, Message("score", facts=facts))
    for facts in ({}, wrong[0], lacking[0], lacking[2]):
        sites[1].reply = lambda request, facts=facts: Message("score", facts=facts)
        with pytest.warns(UserWarning, match="there: its scoring"):
            engine = InProcess([], settings=federated.SETTINGS, scoring_sites=sites)
            scores = federated.collect_scores(engine, task, {"data": "real", "dataset": "photographs"})
        assert list(scores.facts) == ["here"] and "no valid reply" in scores.to_text()


def test_at_a_hospital_the_agreement_and_the_ledger_are_those_of_training(inputs, tmp_path):
    (site, _) = federated.build_scoring_sites(inputs, (), {"here": 1})
    guarded = GuardedSite(site, tmp_path / "hospital", AGREED)
    (tmp_path / "hospital").mkdir(exist_ok=True)
    assert guarded.reply(request_of(site)).facts == {"too_few_patients": 1}  # the larger of both minimums counts
    with (tmp_path / "hospital" / "ledger.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file) if row["direction"] == "up"] == ["too_few_patients"]
    with pytest.raises(Refused, match="more than 1 times"):
        guarded.reply(request_of(site))
    with pytest.raises(Refused, match="was asked to 'train', but agreed to score, end only"):
        guarded.reply(Message("train", facts={"round": 1, "last": 0}))
    with pytest.raises(Refused, match=r"was asked to 'score', but agreed to nothing \(agrees.requests\)"):
        GuardedSite(site, tmp_path / "without", Agreement(rounds=1)).reply(request_of(site))
    other = GuardedSite(site, tmp_path / "other", Agreement(("score",), rounds=1))
    site.reply = lambda request: Message("score", facts={"dice_of_patient_1": 0.5})
    with pytest.raises(Refused, match="'dice_of_patient_1' was about to leave"):
        other.reply(request_of(site))


def test_a_hospital_scores_the_weights_of_its_own_bundle_only_and_a_few_times_in_the_federation(inputs, tmp_path):
    (site, _) = federated.build_scoring_sites(inputs, (), {"here": 1})
    (tmp_path / "hospital").mkdir()
    guarded = GuardedSite(site, tmp_path / "hospital", replace(AGREED, rounds=100, replies_per_round=2))
    asked = request_of(site)
    other = {name: entry + 0.5 if entry.is_floating_point() else entry for name, entry in asked.weights.items()}
    for request in (replace(asked, weights=other), Message("end", other, {}, {"round": 1})):
        with pytest.raises(Refused, match="was sent other weights than those of the bundle at this hospital"):
            guarded.reply(request)
    in_other_order = dict(reversed(asked.weights.items()))
    guarded.reply(replace(asked, weights=in_other_order))
    guarded.reply(replace(asked, facts={**asked.facts, "round": 2}))
    with pytest.raises(Refused, match="was asked to score in round 3 more than 2 times"):
        guarded.reply(replace(asked, facts={**asked.facts, "round": 3}))


def test_classes_are_scored_together(tmp_path):
    write_classes(tmp_path / "data")
    network = DenseNetwork(4, 2, (1, 1))
    bundle = exported(tmp_path / "bundle", network, seeded(network, 3, 2), Classification(("a", "b"), 3, 32))
    scores = federated.score_at_sites(ScoringInputs(str(bundle), str(tmp_path / "data"), {}), {"here": 8})
    rows = score_bundle(bundle, load_dataset(tmp_path / "data")).rows
    facts = scores.facts["here"]
    assert facts["all.accuracy.mean"] == pytest.approx(np.mean([row["correct"] for row in rows]))
    assert (facts["patients"], facts["all.n"], facts["all.n_wrong"]) == (8, 8, 8 - sum(row["correct"] for row in rows))


def test_the_coordinator_writes_the_scores_and_the_ledger(inputs, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["score", inputs.bundle, inputs.folder, "--out", str(out), "--min-patients", "there=4"]) == 0
    printed = capsys.readouterr().out
    assert "Tool" in printed and "The sites sent" in printed
    with (out / "scores.csv").open() as file:
        assert {row["site"] for row in csv.DictReader(file)} == {"here", "there"}
    assert json.loads((out / "summary.json").read_text())["sites"]["there"]["patients"] == 4
    assert (out / "ledger.csv").is_file()


def test_minimums_are_of_all_sites_or_of_one():
    assert minimum_of_sites(["b=9", "3"], ["a", "b"]) == {"a": 3, "b": 9}
    for text in ("0", "x", "c=4", "a=", "-1"):
        with pytest.raises(UserError, match="expected a whole number above 0"):
            minimum_of_sites([text], ["a", "b"])
