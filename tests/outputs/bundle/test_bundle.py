"""Tests that a bundle predicts with MONAI alone as `Segmentation.predict` does, with the trained weights."""

import json

import monai.bundle
import nibabel as nib
import numpy as np
import pytest
import torch
from made_bundles import (
    SIDE,
    UNET,
    exported,
    files_of,
    inference_of,
    run_without_medfed,
    weights_of_evaluator_alone,
    write_oblique_volume,
)
from made_dicom import write_nifti, write_series
from made_runs import MASKS, mask_rows, scores_of
from monai.networks.nets import BasicUNet
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.base import Volume
from medfed.federation.message import digest
from medfed.images.dicom import find_stack
from medfed.images.dicom_seg import Grid, read_segmentation
from medfed.images.reading import read_image
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.unet import UNet
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.model_card import card_notes, scores, scores_table
from medfed.outputs.bundle.program import PROGRAM
from medfed.outputs.bundle.write import atomic_folder, inference_config, load_trained_network, metadata, template_folder
from medfed.outputs.run_folder import RunFolder
from medfed.preparation.dicom_masks import write_segmentations
from medfed.tasks.class_bundle import CLASSIFICATION_TEMPLATE
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.mask_bundle import IMAGE_2D_TEMPLATE, VOLUME_TEMPLATE
from medfed.tasks.segmentation import Segmentation
from medfed.testing.small_unet import SmallUNet

pytestmark = pytest.mark.usefixtures("quiet")


def score(site, metric, unit, mean, low=None, high=None):
    """A record of `summary.json` about three patients of the unseen site."""
    names = {"role": "unseen", "site": site, "structure": "organ", "metric": metric, "unit": unit}
    return names | {"mean": mean, "low": low, "high": high, "n_patients": 3, "n_images": 3}


SCORES = [
    score("Anywhere", "dice", "%", 81.0, 70.0, 90.0),
    score("Anywhere", "hd95", "mm", 4.25),
    score("average", "dice", "%", 81.0),
    score("average", "hd95", "mm", None),
    score("Anywhere", "missed", "%", 100 / 3, 0.84, 90.57),
]
SUMMARY = scores_of([], MASKS) | {"scores": SCORES}


def write_image(path, channels):
    x, y = np.meshgrid(np.linspace(-1, 1, 45), np.linspace(-1, 1, 38), indexing="ij")
    noise = np.random.default_rng(0).integers(0, 120, (45, 38, channels))
    image = 120 * (x**2 / 0.4 + (y - 0.2) ** 2 / 0.2 < 1)[..., None] + noise
    Image.fromarray(image.astype(np.uint8).squeeze()).save(path)


