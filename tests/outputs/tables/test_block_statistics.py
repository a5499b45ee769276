"""Intervals, paired differences, verdicts and ranks of a comparison, and that all outputs show the same numbers."""

import csv
import html
import io
import json
import re
from dataclasses import replace

import pytest
from made_runs import NOT_LEARNED, line_of, made_comparison, mask_row, scored
from scipy import stats

from medfed.experiments.comparison_tables import ComparisonTables
from medfed.metrics.significance import holm
from medfed.outputs.report.page import build_page
from medfed.outputs.report.run_data import read_runs
from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.comparison_row import ComparisonRow
from medfed.outputs.tables.table import to_csv, to_text
from medfed.tasks.mask_scoring import MaskScoring

BASE = [0.70, 0.74, 0.78, 0.80, 0.82, 0.85, 0.86, 0.88]


def result(method, site, dice, seed=0, hd95=None):
    distances = hd95 or [None] * len(dice)
    rows = [mask_row(site, f"p{k}", d, hd95_mm=h) for k, (d, h) in enumerate(zip(dice, distances))]
    return scored(method, site, rows, seed)


def compared(gains, sites=("A", "B"), hd95=None):
    """Every method has the Dice of `BASE` plus its gains, one per patient, at every site."""
    dice = {method: [base + gain for base, gain in zip(BASE, values, strict=True)] for method, values in gains.items()}
    return [
        result(method, site, dice[method], hd95=hd95[method] if hd95 else None) for method in gains for site in sites
    ]


def test_a_patient_with_several_images_is_one_pair_in_every_number_of_a_comparison():
    """Six patients with 1 to 6 images; elcfs gains k points in each image of patient k, so 3.5 points on average."""

    def of_images(method, gain):
        rows = [
            mask_row("A", f"p{k}", 0.5 + 0.02 * k + 0.03 * i + gain * k / 100, image=f"p{k}_{i}")
            for k in range(1, 7)
            for i in range(k)
        ]
        return scored(method, "A", rows)

    table = build_table([of_images("fedavg", 0), of_images("elcfs", 1)], ["disc"])
    dice = [50 + 2 * k + 1.5 * (k - 1) for k in range(1, 7)]  # of FedAvg, the mean of the patient's images
    cell, gained = line_of(table, "fedavg").cells[0], line_of(table, "elcfs")
    assert (cell.mean, cell.n_patients) == (pytest.approx(sum(dice) / 6), 6)
    difference, gains = gained.difference, range(1, 7)
    expected = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert (difference.mean, difference.n) == (pytest.approx(3.5), 6)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected))
    assert difference.p == pytest.approx(stats.wilcoxon(gains).pvalue)
    assert gained.rank.rank == 1 and gained.n_cases == 21 and line_of(table, "fedavg").differences == ()
    low_dice = next(block for block in table.failures if block.kind == "low_dice")
    # below 0.7: all images of p1 to p4, four of five of p5 (0.60 to 0.69), three of six of p6 (0.62 to 0.68)
    assert low_dice.lines[0].total.count == pytest.approx(4 + 4 / 5 + 3 / 6) and low_dice.lines[0].total.n == 6


ZERO, BETTER = [0.0] * 8, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]
WORSE = [-gain for gain in BETTER]
MIXED = [0.08, -0.07, 0.06, -0.05, 0.04, -0.03, 0.02, 0.01]


def test_the_average_difference_weights_sites_equally_and_averages_seeds_first():
    """Gains of A: 1 to 8 points in seed 0 and none in seed 1, mean 2.25; of B: mean 0. The average is 1.125."""
    results = [result("fedavg", site, BASE, seed) for site in "AB" for seed in (0, 1)]
    better = [base + gain for base, gain in zip(BASE, BETTER)]
    results += [result("elcfs", "A", better, 0), result("elcfs", "A", BASE, 1)]
    results += [result("elcfs", "B", [b + m / 10 for b, m in zip(BASE, MIXED)], seed) for seed in (0, 1)]
    elcfs = line_of(build_table(results, ["disc"]), "elcfs")
    at_b = sum(MIXED) / 8 / 10 * 100
    assert [difference.mean for difference in elcfs.differences] == pytest.approx([2.25, at_b])
    assert elcfs.difference.mean == pytest.approx((2.25 + at_b) / 2)
    assert elcfs.difference.n == 16
    expected = stats.ttest_1samp([50 * gain for gain in BETTER], 0).confidence_interval(0.95)
    interval = (elcfs.differences[0].low, elcfs.differences[0].high)
    assert interval == pytest.approx(tuple(expected)), "the spread is that of the means over seeds"


