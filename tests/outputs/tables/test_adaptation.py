"""What an adaptation to the unseen site's images changed: gain and harm, with values worked out by hand."""

import json
from types import SimpleNamespace

import pytest
from made_comparisons import class_row
from made_runs import CLASSES, MASKS, finish_again, made_comparison, made_run, mask_row, mask_rows, write_rows

from medfed.outputs.bundle.model_card import card_notes
from medfed.outputs.run_folder import UNADAPTED
from medfed.outputs.tables.run_table import closing_table
from medfed.report import main
from medfed.results.notes import adaptation_notes, adaptation_of
from medfed.results.scores import table_of


def masks(dice, site="A"):
    """Rows of patients p0, p1, ... with these Dice values; None: neither mask contains the structure."""
    return [mask_row(site, f"p{k}", d, "absent" if d is None else "ok") for k, d in enumerate(dice)]


def effect(without, adapted, scoring=MASKS):
    """The only effect."""
    adapted, without = (table_of(rows, scoring.metrics) for rows in (adapted, without))
    (actual,) = adaptation_of("tent", scoring, adapted, without)["effects"]
    return SimpleNamespace(**actual)


def test_mean_change_interval_and_largest_loss_are_those_worked_out_by_hand():
    """Changes +2 -1 +2 +2 +2 points: mean 1.4, sd sqrt(1.8), standard error 0.6; t(4) = 2.776 gives 1.4 +- 1.666."""
    actual = effect(masks([0.80, 0.70, 0.60, 0.50, 0.40]), masks([0.82, 0.69, 0.62, 0.52, 0.42]))
    assert (actual.n_patients, actual.n_worse, actual.largest_loss) == (5, 1, pytest.approx(1))
    assert (actual.without, actual.adapted) == pytest.approx((60.0, 61.4))
    assert (actual.low, actual.high) == pytest.approx((1.4 - 2.776445 * 0.6, 1.4 + 2.776445 * 0.6))
    same = effect(masks([0.5] * 5), masks([0.5] * 5))
    assert (same.n_worse, same.largest_loss, same.low) == (0, 0, None), "equal changes have no interval"


def test_sites_have_equal_weights_and_each_needs_five_patients_for_an_interval():
    """+2 points at A with five patients and -4 at B with two: (2 - 4) / 2 = -1; two of seven became worse."""
    actual = effect(masks([0.5] * 5) + masks([0.5] * 2, "B"), masks([0.52] * 5) + masks([0.46] * 2, "B"))
    assert actual.adapted - actual.without == pytest.approx(-1)
    assert (actual.n_patients, actual.n_worse, actual.low) == (7, 2, None)


def test_a_false_alarm_that_an_adaptation_causes_is_a_loss_and_one_that_it_removes_a_gain():
    """p0: nothing to find and nothing found, then a false alarm: 100 to 0. p1: the reverse. p2 is absent in both."""
    actual = effect(masks([None, 0.0, None]), masks([0.0, None, None]))
    assert (actual.n_patients, actual.n_worse, actual.largest_loss) == (2, 1, 100)


def test_a_structure_may_have_the_name_that_stands_for_classification():
    of_disc, of_all = (
        effect(*([row | {"structure": name} for row in masks(dice)] for dice in ([0.9, 0.8, None], [0.9, 0.7, 0.0])))
        for name in ("disc", "all")
    )
    assert vars(of_all) == vars(of_disc) | {"structure": "all"} and of_disc.n_worse == 2


def test_an_image_that_is_classified_wrongly_after_an_adaptation_makes_its_patient_worse():
    """s0 has two images: both correct, then one. s1 has one image, which becomes correct."""

    def rows(*correct):
        return [
            class_row("A", patient, f"i{k}", "b", 0.8 if is_correct else 0.2)
            for k, (patient, is_correct) in enumerate(zip(("s0", "s0", "s1"), correct, strict=True))
        ]

    actual = effect(rows(1, 1, 0), rows(1, 0, 1), CLASSES)
    assert (actual.structure, actual.n_patients, actual.n_worse, actual.largest_loss) == ("all", 2, 1, 50)


def adapted_run(path, rows, unadapted, by="tent"):
    """Add what a run with an adaptation writes to the folder of a finished run."""
    summary = json.loads((path / "summary.json").read_text())
    unseen, before = (table_of(own, MASKS.metrics) for own in ([r for r in rows if r["role"] == "unseen"], unadapted))
    summary |= {"transductive": True, "transductive_by": [by]}
    summary["adaptation"] = adaptation_of(by, MASKS, unseen, before)
    write_rows(path / UNADAPTED, unadapted)
    finish_again(path, **summary)
    return summary


def losing(rows, loss=0.03):
    """The rows of the unseen site without an adaptation that makes patient p0 worse."""
    unseen = [row for row in rows if row["role"] == "unseen"]
    return [row | {"dice": row["dice"] + loss * (row["patient"] == "p0")} for row in unseen]


def test_a_runs_table_card_and_report_state_the_harm(tmp_path, unpainted_figures):
    """Patient p0 loses 3 points; the other six patients keep their scores: -3 / 7 = -0.43."""
    rows = mask_rows(["A", "B"], "C")
    path = made_run(tmp_path / "run", rows=rows)
    summary = adapted_run(path, rows, losing(rows))
    harm = "1 of 7 patients became worse, by up to 3.00 points"
    table = closing_table(summary)
    assert "Tent at C: disc, Dice: mean change -0.43 points [" in table and harm in table
    assert "all batches before it" in table and harm in card_notes(summary)
    assert main([str(path), "--quiet"]) == 0
    assert harm in (path / "report.html").read_text()
    notes = adaptation_notes([summary, summary | {"unseen_site": "D"}])
    (note,) = notes
    assert (
        "Tent at C, D: disc, Dice: mean change -0.43 points (" in note
        and "2 of 14 patients became worse (in 2 runs; a" in note
    )


def test_a_comparison_states_the_harm_of_its_runs_in_its_notes(tmp_path, unpainted_figures):
    comparison = made_comparison(tmp_path / "all", ("fedavg", "elcfs"), seeds=(0,))
    for path in comparison.glob("elcfs/*/*"):
        site = path.parent.name.removeprefix("unseen_")
        rows = mask_rows(sorted({*"ABC"} - {site}), site, 0.02)
        adapted_run(path, rows, losing(rows), "window")
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "elcfs: window match at A, B, C: disc, Dice: mean change -0.43 points (" in page
    assert "3 of 21 patients became worse (in 3 runs; a patient counts once in each), by up to 3.00 points" in page
    assert "elcfs: TRANSDUCTIVE (window): at sites that did not train" in page and "fedavg: window" not in page
