"""Tests that a classifier's bundle predicts with MONAI alone as `Classification.probabilities` does."""

import csv
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import monai.bundle
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from PIL import Image

from medfed.datasets.base import Case
from medfed.datasets.reading import read_image
from medfed.networks.densenet import DenseNetwork
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.configs import inference_config, metadata
from medfed.outputs.bundle.model_card import scores_table
from medfed.outputs.bundle.write import template_folder, write_bundle
from medfed.tasks.class_bundle import CLASSIFICATION_TEMPLATE
from medfed.tasks.class_scoring import ClassScoring
from medfed.tasks.classification import Classification
from medfed.tasks.mask_bundle import IMAGE_2D_TEMPLATE, VOLUME_TEMPLATE
from medfed.tasks.segmentation import Segmentation

SIDE = 24
DENSE = DenseNetwork(init_features=4, growth_rate=2, blocks=(1, 2))
SIZES = ((24, 24), (48, 48), (37, 61), (90, 20), (11, 17))  # height and width; to be left, halved, squeezed, enlarged
SCORE = {"mean": 0.75, "n": 4, "low": 0.5, "high": 1.0}
GROUP = {
    "n": 4,
    "n_patients": 2,
    "n_wrong": 1,
    "accuracy": SCORE,
    "auroc": {"mean": None},
    "balanced_accuracy": SCORE,
    "ece": {"mean": 0.125},
}
ROLE = {"sites": {"A|B": {"all": GROUP}}, "mean": {"all": GROUP}}
SUMMARY = ClassScoring().summarise([]) | {
    "seen": {"sites": {}, "mean": {}},
    "unseen": ROLE,
    "gap": {},
    "transductive": True,
    "transductive_by": ["tent"],
    "method_facts": {"codec_reconstruction_error": 0.01234567},
}


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def write_images(folder, channels):
    """Write images of noise with different brightness in each file; one colour image has an alpha channel."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index, (height, width) in enumerate(SIZES):
        depth = 4 if channels == 3 and index == 1 else channels
        noise = rng.integers(0, 120, (height, width, depth)) + 25 * index
        noise = noise + np.linspace(0, 30, height)[:, None, None]
        Image.fromarray(noise.astype(np.uint8).squeeze()).save(folder / f"{index}.png")
    return folder


def expected(module, task, folder):
    cases = [Case("site", path.stem, path, label=0) for path in sorted(folder.glob("*.png"))]
    return task.probabilities(module, samples(task, cases))


def samples(task, cases):
    return task.prepare(cases, lambda case: read_image(case.image, task.channels, []))


def telling(network, task, folder):
    """Return random weights that predict different classes, with batch statistics that are not the initial ones."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = network.build(task.channels, task.out_channels).eval()
        for norm in module.modules():
            if isinstance(norm, torch.nn.BatchNorm2d) and norm.track_running_stats:
                norm.running_mean.normal_(0, 0.1)
                norm.running_var.uniform_(0.5, 1.5)
    with torch.no_grad():
        head = module.get_submodule(network.head)
        head.weight *= 4 / expected(module, task, folder).log().std(dim=0).mean().float()
        head.bias -= expected(module, task, folder).log().mean(dim=0).float()
    return module


def write(out, network, module, task, data="phantom"):
    provenance = {"data": data, "sites": ["a", "b"], "unseen_site": "A|B", "method": "ccst", "rounds": 2}
    return write_bundle(
        out,
        network=network,
        weights=module.state_dict(),
        task=task,
        provenance=provenance,
        summary=SUMMARY,
        input_is_2d=True,
    )


def files(bundle):
    return {"config_file": str(bundle / "configs/inference.json"), "meta_file": str(bundle / "configs/metadata.json")}


def run(bundle, images, out):
    flow = ConfigWorkflow(
        **files(bundle),
        workflow_type="infer",
        logging_file=False,
        bundle_root=str(bundle),
        device="cpu",
        dataset_dir=str(images),
        output_dir=str(out),
    )
    flow.initialize()
    assert flow.check_properties() == []
    flow.run()
    return read(out)


def read(out):
    with open(out / "predictions.csv", newline="") as file:
        rows = list(csv.reader(file))
    return [row[0] for row in rows], torch.tensor([[float(cell) for cell in row[1:]] for row in rows]).double()


