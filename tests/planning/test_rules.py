"""The plan is a pure function of the fingerprint; each value can be worked out from the constants in `rules`."""

import math
from dataclasses import replace

import pytest
import torch

from medfed.planning import rules
from medfed.planning.fingerprint import Fingerprint, SiteFingerprint, Structure
from medfed.planning.rules import make_plan
from medfed.tasks.patches import Patches


def sites(*n_training: int) -> tuple[SiteFingerprint, ...]:
    return tuple(SiteFingerprint(name, 2 * n, 2 * n, n) for name, n in zip("abcdef", n_training))


FRAMES = Fingerprint(  # colour images of 512 x 384 pixels, and a round structure of a fifth of the side
    sites(40, 40, 20), 384, 512, 1, None, 3, (0.0, 255.0), (Structure("polyp", 0.03, 0.08),), ()
)
TILES = replace(FRAMES, structures=(), classes=(("benign", 50), ("malignant", 50)))


def test_100_images_of_the_largest_planned_size_take_15_minutes_on_two_cores():
    """12,000 images of side S in 15 minutes, of which 60 % train on two cores: S^2 = 1080 s / 12,000 / s per pixel."""
    assert rules.USUAL.largest_side == 96  # sqrt(1080 / 12,000 / 7.5e-6) = 109.5
    assert rules.WIDE.largest_side == 64  # sqrt(1080 / 12,000 / 1.6e-5) = 75
    assert rules.PRETRAINED_UNET.largest_side == 160  # sqrt(1080 / 4,800 / 8e-6) = 167.7
    assert rules.DENSENET.largest_side == 112  # sqrt(1080 / 32,000 / 2.5e-6) = 116.2
    assert rules.PRETRAINED_CLASSIFIER.largest_side == 128  # sqrt(1080 / 12,800 / 4.5e-6) = 136.9
    for fingerprint in (FRAMES, TILES):
        for parts in ((70,), (35, 35), (30, 30, 10), (64, 3, 3), (10, 10, 10, 10, 15, 15)):
            for pretrained in (False, True):
                plan = make_plan(replace(fingerprint, sites=sites(*parts)), pretrained=pretrained)
                assert plan.minutes < rules.MINUTES


def test_every_site_takes_enough_steps():
    """Batches of 4: 10, 10 and 5 steps in an epoch, so 120 epochs make 3,000 steps in all and 600 at the smallest."""
    plan = make_plan(FRAMES)
    assert plan.values["training.batch_size"] == 4
    assert plan.values["federation.local_epochs"] == 2  # 20 steps of an average site with 8.3 in an epoch
    assert plan.values["federation.rounds"] == 60
    assert plan.site_steps == {"a": 1200, "b": 1200, "c": 600} and plan.whole_steps == 3000


def test_the_steps_of_the_sites_are_counted_in_whole_rounds():
    """25 + 25 + 17 images in batches of 4 are 7 + 7 + 5 steps: 158 epochs make 3002, and 53 rounds of 3 epochs 3021."""
    plan = make_plan(replace(FRAMES, sites=sites(25, 25, 17)))
    assert plan.values["federation.rounds"] * plan.values["federation.local_epochs"] == 159
    assert plan.whole_steps == 3021 and plan.min_steps == 3000 and min(plan.site_steps.values()) == 795


def test_a_small_site_raises_the_number_of_epochs_up_to_a_limit():
    """A site with one step in an epoch needs 300 epochs, but the time may only rise by 30 %: 1.3 * ceil(3000 / 51)."""
    plan = make_plan(replace(FRAMES, sites=sites(200, 4)))
    assert plan.site_steps["b"] == 1.3 * 60 - 2  # 1.3 * ceil(3000 / 51) = 76.7, rounded down
    little = make_plan(replace(FRAMES, sites=sites(40, 40, 9)))  # 23 steps: 131 epochs, 3 steps: 100 epochs
    assert little.site_steps["c"] == 3 * 131 + 3  # two epochs in a round


def test_many_images_are_all_seen_20_times():
    plan = make_plan(replace(FRAMES, sites=sites(4000, 4000)))
    assert plan.site_steps == {"a": 20_000, "b": 20_000} and plan.values["federation.local_epochs"] == 1


def test_the_image_size_is_that_of_the_images_or_the_largest_that_the_time_allows():
    assert make_plan(FRAMES).values["data.image_size"] == 96
    assert make_plan(TILES).values["data.image_size"] == 112
    for height, width, side in ((90, 90, 80), (100, 49, 64), (20, 20, 32)):
        assert make_plan(replace(FRAMES, height=height, width=width)).values["data.image_size"] == side
    assert make_plan(FRAMES).values["network.features"][0] == 16
    assert make_plan(replace(FRAMES, height=64, width=64)).values["network.features"][0] == 32, "time for a wider one"


