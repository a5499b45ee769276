"""Means, intervals, paired differences, tests and verdicts, against direct computations."""

import math

import numpy as np
import pandas as pd
import pytest
from made_comparisons import (
    BASE,
    DOWN,
    MIXED,
    NAMES,
    UP,
    class_row,
    dice_run,
    difference,
    gaining,
    line,
    scored,
    with_rows,
)
from made_runs import MASKS, mask_row
from scipy import stats
from scipy.special import expit, logit

from medfed.results.comparison import compare_runs
from medfed.results.statistics import failure_shares, intervals, mean_over_sites, verdict_text

ZERO = [0.0] * 8


def t_interval(values):
    return tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95))


def ends(row):
    return row.low, row.high


def test_a_site_is_the_mean_over_patients_then_seeds_and_the_average_weights_sites_equally():
    """A: 85 and 80 in two seeds; B: 60 in both, of one patient. The averages of the seeds are 72.5 and 70."""
    runs = [dice_run("fedavg", "A", dice, seed) for seed, dice in enumerate([[0.8, 0.9], [0.7, 0.9]])]
    runs += [dice_run("fedavg", "B", [0.6], seed) for seed in (0, 1)]
    scores = compare_runs(runs).scores
    at_a, average = line(scores, "fedavg", "A"), line(scores, "fedavg")
    assert tuple(at_a[list(NAMES)]) == pytest.approx((82.5, 12.5**0.5, 2, 2))
    assert tuple(average[list(NAMES)]) == pytest.approx((71.25, 1.25 * 2**0.5, 2, 3))


def test_the_interval_of_a_score_is_students_t_over_patients_on_the_logit_scale():
    """Each patient counts with the mean over images and seeds."""
    runs = [dice_run("fedavg", "A", [dice + 0.02 * seed for dice in BASE], seed) for seed in (-1, 0, 1)]
    at_a = line(compare_runs(runs).scores, "fedavg", "A")
    mean, se = np.mean(BASE), stats.sem(BASE)
    half = stats.t.ppf(0.975, 7) * se / (mean * (1 - mean))
    assert ends(at_a) == pytest.approx([100 * expit(logit(mean) + sign * half) for sign in (-1, 1)])


def test_the_average_of_sites_has_the_degrees_of_freedom_of_welch_and_satterthwaite():
    """Differences of three sites with other numbers of patients and other spreads."""
    gains = {"A": UP, "B": [0.1 * gain for gain in MIXED[:6]], "C": [2 * gain for gain in MIXED[:5]]}
    runs = [dice_run("fedavg", site, BASE[: len(gain)]) for site, gain in gains.items()]
    runs += [dice_run("m", site, [b + g for b, g in zip(BASE, gain)]) for site, gain in gains.items()]
    average = difference(compare_runs(runs), "m")
    percent = [100 * np.array(gain) for gain in gains.values()]
    variances, n = np.array([gain.var(ddof=1) / len(gain) for gain in percent]), np.array([8, 6, 5])
    df = variances.sum() ** 2 / (variances**2 / (n - 1)).sum()
    mean, se = np.mean([gain.mean() for gain in percent]), math.sqrt(variances.sum()) / 3
    half = stats.t.ppf(0.975, df) * se
    assert (average.difference, *ends(average)) == pytest.approx((mean, mean - half, mean + half))
    quantiles = stats.t.ppf(0.975, df) + stats.t.ppf(0.8, df)
    assert average.detectable == pytest.approx(se * quantiles), "one test at 5 %, found with 80 %"


def interval_of(mean, se, metric="dice", unit="%", df=1e9, metrics=MASKS.by_name):
    """The ends of an interval; with so many degrees of freedom, Student's t is the normal distribution."""
    keys = {"mean": mean, "se": se, "df": df, "n_smallest": 100, "metric": metric, "unit": unit}
    low, high = intervals(pd.DataFrame([keys]), metrics)
    return float(low[0]), float(high[0])


