"""Tests of the leave-one-site-out table and of the table at the end of a run."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from made_runs import NOT_LEARNED, line_of, mask_row, scored

from medfed.core.errors import UserError
from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.latex import escape_latex, to_latex
from medfed.outputs.tables.run_table import closing_table
from medfed.outputs.tables.table import to_csv, to_json, to_json_dict, to_markdown, to_text
from medfed.tasks.mask_scoring import MaskScoring

SCORING = MaskScoring()
summarise = SCORING.summarise

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"


def case(site, patient, dice, hd95=None, status="ok", role="unseen", unit="percent_of_diagonal"):
    distances = {f"hd95_{unit}": hd95, f"hd_{unit}": None if hd95 is None else 2 * hd95}
    return mask_row(site, patient, dice, status, role, **distances)


def result(method, site, dice, hd95=None, seed=0, unit="percent_of_diagonal", **others):
    """Return the result of a run with these Dice values and, if given, HD95 values of its patients."""
    distances = hd95 or [10.0] * len(dice)
    rows = [case(site, f"p{k}", d, h, unit=unit) for k, (d, h) in enumerate(zip(dice, distances, strict=True))]
    return scored(method, site, rows, seed, **others)


def two_methods(**others):
    return [
        result("fedavg", "A", [0.80, 0.90], [4.0, 6.0], **others),
        result("fedavg", "B", [0.70], [9.0], **others),
        result("elcfs", "A", [0.90, 0.96], [3.0, 5.0], **others),
        result("elcfs", "B", [0.60], [12.0], **others),
    ]


def test_cells_are_means_over_cases_in_percent_and_the_average_weights_sites_equally():
    """FedAvg: A has (80 + 90)/2 = 85, B has 70, so the average is 77.5 although A has twice as many patients."""
    actual = line_of(build_table(two_methods(), ["disc"]), "fedavg")
    assert [cell.mean for cell in actual.cells] == pytest.approx([85, 70])
    assert actual.average.mean == pytest.approx(77.5)
    assert actual.average.sd is None


def test_the_standard_deviation_is_over_seeds():
    """Seeds 0 and 1 give 80 and 84 at A, 70 and 62 at B: the averages 75 and 73 have the sd sqrt(2)."""
    scores = {"A": (0.80, 0.84), "B": (0.70, 0.62)}
    results = [result("fedavg", site, [dice[seed]], seed=seed) for site, dice in scores.items() for seed in (0, 1)]
    table = build_table(results, ["disc"])
    actual = line_of(table, "fedavg")
    assert [cell.sd for cell in actual.cells] == pytest.approx([8**0.5, 32**0.5])
    assert (actual.average.mean, actual.average.sd) == pytest.approx((74, 2**0.5))
    assert "74.00 ± 1.41" in to_text(table)


def test_the_best_is_bold_the_second_underlined_and_lower_is_better_for_distances():
    text = to_markdown(build_table(two_methods(), ["disc"]))
    assert "| fedavg | <u>85.00</u> | **70.00** | **77.50** |" in text
    assert "| elcfs | **93.00** | <u>60.00</u> | <u>76.50</u> |" in text
    assert "| fedavg | <u>5.00</u> | **9.00** | **7.00** |" in text
    assert "| elcfs | **4.00** | <u>12.00</u> | <u>8.00</u> |" in text


def test_equal_printed_values_share_a_mark_and_the_third_value_and_a_single_method_have_none():
    results = [result(name, "A", [dice]) for name, dice in (("fedavg", 0.5), ("x", 0.800001), ("y", 0.8), ("z", 0.7))]
    text = to_markdown(build_table(results, ["disc"]))
    for words in ("| fedavg | 50.00 |", "| x | **80.00** |", "| y | **80.00** |", "| z | <u>70.00</u> |"):
        assert words in text
    text = to_markdown(build_table([result("fedavg", "A", [0.8])], ["disc"]))
    assert "| fedavg | 80.00 | 0/1 |" in text, "the average of a single site is that site's score"
    assert "p (n)" not in text


def test_the_test_is_over_all_unseen_patients_averaged_over_seeds():
    """Seven patients at two sites, each better by its own amount in the mean of two seeds, though worse in one of them.

    The exact two-sided p of seven differences of one sign is 2 / 2**7.
    """
    results = []
    for site, n in (("A", 4), ("B", 3)):
        base = np.linspace(0.5, 0.7, n)
        gain = np.linspace(0.01, 0.06, n) + (0.003 if site == "A" else 0)
        results += [result("fedavg", site, list(base), seed=seed) for seed in (0, 1)]
        results.append(result("elcfs", site, list(base - gain), seed=0))
        results.append(result("elcfs", site, list(base + 3 * gain), seed=1))
    table = build_table(results, ["disc"])
    actual = line_of(table, "elcfs")
    assert (actual.difference.n, actual.difference.reason) == (7, None)
    assert actual.difference.p == pytest.approx(2 / 2**7)
    assert "0.016 (7)" in to_text(table)
    assert line_of(table, "fedavg").difference is None


def test_too_few_patients_give_no_p_value_and_a_note_and_without_the_baseline_there_is_no_test():
    table = build_table(two_methods(), ["disc"])
    assert line_of(table, "elcfs").difference.p is None and "- (3)" in to_text(table)
    (note,) = (note for note in table.notes if note.startswith("no p for some metric, because only 3 matched patients"))
    assert note.endswith(": elcfs")
    table = build_table(two_methods(), ["disc"], baseline="fedprox")
    assert line_of(table, "elcfs").difference is None
    assert "fedprox was not run, so these methods are not compared with it: elcfs, fedavg" in table.notes
    assert "p (n)" not in to_text(table)


def test_a_missing_fold_and_its_average_are_a_dash_with_a_note():
    table = build_table(two_methods()[:3], ["disc"])
    actual = line_of(table, "elcfs")
    assert (actual.cells[1], actual.average) == (None, None)
    assert "| elcfs | **93.00** | - | - |" in to_markdown(table)
    assert "not run: elcfs, unseen B, seed 0" in table.notes
    assert (line_of(table, "elcfs").worst_site, line_of(table, "fedavg").worst_site) == (None, "B")


def test_planned_runs_that_are_missing_and_runs_of_other_images_are_noted():
    """A whole method, a site or a seed may be missing."""
    planned = {(method, site, seed) for method in ("fedavg", "elcfs", "ccst") for site in "ABC" for seed in (0, 1)}
    table = build_table(two_methods()[:3], ["disc"], planned=planned - {("elcfs", "A", 1), ("elcfs", "B", 1)})
    assert [note for note in table.notes if note.startswith("not run")] == [
        "not run: ccst, at no unseen site and with no seed, so it has no row",
        "not run: elcfs, unseen B, seed 0",
        "not run: elcfs, unseen C, seeds 0, 1",
        "not run: fedavg, unseen A, seed 1",
        "not run: fedavg, unseen B, seed 1",
        "not run: fedavg, unseen C, seeds 0, 1",
    ]
    other_images = two_methods()
    other_images[2]["rows"].pop()
    notes = "\n".join(build_table(other_images, ["disc"]).notes)
    assert "A: the runs do not score the same images" in notes and "not run" not in notes


def test_a_missed_organ_is_counted_and_lowers_the_mean_and_an_absent_one_is_in_neither_mean_nor_count():
    worse = two_methods()
    worse[2]["rows"][1] |= {"dice": 0.0, "hd95_percent_of_diagonal": 500.0, "status": "missed"}
    before, after = (line_of(build_table(r, ["disc"]), "elcfs") for r in (two_methods(), worse))
    assert after.cells[0].mean < before.cells[0].mean
    assert (after.n_missed, after.n_cases) == (1, 3)
    assert "1/3" in to_text(build_table(worse, ["disc"]))
    results = [result("fedavg", "A", [0.8])]
    results[0]["rows"].append(case("A", "p9", None, status="absent"))
    actual = line_of(build_table(results, ["disc"]), "fedavg")
    assert (actual.cells[0].mean, actual.n_cases) == (pytest.approx(80), 1)


def test_each_unit_has_its_own_block_and_mixed_units_are_not_averaged():
    results = [result("fedavg", "A", [0.8], [3.0], unit="mm"), result("fedavg", "B", [0.8], [7.0])]
    table = build_table(results, ["disc"])
    units = ["Dice %", "HD95 mm", "HD95 % of diagonal", "HD mm", "HD % of diagonal"]
    assert [f"{block.name} {block.unit}" for block in table.blocks] == units
    actual = line_of(table, "fedavg", "hd95_mm")
    assert (actual.cells[0].mean, actual.cells[1], actual.average) == (3.0, None, None)
    mixed = [result("fedavg", "A", [0.8], [3.0], unit="mm")]
    mixed[0]["rows"].append(case("A", "p9", 0.8, 7.0))
    assert line_of(build_table(mixed, ["disc"]), "fedavg", "hd95_mm").cells == (None,)


def test_a_row_with_varied_settings_is_tested_against_the_baseline_with_the_same_settings():
    """elcfs, k=1 is better than fedavg, k=1 for every patient and equal to fedavg, k=2; k=3 has no FedAvg run."""
    low, high = [0.5 + 0.01 * k for k in range(8)], [0.6 + 0.02 * k for k in range(8)]
    scores = {"elcfs, k=1": high, "elcfs, k=2": high, "elcfs, k=3": high, "fedavg, k=1": low, "fedavg, k=2": high}
    results = [result(m, "A", dice) | {"baseline": f"fedavg, {m[-3:]}"} for m, dice in scores.items()]
    table = build_table(results, ["disc"])
    assert [actual.method for actual in table.blocks[0].lines][:2] == ["fedavg, k=1", "fedavg, k=2"]
    assert line_of(table, "elcfs, k=1").difference.p == pytest.approx(2 / 2**8), "exact and two-sided: all eight better"
    assert line_of(table, "elcfs, k=2").difference.p is None and line_of(table, "elcfs, k=2").difference.n == 8
    assert line_of(table, "elcfs, k=3").difference is None
    assert "fedavg, k=3 was not run, so these methods are not compared with it: elcfs, k=3" in table.notes
    assert line_of(table, "fedavg, k=2").difference is None
    assert sum("against fedavg with the same varied settings" in note for note in table.notes) == 1
    assert not any("the same varied" in note for note in build_table(two_methods(), ["disc"]).notes)


def test_structures_keep_their_order_and_the_baseline_comes_first():
    results = two_methods()[::-1]
    for actual in results:
        actual["rows"] += [row | {"structure": "cup"} for row in actual["rows"]]
    table = build_table(results, ["disc", "cup"])
    assert list(dict.fromkeys(b.structure for b in table.blocks)) == ["disc", "cup"]
    assert [actual.method for actual in table.blocks[0].lines] == ["fedavg", "elcfs"]


@pytest.mark.parametrize("render", [to_markdown, to_text, to_json])
def test_every_format_states_phantom_rule_seeds_unit_and_the_meaning_of_hd95(render):
    text = render(build_table(two_methods(data="phantom", selection="source_validation", seed=3), ["disc"]))
    unit = "distances in: % of diagonal"
    for words in (PHANTOM, "source_validation", "; seed 3", unit, "larger of the two directed 95th percentiles"):
        assert words in text
    assert PHANTOM not in render(build_table(two_methods(), ["disc"]))


def test_csv_has_one_value_in_each_line_and_states_phantom():
    rows = list(csv.DictReader(io.StringIO(to_csv(build_table(two_methods(data="phantom")[:3], ["disc"])))))
    assert {row["data"] for row in rows} == {"phantom"}
    assert len(rows) == 3 * 2 * 3 + 3 * 2 * 3  # measures or failures, methods, two sites and the average or all
    first = rows[0]
    assert (first["structure"], first["metric"], first["unit"], first["method"]) == ("disc", "dice", "%", "fedavg")
    assert (first["unseen_site"], first["mean"], first["sd"], first["n_seeds"]) == ("A", "85.000000", "", "1")
    missing = next(row for row in rows if row["method"] == "elcfs" and row["unseen_site"] == "average")
    assert (missing["mean"], missing["p"], missing["n_pairs"], missing["n_cases"]) == ("", "", "", "2")


def test_json_contains_the_cells():
    table = build_table(two_methods(), ["disc"])
    assert json.loads(to_json(table)) == to_json_dict(table)
    known = {"mean": pytest.approx(85), "n_seeds": 1, "n_patients": 2}
    cell = to_json_dict(table)["blocks"][0]["lines"][0]["cells"][0]
    assert cell == dict.fromkeys(("sd", "low", "high")) | known


def test_text_is_aligned_and_has_escape_codes_only_for_a_terminal():
    table = build_table(two_methods(), ["disc"])
    plain, styled = to_text(table), to_text(table, isatty=True)
    assert "\033" not in plain and "\033[1m70.00\033[0m" in styled
    assert re.sub(r"\033\[\d+m", "", styled) == plain
    head, *lines = plain.split("\n\n")[1].splitlines()[1:]
    ends = {name: head.index(name) + len(name) for name in ("A", "B", "average", "missed")}
    expected = (("85.00", "70.00", "77.50", "0/3"), ("93.00", "60.00", "76.50", "0/3"))
    for text, values in zip(lines, expected, strict=True):
        assert [text[:end].endswith(value) for end, value in zip(ends.values(), values)] == [True] * 4


OTHER_LIMIT = two_methods()
OTHER_LIMIT[0]["summary"] = replace(SCORING, failure_dice=0.5).summarise(OTHER_LIMIT[0]["rows"])


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "no finished run"),
        ([result("fedavg", "A", [0.8]), result("x", "A", [0.8], data="phantom")], r"data \('phantom' and 'real'\)"),
        ([result("fedavg", "A", [0.8]), result("x", "A", [0.8], selection="best")], r"selection \('best' and 'last'\)"),
        ([result("fedavg", "A", [0.8])] * 2, "seed 0 comes twice"),
        ([scored("fedavg", "A", [case("A", "p", 0.8, role="seen")])], "is among those of the unseen site 'A'"),
        ([scored("fedavg", "A", [case("B", "p", 0.8)])], "is among those of the unseen site 'A'"),
        (OTHER_LIMIT, "Dice < 0.5.*and.*Dice < 0.7"),
    ],
)
def test_runs_and_rows_that_cannot_share_a_table_are_rejected(results, words):
    with pytest.raises((UserError, ValueError), match=words):
        build_table(results, ["disc"])


def summary_of(rows, data="phantom", **others):
    return summarise(rows) | {"data": data, "selection": "last"} | others


def cells_of(text):
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


RUN = [
    case("A", "1", 0.90, 2.0, role="seen"),
    case("A", "2", 0.80, 4.0, role="seen"),
    case("B", "1", 0.75, 5.0, role="seen"),
    case("C", "1", 0.60, 10.0),
    case("C", "2", 0.00, 50.0, "missed"),
    case("C", "3", None, status="absent"),
]


def test_the_closing_table_has_seen_then_unseen_sites_then_means_and_the_gap():
    """Seen (85 + 75)/2 = 80; unseen (60 + 0)/2 = 30; gap +50 points. HD95: (3 + 5)/2 = 4; 30; gap -26 %."""
    text = closing_table(summary_of(RUN, method="elcfs", selected_round=3, rounds=5))
    lines = cells_of(text)
    assert lines[:2] == [[PHANTOM], ["elcfs; round 3 of 5 by the rule 'last'"]]
    assert lines[3:10] == [
        ["site", "structure", "patients", "images", "Dice %", "HD95", "ASSD", "missed"],
        ["A", "disc", "2", "2", "85.00 ± 7.07", "3.00 ± 1.41 % of diagonal", "-", "0"],
        ["B", "disc", "1", "1", "75.00", "5.00 % of diagonal", "-", "0"],
        ["C (UNSEEN)", "disc", "2", "2", "30.00 ± 42.43", "30.00 ± 28.28 % of diagonal", "-", "1"],
        ["mean seen", "disc", "3", "3", "80.00", "4.00 % of diagonal", "-", "0"],
        ["mean UNSEEN", "disc", "2", "2", "30.00", "30.00 % of diagonal", "-", "1"],
        ["gap: seen - unseen", "disc", "+50.00", "-26.00 % of diagonal"],
    ]
    assert "left out of all means: 1" in text
    assert "; ± is the sd over patients, each of whom counts with the mean of the images.\n" in text


def test_every_table_says_that_a_run_was_not_deterministic_and_that_it_was_trained_in_bf16():
    rough = {"deterministic": False, "precision": "bf16"}
    sentence = "NOT DETERMINISTIC: the same config and seed give other weights each time"
    assert f"\n{sentence}\ntrained in bf16\n" in closing_table(summary_of(RUN, **rough))
    summaries = {"elcfs": summary_of(RUN), "fedavg": summary_of(RUN, **rough)}
    table = build_table([result(method, "A", [0.8], summary=of_run) for method, of_run in summaries.items()], ["disc"])
    assert [note for note in table.notes if "DETERMINISTIC" in note or "bf16" in note] == [
        f"fedavg: {sentence}",
        "fedavg: trained in bf16",
    ]
    assert "DETERMINISTIC" not in closing_table(summary_of(RUN))


def test_a_model_that_did_not_learn_is_named_at_the_end_of_its_run_and_in_a_comparison():
    below = closing_table(summary_of(RUN, learning=NOT_LEARNED)).splitlines()
    assert below[2] == (
        "DID NOT LEARN: on the validation images of the source sites, the model has Dice 20.00 %, a trivial prediction "
        "(every pixel is foreground) 25.00 %; train for more rounds or on more images"
    )
    as_good = NOT_LEARNED | {"images": "training", "trivial": 0.1, "start": 0.2}
    sentence = "on the training images of the source sites, the model has Dice 20.00 %, its initial weights 20.00 %;"
    assert sentence in closing_table(summary_of(RUN, learning=as_good))
    no_number = closing_table(summary_of(RUN, learning=NOT_LEARNED | {"score": float("nan")}))
    assert "the source sites, the Dice of the model is not a number; train with a lower learning rate" in no_number
    for fine in ({}, {"learning": NOT_LEARNED | {"learned": True}}):
        assert "LEARN" not in closing_table(summary_of(RUN, **fine))
    summaries = [summary_of(RUN, unseen_site="A", learning=NOT_LEARNED | {"learned": seed == 1}) for seed in range(2)]
    results = [result("fedavg", "A", [0.8], seed=seed, summary=of_run) for seed, of_run in enumerate(summaries)]
    notes = [note for note in build_table(results, ["disc"]).notes if "LEARN" in note]
    assert notes == [
        "fedavg: DID NOT LEARN in 1 of 2 runs: on the source sites, a trivial prediction or the initial weights are as "
        "good as the model (unseen A seed 0)"
    ]


def test_the_closing_table_shows_no_distance_for_a_site_of_two_units():
    rows = [case("A", "1", 0.9, 2.0), case("A", "2", 0.9, 2.0, unit="mm")]
    lines = cells_of(closing_table(summary_of(rows)))
    assert ["A (UNSEEN)", "disc", "2", "2", "90.00 ± 0.00", "-", "-", "0"] in lines


def test_a_validation_site_has_its_own_line_and_is_in_no_mean():
    rows = [*RUN, case("V", "1", 0.10, 3.0, role="validation")]
    lines = cells_of(closing_table(summary_of(rows)))
    assert [actual[0] for actual in lines[4:9]] == ["A", "B", "V (VALIDATION)", "C (UNSEEN)", "mean seen"]
    without = cells_of(closing_table(summary_of(RUN)))
    assert [line for line in lines[8:] if line[0] != "V (VALIDATION)"] == without[7:]


def test_the_end_of_a_run_shows_calibration_and_failures_of_each_site_and_of_all_patients_together():
    rows = [row | {"ece": 0.02 * place} for place, row in enumerate(RUN[:-1], start=1)]
    text = closing_table(summary_of([*rows, RUN[-1]]))
    lines = cells_of(text)
    start = lines.index(["calibration and failures"]) + 1
    assert lines[start : start + 6] == [
        ["site", "structure", "ECE %", "Dice < 0.7", "missed", "false alarm"],
        ["A", "disc", "3.00 ± 1.41", "0/2 [0, 84] %", "0/2 [0, 84] %", "-"],
        ["B", "disc", "6.00", "0/1 [0, 98] %", "0/1 [0, 98] %", "-"],
        ["C (UNSEEN)", "disc", "9.00 ± 1.41", "2/2 [16, 100] %", "1/2 [1, 99] %", "0/1 [0, 98] %"],
        ["mean seen", "disc", "4.50", "0/3 [0, 71] %", "0/3 [0, 71] %", "-"],
        ["mean UNSEEN", "disc", "9.00", "2/2 [16, 100] %", "1/2 [1, 99] %", "0/1 [0, 98] %"],
    ]
    assert "Clopper" in text and "bounding box" in text
    without_probabilities = closing_table(summary_of(RUN))
    assert "ECE" not in without_probabilities and "Dice < 0.7" in without_probabilities


def test_the_closing_table_has_one_line_about_clients_and_no_gap_without_an_unseen_site():
    text = closing_table(summary_of(RUN[:3], data="real"))
    assert text.startswith("real data\n") and "gap" not in text and "UNSEEN" not in text
    clients = {"n": 30, "per_round": 10, "partition": "dirichlet 0.5"}
    text = closing_table(summary_of(RUN, clients=clients, source_sites=["A", "B", "C"]))
    assert text.splitlines()[2] == "30 clients of 3 sites, 10 per round, partition: dirichlet 0.5"
    assert text.count("client") == 1


def test_validation_sites_have_the_same_table_with_their_own_heading():
    results = two_methods()
    for actual in results:
        actual["validation_site"] = actual.pop("unseen_site")
        for row in actual["rows"]:
            row["role"] = "validation"
    table = build_table(results[:3], ["disc"], role="validation")
    assert "each column is the validation site, which did not train either" in to_text(table)
    assert "not run: elcfs, validation B, seed 0" in table.notes
    assert "validation_site" in to_csv(table, "validation").splitlines()[0]
    assert [cell.mean for cell in line_of(table, "fedavg").cells] == pytest.approx([85, 70])
    with pytest.raises(ValueError, match="is among those of the validation site 'A'"):
        build_table([results[0] | {"rows": [case("A", "p1", 0.8)]}], ["disc"], role="validation")


def test_latex_marks_the_best_and_the_second_and_escapes_special_characters():
    results = [
        scored(method, "A_1", [mask_row("A_1", f"p{k}", dice, structure="organ_1") for k in range(6)], data="phantom")
        for method, dice in (("a", 0.5), ("b&", 0.75))
    ]
    text = to_latex(build_table(results, ["organ_1"], baseline="a"))
    assert r"A\_1" in text and r"b\& & \textbf{75.00}" in text and r"a & \underline{50.00}" in text
    caption = r"\caption{organ\_1: Dice (\%), higher is better. SYNTHETIC PHANTOM DATA: says nothing about hospitals}"
    assert caption in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3, "scores, differences and failures"
    assert escape_latex("50 % of a_b & {c} #1 $2 ~ ^ \\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
