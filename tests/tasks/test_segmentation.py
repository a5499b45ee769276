import gc
import math
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made_runs import mask_row, scores_of
from monai.data import MetaTensor
from monai.transforms import NormalizeIntensity
from torch import nn

from medfed.core.errors import UserError
from medfed.datasets.case import Case, MaskFile, Volume
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import scoring_of
from medfed.tasks.results import PackedMask
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import SliceBuffer
from medfed.tasks.task import UNOBSERVED


def volume(shape=(40, 50, 6), spacing=(0.5, 0.5, 3.0), axes=(-1, -1, 1)) -> Volume:
    """A bright ellipsoid on a dark background; `axes` are the signs of the directions of the axes."""
    grid = torch.meshgrid(*[torch.linspace(-1, 1, n) for n in shape], indexing="ij")
    inside = (grid[0] - 0.2) ** 2 / 0.2 + grid[1] ** 2 / 0.3 + grid[2] ** 2 / 2 < 1
    affine = torch.diag(torch.tensor([a * s for a, s in zip(axes, spacing, strict=True)] + [1.0], dtype=torch.float64))
    image = 50 + 100 * inside.float() + 10 * grid[1]
    return Volume(
        MetaTensor(image[None], affine=affine), MetaTensor(inside[None].to(torch.uint8), affine=affine.clone()), spacing
    )


