from dataclasses import replace

import pytest
import torch
from monai.data import MetaTensor
from torch import nn

from medfed.core.errors import UserError
from medfed.datasets.case import Volume
from medfed.datasets.collections.folder import Folder
from medfed.functional.standardisation import image_moments, standardise_by, standardise_slices
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import task_of_images
from medfed.tasks.patch_segmentation import PatchSegmentation
from medfed.tasks.patches import Patches, foreground_corners, grid_corners
from medfed.tasks.trivial_masks import FixedMask

TASK = PatchSegmentation(("organ",), 1, 64, (50.0, 150.0), patch_size=(16, 16, 8), spacing_mm=(2.0, 2.0, 3.0))


def ellipsoid(shape=(60, 50, 9), spacing=(1.0, 1.25, 3.0), axes=(-1, -1, 1)) -> Volume:
    """A bright ellipsoid on a dark background, away from the centre; `axes` are the signs of the directions."""
    grid = torch.meshgrid(*[torch.linspace(-1, 1, n) for n in shape], indexing="ij")
    inside = (grid[0] - 0.2) ** 2 / 0.2 + (grid[1] + 0.1) ** 2 / 0.3 + grid[2] ** 2 / 0.5 < 1
    affine = torch.diag(torch.tensor([a * s for a, s in zip(axes, spacing, strict=True)] + [1.0], dtype=torch.float64))
    mask = MetaTensor(inside[None].to(torch.uint8), affine=affine.clone())
    return Volume(MetaTensor(50.0 + 100 * inside[None].float(), affine=affine), mask, spacing)


