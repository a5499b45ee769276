"""The coordinator's table of the summaries that hospitals sent."""

import json

import pytest
from made_bundles import exported, foreign_bundle, seeded, write_classes, write_photographs

from medfed.config.schema import load_dataset
from medfed.coordinator import main
from medfed.networks.densenet import DenseNetwork
from medfed.scoring.score import score_bundle
from medfed.tasks.classification import Classification

NO_SUMMARY = "is not a summary.json of python -m medfed.score"


@pytest.fixture
def summary(tmp_path):
    """The summary of six patients, of which one has no structure; and its file."""
    write_photographs(tmp_path / "data", n=6)
    scores = score_bundle(foreign_bundle(tmp_path / "tools"), load_dataset(tmp_path / "data"))
    (tmp_path / "north.json").write_text(json.dumps(scores.summary))
    return json.loads(json.dumps(scores.summary))


def renamed(summary, site):
    """Return the summary of another hospital with the same scores."""
    return summary | {"scores": [line | {"site": site} for line in summary["scores"] if line["site"] == "here"]}


def changed(summary, **values):
    """Return the summary with other values in the first record of scores."""
    first, *others = summary["scores"]
    return summary | {"scores": [first | values, *others]}


def record(summary, metric):
    """The scores of the site in a metric."""
    (line,) = (line for line in summary["scores"] if (line["site"], line["metric"]) == ("here", metric))
    return line


def test_the_rows_are_those_that_each_hospital_saw(summary, tmp_path, capsys):
    (tmp_path / "south.json").write_text(json.dumps(renamed(summary, "south")))
    files = [str(tmp_path / "north.json"), str(tmp_path / "south.json")]
    assert main(["summaries", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    (here,), (south,) = (
        [line.split() for line in lines if line.startswith(f"  {site} ")] for site in ("here", "south")
    )
    dice = record(summary, "dice")
    assert here[1:] == south[1:] and here[-2] == str(dice["n_patients"])
    assert any(part.startswith(f"{dice['mean']:.2f}"[:4]) for part in here)


def test_scores_of_few_patients_are_left_out(summary, tmp_path, capsys):
    dice, file = record(summary, "dice"), tmp_path / "north.json"
    mean = f"{dice['mean']:.2f}"
    assert main(["summaries", str(file)]) == 0 and mean in capsys.readouterr().out
    assert main(["summaries", str(file), "--min-patients", str(dice["n_patients"] + 1)]) == 0
    printed = capsys.readouterr().out
    assert f"fewer than {dice['n_patients'] + 1}" in printed and mean not in printed
    dice["n_patients"] = 4
    file.write_text(json.dumps(summary))
    assert main(["summaries", str(file)]) == 0
    assert mean not in capsys.readouterr().out


def test_patients_without_the_structure_do_not_count_for_the_smallest_number(tmp_path, capsys, summary):
    """A false alarm is possible for ten patients, but only two patients have the scores."""
    few = [line | {"n_patients": 2} for line in summary["scores"] if line["site"] == "here"]
    many = few[0] | {"metric": "false_alarm", "unit": "%", "mean": 30.0, "n_patients": 10}
    others = [line for line in few if line["metric"] != "false_alarm"]
    (tmp_path / "north.json").write_text(json.dumps(summary | {"scores": [*others, many]}))
    assert main(["summaries", str(tmp_path / "north.json"), "--min-patients", "5"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  here "))
    assert row[-3:] == ["fewer", "than", "5"]


def test_classes_have_a_row_for_each_site(tmp_path, capsys):
    write_classes(tmp_path / "data")
    network = DenseNetwork(4, 2, (1, 1))
    bundle = exported(tmp_path / "bundle", network, seeded(network, 3, 2), Classification(("a", "b"), 3, 32))
    summary = score_bundle(bundle, load_dataset(tmp_path / "data")).summary
    (tmp_path / "a.json").write_text(json.dumps(summary))
    assert main(["summaries", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr().out
    for metric in ("accuracy", "ece"):  # a calibration error has no values of patients
        assert f"{record(summary, metric)['mean']:.2f}" in printed


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[1]", NO_SUMMARY),
        ("no json", NO_SUMMARY),
        ('{"task": "segmentation"}', "found no key 'metrics'"),
        ('{"task": "translation"}', "task: found 'translation'"),
        (None, "not found; expected a summary.json"),
        (lambda summary: renamed(summary, "\x1b[2J"), NO_SUMMARY),
        (lambda summary: changed(summary, mean=float("inf")), NO_SUMMARY),
        (lambda summary: changed(summary, role="seen"), NO_SUMMARY),
        (lambda summary: summary | {"bundle": summary["bundle"] | {"weights_sha256": "0"}}, "has another model"),
        (lambda summary: renamed(summary, "south") | {"data": "phantom"}, "has another model, other metrics or"),
    ],
)
def test_a_file_that_is_no_such_summary_is_one_sentence(content, sentence, summary, tmp_path, capsys):
    file = tmp_path / "other.json"
    if content is not None:
        file.write_text(json.dumps(content(summary)) if callable(content) else content)
    assert main(["summaries", str(tmp_path / "north.json"), str(file)]) == 2
    printed = capsys.readouterr().err
    assert f"{file}: {sentence}" in printed and len(printed.strip().splitlines()) == 1


def test_a_site_in_two_files_and_a_minimum_below_one_are_refused(summary, tmp_path, capsys):
    north = str(tmp_path / "north.json")
    assert main(["summaries", north, north]) == 2 and "scores of 'here' too" in capsys.readouterr().err
    assert main(["summaries", north, "--min-patients", "0"]) == 2 and "--min-patients" in capsys.readouterr().err
