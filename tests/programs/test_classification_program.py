"""The programs on images to classify: from patches on disk to tables, and back after a kill."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import read_csv
from quick_patches import make_quick_patches
from run_figures import drawn_figures

import medfed
from medfed import data, train
from medfed.datasets.base import Case
from medfed.datasets.collections.camelyon17 import Camelyon17
from medfed.datasets.splits import split
from medfed.tasks.classification import Classification
from medfed.tasks.task import UNOBSERVED

FILES = (
    "config.yaml environment.json data.json notices.json cases.csv summary.json ledger.csv SHA256SUMS run.lock "
    "timings.csv history.csv model.safetensors figures states sites"
).split()
FIGURES = ("training_curves reliability roc examples style_grid histograms same_examples").split()


@pytest.fixture(scope="module")
def patches(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "camelyon17_phantom"
    make_quick_patches(root, patches_per_site=12, patients_per_site=3)
    return root


@pytest.fixture
def config(tmp_path, patches) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(f"""
seed: 3
data: {{name: camelyon17, root: {patches}, image_size: 24, sites: [hospital_1, hospital_3, hospital_5],
  validation_ratio: 0.2, test_ratio: 0.3}}
network: {{name: densenet, init_features: 8, growth_rate: 4, blocks: [2, 2]}}
method: {{name: ccst, k: 2, min_patients: 1}}
training: {{batch_size: 6, learning_rate: 0.01, optimizer_state: reset}}
federation: {{unseen_site: hospital_5, rounds: 2}}
""")
    return path


def test_a_run_writes_scores_figures_and_the_error_of_its_codec(config, tmp_path, capsys, unpainted_figures):
    run = tmp_path / "run"
    with drawn_figures():
        assert train.main([str(config), "--out", str(run), "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "SYNTHETIC PHANTOM DATA" in output and "hospital_5 (UNSEEN)" in output and "AUROC" in output
    assert {path.name for path in run.iterdir()} == set(FILES)
    assert {path.name for path in (run / "figures").glob("*.png")} == {f"{name}.png" for name in FIGURES}
    assert any((run / "figures" / "patients").glob("*.webp"))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["task"] == "classification" and summary["images"]["classes"] == ["normal", "tumour"]
    assert 0 <= summary["method_summary"]["codec_reconstruction_error"] < 1e-3
    assert not summary["transductive"]
    loaded = medfed.load_run(run)
    first = loaded.scores[loaded.scores.site == "hospital_5"].iloc[0]
    case = next(case for case in loaded.config.data.cases("hospital_5") if case.name == first.image)
    predicted = dict(zip(loaded.task.labels, loaded.predict(case.image).tolist(), strict=True))
    assert predicted[first.metric.removeprefix("p_")] == pytest.approx(first.value, abs=1e-6)


def test_a_site_may_have_no_test_image_and_tent_is_reported_as_transductive(config, tmp_path, capsys):
    """As in the papers' settings, where the unseen site is the test."""
    changes = "data.test_ratio=0 data.validation_ratio=0 federation.rounds=1 evaluation.tent=true method.name=fedavg"
    flags = [word for change in changes.split() for word in ("--set", change)]
    assert train.main([str(config), "--out", str(tmp_path / "run"), "--quiet", *flags]) == 0
    output = capsys.readouterr().out
    assert "hospital_5 (UNSEEN)" in output and "TRANSDUCTIVE" in output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["transductive"]
    assert {row["site"] for row in read_csv(tmp_path / "run" / "cases.csv")} == {"hospital_5"}


def test_the_folder_is_recognised_and_checked(patches, capsys):
    assert data.main(["check", str(patches), "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "camelyon17" in output and "hospital_4" in output


def test_settings_that_fail_after_training_are_refused_before_anything_is_written(config, tmp_path, capsys):
    for setting, words in (
        ("method.codec=nowhere", "no codec found"),
        ("network.norm=batch_statistics", "this network has no BatchNorm with weights"),
        ("network.name=unet", "network.name: 'unet' is not made for classification"),
    ):
        out = tmp_path / setting
        arguments = ["--out", str(out), "--set", setting, "--set", "evaluation.tent=true", "--quiet"]
        assert train.main([str(config), *arguments]) == 2
        assert words in capsys.readouterr().err and not (out / "config.yaml").exists()


def test_a_damaged_test_image_is_reported_before_training(config, tmp_path, patches, capsys):
    copy = shutil.copytree(patches, tmp_path / "copy")
    for case in split(Camelyon17(root=str(copy)).cases("hospital_1"), 3, 0.2, 0.3).test:
        case.image.write_bytes(case.image.read_bytes()[:300])
    assert train.main([str(config), "--out", str(tmp_path / "run"), "--set", f"data.root={copy}", "--quiet"]) == 2
    assert "is damaged" in capsys.readouterr().err and not (tmp_path / "run" / "states").exists()


def test_no_batch_of_test_images_has_a_single_class(monkeypatch):
    """Cases come sorted by name, which is by class; a network that sees its batch whole must not learn from that."""
    batches = []

    def probabilities(self, network, samples, match=None):
        batches.append({case.label for case in samples.cases})
        return torch.full((len(samples), 2), 0.5, dtype=torch.float64)

    monkeypatch.setattr(Classification, "probabilities", probabilities)
    cases = [Case("A", f"{i >= 128}/{i:03d}", Path("x"), (), f"{i}", int(i >= 128)) for i in range(256)]
    task = Classification(("no", "yes"), 3, 8)
    result = task.evaluate(None, SimpleNamespace(), cases, "unseen", UNOBSERVED)
    assert len(result.rows) == 256 and batches == [{0, 1}] * 4
