"""What an adaptation to the unseen site's images changed: gain and harm, with values worked out by hand."""

import json
from types import SimpleNamespace

import pytest
from made_comparisons import class_row
from made_runs import CLASSES, MASKS, made_comparison, made_run, mask_row, mask_rows, write_rows

from medfed.outputs.bundle.model_card import card_notes
from medfed.outputs.run_folder import UNADAPTED
from medfed.outputs.tables.run_table import closing_table
from medfed.report import main
from medfed.results.adaptation import adaptation_of, effects_of
from medfed.results.scores import read_scores, table_of


def masks(dice, site="A"):
    """Rows of patients p0, p1, ... with these Dice values; None: neither mask contains the structure."""
    return [mask_row(site, f"p{k}", d, "absent" if d is None else "ok") for k, d in enumerate(dice)]


def effect(without, adapted, scoring=MASKS):
    """The only effect; the arguments are the rows of one run, or of several runs."""
    without, adapted = ([runs] if isinstance(runs[0], dict) else runs for runs in (without, adapted))
    tables = ([table_of(rows, scoring.metrics) for rows in runs] for runs in (adapted, without))
    (actual,) = effects_of(scoring, *tables)
    return SimpleNamespace(**actual)


def test_mean_change_interval_share_and_worst_loss_are_those_worked_out_by_hand():
    """Changes +2 -1 +2 +2 +2 points: mean 1.4, sd sqrt(1.8), standard error 0.6; t(4) = 2.776 gives 1.4 +- 1.666.

    One of five became worse; Clopper and Pearson: P(X >= 1) = 2.5 % for the share 1 - 0.975^(1/5) = 0.51 %.
    """
    actual = effect(masks([0.80, 0.70, 0.60, 0.50, 0.40]), masks([0.82, 0.69, 0.62, 0.52, 0.42]))
    assert (actual.n_patients, actual.n_worse) == (5, 1)
    assert (actual.without, actual.adapted) == pytest.approx((60.0, 61.4))
    assert (actual.low, actual.high) == pytest.approx((1.4 - 2.776445 * 0.6, 1.4 + 2.776445 * 0.6))
    assert actual.worse_low == pytest.approx(1 - 0.975**0.2)
    upper = actual.worse_high  # P(X <= 1) = 2.5 %
    assert (1 - upper) ** 5 + 5 * upper * (1 - upper) ** 4 == pytest.approx(0.025)
    assert (actual.worst_patient, actual.worst_without, actual.worst_adapted) == (
        "A/p1",
        pytest.approx(70),
        pytest.approx(69),
    )


def test_without_a_loss_there_is_no_worst_patient_and_a_patient_counts_once_with_the_mean_over_the_runs():
    """None of 5 became worse: the upper end is 1 - 0.025^(1/5) = 52 %. Equal changes have no interval.

    Two seeds: the changes -10 and +12 points of p0 are +1 on average, so p0 did not become worse.
    """
    actual = effect(masks([0.5] * 5), masks([0.5] * 5))
    assert (actual.n_worse, actual.worst_patient, actual.low) == (0, None, None)
    assert (actual.worse_low, actual.worse_high) == pytest.approx((0, 1 - 0.025**0.2))
    actual = effect([masks([0.5, 0.5])] * 2, [masks([0.4, 0.5]), masks([0.62, 0.48])])
    assert (actual.n_patients, actual.n_worse, actual.worst_patient) == (2, 1, "A/p1")
    assert actual.adapted - actual.without == pytest.approx((1 - 1) / 2)


def test_sites_have_equal_weights_and_each_needs_five_patients_for_an_interval():
    """+2 points at A with five patients and -4 at B with two: (2 - 4) / 2 = -1; two of seven became worse."""
    actual = effect(masks([0.5] * 5) + masks([0.5] * 2, "B"), masks([0.52] * 5) + masks([0.46] * 2, "B"))
    assert actual.adapted - actual.without == pytest.approx(-1)
    assert (actual.n_patients, actual.n_worse, actual.low, actual.worst_patient) == (7, 2, None, "B/p0")