def patients_of(**sites):
    """The values of the patients p0, p1, ... of sites."""
    values = {(site, f"p{k}"): value for site, own in sites.items() for k, value in enumerate(own)}
    return pd.Series(list(values.values()), pd.MultiIndex.from_tuples(values, names=("site", "patient")))


def test_an_interval_without_limits_is_the_mean_and_t_standard_errors():
    """1, 2, 3, 4, 5: mean 3, sd sqrt(2.5), se sqrt(2.5 / 5); the 97.5 % quantile of t with 4 df is 2.776445."""
    half = 2.776445 * math.sqrt(0.5)
    assert mean_over_sites(patients_of(A=[1, 2, 3, 4, 5])) == pytest.approx((3, 3 - half, 3 + half), abs=1e-5)
    distance = interval_of(3, math.sqrt(0.5), "hd95", "mm", 4)
    assert distance == pytest.approx((3 - half, 3 + half), abs=1e-5), "cut at a limit that it does not reach"
    assert interval_of(1, math.sqrt(0.5), "hd95", "mm", 4) == pytest.approx((0, 1 + half), abs=1e-5)


def test_an_interval_between_two_limits_is_symmetric_on_the_logit_scale():
    """Mean 0.8, se 0.04 and normal quantiles: logit(0.8) = log(4); half = 1.96 * 0.04 / (0.8 * 0.2) = 0.49."""
    low, high = interval_of(80, 4)
    assert low == pytest.approx(100 * expit(math.log(4) - 0.49), abs=1e-2)
    assert high == pytest.approx(100 * expit(math.log(4) + 0.49), abs=1e-2)
    assert 80 - low > high - 80, "there is more room below 80"
    assert interval_of(20, 4) == pytest.approx((100 - high, 100 - low))
    assert interval_of(80, 4, "hd95", "% of diagonal") == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.6, 0.7, 0.8], [0.7] * 9])
def test_a_mean_over_sites_has_no_interval_below_five_patients_or_without_a_spread(values):
    mean, low, high = mean_over_sites(patients_of(A=values))
    assert mean == pytest.approx(np.mean(values)) and math.isnan(low) and math.isnan(high)


def test_two_sites_have_the_interval_of_welch_s_test_of_scipy():
    """The average of A and B is half of the difference of A and -B."""
    a, b = np.array([1.0, 2, 4, 8, 16]), np.array([3.0, 3, 5, 7, 9, 20, 21])
    expected = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    _, low, high = mean_over_sites(patients_of(A=a, B=b))
    assert (low, high) == pytest.approx((expected.low / 2, expected.high / 2))


def test_the_interval_contains_the_true_mean_as_often_as_it_claims():
    """Dice of 13 patients without failures: 95 %. A percentile bootstrap contains it in about 91 %."""
    draws = 100 * np.random.default_rng(0).beta(30, 4, (600, 13))
    keys = {"df": 12, "n_smallest": 13, "metric": "dice", "unit": "%"}
    table = pd.DataFrame({"mean": draws.mean(axis=1), "se": stats.sem(draws, axis=1)}).assign(**keys)
    low, high = intervals(table, MASKS.by_name)
    assert np.mean((low <= 3000 / 34) & (3000 / 34 <= high)) == pytest.approx(0.95, abs=0.02)


def test_fewer_than_five_patients_give_no_interval_and_neither_has_the_average_of_such_a_site():
    runs = [
        dice_run(m, s, [b + g for b in BASE[:n]])
        for m, g in (("fedavg", 0), ("m", 0.1))
        for s, n in (("A", 5), ("B", 4))
    ]
    comparison = compare_runs(runs)
    rows = {site: line(comparison.scores, "fedavg", site) for site in ("A", "B", "average")}
    assert not math.isnan(rows["A"].low) and math.isnan(rows["B"].low) and math.isnan(rows["average"].low)
    assert rows["average"]["mean"] == pytest.approx((rows["A"]["mean"] + rows["B"]["mean"]) / 2)
    assert "fewer than 5 patients, so no interval and nothing decided: B (4)" in comparison.notes
    assert difference(comparison, "m").verdict == "not decided"


