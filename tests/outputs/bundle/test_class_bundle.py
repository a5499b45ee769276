"""Tests that a classifier's bundle predicts with MONAI alone as `Classification.probabilities` does."""

import csv
import json
from pathlib import Path

import monai.bundle
import numpy as np
import pytest
import torch
from made_bundles import exported, files_of, inference_of, run_without_medfed, weights_of_evaluator_alone
from made_runs import CLASSES, scores_of
from monai.bundle import ConfigParser
from PIL import Image

from medfed.datasets.base import Case
from medfed.images.reading import read_image
from medfed.networks.densenet import DenseNetwork
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.model_card import scores_table
from medfed.tasks.classification import Classification

pytestmark = pytest.mark.usefixtures("quiet")

SIDE = 24
DENSE = DenseNetwork(init_features=4, growth_rate=2, blocks=(1, 2))
SIZES = ((24, 24), (48, 48), (37, 61), (90, 20), (11, 17))  # height and width; to be left, halved, squeezed, enlarged
PERCENT = {"accuracy": (75.0, 50.0, 100.0), "balanced_accuracy": (75.0, 50.0, 100.0)}
PERCENT |= {"auroc": (None, None, None), "ece": (12.5, None, None)}  # mean and ends of its interval
KEYS = {"role": "unseen", "structure": "all", "unit": "%", "n_patients": 2, "n_images": 4}
SUMMARY = scores_of([], CLASSES) | {"transductive": True, "transductive_by": ["tent"]}
SUMMARY["scores"] = [
    KEYS | {"site": site, "metric": metric} | dict(zip(("mean", "low", "high"), numbers, strict=True))
    for site in ("A|B", "average")
    for metric, numbers in PERCENT.items()
]
SUMMARY["method_summary"] = {"codec_reconstruction_error": 0.01234567}


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
    return exported(out, network, module, task, True, SUMMARY, data=data, unseen_site="A|B", method="ccst")


def run(bundle, images, out, **overrides):
    flow = inference_of(bundle, images, out, **overrides)
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
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    images, task = write_images(folder / "in", 3), Classification(("normal", "tumour"), 3, SIDE)
    module = telling(DENSE, task, images)
    return write(folder / "x_classification", DENSE, module, task), module, task, images


def test_probabilities_equal_those_of_medfed_for_images_of_any_size_with_and_without_alpha(dense, tmp_path):
    bundle, module, task, images = dense
    run(bundle, images, tmp_path)
    names, actual = run(bundle, images, tmp_path)  # replaces the predictions of the first run
    assert names == [str(images / f"{index}.png") for index in range(len(SIZES))]
    assert difference(actual, expected(module, task, images)) < 1e-6


def test_images_of_every_kind_are_read_as_medfed_reads_them(dense, tmp_path):
    """The images are rotated by EXIF, have a palette, are CMYK, have alpha, are plain JPEG, or are grey."""
    folder = tmp_path / "in"
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
    for name, mode in (("5.png", "L"), ("6.png", "LA"), ("7.png", "1")):  # read as RGB by medfed, too
        image.convert(mode).save(folder / name)
    bundle, module, task, _ = dense
    names, actual = run(bundle, folder, tmp_path, image_pattern="*.*")
    cases = [Case("a", Path(name).name, Path(name), (), "", 0) for name in names]
    assert len(names) == 8 and float((actual - task.probabilities(module, samples(task, cases))).abs().max()) < 1e-6


def test_an_image_with_more_than_8_bits_is_an_error(dense, tmp_path):
    bundle, *_ = dense
    (tmp_path / "in").mkdir()
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(tmp_path / "in" / "deep.png")
    with pytest.raises(RuntimeError, match="evaluator") as stopped:
        run(bundle, tmp_path / "in", tmp_path)
    causes, error = "", stopped.value
    while error:
        causes, error = causes + repr(error), error.__cause__ or error.__context__
    assert "KeyError('I;16')" in causes


def test_the_network_s_input_is_bit_identical_to_that_of_medfed(dense):
    bundle, _, task, images = dense
    parser = ConfigParser()
    parser.read_config(files_of(bundle)["config_file"])
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
    assert ("uses the statistics of the batch" in card) == (network.norm == "batch_statistics")
    assert ("fixed numbers" in card) == (standardised == "imagenet")


def test_monai_verifies_the_bundle_and_an_evaluator_parsed_alone_has_the_trained_weights(dense, tmp_path):
    bundle, module, _, images = dense
    check_bundle(bundle)
    monai.bundle.verify_net_in_out("network_def", **files_of(bundle), device="cpu", bundle_root=str(bundle))
    actual = weights_of_evaluator_alone(bundle, images, tmp_path)
    assert all(torch.equal(actual[name], entry) for name, entry in module.state_dict().items())


def test_the_card_has_scores_of_each_site_the_order_of_columns_the_facts_and_the_data(dense, tmp_path):
    bundle, module, task, _ = dense
    card = (bundle / "docs" / "README.md").read_text()
    assert card.partition("\n")[0].endswith("trained and tested on synthetic phantom data, not for clinical use")
    assert "| A\\|B (UNSEEN) | 75.00 [50.0, 100.0] | - | 75.00 [50.0, 100.0] | 12.50 | 2 | 4 |" in card
    assert "probabilities of `normal`, `tumour`." in card and "{" not in card
    assert "TRANSDUCTIVE" in card and "- Codec reconstruction error: 0.01235" in card
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "normal", "1": "tumour"}
    numbers = {"": 0.75, "_95_percent_low": 0.5, "_95_percent_high": 1.0}
    scores = {f"unseen_{name}{end}": x for name in ("accuracy", "balanced_accuracy") for end, x in numbers.items()}
    assert content["eval_metrics"] == scores | {"unseen_ece": 0.125}
    assert "medfed" not in (bundle / "configs" / "inference.json").read_text()
    assert scores_table(scores_of([], CLASSES)) == "This run has no scores."
    card = (write(tmp_path / "x_classification", DENSE, module, task, "real") / "docs" / "README.md").read_text()
    assert "trained on real images, not for clinical use" in card.partition("\n")[0]


@pytest.mark.slow
def test_the_classifier_runs_from_the_command_line_without_medfed(dense, tmp_path):
    bundle, module, task, images = dense
    out = run_without_medfed(bundle, images, tmp_path, "-m", "monai.bundle")
    assert difference(read(out)[1], expected(module, task, images)) < 1e-6