def test_a_thin_structure_needs_larger_images_and_gets_fewer_steps():
    """A vessel of 1 % of the side is one pixel wide at 96; 160 pixels take (160 / 96)^2 of the time of a step."""
    vessels = replace(FRAMES, structures=(Structure("vessel", 0.1, 0.01),))
    plan, usual = make_plan(vessels), make_plan(FRAMES)
    assert plan.values["data.image_size"] == 160
    assert plan.whole_steps == 1100  # 3000 * 0.36 = 1080, in whole rounds of 50 steps
    assert plan.minutes == pytest.approx(usual.minutes, rel=0.03)
    assert make_plan(replace(vessels, height=128, width=128)).values["data.image_size"] == 128
    assert make_plan(replace(FRAMES, structures=(Structure("never shown", 0.0, 0.0),))).values == usual.values


def test_a_site_with_few_images_decides_the_batch_size():
    plan = make_plan(replace(FRAMES, sites=sites(30, 2)))
    assert plan.values["training.batch_size"] == 2
    assert plan.values["training.learning_rate"] == pytest.approx(0.002 / 2**0.5, abs=1e-5)
    assert make_plan(TILES).values["training.batch_size"] == 16
    assert make_plan(TILES).values["training.learning_rate"] == 0.002


def test_classes_get_a_network_that_classifies_and_image_net_weights_are_used_if_they_are_installed():
    for fingerprint, name in ((TILES, "densenet"), (FRAMES, "unet")):
        plan = make_plan(fingerprint)
        assert plan.values["network.name"] == name
    for fingerprint, name, rate in ((FRAMES, "efficientnet_unet", 0.001), (TILES, "efficientnet_lite", 0.0003)):
        plan = make_plan(fingerprint, pretrained=True)
        assert plan.values["network.name"] == name
        assert plan.values["training.learning_rate"] == rate and plan.values["data.image_size"] % 32 == 0
    assert make_plan(FRAMES, pretrained=True).whole_steps == 1200  # 48 epochs of 25 steps


def test_the_users_network_decides_the_recipe():
    """The settings of a network are not those of another one."""
    for pretrained in (False, True):
        assert make_plan(FRAMES, {"network.name": "unet"}, pretrained=pretrained).values == make_plan(FRAMES).values
    assert make_plan(FRAMES, {"data.image_size": 48}, pretrained=True).values["network.name"] == "unet"
    other = make_plan(FRAMES, {"network.name": "elcfs_unet"}, pretrained=True)
    assert other.values["network.name"] == "elcfs_unet" and "network.features" not in other.values
    assert other.whole_steps == 3000


def test_other_values_follow_from_those_that_the_user_fixes():
    plan = make_plan(FRAMES, {"training.batch_size": 8, "federation.local_epochs": 1})
    assert plan.values["federation.rounds"] == 231  # 5 + 5 + 3 steps in an epoch: 3000 / 13
    assert plan.values["training.learning_rate"] == pytest.approx(0.002 * 2**0.5, abs=1e-5)
    assert make_plan(FRAMES, {"data.image_size": 192}).minutes == pytest.approx(4 * make_plan(FRAMES).minutes)


VOLUMES = Fingerprint(  # 25 volumes for training of 96 x 128 x 48 voxels of 2 x 2 x 3 mm
    tuple(SiteFingerprint(name, 2 * n, 2 * n, n, 48.0) for name, n in (("a", 10), ("b", 10), ("c", 5))),
    *(96, 128, 48),
    (2.0, 2.0, 3.0),
    1,
    (0.0, 1000.0),
    (Structure("organ", 0.03, 0.1),),
    (),
)


def test_volumes_with_enough_slices_are_planned_in_three_dimensions():
    """96 x 128 x 48 voxels are 4.5 patches of 64 x 64 x 32; with voxels of 3 mm they are 64 x 85 x 48, 2 patches."""
    plan = make_plan(VOLUMES)
    assert plan.values["data.spacing_mm"] == pytest.approx([3.0] * 3, rel=0.01)
    assert plan.values["network.name"] == "unet" and plan.values["training.batch_size"] == 2 and not plan.why_slices
    size = plan.values["data.patch_size"]
    assert all(side % 16 == 0 for side in size) and size[1] >= size[0] >= size[2]
    assert rules.PATCH_VOXELS / 2 < math.prod(size) <= rules.PATCH_VOXELS
    assert plan.whole_steps >= rules.VOLUMES.whole_steps and plan.minutes < 1.2 * rules.MINUTES


