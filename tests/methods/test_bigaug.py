from types import SimpleNamespace

import torch
from toy_runs import batch_of

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.methods.bigaug import BigAug
from medfed.methods.fisc import VIEW


def augmented(method: BigAug, batch: Batch, seed: int = 0) -> Batch:
    return method.augment(SimpleNamespace(rng=stream(seed, "x")), batch)


def test_each_image_of_a_batch_is_changed_differently(any_toy):
    one = any_toy.samples("north").batch([0, 0, 0, 0])
    actual = augmented(BigAug(probability=1.0), one).image
    assert all(not torch.equal(actual[0], other) for other in actual[1:])


def test_labels_keep_their_type_and_values_and_images_their_range(any_toy):
    batch = batch_of(any_toy)
    for seed in range(4):
        actual = augmented(BigAug(**BigAug.presets["port"]), batch, seed)
        assert type(actual.image) is torch.Tensor and actual.image.dtype == batch.image.dtype
        assert actual.image.shape == batch.image.shape and 0 <= actual.image.min() and actual.image.max() <= 1
        assert actual.label.dtype == batch.label.dtype and type(actual.label) is torch.Tensor
        assert set(actual.label.unique().tolist()) == set(batch.label.unique().tolist())


def test_class_labels_are_unchanged_and_masks_move_with_their_images(any_toy):
    batch = batch_of(any_toy)
    actual = augmented(BigAug(probability=1.0, scaling=(0.5, 0.5)), batch)
    assert torch.equal(actual.label, batch.label) == (batch.label.ndim == 1)
    if batch.label.ndim == 4:
        assert (actual.label.sum() / batch.label.sum()) < 0.4


STILL = {
    "blur": (0.25, 0.25),
    "sharpening": (0.0, 0.0),
    "noise": (0.0, 0.0),
    "brightness": (0.0, 0.0),
    "contrast": (1.0, 1.0),
    "perturbation": (0.0, 0.0),
}


def test_views_move_with_their_images(toy):
    """A view that equals its image still equals it after the geometric transforms."""
    batch = toy.samples("north").batch(range(5))
    batch = Batch(batch.image, batch.label, {VIEW: batch.image.clone()})
    actual = augmented(BigAug(probability=1.0, **STILL), batch)
    assert (actual.image - actual.views[VIEW]).abs().max() < 0.1 < (actual.image - batch.image).abs().max()
    loud = augmented(BigAug(probability=1.0, **{**STILL, "noise": (0.3, 0.3)}), batch)
    assert (loud.image - loud.views[VIEW]).abs().mean() > 0.1, "intensity transforms change only the image"


def test_the_image_gets_the_same_transforms_with_and_without_views(toy):
    batch = toy.samples("north").batch(range(3))
    with_view = augmented(BigAug(), Batch(batch.image, batch.label, {VIEW: batch.image}))
    assert torch.equal(with_view.image, augmented(BigAug(), batch).image)