def test_verdicts_have_a_direction_and_p_is_corrected_for_the_number_of_methods():
    """Sixteen patients: better and worse have the same p; three tests are corrected by Holm."""
    table = build_table(compared({"fedavg": ZERO, "up": BETTER, "down": WORSE, "same": MIXED}), ["disc"])
    up, down, same = (line_of(table, method).difference for method in ("up", "down", "same"))
    assert (up.verdict, down.verdict, same.verdict) == ("better", "worse", "not decided")
    assert up.p == down.p < 0.001 < same.p
    assert [up.p_holm, down.p_holm, same.p_holm] == pytest.approx(holm([up.p, down.p, same.p]))
    conclusion, scope = table.conclusions
    assert "better in 1 seed than fedavg: up (+4.50 [" in conclusion
    assert "worse in 1 seed than fedavg: down (-4.50 [" in conclusion
    assert "not decided: same" in conclusion and f"{same.detectable:.2f} points or more" in conclusion
    assert "new patients of A, B" in scope and "nothing is shown for other hospitals" in scope


def of_seeds(gains_of_seed):
    """FedAvg and elcfs at one site; elcfs has the gain of the seed plus a little spread over patients."""
    results = [result("fedavg", "A", BASE, seed) for seed in range(len(gains_of_seed))]
    spread = [0.001 * k for k in range(-3, 5)]
    return results + [
        result("elcfs", "A", [base + gain + more for base, more in zip(BASE, spread)], seed)
        for seed, gain in enumerate(gains_of_seed)
    ]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.04,), "better in 1 seed"),
        ((0.04, 0.02), "better in 2 seeds"),
        ((0.05, -0.01), "not decided"),  # the patients' interval of the mean is above 0, but the seeds disagree
        ((0.04, 0.02, 0.01), "better"),
        ((-0.04, -0.02, -0.01), "worse"),
        ((0.09, -0.01, 0.02), "not decided"),
        ((0.09, -0.01, 0.02, 0.03), "not decided"),
    ],
)
def test_a_verdict_needs_the_same_sign_in_all_seeds_and_with_fewer_than_three_names_their_number(gains, verdict):
    table = build_table(of_seeds(gains), ["disc"])
    difference = line_of(table, "elcfs").difference
    low, high = difference.low, difference.high
    assert (low > 0) == (sum(gains) > 0) and (high > 0) == (sum(gains) > 0), "all patients agree"
    assert difference.verdict_text == verdict and f" {verdict} " in to_text(table)
    assert difference.of_seeds == pytest.approx([100 * gain + 0.05 for gain in gains])
    if len(gains) > 1:
        expected = stats.ttest_1samp(difference.of_seeds, 0).confidence_interval(0.95)
        assert (difference.seeds_low, difference.seeds_high) == pytest.approx(tuple(expected))
    else:
        assert difference.seeds_low is None
    if verdict.startswith(("better in", "worse in")):
        assert f"{verdict} than fedavg: elcfs" in table.conclusions[0]


def with_reference(elcfs, reference):
    """elcfs and swa gain over FedAvg; the row of equal effort gains `reference`, and elcfs is compared with it."""
    results = compared({"fedavg": ZERO, "elcfs": elcfs, "swa": MIXED, "fedavg@steps=elcfs": reference}, sites=("A",))
    for one in results:
        equal = "fedavg@steps=elcfs" if one["method"] == "elcfs" else ""
        one["row"] = ComparisonRow(one["method"], equal_effort=equal)
    return results