def test_the_difference_is_the_t_interval_over_matched_patients_who_count_with_the_mean_of_their_images():
    """Six patients with 1 to 6 images; m gains k points in each image of patient k, so 3.5 points on average."""

    def run(label, gain):
        images = [(k, i) for k in range(1, 7) for i in range(k)]
        rows = [mask_row("A", f"p{k}", 0.5 + 0.03 * i + gain * k / 100, image=f"p{k}_{i}") for k, i in images]
        return scored(label, "A", rows)

    own = difference(compare_runs([run("fedavg", 0), run("m", 1)]), "m", "A")
    assert (own.difference, *ends(own)) == pytest.approx((3.5, *t_interval(range(1, 7))))
    assert (own.n, own.p) == (6, pytest.approx(stats.wilcoxon(range(1, 7)).pvalue))


def test_verdicts_have_a_direction_and_p_is_corrected_by_holm_for_all_methods():
    """Sixteen patients. The two small p are equal: 3 p for one, and max(3 p, 2 p) for the other; the third stays."""
    comparison = compare_runs(gaining({"fedavg": ZERO, "up": UP, "down": DOWN, "mixed": MIXED}, seeds=(0, 1, 2)))
    up, down, mixed = (difference(comparison, name) for name in ("up", "down", "mixed"))
    assert (up.verdict, down.verdict, mixed.verdict) == ("better", "worse", "not decided")
    assert up.p == down.p == pytest.approx(stats.wilcoxon(np.round([*UP, *UP], 9)).pvalue)
    assert (up.p_holm, down.p_holm, mixed.p_holm) == pytest.approx((3 * up.p, 3 * up.p, mixed.p))
    assert mixed.p == pytest.approx(stats.wilcoxon(np.round([*MIXED, *MIXED], 9)).pvalue)
    at_a = difference(comparison, "up", "A")
    assert (at_a.n, at_a.p_holm) == (8, pytest.approx(6 * at_a.p)), "three methods at two sites"


def test_a_lower_distance_is_better():
    def run(label, shift):
        return scored(label, "A", [mask_row("A", f"p{k}", 0.8, hd95_mm=9 + shift + 0.1 * k) for k in range(8)])

    comparison = compare_runs([run("fedavg", 0), run("m", -1), run("worse", 1)])
    own = {name: difference(comparison, name, metric="hd95") for name in ("m", "worse")}
    assert own["m"].difference == pytest.approx(-1) and math.isnan(own["m"].low), "all patients gain the same"
    ranks = {name: line(comparison.scores, name, metric="hd95")["rank"] for name in ("m", "fedavg", "worse")}
    assert ranks == {"m": 1, "fedavg": 2, "worse": 3}


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.04,), "better"),
        ((0.05, -0.01), "not decided"),  # the interval over patients is above 0, but the seeds disagree
        ((0.04, 0.02, 0.01), "better"),
        ((-0.04, -0.02, -0.01), "worse"),
        ((0.09, -0.01, 0.02), "not decided"),
    ],
)
def test_a_verdict_needs_the_sign_of_all_seeds(gains, verdict):
    spread = [0.001 * k for k in range(-3, 5)]  # mean 0.05 points
    runs = gaining({"fedavg": ZERO}, "A", range(len(gains)))
    for seed, gain in enumerate(gains):
        runs += gaining({"m": [gain + more for more in spread]}, "A", [seed])
    own = difference(compare_runs(runs), "m")
    assert own.verdict == verdict and own.p_holm < 0.05 and own.low * own.high > 0
    assert own.of_seeds == pytest.approx([100 * gain + 0.05 for gain in gains])
    if len(gains) > 1:
        assert (own.seeds_low, own.seeds_high) == pytest.approx(t_interval(own.of_seeds))
    else:
        assert math.isnan(own.seeds_low)


