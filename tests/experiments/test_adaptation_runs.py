"""Runs that adapt to the unseen site's images score it twice with the same weights, and train as without."""

from conftest import read_csv, small_yaml

from medfed.config.schema import load_text
from medfed.experiments.evaluation import evaluate
from medfed.experiments.run import run
from medfed.experiments.setup import build_experiment
from medfed.outputs.run_folder import UNADAPTED, RunFolder


def config(root, *overrides):
    return load_text(small_yaml(root), "a.yaml", ["federation.rounds=1", *overrides])


def rows(path, role):
    return [row for row in read_csv(path) if row["role"] == role]


def test_a_finished_run_is_scored_again_with_the_adaptation_and_keeps_its_weights(
    tmp_path, small_phantom, unpainted_figures
):
    path, folder = tmp_path / "run", RunFolder(tmp_path / "run")
    run(config(small_phantom), folder, quiet=True)
    plain = folder.read_summary()
    before = {role: rows(path / "cases.csv", role) for role in ("seen", "unseen")}
    weights = (path / "model.safetensors").read_bytes()
    assert "adaptation" not in plain and not plain["transductive"] and not (path / UNADAPTED).exists()

    matched = config(small_phantom, "evaluation.match=window")
    run(matched, folder, resume=True, accept_config_change=True, quiet=True)
    summary = folder.read_summary()
    assert (path / "model.safetensors").read_bytes() == weights
    assert rows(path / UNADAPTED, "unseen") == before["unseen"] != rows(path / "cases.csv", "unseen")
    assert rows(path / "cases.csv", "seen") == before["seen"]
    assert summary["transductive_by"] == ["window"] == [summary["adaptation"]["by"]]
    (effect,) = summary["adaptation"]["effects"]
    scores = (rows(path / name, "unseen") for name in (UNADAPTED, "cases.csv"))
    dice = [[float(row["value"]) for row in of_file if row["metric"] == "dice"] for of_file in scores]
    assert effect["n_patients"] == 4 and effect["n_worse"] == sum(b < a for a, b in zip(*dice, strict=True))


def test_with_tent_the_scores_without_it_are_those_of_the_same_weights(small_phantom):
    batch_norm = ("method.name=fedavg", "network.norm=batch")
    plain, tent = (
        build_experiment(config(small_phantom, *batch_norm, f"evaluation.tent={value}"), None, True)
        for value in ("false", "true")
    )
    expected, actual = (evaluate(experiment, plain.start.weights, True) for experiment in (plain, tent))
    before, after = ([row for row in result.rows if row["role"] == "unseen"] for result in (expected, actual))
    assert actual.unadapted == before != after and not expected.unadapted