def test_a_false_alarm_that_an_adaptation_causes_is_a_loss_and_one_that_it_removes_a_gain():
    """p0: nothing to find and nothing found, then a false alarm: 100 to 0. p1: the reverse. p2 is absent in both."""
    actual = effect(masks([None, 0.0, None]), masks([0.0, None, None]))
    assert (actual.n_patients, actual.n_worse, actual.worst_patient) == (2, 1, "A/p0")
    assert (actual.worst_without, actual.worst_adapted) == (100.0, 0.0)


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
    assert (actual.structure, actual.n_patients, actual.n_worse, actual.worst_patient) == ("all", 2, 1, "A/s0")
    assert (actual.worst_without, actual.worst_adapted) == (100.0, 50.0)


def adapted_run(path, rows, unadapted, by="tent"):
    """Add what a run with an adaptation writes to the folder of a finished run."""
    summary = json.loads((path / "summary.json").read_text())
    unseen, before = (table_of(own, MASKS.metrics) for own in ([r for r in rows if r["role"] == "unseen"], unadapted))
    summary |= {"transductive": True, "transductive_by": [by]}
    summary["adaptation"] = adaptation_of(by, MASKS, unseen, before)
    (path / "summary.json").write_text(json.dumps(summary))
    write_rows(path / UNADAPTED, unadapted)
    return summary


def test_a_runs_table_card_and_report_state_the_harm_and_the_card_names_no_patient(tmp_path, unpainted_figures):
    """Patient p0 loses 3 points, from 83 to 80; the other six patients keep their scores: -3 / 7 = -0.43."""
    rows = mask_rows(["A", "B"], "C")
    path = made_run(tmp_path / "run", rows=rows)
    unadapted = [row | {"dice": 0.83} if row["patient"] == "p0" else row for row in rows if row["role"] == "unseen"]
    summary = adapted_run(path, rows, unadapted)
    harm = "1 of 7 became worse (14% [0%, 58%]); the largest loss is 3.00 points (C/p0, from 83.00 to 80.00)"
    table, card = closing_table(summary), card_notes(summary)
    assert "Tent at C: disc, Dice: mean change -0.43 points [" in table and harm in table
    assert "all batches before it" in table and "exact binomial interval" in table
    assert "1 of 7 became worse" in card and "p0" not in card
    assert main([str(path), "--quiet"]) == 0
    assert harm in (path / "report.html").read_text()


def test_a_comparison_states_the_harm_over_all_sites_in_its_notes(tmp_path, unpainted_figures):
    """At each of three sites with 7 patients, p0 loses 3 points; the report reads the same rows."""
    comparison = made_comparison(tmp_path / "all", ("fedavg", "elcfs"), seeds=(0,))
    for path in comparison.glob("elcfs/*/*"):
        site = path.parent.name.removeprefix("unseen_")
        rows = mask_rows(sorted({*"ABC"} - {site}), site, 0.02)
        assert read_scores(path / "cases.csv", MASKS.metrics).value.equals(table_of(rows, MASKS.metrics).value)
        unseen = [row for row in rows if row["role"] == "unseen"]
        adapted_run(
            path, rows, [row | {"dice": row["dice"] + 0.03 * (row["patient"] == "p0")} for row in unseen], "window"
        )
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "elcfs: window match: disc, Dice: mean change -0.43 points [" in page and "over 21 patients" in page
    assert "3 of 21 became worse (14% [3%, 36%]); the largest loss is 3.00 points (" in page
    assert "elcfs: TRANSDUCTIVE (window): at sites that did not train" in page and "fedavg: window" not in page


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [(UNADAPTED, "site,", "site"), ("summary.json", "n_worse", "n_wors"), ("summary.json", '"tent"', '"tints"')],
)
def test_a_damaged_adaptation_is_named_in_one_sentence(tmp_path, capsys, unpainted_figures, name, old, new):
    rows = mask_rows(["A", "B"], "C")
    path = made_run(tmp_path / "run", rows=rows)
    adapted_run(path, rows, [row for row in rows if row["role"] == "unseen"])
    (path / name).write_text((path / name).read_text().replace(old, new))
    for _ in range(2 if name == UNADAPTED else 1):
        assert main([str(path), "--quiet"]) == 2
        error = capsys.readouterr().err
        assert f"{name}: " in error and error.count("\n") == 1
        (path / name).unlink(missing_ok=True)  # the second time, it is missing