def test_a_small_p_is_not_decided_if_the_interval_contains_0():
    """All but one patient of each site gain 1 to 7 points, and one loses 60."""
    own = difference(compare_runs(gaining({"fedavg": ZERO, "m": [*UP[:7], -0.6]}, "ABCDE")), "m")
    assert own.p_holm < 0.05 and own.low < 0 < own.high and own.verdict == "not decided"


def test_a_test_that_is_significant_against_a_method_does_not_support_it():
    """At each site one patient gains 20 points and seven lose 0.1 to 0.7: the mean rises, and most patients lose."""
    gains = [0.2, *(-0.001 * k for k in range(1, 8))]
    comparison = compare_runs(gaining({"fedavg": ZERO, "m": gains, "less": [-g for g in gains]}, "ABCDEFGHIJ"))
    own, opposite = difference(comparison, "m"), difference(comparison, "less")
    assert own.low > 0 and own.p_holm < 0.05 and (own.rank_sign, opposite.rank_sign) == (-1, 1)
    assert verdict_text(own) == verdict_text(opposite) == "not decided (ranks)"


def test_a_patient_without_the_structure_is_in_a_pair_if_one_row_has_a_false_alarm():
    """Eight patients gain 1 to 8 points; m sees the structure in one of two others, whom FedAvg leaves empty."""
    absent = [mask_row("A", f"q{k}", None, "absent") for k in range(2)]
    alarm = mask_row("A", "q0", 0.0, "false_alarm")
    runs = gaining({"fedavg": ZERO, "m": UP}, "A")
    comparison = compare_runs([with_rows(runs[0], absent), with_rows(runs[1], [alarm, absent[1]])])
    own, expected = difference(comparison, "m"), [100 * gain for gain in UP] + [-100]
    assert own.n == 9 and (own.difference, *ends(own)) == pytest.approx((np.mean(expected), *t_interval(expected)))
    assert own.of_seeds == pytest.approx([np.mean(expected)]) and own.p == pytest.approx(
        stats.wilcoxon(expected).pvalue
    )
    assert line(comparison.scores, "fedavg")["n_patients"] == 8, "a correct empty mask has no score"


def test_a_false_alarm_with_one_of_three_seeds_counts_as_one_of_three():
    """Eight patients gain 1 to 8 points with each seed; with seed 0 alone, m has a false alarm."""
    absent, alarm = mask_row("A", "q", None, "absent"), mask_row("A", "q", 0.0, "false_alarm")
    runs = [with_rows(run, [absent]) for run in gaining({"fedavg": ZERO}, "A", (0, 1, 2))]
    runs += [with_rows(run, [absent if k else alarm]) for k, run in enumerate(gaining({"m": UP}, "A", (0, 1, 2)))]
    own, expected = difference(compare_runs(runs), "m"), [100 * gain for gain in UP] + [-100 / 3]
    assert (own.difference, *ends(own)) == pytest.approx((np.mean(expected), *t_interval(expected)))
    assert own.of_seeds == pytest.approx([-64 / 9, 36 / 9, 36 / 9]) and np.mean(own.of_seeds) == pytest.approx(
        own.difference
    )


def test_a_run_with_an_unknown_value_in_one_row_is_in_no_pair():
    """With seed 1, both rows are 20 points better, and one value of m is unknown."""
    runs = gaining({"fedavg": ZERO, "m": UP}, "A") + gaining(
        {"fedavg": [0.1] * 8, "m": [0.1 + g for g in UP]}, "A", [1]
    )
    unknown = with_rows(runs[3], [mask_row("A", "q", float("nan"))])
    runs = [with_rows(runs[2], [mask_row("A", "q", 0.9)]), unknown, *runs[:2]]
    own = difference(compare_runs(runs), "m", "A")
    assert own.of_seeds == pytest.approx([4.5]) and own.difference == pytest.approx(4.5)


