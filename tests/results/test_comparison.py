"""Which rows are compared, what is said about their runs, and the verdicts that follow."""

import math

import pandas as pd
import pytest
from made_comparisons import BASE, DOWN, MIXED, UP, dice_rows, dice_run, difference, gaining, line, scored
from made_runs import NOT_LEARNED, mask_row, scores_of

from medfed.core.errors import UserError
from medfed.results.comparison import COST, GAIN, ScoredRun, compare_runs

ZERO = [0.0] * 8


def test_pairs_are_only_over_the_folds_that_both_rows_have_and_the_others_are_missing():
    """Seed 1 is 20 points worse for both rows; without its run of m, m is still as good as FedAvg in seed 0."""
    low = [base - 0.2 for base in BASE]
    runs = [dice_run("fedavg", "A", BASE), dice_run("fedavg", "A", low, 1), dice_run("m", "A", BASE)]
    comparison = compare_runs(runs)
    own = difference(comparison, "m")
    assert (own.difference, own.of_seeds, own.n) == (0, (0.0,), 8) and math.isnan(own.p)
    assert line(comparison.scores, "m")["mean"] - line(comparison.scores, "fedavg")["mean"] == pytest.approx(10)
    assert comparison.missing == ("m, unseen A, seed 1",)


def test_a_row_without_a_site_has_no_average_and_no_average_difference():
    comparison = compare_runs([*gaining({"fedavg": ZERO}), dice_run("m", "A", BASE)])
    assert comparison.missing == ("m, unseen B, seed 0",)
    assert not (
        (comparison.scores.row == "m") & (comparison.scores.site == "average") & (comparison.scores.metric == "dice")
    ).any()
    assert list(comparison.differences.site) == ["A"]


def test_planned_runs_that_are_not_finished_are_missing():
    planned = {(label, site, seed) for label in ("fedavg", "m", "other") for site in "AB" for seed in (0, 1)}
    missing = compare_runs(gaining({"fedavg": ZERO, "m": UP}), planned=planned).missing
    rows = [f"{label}, unseen {site}, seed 1" for label in ("fedavg", "m") for site in "AB"]
    assert list(missing) == [*rows, "other (at no site)"]


LOCAL = [
    scored("fedavg", "C", dice_rows({"A": [0.80], "B": [0.70], "C": [0.60, 0.50]}, "C"), source_sites=["A", "B"]),
    scored("local", "C", dice_rows({"A": [0.75], "C": [0.40, 0.40]}, "C"), at="A"),
    scored("local", "C", dice_rows({"B": [0.72], "C": [0.60, 0.20]}, "C"), at="B"),
    scored("pooled", "C", dice_rows({"A": [0.81], "B": [0.74], "C": [0.70, 0.55]}, "C")),
]


def test_a_score_of_local_is_the_mean_over_the_models():
    comparison = compare_runs(LOCAL)
    assert comparison.rows == ("fedavg", "local", "pooled") and comparison.missing == ()
    local = line(comparison.scores, "local", "C")
    assert (local["mean"], local.n_patients) == (pytest.approx(40), 2)
    assert math.isnan(local["rank"]) and math.isnan(line(comparison.scores, "pooled")["rank"])


def test_the_gain_is_federated_minus_local_and_the_cost_is_pooled_minus_federated():
    """At C, the patients' means over the models of A and B are 0.5 and 0.3: the gains are 10 and 20 points."""
    comparison = compare_runs(LOCAL)
    gain = {
        site: difference(comparison, "fedavg", site, GAIN, role="seen").difference for site in ("A", "B", "average")
    }
    assert gain == pytest.approx({"A": 5, "B": -2, "average": 1.5})
    assert difference(comparison, "fedavg", "C", GAIN).difference == pytest.approx(15)
    assert difference(comparison, "pooled", "C", COST).difference == pytest.approx(7.5)
    assert difference(comparison, "pooled", kind=COST, role="seen").difference == pytest.approx(2.5)
    assert set(comparison.differences.verdict) == {"not tested"}


def test_a_model_of_local_that_is_not_finished_is_missing():
    missing = compare_runs([LOCAL[0], LOCAL[1]]).missing
    assert missing == ("local at B, unseen C, seed 0, so it is no part of the mean",)


def with_effort(m, equal):
    """m has the reference `fedavg@steps=m`, which gains `equal` over FedAvg."""
    runs = gaining({"fedavg": ZERO, "swa": MIXED, "fedavg@steps=m": equal}, "A")
    return runs + gaining({"m": m}, "A", equal="fedavg@steps=m")


