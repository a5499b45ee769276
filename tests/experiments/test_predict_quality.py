"""A run with `federation.predict_quality`: its local models and sums, and a bundle that predicts its Dice."""

import csv
import json
import shutil

import pytest
import torch
from conftest import SMALL_UNET, tiny_yaml

import medfed
from medfed.core.errors import UserError
from medfed.datasets import reading
from medfed.deployment.bundle_aggregation import aggregate_bundles
from medfed.functional.image_facts import NAMES
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.run_folder import RunFolder
from medfed.score import main
from medfed.scoring.ensemble import load_ensemble
from medfed.scoring.no_labels import predict_quality
from medfed.scoring.unlabelled import Images

CHANGES = {
    "federation.rounds": 2,
    "federation.predict_quality": True,
    "method.name": "fedavg",
    "data.min_patients": 1,
    "data.validation_ratio": 0.5,
    "data.standardise": "slice",
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_phantom):
    """The folder of a run and of its bundle."""
    root = tmp_path_factory.mktemp("quality")
    (root / "run.yaml").write_text(tiny_yaml(small_phantom))
    medfed.run(medfed.load_config(root / "run.yaml", CHANGES), root / "run")
    medfed.export(root / "run", root / "bundle", force=True)
    return root


def test_the_manifest_lists_the_local_models_and_the_sums(runs):
    listed = json.loads((runs / "run" / "manifest.json").read_text())["files"]
    assert {"local_models.safetensors", "quality.json"} <= listed.keys()
    sums = json.loads((runs / "run" / "quality.json").read_text())
    assert sums["round"] == 2 and set(sums["sites"]) == {"BMC", "HK"}