def test_too_few_patients_or_too_many_methods_decide_nothing():
    """The smallest p of 8 patients is 2 / 2**8 = 0.0078; seven tests make 0.055 of it."""
    few = compare_runs([dice_run("fedavg", "A", BASE[:5]), dice_run("m", "A", [b + 0.1 for b in BASE[:5]])])
    assert math.isnan(difference(few, "m").p) and difference(few, "m").verdict == "not decided"
    gains = {"fedavg": ZERO} | {f"m{k}": UP for k in range(7)}
    seven = difference(compare_runs(gaining(gains, "A")), "m0")
    assert seven.verdict == "not decided"
    del gains["m6"]
    assert difference(compare_runs(gaining(gains, "A")), "m0").verdict == "better"


def test_a_metric_of_a_set_of_images_has_a_difference_but_no_test():
    """FedAvg ranks all eight patients correctly, and m has one of the 16 pairs wrong: 93.75."""
    p = {"fedavg": [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9], "m": [0.1, 0.2, 0.3, 0.6, 0.4, 0.7, 0.8, 0.9]}
    runs = [
        scored(name, "A", [class_row("A", f"s{k}", f"i{k}", "ab"[k > 3], value) for k, value in enumerate(values)])
        for name, values in p.items()
    ]
    own = difference(compare_runs(runs), "m", metric="auroc")
    assert own.difference == pytest.approx(-6.25) and own.low < -6.25 < own.high
    assert math.isnan(own.p) and own.verdict == "not tested"


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 13), (3, 13), (13, 13), (7, 200)])
def test_the_interval_of_a_share_is_the_exact_one_of_scipy(k, n):
    failed = pd.DataFrame({"patient": map(str, range(n)), "value": [100.0] * k + [0.0] * (n - k)})
    keys = {"row": "m", "site": "A", "role": "unseen", "structure": "disc", "metric": "missed", "unit": "%"}
    shares, exact = failure_shares(failed.assign(**keys)), stats.binomtest(k, n).proportion_ci(method="exact")
    assert shares.site.tolist() == ["A", "average"] and shares.n_patients.tolist() == [n, n]
    for name, expected in (("mean", k / n), ("low", exact.low), ("high", exact.high)):
        assert shares[name].tolist() == pytest.approx([100 * expected] * 2, abs=1e-7)


def test_a_patient_of_several_models_counts_once_in_a_share():
    """Patient p0 of A fails with one of two seeds, p0 of B with both: 1.5 of 3 patients."""
    runs = [dice_run("fedavg", "A", [dice, 0.9], seed) for seed, dice in enumerate((0.9, 0.5))]
    runs += [dice_run("fedavg", "B", [dice], seed) for seed, dice in enumerate((0.4, 0.3))]
    average = line(compare_runs(runs).scores, "fedavg", metric="low_dice")
    assert (average["mean"], average.n_patients) == (pytest.approx(50), 3)
    ends_of = [[100 * stats.beta.ppf(0.025, k, 4 - k), 100 * stats.beta.isf(0.025, k + 1, 3 - k)] for k in (1, 1.5, 2)]
    assert ends(average) == pytest.approx(ends_of[1]) and ends_of[0] < ends_of[1] < ends_of[2]


def test_the_order_of_the_runs_does_not_matter():
    gains = {"fedavg": ZERO, "a": MIXED, "b": [-gain for gain in MIXED], "fedavg@steps=a": UP, "pooled": UP}
    runs = gaining(gains, "ABC", (0, 1))
    shuffled = [runs[k] for k in np.random.default_rng(0).permutation(len(runs))]
    comparisons = [compare_runs(order) for order in (runs, shuffled)]
    keys = ["row", "role", "structure", "metric", "unit", "site"]
    for name, more in (("scores", []), ("differences", ["kind", "minus"])):
        tables = [getattr(one, name).sort_values([*keys, *more], ignore_index=True) for one in comparisons]
        pd.testing.assert_frame_equal(*tables)