def test_a_method_with_more_effort_is_judged_against_its_reference_and_both_differences_are_shown():
    """elcfs gains 4.5 points over FedAvg, and so does FedAvg of equal effort, apart from a spread with the mean 0.5."""
    more = [gain - 0.005 * (-1) ** k - 0.005 for k, gain in enumerate(BETTER)]
    table = build_table(with_reference(BETTER, more), ["disc"])
    elcfs, swa, reference = (line_of(table, name) for name in ("elcfs", "swa", "fedavg@steps=elcfs"))
    assert (elcfs.against, swa.against, reference.against) == ("fedavg@steps=elcfs", "fedavg", "")
    assert elcfs.difference.verdict == "not decided" and elcfs.difference.mean == pytest.approx(0.5)
    assert elcfs.from_baseline.mean == pytest.approx(4.5) and elcfs.from_baseline.verdict == "not tested"
    assert swa.from_baseline is None
    assert (reference.rank, reference.difference) == (None, None) and elcfs.rank.rank == 1
    assert table.blocks[0].n_tests == 2
    assert swa.difference.p_holm == holm([elcfs.difference.p or 1, swa.difference.p])[1]
    conclusion = table.conclusions[0]
    assert conclusion.startswith("disc, Dice: better than fedavg of equal effort: none; not decided: elcfs (+0.50 [")
    assert "from fedavg@steps=elcfs; +4.50 [" in conclusion and "from fedavg of less effort" in conclusion
    head, row = re.search(r"difference from fedavg of equal effort\n(.*)\n(.*elcfs.*)\n", to_text(table)).groups()
    assert "from fedavg, less effort" in head and "compared with" in head
    assert "+4.50" in row and "+0.50" in row and "fedavg@steps=elcfs" in row
    average = csv_row(to_csv(table), "dice", "elcfs", "average")
    assert float(average["baseline_difference"]) == pytest.approx(4.5) and average["compared_with"] == reference.method


def csv_row(text, *keys):
    rows = csv.DictReader(io.StringIO(text))
    return next(row for row in rows if (row["metric"], row["method"], row["unseen_site"]) == keys)


def test_a_gain_above_that_of_equal_effort_is_better_and_without_this_run_there_is_only_a_difference():
    results = with_reference(BETTER, ZERO)
    table = build_table(results, ["disc"])
    assert line_of(table, "elcfs").difference.verdict_text == "better in 1 seed"
    assert "better in 1 seed than fedavg of equal effort: elcfs (+4.50 [" in table.conclusions[0]
    table = build_table([one for one in results if "@" not in one["method"]], ["disc"])  # it failed
    elcfs = line_of(table, "elcfs")
    assert elcfs.difference is None and elcfs.from_baseline.mean == pytest.approx(4.5)
    assert "no verdict without a run of FedAvg of equal effort: elcfs (+4.50 [" in table.conclusions[0]
    assert re.search(r"elcfs +\+4.50 +- +- +- +- +- +-\n", to_text(table))
    assert "fedavg@steps=elcfs was not run, so these methods are not compared with it: elcfs" in "".join(table.notes)


def test_a_method_that_is_worse_than_the_baseline_of_less_effort_is_not_better():
    """FedAvg loses 14 points with more effort, and the method 4.5."""
    results = with_reference(WORSE, [loss - 0.05 - gain for loss, gain in zip(WORSE, BETTER, strict=True)])
    elcfs = line_of(build_table(results, ["disc"]), "elcfs")
    assert elcfs.difference.low > 0 and elcfs.difference.p_holm < 0.05 and elcfs.from_baseline.high < 0
    assert elcfs.difference.verdict == "not decided"


def test_rows_with_other_numbers_of_seeds_have_their_own_verdicts():
    results = of_seeds((0.04, 0.02, 0.01))
    results.append(result("swa", "A", [base + 0.02 + 0.001 * k for k, base in enumerate(BASE)], 0))
    conclusion = build_table(results, ["disc"]).conclusions[0]
    assert "better than fedavg: elcfs (+" in conclusion and "better in 1 seed than fedavg: swa (+" in conclusion
    disjoint = [result("fedavg", "A", BASE, 0), result("fedavg", "B", BASE, 1)]
    disjoint += [
        result("elcfs", site, [base + gain for base, gain in zip(BASE, BETTER)], seed) for seed, site in enumerate("AB")
    ]
    difference = line_of(build_table(disjoint, ["disc"]), "elcfs").difference
    assert difference.low > 0 and (difference.of_seeds, difference.verdict) == ((), "not decided")


def test_the_test_and_the_interval_are_over_the_same_values():
    """Image b shows nothing in seed 0, and is a false alarm in seed 1: (0.8 + (0.8 + 0) / 2) / 2 = 0.6."""
    runs = []
    for method in ("fedavg", "elcfs"):
        for seed in (0, 1):
            one = result(method, "A", BASE[:6], seed)
            extra = {"status": "false_alarm", "dice": 0.0} if seed else {"status": "absent", "dice": None}
            one["rows"] += [
                one["rows"][0] | {"patient": "q", "image": "a", "dice": 0.8},
                one["rows"][0] | {"patient": "q", "image": "b"} | extra,
            ]
            if method == "elcfs":
                one["rows"] = [row | {"dice": row["dice"] and row["dice"] + 0.01} for row in one["rows"]]
            runs.append(one)
    rows = [row | {"run": one["seed"]} for one in runs[:2] for row in one["rows"]]
    assert MaskScoring().patient_scores(rows, "dice")["A", "q", "disc"] == pytest.approx(0.6)
    assert line_of(build_table(runs, ["disc"]), "fedavg").cells[0].mean == pytest.approx(
        100 * (sum(BASE[:6]) + 0.6) / 7
    )


