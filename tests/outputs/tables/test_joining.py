"""What joining gives and what not pooling costs: values that the reader can work out, and how they are printed."""

import csv
import io
import json
from dataclasses import replace

import pytest
from made_runs import NOT_LEARNED, mask_row, scored
from scipy import stats

from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.comparison_row import ComparisonRow
from medfed.outputs.tables.conclusions import joining_conclusions, with_all_conclusions
from medfed.outputs.tables.joining import ScoredRun, build_joining
from medfed.outputs.tables.joining_text import joining_csv, joining_json, joining_markdown, joining_text
from medfed.outputs.tables.table import to_text
from medfed.outputs.tables.table_rows import block_rows
from medfed.tasks.class_scoring import ClassScoring, case_row
from medfed.tasks.mask_scoring import MaskScoring

SCORING = MaskScoring()


def run(method, unseen, scores, trained_at="", seed=0, varied=()):
    """`scores`: for each site, the Dice of its patients p0, p1, ... The unseen site's role is "unseen"."""
    cases = [
        mask_row(site, f"p{k}", dice, role="unseen" if site == unseen else "seen")
        for site, values in scores.items()
        for k, dice in enumerate(values)
    ]
    return ScoredRun(ComparisonRow(method, varied, trained_at), unseen, seed, cases)


RUNS = [
    run("fedavg", "C", {"A": [0.80], "B": [0.70], "C": [0.60, 0.50]}),
    run("local", "C", {"A": [0.75], "C": [0.40, 0.40]}, "A"),
    run("local", "C", {"B": [0.72], "C": [0.60, 0.20]}, "B"),
    run("pooled", "C", {"A": [0.81], "B": [0.74], "C": [0.70, 0.55]}),
]


def means(joining, first, images):
    (one,) = (one for one in joining.differences if (one.first, one.images, one.metric) == (first, images, "dice"))
    return {site: (round(mean.mean, 6), mean.n) for site, mean in one.by_site.items()}


def test_the_gain_is_federated_minus_local_and_the_cost_is_pooled_minus_federated():
    """At C, the patients' means over the models of A and B are 0.5 and 0.3: the gains are 10 and 20 points."""
    joining = build_joining(RUNS, SCORING, ["disc"], "real")
    assert means(joining, "fedavg", "own test") == {"A": (5, 1), "B": (-2, 1), "all": (1.5, 2)}
    assert means(joining, "fedavg", "unseen") == {"C": (15, 2), "all": (15, 2)}
    assert means(joining, "pooled", "own test") == {"A": (1, 1), "B": (4, 1), "all": (2.5, 2)}
    assert means(joining, "pooled", "unseen") == {"C": (7.5, 2), "all": (7.5, 2)}


def test_only_runs_of_the_same_fold_and_seed_are_paired():
    """Another unseen site without a run of local, and a second seed in which all gains are 30 points higher."""
    more = [run("fedavg", "B", {"A": [0.1], "C": [0.1, 0.1], "B": [0.1]})]
    again = [
        run("fedavg", "C", {"A": [0.95], "C": [0.95, 0.95]}, seed=1),
        run("local", "C", {"A": [0.6], "C": [0.5, 0.5]}, "A", seed=1),
    ]
    joining = build_joining([*RUNS, *more, *again], SCORING, ["disc"], "real")
    assert means(joining, "fedavg", "own test")["A"] == (20, 1), "(5 + 35) / 2"
    assert "B" not in means(joining, "fedavg", "unseen")


def test_rows_are_compared_with_the_same_varied_settings():
    varied = [
        run(method, "C", {"C": [dice]}, at, varied=(f"federation.rounds={n}",))
        for method, at, scores in (("fedavg", "", (0.5, 0.9)), ("local", "A", (0.4, 0.6)))
        for n, dice in enumerate(scores, start=1)
    ]
    joining = build_joining(varied, SCORING, ["disc"], "real")
    assert means(joining, "fedavg, federation.rounds=1", "unseen")["all"] == (10, 1)
    assert means(joining, "fedavg, federation.rounds=2", "unseen")["all"] == (30, 1)
    assert len([one for one in joining.differences if one.metric == "dice"]) == 2
    baselines = [f"fedavg, federation.rounds={n}" for n in (1, 2)]
    table = build_table([one | {"baseline": one["row"].baseline_label()} for one in results(varied)], ["disc"])
    table = with_all_conclusions(table, ["more steps"], joining, baselines)
    assert table.conclusions[-2] == "more steps."
    assert [text for text in table.conclusions if text.startswith("disc: Dice (points), gain")] == [
        f"disc: Dice (points), gain from joining (fedavg, federation.rounds={n} - local, federation.rounds={n}): "
        f"unseen {gain} (1) without an interval, so not decided."
        for n, gain in ((1, "+10.00"), (2, "+30.00"))
    ]