def difference(actual, wanted):
    """Return the largest difference of probabilities; check that the classes are equal and not all the same."""
    assert torch.equal(actual.argmax(dim=1), wanted.argmax(dim=1)) and len(wanted.argmax(dim=1).unique()) > 1
    return float((actual - wanted).abs().max())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    images, task = write_images(folder / "in", 3), Classification(("normal", "tumour"), 3, SIDE)
    module = telling(DENSE, task, images)
    return write(folder / "x_classification", DENSE, module, task), module, task, images


def test_probabilities_equal_those_of_medfed_for_images_of_any_size_with_and_without_alpha(exported, tmp_path):
    bundle, module, task, images = exported
    names, actual = run(bundle, images, tmp_path)
    assert names == [str(images / f"{index}.png") for index in range(len(SIZES))]
    assert difference(actual, expected(module, task, images)) < 1e-6


def odd(folder):
    """Write one image in five formats: rotated by EXIF, with a palette, CMYK, with alpha, and plain JPEG."""
    folder.mkdir()
    pixels = np.random.default_rng(5).integers(0, 256, (30, 44, 3), dtype=np.uint8)
    pixels[:, :22] //= 3
    image = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / "0.png", exif=turned)
    image.quantize(40).save(folder / "1.png")
    image.convert("CMYK").save(folder / "2.jpg")
    Image.fromarray(np.dstack([255 - pixels, pixels[..., 0]])).save(folder / "3.png")
    image.save(folder / "4.jpg")
    return folder


def test_images_of_every_kind_are_read_as_medfed_reads_them(exported, tmp_path):
    """The images are rotated by EXIF, have a palette, are CMYK, have alpha, or are plain JPEG."""
    bundle, module, task, _ = exported
    images = odd(tmp_path / "in")
    config = json.loads((bundle / "configs/inference.json").read_text())
    config["image_pattern"] = "*.*"
    (tmp_path / "inference.json").write_text(json.dumps(config))
    flow = ConfigWorkflow(
        config_file=str(tmp_path / "inference.json"),
        meta_file=str(bundle / "configs/metadata.json"),
        workflow_type="infer",
        logging_file=False,
        bundle_root=str(bundle),
        device="cpu",
        dataset_dir=str(images),
        output_dir=str(tmp_path),
    )
    flow.initialize()
    flow.run()
    names, actual = read(tmp_path)
    cases = [Case("a", Path(name).name, Path(name), None, "", 0) for name in names]
    assert len(names) == 5 and float((actual - task.probabilities(module, samples(task, cases))).abs().max()) < 1e-6


def test_an_image_with_more_than_8_bits_is_an_error(exported, tmp_path):
    bundle, *_ = exported
    (tmp_path / "in").mkdir()
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(tmp_path / "in" / "deep.png")
    with pytest.raises(RuntimeError, match="evaluator") as stopped:
        run(bundle, tmp_path / "in", tmp_path)
    causes = []
    error = stopped.value
    while error is not None:
        causes.append(repr(error))
        error = error.__cause__ or error.__context__
    assert any("KeyError('I;16')" in cause for cause in causes)


def test_the_network_s_input_is_bit_identical_to_that_of_medfed(exported):
    bundle, _, task, images = exported
    parser = ConfigParser()
    parser.read_config(files(bundle)["config_file"])
    preprocessing = parser.get_parsed_content("preprocessing")
    for path in sorted(images.glob("*.png")):
        seen = task.standardise(samples(task, [Case("site", "x", path, label=0)]).batch([0]).image)[0]
        assert torch.equal(preprocessing({"image": str(path)})["image"].as_tensor(), seen), path.name


@pytest.mark.parametrize(
    ("network", "channels", "standardised"),
    [(DENSE, 1, "none"), (DENSE, 1, "imagenet"), (DenseNetwork(4, 2, (1, 2), norm="batch_statistics"), 3, "imagenet")],
)
def test_grey_images_raw_intensities_and_batch_statistics(network, channels, standardised, tmp_path):
    images = write_images(tmp_path / "in", channels)
    task = Classification(("a", "b", "c"), channels, SIDE, standardised=standardised)
    module = telling(network, task, images)
    bundle = write(tmp_path / "x_classification", network, module, task)
    assert difference(run(bundle, images, tmp_path / "out")[1], expected(module, task, images)) < 1e-5
    card = (bundle / "docs" / "README.md").read_text()
    assert ("depends on the other" in card) == (network.norm == "batch_statistics")
    assert ("fixed numbers" in card) == (standardised == "imagenet")