def test_a_block_ends_with_the_prediction_that_ignores_the_image():
    results = compared({"fedavg": ZERO, "elcfs": BETTER, "pooled": ZERO})
    for one in results:
        dice = 0.99 if one["method"] == "pooled" else 0.25 if one["unseen_site"] == "A" else 0.35
        scores = {one["unseen_site"]: {"disc": {"dice": dice}}}
        one["summary"] |= {"trivial": {"prediction": "every pixel is foreground", "unseen": scores}}
    table = build_table(results, ["disc"])
    trivial = table.blocks[0].trivial
    assert [cell.mean for cell in (*trivial.cells, trivial.average)] == pytest.approx([25, 35, 30])
    assert trivial.method == "trivial: every pixel is foreground"
    body = to_text(table).partition("higher is better\n")[2].partition("\n\n")[0].splitlines()
    assert body[-1].split() == "trivial: every pixel is foreground 25.00 35.00 30.00".split()
    assert "trivial" not in to_text(build_table(compared({"fedavg": ZERO, "elcfs": BETTER}), ["disc"]))


def test_a_conclusion_and_a_note_say_that_too_many_methods_are_compared_for_the_patients():
    """The smallest p of 8 patients is 2 / 2**8 = 0.0078; seven tests make 0.055 of it, six 0.047."""
    names = [f"m{n}" for n in range(7)]
    gains = {"fedavg": ZERO} | dict.fromkeys(names, BETTER)
    table = build_table(compared(gains, sites=("A",)), ["disc"])
    assert {line_of(table, name).difference.verdict for name in names} == {"not decided"}
    (note,) = (note for note in table.notes if note.startswith("no decision for some metric, because only 8"))
    assert "below 0.055" in note and note.endswith(": " + ", ".join(names))
    conclusion = table.conclusions[0]
    assert conclusion.startswith(
        "disc, Dice: no method can be called better or worse than fedavg, because with 8 "
        "patients and 7 compared methods no corrected p can be below 0.055; "
    )
    assert "better than" not in conclusion
    del gains["m6"]
    assert "better in 1 seed than fedavg: m0" in build_table(compared(gains, sites=("A",)), ["disc"]).conclusions[0]


def test_a_row_with_the_config_of_the_baseline_is_neither_ranked_nor_counted_as_a_test():
    """The smallest p of 8 patients is 2 / 2**8 = 0.0078; six tests make 0.047 of it, and a seventh would make 0.055."""
    gains = {"fedavg": ZERO, "fedavg@steps=m0": ZERO} | {f"m{n}": BETTER for n in range(6)}
    results = compared(gains, sites=("A",))
    for place, one in enumerate(results):
        copied = one["method"].startswith("fedavg")
        one["summary"] |= {"config_sha256": "0" if copied else f"config {place}", "unseen_site": "A"}
    table = build_table(results, ["disc"])
    copy = line_of(table, "fedavg@steps=m0")
    assert (copy.difference, copy.rank, table.blocks[0].n_tests) == (None, None, 6)
    assert "better in 1 seed than fedavg: m0" in table.conclusions[0] and "fedavg@steps=m0" not in table.conclusions[0]
    (note,) = (note for note in table.notes if note.startswith("fedavg@steps=m0: the same training as fedavg"))
    assert note.endswith("so it is neither ranked nor tested")
    results[-1]["summary"]["config_sha256"] = "0"
    assert line_of(build_table(results, ["disc"]), "m5").difference is None
    results[1]["summary"]["config_sha256"] = results[2]["summary"]["config_sha256"]
    table = build_table(results, ["disc"])
    assert line_of(table, "m0").difference is None and table.blocks[0].n_tests == 4, "m0 and m5 are copies"
    assert any(note.startswith("m0: the same training as fedavg@steps=m0") for note in table.notes)