def test_there_is_no_part_without_such_a_row():
    assert build_joining(RUNS[:1], SCORING, ["disc"], "real") is None
    assert build_joining(RUNS[1:], SCORING, ["disc"], "real") is None


def test_every_format_has_the_differences_with_their_numbers_of_patients():
    joining = build_joining(RUNS, SCORING, ["disc"], "phantom")
    for text in (joining_text(joining), joining_markdown(joining)):
        assert "SYNTHETIC PHANTOM DATA" in text and "disc: Dice (points)" in text
        assert "gain from joining: method - local, disc: Dice (points)" in text and "+15.00 (2)" in text
        assert "cost of not pooling: pooled - method, disc: Dice (points)" in text and "+7.50 (2)" in text
        assert "gain from joining at each hospital, own test" in text and "-2.00 (1)" in text
        assert "at each hospital, unseen" not in text, "C is the only unseen hospital, whose gain is in the first table"
        assert "75.00*" in text and "72.00*" in text, "own test scores of the models of A and B"
    rows = list(csv.DictReader(io.StringIO(joining_csv(joining))))
    (row,) = (row for row in rows if (row["first"], row["images"], row["site"]) == ("fedavg", "unseen", "all"))
    values = [row[key] for key in ("data", "meaning", "second", "mean_difference", "n_patients")]
    assert values == ["phantom", "gain from joining", "local", "15.000000", "2"]
    models = json.loads(joining_json(joining))["models_of_local"]
    assert [(model["trained_at"], model["score_at"]) for model in models] == [
        ("A", {"A": pytest.approx(75), "C": pytest.approx(40)}),
        ("B", {"B": pytest.approx(72), "C": pytest.approx(40)}),
    ]


def results(runs, role="unseen"):
    return [
        scored(run.row.label, run.unseen, [row for row in run.cases if row["role"] == role], run.seed, row=run.row)
        for run in runs
    ]


def classified(method, trained_at, probabilities, n_negative):
    """A run on one image of each patient; the patients after the first `n_negative` have the second class."""
    rows = [
        case_row("C", "unseen", f"i{k}", f"s{k}", int(k >= n_negative), (1 - p, p), ("a", "b"))
        for k, p in enumerate(probabilities)
    ]
    return ScoredRun(ComparisonRow(method, (), trained_at), "C", 0, rows)


def test_rows_without_a_federation_come_last_and_are_neither_ranked_nor_tested():
    """pooled has the best score of all, and fedprox the best of the federated methods."""
    runs = [*RUNS[1:], run("fedprox", "C", {"C": [0.65, 0.5]}), RUNS[0]]
    table = build_table(results(runs), ["disc"])
    (head, *lines) = block_rows(table, table.blocks[0])
    assert [line[0][0] for line in lines] == ["fedavg", "fedprox", "local (not federated)", "pooled (not federated)"]
    assert [line[1][:2] for line in lines] == [("55.00", "second"), ("57.50", "best"), ("40.00", ""), ("62.50", "")]
    assert table.blocks[0].lines[2].n_cases == 4, "two models for two patients"
    differences = [line.difference for line in table.blocks[0].lines]
    assert [difference.n if difference else None for difference in differences] == [None, 2, None, None]
    assert "local, pooled: no federated methods, so they are neither ranked nor tested" in to_text(table)


DICE = [0.70, 0.74, 0.78, 0.80, 0.82, 0.85, 0.86, 0.88]


def with_gains(**gains):
    """FedAvg with `DICE` at the unseen site C, two models of `local`, and rows whose patients gain more and more."""
    gains = {"fedavg": 0.0} | gains
    rows = {name: [dice + gain * k for k, dice in enumerate(DICE, 1)] for name, gain in gains.items()}
    return [
        *(run(name, "C", {"C": values}) for name, values in rows.items()),
        run("local", "C", {"A": [0.9], "C": [dice - 0.2 for dice in DICE]}, "A"),
        run("local", "C", {"B": [0.9], "C": [dice + 0.1 for dice in DICE[::-1]]}, "B"),
    ]


