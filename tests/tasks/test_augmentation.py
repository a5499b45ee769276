import math

import torch

from medfed.tasks.augmentation import draw_affine, warp


def theta(n: int, seed: int = 0, **settings) -> torch.Tensor:
    return draw_affine(n, torch.Generator().manual_seed(seed), **settings)


def test_without_rotation_scaling_and_flip_nothing_changes_and_a_flip_mirrors_the_first_axis():
    image = torch.randn(3, 2, 8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label = (image > 0).to(torch.uint8)
    identity = theta(3, max_rotation_deg=0, max_scaling=0, flip=False)
    assert torch.allclose(warp(image, identity), image) and torch.equal(warp(label, identity, mode="nearest"), label)
    image = torch.arange(32, dtype=torch.float64).reshape(1, 1, 4, 8).expand(8, -1, -1, -1)
    moved = warp(image, theta(8, max_rotation_deg=0, max_scaling=0))
    flipped = [torch.allclose(m, i.flip(-2)) for m, i in zip(moved, image, strict=True)]
    unchanged = [torch.allclose(m, i) for m, i in zip(moved, image, strict=True)]
    assert any(flipped) and any(unchanged) and all(a != b for a, b in zip(flipped, unchanged, strict=True))


def test_image_and_label_are_transformed_alike_and_labels_stay_binary():
    label = torch.zeros(4, 1, 64, 64, dtype=torch.uint8)
    label[:, :, 16:40, 20:50] = 1
    moved, moved_label = warp(label.double(), theta(4)), warp(label, theta(4), mode="nearest")
    assert moved_label.dtype == torch.uint8 and set(moved_label.unique().tolist()) == {0, 1}
    assert ((moved > 0.5) != moved_label.bool()).double().mean() < 0.005
    assert not torch.equal(moved_label, label)


def test_parameters_stay_in_their_ranges_and_follow_the_generator():
    maps = theta(500, max_rotation_deg=10, max_scaling=0.2)
    scale = 1 / maps[:, :, :2].det().abs().sqrt()
    angle = torch.atan2(maps[:, 1, 0], maps[:, 1, 1])
    assert scale.min() >= 0.8 and scale.max() <= 1.2 and scale.max() - scale.min() > 0.3
    assert angle.abs().max() <= math.radians(10) and angle.abs().max() > math.radians(9)
    assert torch.equal(maps, theta(500, max_rotation_deg=10, max_scaling=0.2))
    assert not torch.equal(maps, theta(500, seed=1, max_rotation_deg=10, max_scaling=0.2))
