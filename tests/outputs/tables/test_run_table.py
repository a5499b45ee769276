"""The table at the end of a run."""

import re

from made_runs import NOT_LEARNED, mask_row, scores_of

from medfed.outputs.tables.run_table import closing_table

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"


def case(site, patient, dice, hd95=None, status="ok", role="unseen", unit="percent_of_diagonal"):
    distances = {f"hd95_{unit}": hd95, f"hd_{unit}": None if hd95 is None else 2 * hd95}
    return mask_row(site, patient, dice, status, role, **distances)


def summary_of(rows, data="phantom", **others):
    return scores_of(rows) | {"data": data, "selection": "last"} | others


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
        ["site", "structure", "Dice %", "HD95", "missed", "patients", "images"],
        ["A", "disc", "85.00", "3.00 % of diagonal", "0/2", "2", "2"],
        ["B", "disc", "75.00", "5.00 % of diagonal", "0/1", "1", "1"],
        ["C (UNSEEN)", "disc", "30.00", "30.00 % of diagonal", "1/2", "2", "2"],
        ["mean seen", "disc", "80.00", "4.00 % of diagonal", "0/3", "3", "3"],
        ["mean UNSEEN", "disc", "30.00", "30.00 % of diagonal", "1/2", "2", "2"],
        ["gap: seen - unseen", "disc", "+50.00", "-26.00 % of diagonal"],
    ]
    assert "left out of all means: 1" in text
    method = "[] is the 95 % interval over patients (Student t over patients; on the logit scale"
    assert method in closing_table(summary_of(RUN), explain=True) and method not in text and "±" not in text


def test_the_column_of_missed_structures_is_there_only_if_one_was_missed():
    head = ["site", "structure", "Dice %", "HD95"]
    assert cells_of(closing_table(summary_of(RUN[:4])))[3] == [*head, "patients", "images"]
    assert cells_of(closing_table(summary_of([*RUN[:3], RUN[4]])))[3] == [*head, "missed", "patients", "images"]


def test_only_patients_with_the_structure_are_counted():
    """Two patients have the structure and ten have not; a false alarm would be possible for these ten."""
    rows = [*RUN[:2], *(case("A", f"without {k}", None, status="absent", role="seen") for k in range(10))]
    lines = cells_of(closing_table(summary_of(rows)))
    assert ["A", "disc", "85.00", "3.00 % of diagonal", "2", "2"] in lines
    assert ["A", "disc", "-", "-", "-", "-"] in cells_of(closing_table(summary_of(rows[2:])))


def test_a_site_of_five_patients_has_its_interval_in_the_table():
    rows = [case("C", str(k), dice, 3.0 + k) for k, dice in enumerate((0.82, 0.85, 0.88, 0.9, 0.95))]
    scores = {score["metric"]: score for score in summary_of(rows)["scores"] if score["site"] == "C"}
    ends = {name: f"[{scores[name]['low']:.1f}, {scores[name]['high']:.1f}]" for name in ("dice", "hd95")}
    line = ["C (UNSEEN)", "disc", f"88.00 {ends['dice']}", f"5.00 % of diagonal {ends['hd95']}", "5", "5"]
    assert line in cells_of(closing_table(summary_of(rows)))


def test_a_gap_without_an_average_is_a_dash_and_one_over_other_units_too():
    """HD95: of A in % of the diagonal, of C in mm."""
    rows = [RUN[0], case("C", "1", 0.6, 10.0, unit="mm")]
    assert ["gap: seen - unseen", "disc", "+30.00", "-"] in cells_of(closing_table(summary_of(rows)))
    absent = case("C", "1", None, status="absent")
    assert "gap" not in closing_table(summary_of([RUN[0], absent]))


def test_false_alarms_are_counted_below_the_table():
    rows = [RUN[0], case("C", "1", 0.0, 50.0, "false_alarm"), case("C", "2", None, status="absent")]
    note = "False alarms (patients with a structure predicted where the reference has none): 1.\n"
    assert note in closing_table(summary_of(rows)) and "False alarms" not in closing_table(summary_of(RUN))


def test_a_table_says_that_a_run_was_not_deterministic_and_that_it_was_trained_in_bf16():
    rough = {"deterministic": False, "precision": "bf16"}
    sentence = "NOT DETERMINISTIC: the same config and seed give other weights each time"
    assert f"\n{sentence}\ntrained in bf16\n" in closing_table(summary_of(RUN, **rough))
    assert "DETERMINISTIC" not in closing_table(summary_of(RUN))


def test_a_model_that_did_not_learn_is_named_at_the_end_of_its_run():
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


def test_a_validation_site_has_its_own_line_and_is_in_no_mean():
    rows = [*RUN, case("V", "1", 0.10, 3.0, role="validation")]
    lines = cells_of(closing_table(summary_of(rows)))
    assert [actual[0] for actual in lines[4:9]] == ["A", "B", "V (VALIDATION)", "C (UNSEEN)", "mean seen"]
    without = cells_of(closing_table(summary_of(RUN)))
    assert [line for line in lines[8:] if line[0] != "V (VALIDATION)"] == without[7:]


def test_the_end_of_a_run_shows_calibration_and_failures_of_each_site_and_of_all_patients_together():
    rows = [row | {"ece": 0.02 * place} for place, row in enumerate(RUN[:-1], start=1)]
    text = closing_table(summary_of([*rows, RUN[-1]]), explain=True)
    lines = cells_of(text)
    start = lines.index(["Calibration and failures"]) + 1
    assert lines[start : start + 6] == [
        ["site", "structure", "ECE %", "Dice < 0.7", "missed", "false alarm"],
        ["A", "disc", "3.00", "0/2 [0, 84] %", "0/2 [0, 84] %", "-"],
        ["B", "disc", "6.00", "0/1 [0, 98] %", "0/1 [0, 98] %", "-"],
        ["C (UNSEEN)", "disc", "9.00", "2/2 [16, 100] %", "1/2 [1, 99] %", "0/1 [0, 98] %"],
        ["mean seen", "disc", "4.50", "0/3 [0, 71] %", "0/3 [0, 71] %", "-"],
        ["mean UNSEEN", "disc", "9.00", "2/2 [16, 100] %", "1/2 [1, 99] %", "0/1 [0, 98] %"],
    ]
    assert "Clopper" in text and "bounding box" in text
    without_probabilities = closing_table(summary_of(RUN), explain=True)
    assert "ECE" not in without_probabilities and "Dice < 0.7" in without_probabilities


def test_the_closing_table_has_one_line_about_clients_and_no_gap_without_an_unseen_site():
    text = closing_table(summary_of(RUN[:3], data="real"))
    assert text.startswith("real data\n") and "gap" not in text and "UNSEEN" not in text
    clients = {"n": 30, "per_round": 10, "partition": "dirichlet 0.5"}
    text = closing_table(summary_of(RUN, clients=clients, source_sites=["A", "B", "C"]))
    assert text.splitlines()[2] == "30 clients of 3 sites, 10 per round, partition: dirichlet 0.5"
    assert text.count("client") == 1