def test_rows_without_a_federation_have_intervals_but_no_test_no_rank_and_no_place_in_holms_family():
    """Two rows are compared; FedAvg of equal effort is a reference, and pooled has the best score."""
    runs = with_gains(up=0.01, pooled=0.02, same=0.0001, **{"fedavg@steps=up": 0.004})
    table = build_table(results(runs), ["disc"])
    lines = {line.method: line for line in table.blocks[0].lines}
    assert list(lines)[-3:] == ["fedavg@steps=up", "pooled", "local"] and table.blocks[0].n_tests == 2
    assert lines["up"].difference.p_holm == pytest.approx(2 * lines["up"].difference.p)
    for name in ("fedavg@steps=up", "pooled", "local"):
        assert (lines[name].difference, lines[name].differences, lines[name].rank) == (None, (), None)
    assert (lines["up"].rank.rank, lines["fedavg"].rank.rank) == (1, 3)
    models = [(a - 0.2 + b + 0.1) / 2 for a, b in zip(DICE, DICE[::-1], strict=True)]  # a patient's mean of two models
    cell = lines["local"].cells[0]
    assert (cell.mean, cell.n_patients) == (pytest.approx(100 * sum(models) / 8), 8)
    assert cell.low < cell.mean < cell.high
    assert not any("pooled" in sentence or "local" in sentence for sentence in table.conclusions)
    assert "better in 1 seed than fedavg: up" in table.conclusions[0]


def test_a_difference_of_five_patients_has_the_interval_of_the_t_test_and_one_of_four_has_none():
    gains = [0.01, 0.02, 0.04, 0.05, 0.08]
    sites = {"A": [0.5] * 5, "B": [0.5] * 4}
    better = {"A": [0.5 + gain for gain in gains], "B": [0.5 + gain for gain in gains[:4]]}
    joining = build_joining([run("fedavg", "C", better), run("pooled", "C", sites)], SCORING, ["disc"], "real")
    (one,) = joining.differences
    expected = stats.ttest_1samp([-100 * gain for gain in gains], 0).confidence_interval(0.95)
    assert (one.by_site["A"].low, one.by_site["A"].high) == pytest.approx(tuple(expected))
    assert (one.by_site["B"].low, one.by_site["all"].n) == (None, 9)
    text = joining_text(joining)
    of_all = stats.ttest_1samp([-100 * gain for gain in [*gains, *gains[:4]]], 0).confidence_interval(0.95)
    assert f"[{of_all.low:.2f}, {of_all.high:.2f}]" in text and "Student t over patients" in text
    rows = {row["site"]: row for row in csv.DictReader(io.StringIO(joining_csv(joining)))}
    (sentence,) = joining_conclusions(joining, ["fedavg"])
    assert sentence.startswith("disc: Dice (points), cost of not pooling (pooled - fedavg): own test -3.56 (9) [")
    (few,) = joining_conclusions(build_joining([*RUNS[:1], *RUNS[3:]], SCORING, ["disc"], "real"), ["fedavg"])
    assert "own test +2.50 (2) without an interval, so not decided; unseen +7.50 (2) without" in few
    assert joining_conclusions(joining, ["fedprox"]) == []
    assert rows["B"]["low"] == "" and float(rows["A"]["high"]) == pytest.approx(expected.high, abs=1e-5)


def test_the_gain_in_auroc_is_the_difference_of_the_scores_of_the_table():
    """FedAvg ranks all eight patients correctly; the only local model has one of the 16 pairs wrong: 100 - 93.75."""
    scores = {"fedavg": [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9], "local": [0.1, 0.2, 0.3, 0.6, 0.4, 0.7, 0.8, 0.9]}
    runs = [classified(name, "A" * (name == "local"), values, 4) for name, values in scores.items()]
    joining = build_joining(runs, ClassScoring(), ["all"], "real")
    (auroc,) = (one for one in joining.differences if one.metric == "auroc")
    assert auroc.by_site["C"].mean == pytest.approx(6.25) and auroc.by_site["C"].low < 6.25


