"""Run folders from someone else whose checksums are right and whose content is not."""

import os
from types import SimpleNamespace

import pytest
import torch
from made_runs import MASKS, class_rows, done, made_comparison, made_run, scores_of, write_rows

from medfed.core.errors import UserError
from medfed.federation.message import State
from medfed.outputs.bundle import write
from medfed.outputs.report.read import read_run, read_runs
from medfed.outputs.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "run")


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as error:
        call(*arguments)
    return str(error.value)


def test_a_checkpoint_belongs_to_the_round_of_its_name(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save_round(done(1), best_round=1)
    folder.save_state(State(10**9, {"w": torch.zeros(2)}))
    (tmp_path / "states" / "round_1000000000.state").rename(tmp_path / "states" / "round_00001.state")
    assert "belongs to round 1,000,000,000; expected round 1, as its name says" in refusal(folder.load_state, 1)


def test_a_pipe_is_no_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "states").mkdir()
    os.mkfifo(tmp_path / "states" / "round_00001.state")
    assert "it is a pipe or a device" in refusal(folder.load_state, 1)


RECORD = {"role": "unseen", "site": "A", "structure": "disc", "metric": "dice", "unit": "%"}
RECORD |= {"mean": None, "low": None, "high": None, "n_patients": None, "n_images": None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"learning": None}, "KeyError: 'data'"),
        ({"data": "real", "scores": 5}, "the file cannot be read"),
        ({"data": "real", "scores": {"a": 1}}, "the file cannot be read"),
        ({"data": "real", "scores": [5]}, "the file cannot be read"),
        (
            {"data": "real", "scores": [{"role": "unseen", "site": "A"}]},
            "scores: expected a list of records of role, site",
        ),
        ({"data": "real", "scores": [RECORD | {"unit": ["%"]}]}, "scores: expected a list of records"),
        (
            {"data": "real", "scores": [RECORD | {"mean": "x"}]},
            "scores: expected a list of records",
        ),
        ({"data": "real", "scores": [RECORD | {"mean": [1.0]}]}, "scores: expected a list of records"),
        (
            {"data": "real", "scores": [RECORD | {"mean": 10**400}]},
            "scores: expected a list of records",
        ),
        ({"data": "real", "images": {}}, "KeyError: 'channels'"),
        ({"data": "real", "learning": {"learned": False}}, "KeyError: 'images'"),
        ({"data": "real", "images": None}, "TypeError"),
    ],
)
def test_a_summary_without_its_values_is_a_sentence(run, monkeypatch, content, words):
    monkeypatch.setattr(
        write, "load", lambda path: SimpleNamespace(data=SimpleNamespace(image_size=8), evaluation=None)
    )
    scored = scores_of([], MASKS)
    RunFolder(run).write_json("summary.json", scored | content if isinstance(content, dict) else content)
    sentence = refusal(write.export_run, run, run / "bundle", True)
    assert sentence.startswith(f"{run / 'summary.json'}: ") and words in sentence and not (run / "bundle").exists()
    refusal(read_run, run)


def test_a_bundle_does_not_replace_a_folder_that_is_named_by_a_detour(tmp_path):
    (tmp_path / "b" / "x").mkdir(parents=True)
    nothing = dict.fromkeys(("network", "weights", "task", "provenance", "summary", "input_is_2d"))
    sentence = refusal(lambda: write.write_bundle(tmp_path / "new" / ".." / "b", **nothing))
    assert "exists already" in sentence and not (tmp_path / "new").exists()


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(OSError, match="not empty.*/b'$"), write.atomic_folder(tmp_path / "b"):
        (tmp_path / "b" / "x").mkdir(parents=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_comparison_whose_run_has_the_scores_of_another_task_is_a_sentence_and_one_without_scores_is_read(tmp_path):
    comparison = made_comparison(tmp_path / "c", seeds=(0,))
    path = next(comparison.glob("elcfs/*/*/cases.csv"))
    classes = made_run(tmp_path / "classes", rows=class_rows(["A"], "C"))
    path.write_text((classes / "cases.csv").read_text())
    sentence = refusal(read_runs, [comparison])
    assert sentence.startswith(f"{path}: ") and "the metric 'p_a' is not one of dice, hd" in sentence
    write_rows(path, [], MASKS)
    _, (read,) = read_runs([comparison])
    assert [run.scores.empty for run in read.runs].count(True) == 1