def test_a_method_of_more_effort_is_tested_against_fedavg_of_equal_effort():
    """m gains 4.5 points over FedAvg, and so does FedAvg of equal effort, apart from a spread with the mean 0.5."""
    more = [gain - 0.005 * (-1) ** k - 0.005 for k, gain in enumerate(UP)]
    comparison = compare_runs(with_effort(UP, more))
    own, effort = difference(comparison, "m"), difference(comparison, "m", kind="effort")
    assert (own.minus, own.verdict, own.difference) == ("fedavg@steps=m", "not decided", pytest.approx(0.5))
    assert (effort.minus, effort.verdict, effort.difference) == ("fedavg", "not tested", pytest.approx(4.5))
    assert difference(comparison, "swa").minus == "fedavg"
    assert comparison.rows[-1] == "fedavg@steps=m" and math.isnan(line(comparison.scores, "fedavg@steps=m")["rank"])
    assert difference(compare_runs(with_effort(UP, ZERO)), "m").verdict == "better"


def test_without_the_run_of_equal_effort_there_is_only_the_difference_from_the_baseline():
    comparison = compare_runs([run for run in with_effort(UP, ZERO) if "@" not in run.row.label])
    assert set(comparison.differences.kind[comparison.differences.row == "m"]) == {"effort"}
    assert "fedavg@steps=m was not run, so methods of that effort have no verdict" in comparison.notes


def test_a_method_that_is_worse_than_the_baseline_of_less_effort_is_never_better():
    """FedAvg loses 14 points with more effort, and the method 4.5."""
    comparison = compare_runs(with_effort(DOWN, [loss - 0.05 - gain for loss, gain in zip(DOWN, UP)]))
    own = difference(comparison, "m")
    assert own.low > 0 and own.p_holm < 0.05 and difference(comparison, "m", kind="effort").high < 0
    assert own.verdict == "not decided"


@pytest.mark.parametrize(("failed", "verdicts"), [("up", ["no verdict", "worse"]), ("fedavg", ["no verdict"] * 2)])
def test_there_is_no_verdict_with_a_model_that_did_not_learn(failed, verdicts):
    gains = {"fedavg": ZERO, "up": UP, "down": DOWN}
    runs = [
        run
        for label, gain in gains.items()
        for run in gaining({label: gain}, **({"learning": NOT_LEARNED} if label == failed else {}))
    ]
    comparison = compare_runs(runs)
    assert [difference(comparison, label).verdict for label in ("up", "down")] == verdicts
    assert comparison.not_learned == (failed,)
    (note,) = (note for note in comparison.notes if "DID NOT LEARN" in note)
    assert failed in note and "2 of 2 runs" in note


def test_a_prediction_that_ignores_the_image_is_a_row_without_intervals_and_ranks():
    runs = []
    for label in ("fedavg", "pooled"):
        for site, dice in (("A", 0.25), ("B", 0.35)):
            score = 0.99 if label == "pooled" else dice
            rows = dice_rows({site: [score]}, site)
            trivial = {"prediction": "every pixel is foreground", "scores": scores_of(rows)["scores"]}
            runs.append(dice_run(label, site, BASE, trivial=trivial))
    scores = compare_runs(runs).scores
    rows = [line(scores, "trivial: every pixel is foreground", site) for site in ("A", "B", "average")]
    assert [row["mean"] for row in rows] == pytest.approx([25, 35, 30])
    assert all(math.isnan(row.low) and math.isnan(row["rank"]) for row in rows)


def test_a_row_with_the_configs_of_another_is_neither_ranked_nor_tested():
    runs = []
    for label, gain, config in (
        ("fedavg", ZERO, "0"),
        ("m", UP, "1"),
        ("copy", UP, "1"),
        ("fedavg@steps=m", ZERO, "0"),
    ):
        runs += gaining({label: gain}, "A", config_sha256=config)
    comparison = compare_runs(runs)
    assert list(comparison.differences.row.unique()) == ["m"]
    assert difference(comparison, "m").p_holm == difference(comparison, "m").p, "one test"
    assert math.isnan(line(comparison.scores, "copy")["rank"])
    assert any(note.startswith("copy: the same training as m") for note in comparison.notes)
    assert any(note.startswith("fedavg@steps=m: the same training as fedavg") for note in comparison.notes)