def test_a_model_of_local_that_did_not_learn_is_named_with_its_site():
    given = results(RUNS)
    given[2]["summary"] |= {"learning": NOT_LEARNED, "unseen_site": "C"}
    (note,) = (note for note in build_table(given, ["disc"]).notes if note.startswith("local: DID NOT LEARN in 1 of 2"))
    assert note.endswith("(at B, unseen C seed 0)")


def test_a_score_of_a_site_is_the_mean_of_the_scores_of_the_models_and_not_the_score_of_their_predictions_together():
    """The AUROC of one model is 1, that of the other 1/2; all predictions together would have 10 of 16 pairs right."""
    probabilities = {"A": [0.6, 0.7, 0.8, 0.9], "B": [0.2, 0.2, 0.1, 0.3]}
    runs = [classified("local", at, values, 2) for at, values in probabilities.items()]
    given = [
        result | {"summary": ClassScoring().summarise(run.cases)}
        for run, result in zip(runs, results(runs), strict=True)
    ]
    table = build_table(given, ["all"])
    (auroc,) = (block for block in table.blocks if block.metric == "auroc")
    assert auroc.lines[0].cells[0].mean == pytest.approx(75.0)


def test_a_conclusion_says_whether_the_interval_excludes_0_and_what_the_mean_hides():
    """Each of five patients of A gains 10 points, those of B none; the single models score 40 and 50 at C."""
    scores = {"A": [0.61, 0.62, 0.63, 0.64, 0.65], "B": [0.7] * 5, "C": [0.61, 0.62, 0.63, 0.64, 0.65]}
    alone = [
        run("local", "C", {"A": [0.51, 0.52, 0.53, 0.54, 0.55], "C": [0.4] * 5}, "A"),
        run("local", "C", {"B": [0.71, 0.69, 0.7, 0.7, 0.7], "C": [0.5] * 5}, "B"),
    ]
    joining = build_joining([run("fedavg", "C", scores), *alone], SCORING, ["disc"], "real")
    (sentence,) = joining_conclusions(joining, ["fedavg"])
    shown = "]: joining is better, but this is not decided at any single hospital (+0.00 (5) ["
    assert "own test +5.00 (10) [" in sentence and shown in sentence
    assert "]: joining is better, in the mean over the hospitals' models, which score 40.00 to 50.00 there" in sentence


def test_without_another_method_the_conclusions_still_say_what_did_not_learn_and_that_the_data_are_synthetic():
    runs = [*RUNS[:1], *RUNS[3:]]
    joining = build_joining(runs, SCORING, ["disc"], "phantom")
    of_runs = [one | {"data": "phantom"} for one in results(runs)]
    table = replace(build_table(of_runs, ["disc"]), not_learned=("pooled",))
    table = with_all_conclusions(table, [], joining, ["fedavg"])
    first, cost, last = table.conclusions
    assert first.startswith("Models of pooled DID NOT LEARN") and "SYNTHETIC" in last
    assert "cost of not pooling" in cost and "pooling is" not in cost


def test_the_verdict_follows_the_direction_of_the_metric_and_a_model_that_did_not_learn_has_none():
    scores = {"C": [0.61, 0.62, 0.63, 0.64, 0.65]}
    runs = [run("fedavg", "C", scores), run("pooled", "C", {"C": [0.1] * 5})]
    joining = build_joining(runs, SCORING, ["disc"], "real")
    assert "pooling is worse" in joining_conclusions(joining, ["fedavg"])[0]
    distances = tuple(replace(one, higher_is_better=False) for one in joining.differences)
    assert "pooling is better" in joining_conclusions(replace(joining, differences=distances), ["fedavg"])[0]
    (sentence,) = joining_conclusions(joining, ["fedavg"], ["pooled"])
    assert sentence.endswith("]: no verdict.")


def test_the_models_of_local_are_those_with_the_same_varied_settings():
    scores = {"fedavg": [0, 0.01, 0.02, 0.03, 0.04], "local": [0] * 5}
    runs = [
        run(method, "C", {"C": [dice + more for more in scores[method]]}, at, varied=(f"training.batch_size={size}",))
        for method, at, of_size in (("fedavg", "", {4: 0.6, 40: 0.9}), ("local", "A", {4: 0.5, 40: 0.8}))
        for size, dice in of_size.items()
    ]
    sentences = joining_conclusions(build_joining(runs, SCORING, ["disc"], "real"), ["fedavg, training.batch_size=4"])
    assert "score 50.00 to 50.00 there" in sentences[0]
