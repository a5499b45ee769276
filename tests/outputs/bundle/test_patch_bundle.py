"""A bundle of a 3-D network predicts with MONAI alone as `PatchSegmentation.predict` does, and MONAI can train it."""

import json

import nibabel as nib
import numpy as np
import pytest
import torch
from made_bundles import UNET, exported, inference_of, seeded, training_of, write_oblique_volume

from medfed import score_bundle
from medfed.datasets.base import Volume
from medfed.images.reading import read_image
from medfed.outputs.bundle.check import check_bundle
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.patch_segmentation import PatchSegmentation

pytestmark = pytest.mark.usefixtures("quiet")
NETWORK = type(UNET)(features=UNET.features, dimensions=3)


@pytest.mark.parametrize(
    ("structures", "channels", "standardise", "spacing_mm"),
    [(("organ",), 1, "none", (0.9, 0.8, 2.5)), (("a", "b"), 2, "volume", None)],
)
def test_masks_equal_those_of_medfed_on_an_oblique_volume(tmp_path, structures, channels, standardise, spacing_mm):
    task = PatchSegmentation(
        structures,
        channels,
        64,
        None,
        Evaluation(threshold=0.52, largest_component=True),
        standardised=standardise,
        patch_size=(32, 32, 16),
        spacing_mm=spacing_mm,
    )
    module = seeded(NETWORK, channels, len(structures))
    bundle = exported(tmp_path / "b_segmentation", NETWORK, module, task, input_is_2d=False)
    check_bundle(bundle)
    (tmp_path / "images").mkdir()
    path = tmp_path / "images" / "case.nii.gz"
    write_oblique_volume(path, channels)
    inference_of(bundle, tmp_path / "images", tmp_path / "out").run()
    image = read_image(path, channels, [])
    expected = task.predict(module, Volume(image, torch.zeros(len(structures), *image.shape[1:]), None))
    assert 0 < expected.sum() < expected.numel()
    for name, mask in zip(structures, expected, strict=True):
        written = nib.load(tmp_path / "out" / f"case_{name}.nii.gz")
        assert np.array_equal(np.asarray(written.dataobj), mask.numpy()), name
        assert np.allclose(written.affine, nib.load(path).affine)
    card = (bundle / "docs" / "README.md").read_text()
    assert "A 3-D network" in card and "windows of 32 x 32 x 16 voxels" in card and "slice by slice" not in card
    content = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert content["network_data_format"]["inputs"]["image"]["spatial_shape"] == [32, 32, 16]


def test_a_bundle_of_a_3d_network_is_scored_with_the_masks_that_medfed_predicts(tmp_path):
    task = PatchSegmentation(("organ",), 1, 64, patch_size=(32, 32, 16), spacing_mm=(0.9, 0.8, 2.5))
    module = seeded(NETWORK, 1, 1)
    bundle = exported(tmp_path / "b_segmentation", NETWORK, module, task, input_is_2d=False)
    for number in range(2):
        path = tmp_path / "images" / "site" / f"c{number}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_oblique_volume(path, seed=number)
        image = read_image(path, 1, [])
        mask = task.predict(module, Volume(image, torch.zeros(1, *image.shape[1:]), None))[0]
        nib.save(nib.Nifti1Image(mask.numpy(), nib.load(path).affine), path.with_name(f"c{number}_mask.nii.gz"))
    scores = score_bundle(bundle, tmp_path / "images", names={"foreground": "organ"})
    assert list(scores.table.query("metric == 'dice'")["value"]) == [100.0, 100.0]


def test_monai_trains_the_bundle_on_patches(tmp_path):
    task = PatchSegmentation(("organ",), 1, 64, patch_size=(32, 32, 16), spacing_mm=(0.8, 0.8, 2.0))
    module = seeded(NETWORK, 1, 1)
    bundle = exported(tmp_path / "b_segmentation", NETWORK, module, task, input_is_2d=False)
    for name in ("images", "labels"):
        (tmp_path / "site" / name).mkdir(parents=True)
    for number in range(3):
        path = tmp_path / "site" / "images" / f"{number}.nii.gz"
        write_oblique_volume(path, seed=number)
        image = nib.load(path)
        mask = (np.asarray(image.dataobj) > 250).astype(np.uint8)
        nib.save(nib.Nifti1Image(mask, image.affine), tmp_path / "site" / "labels" / path.name)
    flow = training_of(bundle, tmp_path / "site")
    (item, *_) = flow.parser.get_parsed_content("train#dataset")[0]
    assert item["image"].shape == item["label"].shape == (1, 32, 32, 16)
    flow.run()
    trained = torch.load(bundle / "models" / "trained.pt", weights_only=True)
    assert not torch.equal(trained["final_conv.weight"], module.state_dict()["final_conv.weight"])
    (dice,) = flow.parser.get_parsed_content("validate#evaluator").state.metrics.values()
    assert 0 <= dice <= 1  # not NaN, not percent