def telling_weights(network, task, path):
    """Return random weights whose logits are half positive and half negative: the hardest mask to reproduce."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = network.build(task.channels, task.out_channels).eval()
    image = task.preprocessing()({"image": read_image(path, task.channels, [])})["image"].as_tensor().movedim(-1, 0)
    with torch.no_grad():
        logits = module(task.standardise(image)).transpose(0, 1).flatten(1)
        module.get_submodule(network.head).bias -= logits.median(dim=1).values
    return module


def write(out, network, module, task, input_is_2d=False):
    return exported(out, network, module, task, input_is_2d, SUMMARY, sites=["a", "b"], unseen_site="Anywhere")


@pytest.fixture(scope="module", params=[UNET, SmallUNet()], ids=["BasicUNet", "SmallUNet"])
def organ(request, tmp_path_factory):
    """Return a bundle of a MONAI network or of a medfed network, with its module, task and one image."""
    folder = tmp_path_factory.mktemp("bundle")
    task = Segmentation(("organ",), 1, SIDE, evaluation=Evaluation(0.5, largest_component=True))
    (folder / "in").mkdir()
    write_oblique_volume(folder / "in" / "case.nii.gz")
    module = telling_weights(request.param, task, folder / "in" / "case.nii.gz")
    return write(folder / "organ_segmentation", request.param, module, task), module, task, folder / "in"


def test_masks_equal_those_of_medfed_on_an_oblique_anisotropic_volume(organ, tmp_path):
    bundle, module, task, images = organ
    flow = inference_of(bundle, images, tmp_path)
    assert flow.check_properties() == []
    flow.run()
    actual, image = nib.load(tmp_path / "case_organ.nii.gz"), nib.load(images / "case.nii.gz")
    expected = task.predict(module, Volume(read_image(images / "case.nii.gz", 1, []), None, None))[0].numpy()
    assert 0.05 < expected.mean() < 0.95
    assert actual.shape == image.shape and actual.get_data_dtype() == np.uint8
    assert (np.asarray(actual.dataobj) != expected).sum() == 0
    assert np.array_equal(actual.affine, image.affine)


@pytest.mark.parametrize(
    ("channels", "structures", "is_2d"),
    [(1, ("disc", "cup"), False), (2, ("organ",), False), (3, ("disc", "cup"), True), (1, ("polyp",), True)],
)
def test_masks_equal_those_of_medfed_with_more_channels_structures_and_2d_images(channels, structures, is_2d, tmp_path):
    scale = (0.0, 255.0) if is_2d else None
    task = Segmentation(structures, channels, SIDE, scale, Evaluation(0.45, largest_component=is_2d))
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / ("case.png" if is_2d else "case.nii.gz")
    (write_image if is_2d else write_oblique_volume)(path, channels)
    module = telling_weights(UNET, task, path)
    bundle = write(tmp_path / "x_segmentation", UNET, module, task, is_2d)
    inference_of(bundle, path.parent, tmp_path / "out").run()
    expected = task.predict(module, Volume(read_image(path, channels, []), None, None)).numpy()
    for mask, name in zip(expected, structures, strict=True):
        if is_2d:
            actual = np.asarray(Image.open(tmp_path / "out" / f"case_{name}.png"))[..., None] // 255
        else:
            actual = np.asarray(nib.load(tmp_path / "out" / f"case_{name}.nii.gz").dataobj)
        assert 0.02 < mask.mean() < 0.98 and actual.shape == mask.shape
        assert (actual != mask).sum() == 0, name


def test_a_dicom_series_gives_the_mask_of_the_same_volume_as_nifti(tmp_path):
    x, y, z = np.meshgrid(*[np.linspace(-1, 1, n) for n in (40, 36, 5)], indexing="ij")
    voxels = (900 * (x**2 / 0.3 + (y - 0.2) ** 2 / 0.2 + z**2 / 3 < 1) + 90 * (x + 2 * y + 3)).astype(np.uint16)
    names = {"SeriesInstanceUID": "1.2.3", "StudyInstanceUID": "1.2.4", "FrameOfReferenceUID": "1.2.5"}
    for number in range(voxels.shape[2]):  # MONAI orders the slices by this number
        one = {"names": f"slice_{9 - number}.dcm", "slices": [number], "InstanceNumber": number + 1}
        write_series(tmp_path / "dicom" / "case 1", voxels, **one, **names)
    write_nifti(tmp_path / "nifti" / "case 1.nii.gz", voxels)
    task = Segmentation(("organ",), 1, SIDE)
    module = telling_weights(UNET, task, tmp_path / "nifti" / "case 1.nii.gz")
    bundle = write(tmp_path / "x_segmentation", UNET, module, task)
    for kind in ("dicom", "nifti"):
        inference_of(bundle, tmp_path / kind, tmp_path / "out" / kind).run()
    of_dicom, of_nifti = (nib.load(tmp_path / "out" / kind / "case 1_organ.nii.gz") for kind in ("dicom", "nifti"))
    masks = [nib.as_closest_canonical(mask) for mask in (of_dicom, of_nifti)]
    assert of_dicom.shape == voxels.shape and 0.05 < masks[0].get_fdata().mean() < 0.95
    assert np.array_equal(*(mask.get_fdata() for mask in masks))
    np.testing.assert_allclose(masks[0].affine, masks[1].affine, atol=1e-5)
    pytest.importorskip("highdicom")
    write_segmentations(tmp_path / "out" / "dicom", tmp_path / "dicom", tmp_path / "seg")
    stack = find_stack(tmp_path / "dicom" / "case 1")
    grid = Grid(tmp_path / "dicom" / "case 1", stack.shape, stack.affine)
    read = read_segmentation(tmp_path / "seg" / "case 1.dcm", grid, ("organ",), {}, (), [])[0].numpy()
    assert np.array_equal(nib.as_closest_canonical(nib.Nifti1Image(read, stack.affine)).dataobj, masks[1].dataobj)


def test_an_evaluator_parsed_alone_has_the_trained_weights_whose_checksum_is_that_of_the_run_s_model(organ, tmp_path):
    bundle, module, _, images = organ
    RunFolder(tmp_path).save_model(module.state_dict())
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["medfed_provenance"]["weights_sha256"] == digest((tmp_path / "model.safetensors").read_bytes())
    actual = weights_of_evaluator_alone(bundle, images, tmp_path)
    assert list(actual) == list(module.state_dict())
    assert all(torch.equal(actual[name], entry) for name, entry in module.state_dict().items())


def test_a_folder_without_images_is_an_error_that_names_it(organ, tmp_path):
    """MONAI alone would end without an error and without a mask."""
    with pytest.raises(RuntimeError) as caught:
        inference_of(organ[0], tmp_path / "empty", tmp_path).run()
    messages, error = "", caught.value
    while error:
        messages, error = messages + str(error), error.__cause__
    assert f"{tmp_path}/empty/*.nii*" in messages


def test_no_file_in_the_bundle_needs_medfed_and_a_network_that_monai_cannot_build_has_no_training_config(organ):
    bundle, module, *_ = organ
    is_monai = isinstance(module, BasicUNet)
    monai.bundle.verify_net_in_out("network_def", **files_of(bundle), device="cpu", bundle_root=str(bundle))
    assert "medfed" not in (bundle / "configs" / "inference.json").read_text()
    card = (bundle / "docs" / "README.md").read_text()
    assert ("images of 32 x 32 pixels" in card) == ("MONAI cannot build this network" in card) == (not is_monai)
    always = "LICENSE configs/inference.json configs/logging.conf configs/metadata.json docs/README.md models/model.pt"
    others = ["configs/evaluate.json", "configs/train.json"] if is_monai else [PROGRAM]
    files = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert files == {*always.split(), *others}


def test_the_cards_title_states_phantom_data_and_its_table_has_a_row_for_each_site(organ):
    bundle, *_ = organ
    card = (bundle / "docs" / "README.md").read_text()
    title = "# Organ segmentation: trained and tested on synthetic phantom data, not for clinical use"
    assert card.partition("\n")[0] == title
    assert "| Anywhere (UNSEEN) | organ | 81.00 [70.0, 90.0] | 4.25 mm | 1/3 | 3 | 3 |" in card
    assert "{" not in card
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["eval_metrics"] == {"unseen_organ_dice": 0.81}
    assert content["network_data_format"]["inputs"]["image"]["num_channels"] == 1
    assert content["medfed_provenance"]["sites"] == ["a", "b"]


def test_the_card_has_calibration_and_failures_of_each_site():
    summary = scores_of(mask_rows(["A"], "C"))
    table = scores_table(summary)
    assert "| C (UNSEEN) | disc | 5.00 [3.3, 7.4] | 1/7 [0, 58] % | 1/7 [0, 58] % |" in table
    assert scores(summary)["unseen_disc_ece"] == 0.05


def test_the_notes_describe_start_weights_selection_and_clients():
    assert card_notes({"start_weights": None}) == ""
    summary = {"start_weights": {"file": "resnet18.pth", "sha256": "ab12"}, "selection": "validation_site"}
    summary |= {"validation_site": "photo", "clients": {"n": 100, "per_round": 20, "partition": "dirichlet 0.5"}}
    notes = card_notes(summary)
    assert "the weights in resnet18.pth (SHA-256 ab12)" in notes
    assert "photo did not train; the round was selected by its scores." in notes
    assert "100 simulated clients (dirichlet 0.5). 20 clients took part in each round" in notes
    rough = card_notes({"deterministic": False, "precision": "bf16"})
    assert "\n\nNOT DETERMINISTIC: the same config and seed give other weights each time.\n\nTrained in bf16." in rough
    assert card_notes({"deterministic": True, "precision": "float32"}) == ""
    assert "it was scored only" in card_notes({"validation_site": "photo", "selection": "last"})


FUNDUS = Segmentation(("disc", "cup"), 3, 384, (0.0, 255.0), Evaluation(largest_component=True))


@pytest.mark.parametrize(
    ("name", "task", "input_is_2d", "network"),
    [
        (VOLUME_TEMPLATE, Segmentation(("prostate",), 1, 384), False, UNet().network_def(1, 1)),
        (IMAGE_2D_TEMPLATE, FUNDUS, True, UNet().network_def(3, 2)),
        (CLASSIFICATION_TEMPLATE, Classification(("normal", "tumour"), 3, 96), True, DenseNetwork().network_def(3, 2)),
    ],
)
def test_the_templates_equal_the_configs_of_a_prostate_a_fundus_and_a_camelyon17_run(name, task, input_is_2d, network):
    """The templates in the repository show the configs of real exports."""
    template, bundle = template_folder(name), task.bundle(input_is_2d)
    kept = json.loads((template / "configs" / "inference.json").read_text())
    assert bundle.folder == name and inference_config(template, bundle, network) == kept
    stored = json.loads((template / "configs" / "metadata.json").read_text())
    filled = metadata(template, bundle, {}, {})
    by_run = {"monai_version", "pytorch_version", "numpy_version", "required_packages_version", "data_source"}
    assert {key for key in stored if stored[key] != filled[key]} <= by_run


def test_masks_of_a_wide_image_have_its_orientation_and_the_card_describes_2d_images(tmp_path):
    """The network's output is the brightness, so the mask shows the pattern of the image: an F in the upper left."""
    task = Segmentation(("disc", "cup"), 3, SIDE, (0.0, 255.0), standardised="none")
    pattern = np.zeros((40, 100), dtype=np.uint8)
    pattern[5:35, 10:20] = pattern[5:12, 10:45] = pattern[18:24, 10:32] = 255
    (tmp_path / "in").mkdir()
    alpha = np.arange(4000, dtype=np.uint8).reshape(pattern.shape)
    Image.fromarray(np.stack([pattern, pattern // 2, pattern, alpha], axis=-1)).save(tmp_path / "in" / "f.png")
    settings = Brightness()
    summary = SUMMARY | {"vertical_ratio": {"of": ["cup", "disc"], "unseen": {"mean_error": 0.1234}}}
    bundle = exported(tmp_path / "x_segmentation", settings, settings.build(3, 2), task, True, summary, data="real")
    inference_of(bundle, tmp_path / "in", tmp_path / "out").run()
    for name in task.structures:
        actual = np.asarray(Image.open(tmp_path / "out" / f"f_{name}.png"))
        assert actual.shape == pattern.shape and ((actual > 0) == (pattern > 0)).mean() > 0.9
    card = (bundle / "docs" / "README.md").read_text()
    assert "vertical cup-to-disc ratio: 0.123 (sites that did not train)." in card and "unit variance" not in card
    assert "has the size and orientation of its image" in card and "{" not in card
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["eval_metrics"]["unseen_vertical_cup_to_disc_error"] == 0.1234


def test_an_existing_folder_and_weights_of_another_network_are_rejected_and_a_failure_leaves_no_files(tmp_path, organ):
    _, module, task, _ = organ
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "there", tmp_path / "new" / ".." / "there"):
        with pytest.raises(UserError, match="exists already"):
            write(out, UNET, module, task)
    with pytest.raises(UserError, match="model.safetensors: the file cannot be read"):
        write(tmp_path / "new", UNet(features=(4, 4, 4, 8, 8, 8)), module, task)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    weights = UNET.build(1, 1).state_dict()
    weights["stranger"] = torch.zeros(1)
    with pytest.raises(UserError, match='cannot be read .*"stranger"'):
        load_trained_network(UNET, weights, task)
    weights = UNET.build(1, 1).state_dict()
    del weights["final_conv.bias"]
    with pytest.raises(UserError, match="cannot be read .*final_conv.bias"):
        load_trained_network(UNET, weights, task)
    weights["final_conv.bias"] = torch.tensor([float("nan")])
    with pytest.raises(UserError, match="not finite .*final_conv.bias"):
        load_trained_network(UNET, weights, task)


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(OSError, match="not empty.*/b'$"), atomic_folder(tmp_path / "b"):
        (tmp_path / "b" / "x").mkdir(parents=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


class Brightness(NetworkSettings):
    """A network whose logits are the first channel minus one half."""

    def build(self, in_channels, out_channels):
        module = torch.nn.Conv2d(in_channels, out_channels, 1)
        with torch.no_grad():
            module.weight.zero_()[:, 0] = 20
            module.bias.fill_(-10)
        return module


def test_a_bundle_with_a_program_fails_the_check_of_others(organ):
    bundle, module, *_ = organ
    if isinstance(module, BasicUNet):
        check_bundle(bundle)
    else:
        check_bundle(bundle, own_program=True)
        with pytest.raises(UserError, match="models/model.pt2 is a program, which can run code"):
            check_bundle(bundle)


WITHOUT_TORCHSCRIPT = """
import torch, monai.bundle, fire
torch.jit.load = torch.jit.script = torch.jit.trace = None  # deprecated
fire.Fire({'run': monai.bundle.run})
"""


@pytest.mark.slow
def test_the_bundle_runs_from_the_command_line_without_medfed_and_torchscript(organ, tmp_path):
    bundle, module, task, images = organ
    out = run_without_medfed(bundle, images, tmp_path, "-c", WITHOUT_TORCHSCRIPT)
    expected = task.predict(module, Volume(read_image(images / "case.nii.gz", 1, []), None, None))[0].numpy()
    assert (np.asarray(nib.load(out / "case_organ.nii.gz").dataobj) != expected).sum() == 0
