"""Images that are read on demand, and the classification task."""

import math

import pytest
import torch
from monai.data import MetaTensor
from torch import nn

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.datasets.case import Case
from medfed.tasks.classification import Classification, ImageSamples, even_parts

TASK = Classification(("no", "yes"), 3, 8)


def cases(n: int = 6):
    return tuple(Case("a", f"{i}", f"{i}.png", (), f"patient {i // 2}", i % 2) for i in range(n))


class Reader:
    """Reads images (3, side, side, 1) of grey level ten times their number, and counts how often it is called."""

    def __init__(self, side: int = 8) -> None:
        self.side, self.n = side, 0

    def __call__(self, case: Case) -> MetaTensor:
        self.n += 1
        return MetaTensor(torch.full((3, self.side, self.side, 1), 10.0 * int(case.name)))


def test_images_are_in_zero_to_one_with_their_labels_and_resized_to_the_size_of_the_network():
    batch = TASK.prepare(cases(), Reader()).batch([1, 4])
    assert batch.image.shape == (2, 3, 8, 8) and batch.label.tolist() == [1, 0]
    assert torch.equal(batch.image[:, 0, 0, 0], torch.tensor([10.0, 40.0]) / 255)
    assert TASK.prepare(cases(), Reader(20)).batch([5]).image.shape == (1, 3, 8, 8)


def test_each_image_is_read_once_while_there_is_room_and_then_again_with_the_same_values():
    read = Reader()
    samples = TASK.prepare(cases(), read)
    samples.batch([0, 1, 2])
    samples.batch([0, 1, 2])
    assert read.n == 3 and samples.n_patients == 3
    read = Reader()
    samples = ImageSamples(cases(), read, 8, max_cache_bytes=2 * 3 * 8 * 8)
    list(samples.preload())
    first = samples.batch(range(6)).image
    assert torch.equal(first, samples.batch(range(6)).image)
    assert len(samples._cache) == 2 and read.n == 2 + 4 + 4


def test_no_image_is_kept_if_the_limit_is_less_than_one_image():
    """Of 1,000 clients that divide the memory, each has less than the size of an image, and none may keep one."""
    read = Reader()
    samples = ImageSamples(cases(), read, 8, max_cache_bytes=3 * 8 * 8 - 1)
    list(samples.preload())
    assert read.n == 1  # to learn the size of an image
    samples.batch([0, 1])
    assert read.n == 1 + 2 and not samples._cache


def test_kept_images_lie_together_in_memory_that_is_not_larger_than_the_limit():
    """Memory is reserved for 64 images at once, and for no image above the limit: 5 of the 6 images fit."""
    samples = ImageSamples(cases(), Reader(), 8, max_cache_bytes=6 * 3 * 8 * 8 - 1)
    list(samples.preload())
    (n_bytes,) = {samples._cache[index].untyped_storage().nbytes() for index in range(5)}
    assert n_bytes == 5 * 3 * 8 * 8
    assert [int(samples._cache[index][0, 0, 0]) for index in range(5)] == [0, 10, 20, 30, 40]


def test_colours_are_standardised_by_fixed_numbers():
    standardised = TASK.standardise(torch.full((1, 3, 2, 2), 0.5))
    by_hand = torch.tensor([(0.5 - 0.485) / 0.229, (0.5 - 0.456) / 0.224, (0.5 - 0.406) / 0.225])
    assert torch.allclose(standardised[0, :, 0, 0], by_hand)
    assert torch.equal(Classification(("a", "b"), 3, 8, standardised="none").standardise(standardised), standardised)


def test_images_are_flipped_from_left_to_right_and_never_upside_down():
    image = torch.zeros(1, 3, 9, 9)
    image[:, :, 0] = 1.0  # a bright top
    batch = Batch(image.repeat(40, 1, 1, 1), torch.zeros(40))
    moved = TASK.augment(batch, stream(0, "flip")).image
    assert (moved[:, :, :3].mean(dim=(1, 2, 3)) >= moved[:, :, 6:].mean(dim=(1, 2, 3))).all()


class Bright(nn.Module):
    """Predicts class 1 for images above a grey level."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(0.15))

    def forward(self, image):
        logit = (image.mean(dim=(1, 2, 3)) - self.threshold) * 100
        return torch.stack([-logit, logit], dim=1)


def test_the_validation_score_is_the_accuracy_and_images_are_matched_before_they_are_standardised():
    """Grey level 10 k plus 25: brighter than 38 from image 2 on; without the match from image 4 on."""
    assert TASK.loss(torch.zeros(3, 2), torch.tensor([0, 1, 1])).item() == pytest.approx(math.log(2)), "equal logits"
    task = Classification(("no", "yes"), 3, 8, standardised="none")
    samples = task.prepare(cases(), Reader())
    # Images 1, 3 and 5 have class 1; 0.15 is grey level 38: images 0, 2 and 5 are correct.
    assert task.validate(Bright(), samples) == {"score": 0.5}
    assert task.probabilities(Bright(), samples).sum(dim=1).tolist() == pytest.approx([1] * 6)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    assert TASK.probabilities(network, TASK.prepare((), Reader())).shape == (0, 2), "no images"
    for match, expected in ((None, [0, 0, 0, 0, 1, 1]), (lambda image: image + 25 / 255, [0, 0, 1, 1, 1, 1])):
        assert task.probabilities(Bright(), samples, match)[:, 1].round().tolist() == expected


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 129, 640])
def test_no_image_is_a_batch_of_its_own(n):
    """Tent and batch statistics would be computed from this image alone."""
    parts = [part.tolist() for part in even_parts(torch.arange(n))]
    assert [index for part in parts for index in part] == list(range(n))
    sizes = [len(part) for part in parts]
    assert all(0 < size <= 64 and max(sizes) - size <= 1 for size in sizes)