def test_the_average_of_the_local_models_is_the_federated_model(runs):
    folder = RunFolder(runs / "run")
    local_models, model = folder.load_result_models(), folder.load_model()
    for name, entry in model.items():
        mean = sum(weights[name].double() for weights in local_models.values()) / len(local_models)
        torch.testing.assert_close(mean.to(entry.dtype), entry, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_has_the_same_files(runs, tmp_path):
    shutil.copytree(runs / "run", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for name in ("summary.json", "states/round_00002.state", "states/round_00002.models", "quality.json"):
        (folder.path / name).unlink()
    medfed.run(medfed.load_config(runs / "run.yaml", CHANGES), folder.path, resume=True)
    for name in ("local_models.safetensors", "quality.json", "ledger.csv", "model.safetensors"):
        assert (folder.path / name).read_bytes() == (runs / "run" / name).read_bytes(), name
    folder.check()


REFUSED = {
    "privacy adds noise": {"privacy.clip": 1.0, "privacy.noise": 0.1},
    "fedbn keeps entries": {"method.name": "fedbn", "network.norm": "batch"},
    "no site has validation patients": {"data.validation_ratio": 0},
    "only one site trains": {"data.sites": ["BMC", "UCL"]},
    "clients above 0": {"federation.clients": 2},
    "batch_norm 'local'": {"federation.batch_norm": "local"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_settings_without_usable_local_models_are_refused_before_training(runs, tmp_path, small_phantom, reason):
    (tmp_path / "run.yaml").write_text(tiny_yaml(small_phantom, SMALL_UNET))
    changes = {**CHANGES, **REFUSED[reason]}
    if reason.startswith("fedbn"):
        (tmp_path / "run.yaml").write_text(tiny_yaml(small_phantom))
    with pytest.raises(UserError, match=f"predict_quality.*({reason})"):
        medfed.run(medfed.load_config(tmp_path / "run.yaml", changes), tmp_path / "run")
    assert not (tmp_path / "run" / "history.csv").exists()


def test_the_bundle_is_checked_with_its_local_models(runs, tmp_path):
    check_bundle(runs / "bundle")
    shutil.copytree(runs / "bundle", tmp_path / "bundle")
    (tmp_path / "bundle" / "docs" / "quality.json").unlink()
    with pytest.raises(UserError, match="has only one of docs/quality.json and models/local_models/"):
        check_bundle(tmp_path / "bundle")
    shutil.copy(runs / "bundle" / "docs" / "quality.json", tmp_path / "bundle" / "docs")
    local_model = tmp_path / "bundle" / "models" / "local_models" / "HK.safetensors"
    local_model.write_bytes(local_model.read_bytes()[:-4])
    with pytest.raises(UserError, match="HK.safetensors is damaged"):
        check_bundle(tmp_path / "bundle")


def test_a_combined_bundle_loses_the_sums_and_other_weights_are_not_predicted_with_them(runs, tmp_path):
    start = runs / "bundle"
    assert "## Prediction without labels" in (start / "docs" / "README.md").read_text()
    for name in ("A", "B"):
        shutil.copytree(start, tmp_path / name)
    combined = aggregate_bundles([tmp_path / "A", tmp_path / "B"], start, tmp_path / "new").path
    assert not list(combined.rglob("quality.json")) and not (combined / "models" / "local_models").exists()
    assert "Prediction without labels" not in (combined / "docs" / "README.md").read_text()
    weights = torch.load(start / "models" / "model.pt", weights_only=True)
    torch.save({name: entry + 1 for name, entry in weights.items()}, tmp_path / "A" / "models" / "model.pt")
    with pytest.raises(UserError, match="its sums were measured with other weights"):
        load_ensemble(tmp_path / "A", CPU)


def test_the_bundle_computes_the_facts_and_agreements_that_the_sites_computed(runs, small_phantom):
    ensemble = load_ensemble(runs / "bundle", CPU)
    assert set(ensemble.members) == {"BMC", "HK"}
    content = json.loads((runs / "run" / "quality.json").read_text())["sites"]["HK"]["images"]
    assert set(content) == set(NAMES)
    images = Images.in_folder(small_phantom / "HK", 1)
    facts = torch.stack(
        [
            ensemble.image_facts(image := images.read(case), False, reading.spacing_mm(case.image, image))
            for case in images.cases
        ]
    )
    for index, name in enumerate(NAMES):  # the site's training images are some of these
        low, high = facts[:, index].min() * 0.999, facts[:, index].max() * 1.001  # the sites send four digits
        assert low - 1e-5 <= content[name]["mean"] <= high + 1e-5, name


def test_no_label_is_read_and_the_predictions_are_the_same_with_labels(
    runs, small_phantom, tmp_path, capsys, unpainted_figures
):
    unlabelled = tmp_path / "UCL"
    unlabelled.mkdir()
    for path in (small_phantom / "UCL").iterdir():
        target = unlabelled / path.name
        if "egmentation" in path.name:
            target.write_bytes(b"not a mask")  # opening it would fail
        else:
            shutil.copy(path, target)
    shutil.copy(small_phantom / "PHANTOM.json", tmp_path)
    bundle = str(runs / "bundle")
    assert main([bundle, str(unlabelled), "--no-labels", "--out", str(tmp_path / "a"), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "look at first" in text and "range of the sites" in text and "with labels" not in text
    assert (
        main(
            [
                bundle,
                str(small_phantom),
                "--set",
                "data.sites=[UCL]",
                "--check-prediction",
                "--out",
                str(tmp_path / "b"),
                "--quiet",
            ]
        )
        == 0
    )
    assert "with labels: true Dice" in capsys.readouterr().out
    rows, checked = (
        list(csv.DictReader((tmp_path / name / "predictions.csv").read_text().splitlines())) for name in "ab"
    )
    assert len(rows) == 4 and "true_dice" not in rows[0] and "true_dice" in checked[0]
    same = [column for column in rows[0] if column != "case"]
    assert [[row[key] for key in same] for row in rows] == [[row[key] for key in same] for row in checked]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"predictions.csv", "summary.json", "figures"}
    assert [path.suffix for path in (tmp_path / "a" / "figures").iterdir()] == [".png"]


def test_a_bundle_without_local_models_says_how_to_get_them(runs, tmp_path, capsys):
    shutil.copytree(runs / "bundle", tmp_path / "bundle")
    shutil.rmtree(tmp_path / "bundle" / "models" / "local_models")
    (tmp_path / "bundle" / "docs" / "quality.json").unlink()
    assert main([str(tmp_path / "bundle"), str(tmp_path), "--no-labels", "--out", str(tmp_path / "out")]) == 2
    assert "has no local models of the sites" in (error := capsys.readouterr().err)
    assert "federation.predict_quality: true" in error and not (tmp_path / "out").exists()


def test_local_models_that_agree_completely_give_an_agreement_of_1(runs, small_phantom):
    ensemble = load_ensemble(runs / "bundle", CPU)
    same = type(ensemble)(ensemble.model, dict.fromkeys(ensemble.members, ensemble.model), ensemble.content)
    images = Images.in_folder(small_phantom / "UCL", 1)
    rows = predict_quality(same, images, 0.7).rows
    assert {row["agreement"] for row in rows} <= {1.0, None} and len(rows) == len(images.cases)
