"""`python -m medfed.audit`: a config in, numbers and a page out; the same for the same seed."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import pytest
import safetensors.torch
import torch
from conftest import small_yaml

from medfed.audit import main
from medfed.auditing import reconstruction
from medfed.auditing.audit import audit
from medfed.auditing.measures import to_text
from medfed.auditing.phase_retrieval import N_ERROR_REDUCTION
from medfed.auditing.sharing import SharedStatistics
from medfed.cli import program
from medfed.config.schema import load
from medfed.experiments.setup import build_experiment
from medfed.functional.standardisation import INPUT_MEAN

FEW = ["--images", "1", "--gallery", "6", "--weights-steps", "0", "--quiet"]


@pytest.fixture(scope="module")
def audited(small_phantom, tmp_path_factory):
    """Runs the program; what it wrote, and what it said."""

    def run(*more: str):
        out = tmp_path_factory.mktemp("audit")
        (out / "tiny.yaml").write_text(small_yaml(small_phantom))
        with redirect_stdout(io.StringIO()) as output:
            assert main([str(out / "tiny.yaml"), "--out", str(out), *FEW, *more]) == 0
        return json.loads((out / "audit.json").read_text()), (out / "audit.html").read_text(), output.getvalue()

    return run


@contextmanager
def few_steps(n_phase_steps: int = 50) -> Iterator[None]:
    """Each attack takes 50 steps instead of thousands: for audits that are only compared with each other."""
    retrieve_phase, n_last = reconstruction.retrieve_phase, n_phase_steps // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconstruction, "FIT_STEPS", 50)
        patch.setattr("medfed.auditing.phase_retrieval.N_ERROR_REDUCTION", min(n_last, N_ERROR_REDUCTION))
        few = lambda *inputs: retrieve_phase(*inputs[:-1], n_phase_steps, n_waves=1)  # noqa: E731
        patch.setattr(reconstruction, "retrieve_phase", few)
        yield


@pytest.fixture(scope="module")
def first(audited):
    """An audit with as many steps as the reconstruction from a full spectrum needs; it fails with 1000."""
    with few_steps(n_phase_steps=2000):
        return audited()


def test_an_audit_reports_what_would_be_sent_and_what_it_reveals(first):
    result, page, output = first
    assert program.programs()["audit"].startswith("Measure, on a site's own images")
    n = result["n_images"]
    assert (result["site"], result["method"], result["data"]) == ("BMC", "elcfs", "phantom")
    entry = {"name": "windows", "shape": [n, 1, 25], "type": "float32", "bytes": n * 100, "row_for_each_image": True}
    assert result["sent"]["entries"] == [entry] and result["sent"]["bytes"] > entry["bytes"]
    (tried,) = result["reconstruction"]
    assert set(tried) == {"full", "window", "fitted", "mean"}
    assert tried["full"]["detail_correlation"] > 0.8 > 0.3 > abs(tried["window"]["detail_correlation"])
    assert result["reidentification"]["perturbations"]["noise"]["top_1"] > 1 / 6
    assert result["site_identification"]["sites"] == 2 and result["site_identification"]["chance"] == 0.5
    assert f"before training {result['sent']['bytes']} bytes would be sent, message header included" in output
    assert "image re-identified among 6: noise" in output and "positive control" in output
    for words in ("privacy-safe", "anonymous"):
        assert words not in (output + page).lower()
    assert page.count("<img ") == 5 and "SYNTHETIC PHANTOM DATA" in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page) and "default-src &#39;none&#39;" in page
    assert "What was not tried" in page and "How the numbers were computed" in page
    assert "prostate_phantom" not in page and "Case0" not in page  # no file, no patient


def test_the_same_seed_gives_the_same_audit_and_another_site_and_seed_other_numbers(audited):
    with few_steps():
        quick, again, (other, *_) = audited(), audited(), audited("--site", "HK", "--seed", "4")
    assert again == quick
    assert (other["site"], other["seed"]) == ("HK", 4) and other["reconstruction"] != quick[0]["reconstruction"]


def test_an_audit_trains_nothing_and_does_not_change_the_start_weights(small_config, quick_attacks):
    config = load(small_config)
    simulation = build_experiment(config, None, quiet=True)
    before = {name: entry.clone() for name, entry in simulation.start.weights.items()}
    with few_steps():
        audit(config, simulation, n_images=1, n_gallery=2, n_weights_steps=1)
    after = simulation.network.state_dict()
    assert all(bool((before[name] == simulation.start.weights[name]).all()) for name in before)
    assert all(bool((before[name] == after[name]).all()) for name in before)


def test_the_audit_measures_the_network_with_the_constants_of_all_sites(tiny_config, monkeypatch):
    """The constants follow from the moments of both sites that train; they are not the 0 and 1 of the start."""
    changes = ["data.standardise=dataset", "method.name=fedavg", "data.validation_ratio=0"]
    config = load(tiny_config, changes)
    experiment = build_experiment(config, None, quiet=True)
    seen, from_site = [], SharedStatistics.from_site
    spy = lambda site, weights: seen.append(weights) or from_site(site, weights)  # noqa: E731
    monkeypatch.setattr(SharedStatistics, "from_site", spy)
    with few_steps():
        audited = audit(config, experiment, n_images=1, n_gallery=2, n_weights_steps=0)
    result = audited.result
    assert [entry["name"] for entry in result["sent"]["entries"]] == ["image_moments"] and audited.from_statistics
    pixels = torch.cat([site.training.batch(range(len(site.training))).image.flatten() for site in experiment.sites])
    assert [float(weights[INPUT_MEAN]) for weights in seen] == [pytest.approx(float(pixels.mean()), rel=1e-5)] * 2
    assert result["one_left_out"] and result["site_identification"]["sites"] == 2
    text = to_text(result)
    assert "about the site as a whole: image_moments (2, 1)" in text


def test_statistics_that_leave_with_an_update_are_named(tiny_config):
    config = load(tiny_config, ["method.name=scaffold"])
    with few_steps():
        result = audit(config, build_experiment(config, None, quiet=True), n_images=1, n_weights_steps=0).result
    assert result["update_statistics"]["names"] == ["change/*"]
    n_bytes = result["update_statistics"]["bytes"]
    assert f"and statistics (change/*, {n_bytes:,} bytes) would be sent; no attack uses the latter" in to_text(result)


@pytest.fixture
def quick_attacks(monkeypatch):
    """The attacks on weights take two steps on images of 16 x 16 pixels: for audits whose numbers are not compared."""
    monkeypatch.setattr("medfed.auditing.updates.SIDE", 16)
    monkeypatch.setattr("medfed.auditing.updates.EASY_STEPS", 2)
    monkeypatch.setattr("medfed.auditing.membership.OVERFIT_STEPS", 2)


@pytest.mark.parametrize("more", [["method.name=fedavg"], ["method.min_patients=9"]], ids=["fedavg", "few patients"])
def test_without_shared_statistics_only_the_weights_are_audited(small_phantom, tmp_path, quick_attacks, capsys, more):
    (tmp_path / "tiny.yaml").write_text(small_yaml(small_phantom))
    config = load(tmp_path / "tiny.yaml", more)
    model = tmp_path / "model.safetensors"
    safetensors.torch.save_file(build_experiment(config, None, quiet=True).start.weights, model)
    arguments = ["--weights-steps", "2", "--model", str(model), "--out", str(tmp_path), "--quiet", "--set", *more]
    assert main([str(tmp_path / "tiny.yaml"), *arguments]) == 0
    result, page = json.loads((tmp_path / "audit.json").read_text()), (tmp_path / "audit.html").read_text()
    assert result["sent"]["entries"] == [] and result["reconstruction"] == []
    assert [case["case"] for case in result["update"]] == ["easy", "one", "batch", "round"]
    assert [case["optimizer"] for case in result["update"]] == ["sgd", "sgd", "sgd", "adam"]
    assert result["model_membership"]["members"] == 2
    n_figures = 3 * sum(len(case["scores"]) for case in result["update"])
    assert page.count("<img ") == n_figures and "Images reconstructed from updates" in page
    output = capsys.readouterr().out
    assert "the method would send no statistics of images" in output and "a round as planned" in output
    for words in ("privacy-safe", "anonymous", "not measured here"):
        assert words not in (output + page).lower()


def test_a_hospital_audits_its_own_images_without_those_of_others(small_phantom, tmp_path, quick_attacks):
    root = tmp_path / "prostate_phantom"
    shutil.copytree(small_phantom / "BMC", root / "BMC")
    shutil.copy(small_phantom / "PHANTOM.json", root)
    config = tmp_path / "tiny.yaml"
    config.write_text(small_yaml(root).replace("sites: [BMC, HK, UCL], ", ""))
    # settings without effect on one site
    of_federation = "clients=4 partition=dirichlet concentration=0.3 unseen_ratio=0.5 quorum=2".split()
    more = [
        "evaluation.match=window",
        *(f"federation.{setting}" for setting in of_federation),
    ]
    with few_steps():
        arguments = [*FEW, "--own-images", "--weights-steps", "1", *(word for one in more for word in ("--set", one))]
        assert main([str(config), "--out", str(tmp_path), *arguments]) == 0
    result = json.loads((tmp_path / "audit.json").read_text())
    assert result["site"] == "BMC" and len(result["update"]) == 4 and result["site_identification"] is None


@pytest.mark.parametrize(
    "more, sentence",
    [
        (["--site", "BCM"], "--site BCM: this site does not take part in training. Did you mean 'BMC'?"),
        (["--model", "none"], "--model none: none is missing; expected the folder of a finished run, or a file"),
        (["--own-images"], "has the sites BMC, HK, UCL; choose one with --site"),
    ],
)
def test_a_mistake_is_one_sentence(small_config, tmp_path, capsys, more, sentence):
    assert main([str(small_config), "--out", str(tmp_path / "out"), "--quiet", *more]) == 2
    assert sentence in capsys.readouterr().err