class Threshold(nn.Module):
    """Segments by brightness: logits are positive inside the bright ellipsoid."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(20.0))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.gain * (image - 0.5 * image.amax(dim=(-2, -1), keepdim=True))


@pytest.mark.parametrize("axes", [(1, 1, 1), (-1, -1, 1), (-1, 1, -1)])
def test_a_predicted_mask_has_the_voxel_grid_of_the_file(axes):
    task, case = Segmentation(("organ",), 1, 64), volume(axes=axes)
    predicted = task.predict(Threshold(), case)
    assert predicted.shape == case.mask.shape and predicted.dtype == torch.uint8
    dice = 2 * (predicted * case.mask).sum() / (predicted.sum() + case.mask.sum())
    assert dice > 0.9


def centre(mask: torch.Tensor) -> torch.Tensor:
    """Return the centre of mass of a slice (H, W) as fractions of its height and width; pixel i ends at i + 1."""
    mask = mask.double()
    positions = [(torch.arange(n) + 0.5) / n for n in mask.shape]
    return torch.stack([(mask.sum(1) * positions[0]).sum(), (mask.sum(0) * positions[1]).sum()]) / mask.sum()


def disc(height: int, width: int) -> Volume:
    """Return a bright disc on black with its centre at 0.4 of the height and 0.55 of the width."""
    y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    inside = ((y - 0.4) ** 2 + (x - 0.55) ** 2 < 0.3**2)[None, ..., None]
    return Volume(MetaTensor(255.0 * inside), MetaTensor(inside.to(torch.uint8)), None)


@pytest.mark.parametrize(("height", "width"), [(97, 131), (640, 410), (64, 64), (23, 30)])
def test_image_and_mask_stay_aligned_when_both_are_resized_and_when_the_mask_is_predicted(height, width):
    """Masks are rough at their outline; aligned corners instead of centres would move them by up to half a pixel."""
    task, case = Segmentation(("disc",), 1, 64, (0.0, 255.0), standardised="none"), disc(height, width)
    slices, predicted = task.prepare([case]), task.predict(Threshold(), case)
    expected = centre(case.mask[0, ..., 0].as_tensor())
    for resized, tolerance in ((slices.images[0, 0], 0.05), (slices.labels[0, 0], 0.25), (predicted[0, ..., 0], 0.25)):
        assert ((centre(resized) - expected) * 64).abs().max() < tolerance
    if height == width == 64:
        assert torch.equal(slices.labels[0], case.mask[..., 0].as_tensor()), "not resized"


def test_only_one_volume_is_in_memory_at_a_time():
    earlier: list[weakref.ref] = []

    def read():
        for _ in range(4):
            assert not any(image() is not None for image in earlier)
            case = volume()
            earlier.append(weakref.ref(case.image))
            yield case
            del case

    assert len(Segmentation(("organ",), 1, 8).prepare(read(), 4)) == 4 * 6 and len(earlier) == 4


def test_preparing_a_volume_leaves_no_tensor_of_its_own_in_memory():
    """A small tensor for each volume divides the memory that its large tensors free, so that it cannot be reused."""
    n_tensors: list[int] = []

    def read():
        for _ in range(4):
            n_tensors.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
            yield volume()

    slices = Segmentation(("organ",), 1, 8).prepare(read(), 4)
    assert len(set(n_tensors[1:])) == 1 and slices.volume.tolist() == sorted([*range(4)] * 6)


def test_slices_are_written_into_memory_that_was_reserved_for_all_volumes():
    """Appended slices are never copied a second time if the number of volumes is known."""
    parts = [torch.full((3, 2, 2), float(number)) for number in range(5)]
    buffer = SliceBuffer()
    buffer.append(parts[0], n_volumes_left=4)
    address = buffer.content().data_ptr()
    for part in parts[1:]:
        buffer.append(part)
    assert torch.equal(buffer.content(), torch.cat(parts)) and buffer.content().data_ptr() == address
    buffer.append(torch.full((4, 2, 2), 9.0))
    assert buffer.content()[:, 0, 0].tolist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3 + [3.0] * 3 + [4.0] * 3 + [9.0] * 4


def test_prepared_slices_are_in_range_labels_are_binary_and_a_fixed_range_maps_its_ends_to_zero_and_one():
    slices = Segmentation(("organ",), 1, 32).prepare([volume(), volume(shape=(30, 30, 4))])
    assert slices.images.shape == (10, 1, 32, 32) and slices.images.dtype == torch.float32
    assert slices.images.min() >= 0 and slices.images.max() <= 1
    assert slices.labels.unique().tolist() == [0, 1] and slices.volume.tolist() == [0] * 6 + [1] * 4
    case = volume()
    slices = Segmentation(("organ",), 1, 32, intensity_range=(0.0, 255.0)).prepare([case])
    assert torch.isclose(slices.images.max(), case.image.max() / 255, rtol=0.02)


def test_standardise_equals_monai_for_each_image():
    image = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    standardised = Segmentation(("a",), 2, 8, standardised="slice").standardise(image)
    expected = torch.stack([NormalizeIntensity(channel_wise=True)(channels) for channels in image])
    assert torch.allclose(standardised, expected, atol=1e-6)
    blank = Segmentation(("a",), 1, 8, standardised="slice").standardise(torch.ones(1, 1, 4, 4))
    assert torch.equal(blank, torch.zeros(1, 1, 4, 4))
    assert torch.equal(Segmentation(("a",), 2, 8).standardise(image), image)


def test_the_loss_is_dice_over_the_batch():
    """One image predicted completely, one missed, 4 pixels each: sums are over both, so Dice is 2*4 / (4 + 8)."""
    logits = torch.full((2, 1, 2, 2), 50.0, dtype=torch.float64)
    logits[1] = -50
    label = torch.ones(2, 1, 2, 2, dtype=torch.uint8)
    assert torch.isclose(Segmentation(("a",), 1, 2).loss(logits, label), torch.tensor(1 - 8 / 12).double(), atol=1e-5)


def test_validation_weighs_patients_equally_and_not_slices():
    task = Segmentation(("organ",), 1, 32)
    slices = task.prepare([volume(shape=(40, 40, 4)), volume(shape=(40, 40, 12))])
    by_patient = [task.prepare([volume(shape=shape)]) for shape in ((40, 40, 4), (40, 40, 12))]
    scores = [task.validate(Threshold(), samples)["score"] for samples in by_patient]
    assert task.validate(Threshold(), slices)["score"] == pytest.approx(sum(scores) / 2)


class Nothing(Threshold):
    def forward(self, image):
        return super().forward(image) * 0 - 10


def test_the_calibration_error_is_that_of_the_probabilities_in_the_file_around_the_true_mask():
    """A network that is undecided everywhere has p = 0.5, so its error is the distance of the frequency from 0.5."""

    class Undecided(Threshold):
        def forward(self, image):
            return 0 * super().forward(image)

    task, case = Segmentation(("organ",), 1, 32), Case("A", "p1", Path("image"), (MaskFile(Path("mask")),))
    data = SimpleNamespace(ratio_structures=None, load=lambda case: volume())
    result = task.evaluate(Undecided(), data, [case], "unseen", UNOBSERVED)
    mask = volume().mask[0].bool()
    box = tuple(
        slice(max(0, int(index.min()) - margin), int(index.max()) + 1 + margin)
        for index in mask.nonzero().T
        for margin in [math.ceil((int(index.max()) - int(index.min()) + 1) / 4)]
    )
    assert result.rows[0]["ece"] == pytest.approx(abs(0.5 - float(mask[box].double().mean())), abs=1e-6)
    assert torch.equal(result.masks["p1"].unpack(), task.predict(Undecided(), volume()))


def test_the_limit_of_a_failure_is_recorded_and_changes_no_other_score():
    evaluations = [Evaluation(failure_dice=limit) for limit in (0.5, 0.7)]
    scorings = [Segmentation(("disc",), 1, 32, evaluation=evaluation).scoring for evaluation in evaluations]
    summaries = [scores_of([mask_row("A", "p", 0.6)], scoring) for scoring in scorings]
    assert [scoring_of(summary).failure_dice for summary in summaries] == [0.5, 0.7]
    low, others = (
        [[score for score in summary["scores"] if (score["metric"] == "low_dice") == is_low] for summary in summaries]
        for is_low in (True, False)
    )
    assert others[0] == others[1] and [[score["mean"] for score in of_run] for of_run in low] == [[0, 0], [100, 100]]
    for wrong in (2, 0, "0.7", None):
        with pytest.raises(UserError, match=rf"failure_dice: found {wrong!r}, expected a number in \(0, 1\]"):
            scoring_of(summaries[0] | {"failure_dice": wrong})


def test_largest_component_removes_smaller_components_and_an_empty_prediction_stays_empty():
    task, case = Segmentation(("organ",), 1, 32, evaluation=Evaluation(largest_component=True)), volume()
    assert task.predict(Nothing(), case).sum() == 0
    case.image[0, :6, :6] = 150.0
    with_specks, without = Segmentation(("organ",), 1, 32).predict(Threshold(), case), task.predict(Threshold(), case)
    assert with_specks[0, :3, :3].any() and not without[0, :3, :3].any() and without.any()


@pytest.mark.parametrize("shape", [(1, 5, 3, 1), (2, 8, 8, 4), (0, 3), (7,)])
def test_a_packed_mask_is_unpacked_unchanged_and_that_of_an_organ_needs_few_bytes(shape):
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.6).to(torch.uint8)
    unpacked = PackedMask.pack(mask).unpack()
    assert unpacked.dtype == torch.uint8 and torch.equal(unpacked, mask)
    mask = torch.zeros(1, 256, 256, 20, dtype=torch.uint8)
    mask[:, 80:160, 90:170, 5:15] = 1
    assert len(PackedMask.pack(mask).packed) < mask.numel() / 100