def test_the_number_of_patches_is_that_of_the_prepared_volumes():
    plan = make_plan(VOLUMES)
    shape = (64, 86, 48)
    label = torch.zeros(1, *shape)
    label[0, 30, 40, 20] = 1
    n_patches = len(Patches.of([label], [label.byte()], tuple(plan.values["data.patch_size"])))
    n_rounds = plan.values["federation.rounds"] * plan.values["federation.local_epochs"]
    assert plan.site_steps["a"] == n_rounds * math.ceil(10 * n_patches / 2)


def test_small_volumes_keep_their_voxels():
    plan = make_plan(replace(VOLUMES, height=35, width=50, depth=36, spacing_mm=(1.0, 1.0, 1.2)))
    assert plan.values["data.spacing_mm"] == [1.0, 1.0, 1.2] and plan.values["data.patch_size"] == [48, 48, 48]
    assert plan.coarser == 1.0


@pytest.mark.parametrize(
    ("shape", "spacing_mm", "planned"),
    [
        ((320, 320, 40), (0.5, 0.5, 1.4), [64, 64, 32]),
        ((256, 200, 150), (1.0, 1.0, 1.0), [64, 48, 32]),
        ((512, 512, 400), (0.7, 0.7, 0.7), [48, 48, 48]),
    ],
)
def test_a_patch_shows_similar_parts_of_all_axes(shape, spacing_mm, planned):
    height, width, depth = shape
    plan = make_plan(replace(VOLUMES, height=height, width=width, depth=depth, spacing_mm=spacing_mm))
    assert plan.values["data.patch_size"] == planned
    along = [
        mm * n / fine / side for mm, n, side, fine in zip(spacing_mm, shape, planned, plan.values["data.spacing_mm"])
    ]
    assert max(along) / min(along) < 1.6 and math.prod(along) < 2.7
    assert plan.coarser == pytest.approx(max(a / b for a, b in zip(plan.values["data.spacing_mm"], spacing_mm)))


def test_the_finest_axes_become_coarser_first():
    plan = make_plan(replace(VOLUMES, height=200, width=200, depth=40, spacing_mm=(0.5, 0.5, 1.4)))
    spacing = plan.values["data.spacing_mm"]
    assert spacing[2] == 1.4 and 0.5 < spacing[0] == spacing[1] < 1.4


def test_a_structure_that_is_thin_in_the_files_does_not_lead_to_slices():
    thin = (Structure("nerve", 0.001, 0.01),)
    assert not make_plan(replace(VOLUMES, height=48, width=48, depth=48, structures=thin)).why_slices


@pytest.mark.parametrize(
    ("change", "fixed", "dimensions", "reason"),
    [
        ({"depth": 31}, {}, (2, 3), "the median volume has 31 slices; 3-D patches are planned for 32 or more"),
        ({"height": 14, "spacing_mm": (4.0, 0.8, 0.8)}, {}, (2, 3), "the median volume has 14 slices"),  # sagittal
        ({"spacing_mm": (1.0, 1.0, 3.0)}, {}, (2, 3), "the slices are 3 times as far apart as their pixels"),
        ({"spacing_mm": None}, {}, (2, 3), "no file stores the size of its voxels"),
        ({"structures": (Structure("nerve", 0.001, 0.005),)}, {}, (2, 3), "'nerve' would be too thin with the 3 mm"),
        ({}, {"network.name": "efficientnet_unet"}, (2, 3), "the network has two dimensions"),
        ({}, {"data.image_size": 64}, (2, 3), "you chose data.image_size"),
        ({}, {"data.patch_size": None}, (2, 3), "your choice"),
        ({}, {}, (2,), "the method works on slices only"),
    ],
)
def test_other_volumes_are_planned_as_slices_and_the_plan_says_why(change, fixed, dimensions, reason):
    plan = make_plan(replace(VOLUMES, **change), fixed, dimensions=dimensions)
    assert reason in plan.why_slices and plan.values["data.patch_size"] is None and plan.values["data.image_size"]


def test_a_chosen_patch_is_planned_for_volumes_with_few_slices():
    few = replace(VOLUMES, height=384, width=384, depth=20, spacing_mm=(0.5, 0.5, 3.0))
    plan = make_plan(few, {"data.patch_size": [48, 48, 16], "data.spacing_mm": [2.0, 2.0, 3.0]})
    assert plan.site_steps["a"] % (10 * 27 / 2) == 0  # 3 x 3 x 2 patches that cover a volume, and half as many
    as_stored = make_plan(few, {"data.patch_size": [48, 48, 16], "data.spacing_mm": None})
    assert as_stored.site_steps["a"] % (10 * 675 / 2) == 0  # 15 x 15 x 2 patches in the voxels of the files
    own = make_plan(VOLUMES, {"network.name": "monai_network"})
    assert not [key for key in own.values if key.startswith("network.") and key != "network.name"]