def test_a_run_that_only_one_of_two_methods_has_does_not_count_in_their_difference():
    """Seed 1 is 20 points worse for both; without its run of elcfs, elcfs is still as good as FedAvg in seed 0."""
    low = [base - 0.2 for base in BASE]
    results = [result("fedavg", "A", BASE, 0), result("fedavg", "A", low, 1), result("elcfs", "A", BASE, 0)]
    table = build_table(results, ["disc"])
    elcfs = line_of(table, "elcfs")
    assert elcfs.cells[0].mean - line_of(table, "fedavg").cells[0].mean == pytest.approx(10)
    assert (elcfs.difference.mean, elcfs.differences[0].mean, elcfs.difference.p) == (0, 0, None)
    assert elcfs.rank.rank == line_of(table, "fedavg").rank.rank == 1
    assert any(note.startswith("the differences and ranks are over the runs that") for note in table.notes)


def test_the_order_of_the_methods_does_not_change_the_ranks():
    """Two methods that are nearly equal, so that the samples decide between them."""
    results = compared({"fedavg": ZERO, "a": MIXED, "b": [-gain for gain in MIXED]})
    tables = [build_table(order, ["disc"]) for order in (results, results[::-1])]
    assert [line_of(tables[0], name).rank for name in "ab"] == [line_of(tables[1], name).rank for name in "ab"]
    assert 0 < line_of(tables[0], "a").rank.first_share < 1


def test_a_method_with_the_scores_of_the_baseline_does_not_hide_what_the_others_could_show():
    gains = {"fedavg": ZERO, "same": ZERO, "mixed": MIXED}
    table = build_table(compared(gains), ["disc"])
    assert f"{line_of(table, 'mixed').difference.detectable:.2f} points or more" in table.conclusions[0]
    assert "Without an interval" not in table.conclusions[0]


@pytest.mark.parametrize(("failed", "verdicts"), [("up", ["no verdict", "worse"]), ("fedavg", ["no verdict"] * 2)])
def test_there_is_no_verdict_with_a_model_that_did_not_learn_and_the_others_are_unchanged(failed, verdicts):
    results = compared({"fedavg": ZERO, "up": BETTER, "down": WORSE})
    before = build_table(results, ["disc"])
    for of_failed in (result for result in results if result["method"] == failed):
        of_failed["summary"] |= {"learning": NOT_LEARNED, "unseen_site": of_failed["unseen_site"]}
    table = build_table(results, ["disc"])
    lines = [line_of(table, method) for method in ("up", "down")]
    assert [actual.difference.verdict for actual in lines] == verdicts
    assert [{one.verdict for one in actual.differences} == {"no verdict"} for actual in lines] == [
        verdict == "no verdict" for verdict in verdicts
    ]
    for actual in lines:
        old = line_of(before, actual.method).difference
        assert replace(actual.difference, verdict=old.verdict) == old
    assert table.conclusions[0].startswith(f"Models of {failed} DID NOT LEARN: ")
    assert "no verdict: up (+4.50" in table.conclusions[1] and "better than fedavg: up" not in table.conclusions[1]


def test_a_lower_distance_is_better():
    distances = {"fedavg": [9.0] * 8, "elcfs": [8.0, 8.1, 8.2, 8.3, 8.4, 8.5, 8.6, 8.7]}
    table = build_table(compared({"fedavg": ZERO, "elcfs": ZERO}, hd95=distances), ["disc"])
    difference = line_of(table, "elcfs", "hd95_mm").difference
    assert difference.mean == pytest.approx(-0.65) and difference.verdict == "better"
    assert line_of(table, "fedavg", "hd95_mm").average.low is None, "all patients have 9 mm"


def test_a_few_large_differences_are_not_decided_although_p_is_small():
    """All but one patient of each site gain 1 to 7 points, and one loses 60: the mean difference is not decided."""
    gains = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, -0.6]
    difference = line_of(build_table(compared({"fedavg": ZERO, "elcfs": gains}, "ABCDE"), ["disc"]), "elcfs").difference
    assert difference.p_holm < 0.05 and difference.low < 0 < difference.high
    assert difference.mean < 0 and difference.verdict == "not decided"


def test_a_site_with_four_patients_has_no_interval_and_neither_has_the_average():
    results = [result(method, site, BASE[:n]) for method in ("fedavg",) for site, n in (("A", 8), ("B", 4))]
    actual = line_of(table := build_table(results, ["disc"]), "fedavg")
    assert actual.cells[0].low is not None and (actual.cells[1].low, actual.average.low) == (None, None)
    assert actual.average.mean == pytest.approx((actual.cells[0].mean + actual.cells[1].mean) / 2)
    assert any(note.startswith("B: n = 4: no interval") for note in table.notes)
    assert any("logit scale" in note for note in table.notes), "the method of the interval of A has a name"