def test_a_row_is_compared_with_the_baseline_of_the_same_settings():
    gains = {"fedavg, k=1": ZERO, "fedavg, k=2": UP, "m, k=1": UP, "m, k=2": UP, "m, k=3": UP}
    comparison = compare_runs(gaining(gains, "A"))
    found = dict(comparison.differences[["row", "minus"]].to_numpy())
    assert found == {"m, k=1": "fedavg, k=1", "m, k=2": "fedavg, k=2"}
    assert comparison.rows[:2] == ("fedavg, k=1", "fedavg, k=2")


def test_structures_keep_their_order_and_the_baseline_comes_first():
    runs = gaining({"m": UP, "fedavg": ZERO}, "A")
    tables = [pd.concat([run.scores, run.scores.assign(structure="cup")], ignore_index=True) for run in runs]
    comparison = compare_runs([ScoredRun.of(run.row, run.summary, table) for run, table in zip(runs, tables)])
    assert comparison.structures == ["disc", "cup"] and comparison.rows == ("fedavg", "m")


def test_runs_of_other_images_are_named_but_not_an_organ_that_one_model_sees_where_there_is_none():
    def run(label, **last):
        return scored(label, "A", [*dice_rows({"A": BASE}, "A"), mask_row("A", "q", None, "absent") | last])

    assert not any(
        "the same" in note for note in compare_runs([run("a"), run("b", status="false_alarm", dice=0.0)]).notes
    )
    other = compare_runs([run("a"), run("b", image="r")])
    assert any("do not score the same images" in note and note.endswith(": A") for note in other.notes)
    seeds = [scored(m, "A", [mask_row("A", f"p{seed}", 0.8)], seed) for m in ("fedavg", "m") for seed in (0, 1)]
    assert not any("same images" in note for note in compare_runs(seeds).notes), "each seed draws its test patients"


def test_a_structure_of_few_patients_is_named_although_the_site_has_many():
    cup = dice_rows({"A": BASE[:3]}, "A", "cup")
    runs = [scored(label, "A", [*dice_rows({"A": BASE}, "A"), *cup]) for label in ("fedavg", "m")]
    assert "fewer than 5 patients, so no interval and nothing decided: A (cup: 3)" in compare_runs(runs).notes


def test_what_a_run_did_differently_is_said():
    runs = [dice_run("fedavg", "A", BASE), dice_run("m", "A", BASE, transductive_by=["tent"], deterministic=False)]
    text = "\n".join(compare_runs(runs, notes=["more"]).notes)
    assert "m: TRANSDUCTIVE (tent)" in text and "NOT DETERMINISTIC" in text and text.endswith("more")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "phantom"}, r"data \('phantom' and 'real'\)"),
        ({"selection": "best"}, r"selection \('best' and 'last'\)"),
        ({"failure_dice": 0.5}, "the limit of a failure"),
    ],
)
def test_runs_that_cannot_share_a_table_are_rejected(changes, words):
    with pytest.raises(UserError, match=words):
        compare_runs([dice_run("fedavg", "A", BASE), dice_run("m", "A", BASE, **changes)])


def test_there_must_be_a_run_and_none_may_come_twice():
    with pytest.raises(UserError, match="no finished run"):
        compare_runs([])
    with pytest.raises(UserError, match="seed 0 comes twice"):
        compare_runs([dice_run("fedavg", "A", BASE)] * 2)


UNITS = {"A": "hd95_mm", "B": "hd95_percent_of_diagonal"}


def test_there_are_no_ranks_if_a_row_has_no_score_at_a_site():
    """At B no image shows the organ, and only m predicts it: the others have no average, so m is not the first."""
    runs = gaining({"fedavg": ZERO, "up": UP, "m": DOWN}, "A")
    for label in ("fedavg", "up", "m"):
        status, dice = ("false_alarm", 0.0) if label == "m" else ("absent", None)
        runs.append(scored(label, "B", [mask_row("B", f"p{k}", dice, status) for k in range(8)]))
    comparison = compare_runs(runs)
    own = comparison.scores[(comparison.scores.metric == "dice") & (comparison.scores.site == "average")]
    assert own.row.tolist() == ["m"] and own["rank"].isna().all()


def test_a_site_with_another_unit_counts_so_that_an_average_of_one_site_is_none():
    rows = [[mask_row(site, f"p{k}", 0.8, **{unit: 3.0}) for k in range(8)] for site, unit in UNITS.items()]
    scores = compare_runs([scored("fedavg", site, own) for site, own in zip(UNITS, rows)]).scores
    assert set(scores[scores.metric == "hd95"].site) == {"A", "B"}


def test_no_known_score_is_one_sentence():
    with pytest.raises(UserError, match="no test image has a score"):
        compare_runs([scored("fedavg", "A", [mask_row("A", "p", None, "absent")])])