def test_a_second_run_replaces_the_predictions_of_the_first(exported, tmp_path):
    bundle, _, _, images = exported
    run(bundle, images, tmp_path)
    assert len(run(bundle, images, tmp_path)[0]) == len(SIZES)


def test_monai_verifies_the_bundle(exported):
    bundle, *_ = exported
    check_bundle(bundle)
    monai.bundle.verify_net_in_out("network_def", **files(bundle), device="cpu", bundle_root=str(bundle))
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "normal", "1": "tumour"}


def test_an_evaluator_parsed_alone_has_the_trained_weights(exported, tmp_path):
    bundle, module, _, images = exported
    parser = ConfigParser()
    parser.read_config(files(bundle)["config_file"])
    parser.update({"bundle_root": str(bundle), "dataset_dir": str(images), "output_dir": str(tmp_path)})
    evaluator = parser.get_parsed_content("evaluator")
    evaluator.run()
    actual = evaluator.network.state_dict()
    assert all(torch.equal(actual[name].cpu(), entry) for name, entry in module.state_dict().items())


def test_the_card_has_scores_of_each_site_the_order_of_columns_and_the_method_s_facts(exported):
    bundle, *_ = exported
    card = (bundle / "docs" / "README.md").read_text()
    assert card.partition("\n")[0].endswith("trained and tested on synthetic phantom data, not for clinical use")
    assert "| A\\|B (UNSEEN) | 2 | 4 | 75.00 [50.0, 100.0] | - | 75.00 [50.0, 100.0] | 12.50 |" in card
    assert "probabilities of `normal`, `tumour`." in card and "{" not in card
    assert "transductive" in card and "- Codec reconstruction error: 0.01235" in card
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["eval_metrics"] == {
        "unseen_accuracy": 0.75,
        "unseen_balanced_accuracy": 0.75,
        "unseen_ece": 0.125,
        "unseen_accuracy_95_percent_low": 0.5,
        "unseen_accuracy_95_percent_high": 1.0,
        "unseen_balanced_accuracy_95_percent_low": 0.5,
        "unseen_balanced_accuracy_95_percent_high": 1.0,
    }
    assert "medfed" not in (bundle / "configs" / "inference.json").read_text()
    assert scores_table(ClassScoring().summarise([])) == "This run has no scores."


def test_the_card_of_a_model_of_real_images_does_not_state_phantom(exported, tmp_path):
    _, module, task, _ = exported
    card = (write(tmp_path / "x_classification", DENSE, module, task, "real") / "docs" / "README.md").read_text()
    assert "trained on real images, not for clinical use" in card.partition("\n")[0]


def test_the_template_equals_the_configs_of_a_camelyon17_run():
    template, task = template_folder(CLASSIFICATION_TEMPLATE), Classification(("normal", "tumour"), 3, 96)
    kept = json.loads((template / "configs" / "inference.json").read_text())
    assert inference_config(template, task.bundle(True), DenseNetwork().network_def(3, 2)) == kept
    stored = json.loads((template / "configs" / "metadata.json").read_text())
    filled = metadata(template, task.bundle(True), {}, {})
    by_run = {"monai_version", "pytorch_version", "numpy_version", "required_packages_version", "data_source"}
    assert {key for key in stored if stored[key] != filled[key]} <= by_run


def test_the_template_depends_on_the_kind_of_input_and_output():
    assert Classification(("a", "b"), 1, 32).bundle(True).folder == CLASSIFICATION_TEMPLATE
    assert Segmentation(("polyp",), 3, 32).bundle(True).folder == IMAGE_2D_TEMPLATE
    assert Segmentation(("prostate",), 1, 32).bundle(False).folder == VOLUME_TEMPLATE


@pytest.mark.slow
def test_the_classifier_runs_from_the_command_line_without_medfed(exported, tmp_path):
    bundle, module, task, images = exported
    (tmp_path / "medfed.py").write_text("raise ImportError('this hospital has no medfed')")  # found first from here
    command = [
        sys.executable,
        "-m",
        "monai.bundle",
        "run",
        "--bundle_root",
        str(bundle),
        "--dataset_dir",
        str(images),
        "--output_dir",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    for key, value in files(bundle).items():
        command += [f"--{key}", value]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert difference(read(tmp_path / "out")[1], expected(module, task, images)) < 1e-6