class Bright(nn.Module):
    """Segments voxels above 0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(20.0))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        assert image.shape[2:] == (16, 16, 8), "patches, not slices"
        return self.gain * (image - 0.5)


def dice(first, second) -> float:
    return float(2 * (first * second).sum() / (first.sum() + second.sum()))


@pytest.mark.parametrize("axes", [(1, 1, 1), (-1, -1, 1), (-1, 1, -1)])
def test_a_predicted_mask_has_the_voxel_grid_of_the_file(axes):
    case = ellipsoid(axes=axes)
    predicted = TASK.predict(Bright(), case)
    assert predicted.shape == case.mask.shape and predicted.dtype == torch.uint8
    assert dice(predicted, case.mask.as_tensor()) > 0.96


def test_volumes_are_prepared_with_the_voxel_size_of_the_plan():
    patches = TASK.prepare([ellipsoid(), ellipsoid((20, 20, 4), (1.0, 1.0, 1.0))])
    large, small = patches.images
    assert tuple(large.shape[2:]) == (32, 9) and abs(large.shape[1] - 60 * 1.0 / 2.0) <= 1
    assert tuple(small.shape) == (1, 16, 16, 8), "padded to one patch"
    assert all(one.shape == label.shape for one, label in zip(patches.images, patches.labels, strict=True))
    assert dice((large > 0.5).float(), patches.labels[0].float()) > 0.99, "image and mask lie on the same grid"


@pytest.mark.parametrize(("n", "expected"), [(16, [0]), (17, [0, 1]), (24, [0, 8]), (33, [0, 6, 11, 17])])
def test_the_grid_covers_an_axis_and_overlaps_by_half(n, expected):
    corners = grid_corners(torch.zeros(1, n, 16, 8), (16, 16, 8))
    assert [x for x, y, z in corners] == expected and {(y, z) for _, y, z in corners} == {(0, 0)}


def test_a_third_of_the_patches_lies_around_the_structures_in_turns():
    label = torch.zeros(2, 40, 40, 16)
    label[0, 2, 2, 2] = label[1, 30, 20, 9] = 1
    n_grid, around = len(grid_corners(label, (16, 16, 8))), foreground_corners(label, (16, 16, 8))
    assert len(around) == n_grid / 2 and around[:3] == [(0, 0, 0), (22, 12, 5), (0, 0, 0)]
    assert foreground_corners(torch.zeros(2, 40, 40, 16), (16, 16, 8)) == []


def test_patches_around_a_structure_are_spread_over_it():
    """Two patches around 100 voxels in a row are around voxels 25 and 75."""
    label = torch.zeros(1, 120, 4, 4)
    label[0, 10:110, 1, 1] = 1
    assert [corner[0] + 20 for corner in foreground_corners(label, (40, 4, 4))][:2] == [35, 85]


def test_a_structure_that_is_neither_shown_nor_predicted_is_left_out_of_the_validation():
    task = PatchSegmentation(("a", "b"), 1, 64, patch_size=(8, 8, 8))
    label = torch.zeros(2, 8, 8, 8, dtype=torch.uint8)
    label[0] = 1
    mask = FixedMask(torch.stack([torch.ones(8, 8, 8), torch.zeros(8, 8, 8)]))
    assert task.validate(mask, Patches.of([torch.rand(1, 8, 8, 8)], [label], (8, 8, 8)))["score"] == 1.0


def test_the_ratio_of_slices_is_the_size_of_a_pixel_divided_by_their_distance():
    task = PatchSegmentation(("a",), 1, 64, patch_size=(8, 8, 8), spacing_mm=(0.5, 0.5, 2.0))
    assert (task.slice_ratio, replace(task, spacing_mm=None).slice_ratio) == (0.25, 1.0)


def test_a_batch_has_the_voxels_at_the_corners():
    values = torch.arange(40 * 20 * 10.0).reshape(1, 40, 20, 10)
    patches = Patches.of([values, -values], [torch.zeros(1, 40, 20, 10, dtype=torch.uint8)] * 2, (16, 16, 8))
    batch = patches.batch([len(patches) - 1, 0])
    assert torch.equal(batch.image[0], -values[:, 24:, 4:, 2:]) and torch.equal(batch.image[1], values[:, :16, :16, :8])
    assert patches.n_patients == 2 and batch.label.dtype == torch.uint8


@pytest.mark.parametrize("spacing_mm", [None, (1.0, 0.5, 3.0)])
def test_a_patch_is_rotated_in_its_plane_without_distortion(spacing_mm):
    """A bar in a patch that is neither square nor has square voxels keeps its shape in mm up to the random scaling."""
    size, voxel = (128, 160, 8), spacing_mm or (1.0, 1.0, 1.0)
    grid = torch.meshgrid(
        *[v * (torch.arange(n) - (n - 1) / 2) for n, v in zip(size, voxel, strict=True)], indexing="ij"
    )
    bar = ((grid[0].abs() < 10) & (grid[1].abs() < 30)).to(torch.uint8)[None]
    batch = Patches.of([bar.float()], [bar], size).batch([0])
    task = replace(TASK, patch_size=size, spacing_mm=spacing_mm)

    def axes_of(label):
        """The standard deviations of a mask in mm along its two main axes in the plane, the longer one first."""
        places = torch.stack([axis[label[0, 0] > 0] for axis in grid[:2]]).double()
        return torch.linalg.eigvalsh(places.cov()).flip(0).sqrt()

    rng, before = torch.Generator().manual_seed(3), axes_of(batch.label)
    for _ in range(6):
        turned = task.augment(batch, rng)
        assert turned.image.shape == batch.image.shape and dice(turned.label, (turned.image > 0.5).float()) > 0.97
        ratio = axes_of(turned.label) / before
        assert 0.8 < float(ratio.min()) and float(ratio.max()) < 1.2 and float((ratio[0] - ratio[1]).abs()) < 0.02


def test_images_without_depth_are_refused():
    with pytest.raises(UserError, match="data.patch_size: is for volumes, but an image has a single slice"):
        TASK.prepare([ellipsoid((20, 20, 1))])


def test_an_empty_prediction_of_a_structure_scores_zero_and_trivial_masks_are_named():
    patches = TASK.prepare([ellipsoid()])
    assert TASK.validate(Bright(), patches)["score"] > 0.98
    scores = TASK.trivial_scores(patches, patches)
    share = float(patches.labels[0].double().mean())
    assert sorted(scores.values()) == [0.0, pytest.approx(2 * share / (1 + share))]


def test_standardising_a_volume_uses_its_own_numbers():
    volume = torch.rand(2, 3, 8, 9, 10)
    moments = image_moments(volume)
    scaled = standardise_by(volume, moments)
    assert scaled.mean(dim=(2, 3, 4)).abs().max() < 1e-5 and (scaled.std(dim=(2, 3, 4)) - 1).abs().max() < 1e-2
    with pytest.raises(ValueError, match="expected slices"):
        standardise_slices(volume)


@pytest.mark.parametrize(
    ("images", "evaluation", "sentence"),
    [
        ({"structures": ("a",), "classes": ()}, Evaluation(boundary_distance=True), "evaluation.boundary_distance"),
        ({"structures": (), "classes": ("a", "b")}, Evaluation(), "data.patch_size: is for masks of volumes"),
    ],
)
def test_settings_for_images_are_refused_with_patches(images, evaluation, sentence):
    dataset = Folder(root=".", patch_size=(32, 32, 16))
    with pytest.raises(UserError, match=sentence):
        task_of_images({"channels": 1, "intensity_range": None, **images}, dataset, evaluation)