def test_the_worst_site_and_the_ranks_stand_beside_the_average():
    results = [result("fedavg", "A", BASE), result("fedavg", "B", [base - 0.1 for base in BASE])]
    results += [result("elcfs", site, [base + 0.05 for base in BASE]) for site in "AB"]
    table = build_table(results, ["disc"])
    assert (line_of(table, "fedavg").worst_site, line_of(table, "elcfs").rank.first_share) == ("B", 1.0)
    text = to_text(table)
    assert f"{line_of(table, 'fedavg').cells[1].mean:.2f} (B)" in text and "[1, 1] first: 100 %" in text


@pytest.mark.usefixtures("unpainted_figures")
def test_all_six_outputs_show_the_same_scores_differences_failures_and_conclusions(tmp_path):
    """Of 7 patients at each of 3 sites, one is missed; both seeds miss the same."""
    comparison = made_comparison(tmp_path / "all", ("fedavg", "elcfs", "ccst"))
    runs, comparisons = read_runs([comparison])
    table = comparisons[0].tables[0][1]
    tables = ComparisonTables(table, None, {}, "")
    tables.write(tmp_path)
    texts = {name: (tmp_path / f"table.{name}").read_text() for name in ("md", "csv", "json", "tex")}
    page = re.sub(r"<[^>]+>", "", build_page(runs, comparisons))
    texts |= {"terminal": tables.to_text(), "page": html.unescape(page)}
    low_dice, missed, false_alarm = table.failures
    share = next(line.total for line in low_dice.lines if line.method == "elcfs")
    assert (share.count, share.n) == (3, 21) == (missed.lines[0].total.count, missed.lines[0].total.n)
    assert share.high == pytest.approx(stats.binomtest(3, 21).proportion_ci(method="exact").high)
    assert [line.total for line in false_alarm.lines] == [None] * 3, "every patient has the structure"
    of_csv, stored = texts.pop("csv"), json.loads(texts.pop("json"))
    of_all = csv_row(of_csv, "low_dice", "elcfs", "all")
    assert all(csv_row(of_csv, "low_dice", "elcfs", site) for site in "ABC") and of_all["n_patients"] == "21"
    assert float(of_all["high"]) == pytest.approx(100 * share.high, abs=1e-6)
    failures = stored["failures"][0]
    assert (failures["title"], failures["lines"][0]["total"]["high"]) == ("Dice < 0.7", share.high)
    ece = line_of(table, "elcfs", "ece").average
    assert ece.mean == pytest.approx(100 * (0.02 + 0.03))
    elcfs = line_of(table, "elcfs")
    average, difference = elcfs.average, elcfs.difference
    row = csv_row(of_csv, "dice", "elcfs", "average")
    numbers = {"mean": average.mean, "low": average.low, "high": average.high, "rank": elcfs.rank.rank}
    numbers |= {"difference": difference.mean, "difference_low": difference.low, "p_holm": difference.p_holm}
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers, abs=1e-6)
    assert (row["verdict"], row["worst_site"]) == (difference.verdict_text, elcfs.worst_site)
    assert difference.p_holm < 0.001 and difference.verdict == "better"
    line_of_json = next(actual for actual in stored["blocks"][0]["lines"] if actual["method"] == "elcfs")
    assert line_of_json["average"]["low"] == average.low and line_of_json["difference"]["p_holm"] == difference.p_holm
    assert stored["conclusions"] == list(table.conclusions) and len(table.conclusions) == 2
    for name, text in texts.items():
        plain = text.replace("\\%", "%").replace("$\\pm$", "±").replace("$<$", "<")
        for words in ("disc: patients with Dice < 0.7", "3/21", share.interval_text, "1/7", "[0, 58] %"):
            assert words in plain, (name, words)
        plain = re.sub(r"\s+", " ", plain)  # a terminal wraps sentences
        for words in (
            "disc: ECE (%), lower is better",
            f"[{ece.low:.1f}, {ece.high:.1f}]",
            f"{average.mean:.2f} ±",
            f"[{average.low:.1f}, {average.high:.1f}]",
            f"{difference.mean:+.2f}",
            f"[{difference.low:.2f}, {difference.high:.2f}]",
            f"<0.001 ({difference.n})",
            difference.verdict_text,
            f"({elcfs.worst_site})",
            *table.conclusions,
        ):
            assert words in plain, (name, words)
