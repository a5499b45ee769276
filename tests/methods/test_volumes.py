"""Methods on patches of volumes: all that declare three dimensions keep the rules, the others are refused."""

import pytest
import torch
from toy_runs import shared_run

from medfed.core.batch import Batch
from medfed.core.registry import known_names, resolve
from medfed.functional.fourier import pack_window
from medfed.functional.slices import as_slices
from medfed.methods.ccst import CCST, style_bank
from medfed.methods.elcfs import ELCFS, mixed
from medfed.methods.gin import draw_shallow_networks, random_intensity_transform
from medfed.methods.stack import Stack
from medfed.testing import ToyVolumes, method_checks
from medfed.testing.toy import ball_patches
from medfed.transforms.slice_view import slices_of

SMALL = {
    "elcfs": {"alpha": 0.1, "ring_width": 2},
    "ccst": {"min_patients": 1, "k": 2},
    "stable_fdg": {"min_patients": 1, "stages": (1, 2), "attention": False},
    "trimmed_mean": {"trim": 0.0},
}
NAMES = [name for name in known_names("methods") if name != "stack" and 3 in resolve("methods", name).dimensions]
BY_DEFAULT = ("fedavg", "elcfs")


def marks(name: str, rule: str) -> list[pytest.MarkDecorator]:
    return [] if name in BY_DEFAULT and not rule.endswith("-stack") else [pytest.mark.slow]


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{name}-{rule}", marks=marks(name, rule))
        for name in NAMES
        for rule, check in list(method_checks(resolve("methods", name)(**SMALL.get(name, {})), tasks="volumes"))[1:]
    ],
)
def test_a_method_keeps_the_rules_on_volumes(check):
    check()


def test_a_stack_works_on_what_all_its_methods_work_on():
    fedbn, jigen = (resolve("methods", name)() for name in ("fedbn", "jigen"))
    assert Stack((fedbn,)).dimensions == {2, 3} and Stack((fedbn, jigen)).dimensions == {2}


def test_elcfs_restyles_each_slice_of_a_patch_as_the_image_that_it_is():
    method, batch = ELCFS(alpha=0.1), ball_patches("north").batch([0, 1, 2])
    donors = pack_window(method.spectrum(ball_patches("west").batch([3, 4, 5]).image).window())
    ratio = torch.tensor([0.2, 0.7, 1.0])
    whole = mixed(batch.image, method.spectrum(batch.image), list(donors), ratio)
    for z in range(batch.image.shape[-1]):
        image = batch.image[..., z].contiguous()
        alone = mixed(image, method.spectrum(image), list(donors[z::8]), ratio)
        torch.testing.assert_close(whole[..., z], alone)


def test_elcfs_shares_the_windows_of_the_slices_of_its_patches():
    state = shared_run(ToyVolumes(), ELCFS(alpha=0.1, min_patients=1)).rounds[0].state
    assert {name: tuple(bank.shape) for name, bank in state.memory.items()} == {
        f"bank/{site}": (80, 1, 5) for site in ("north", "south", "west")
    }


def test_ccst_shares_the_style_of_slices():
    method = CCST(min_patients=1, k=2, transfer="moments")
    bank = style_bank(shared_run(ToyVolumes(), method).rounds[0].state.memory)
    slices = as_slices(ball_patches("west").batch(range(10)).image)
    mean, std = bank["west"]
    torch.testing.assert_close(mean[0], slices.mean(dim=(0, 2, 3)))
    assert std.shape == (1, 1)


def test_slices_of_patches_are_samples_of_their_own():
    patches = ball_patches("north")
    view = slices_of(patches)
    assert len(view) == 80 and view.n_patients == patches.n_patients
    batch, expected = view.batch([17, 3, 18]), patches.batch([2, 0])
    assert isinstance(batch, Batch)
    assert torch.equal(batch.image[0], expected.image[0, ..., 1]) and torch.equal(
        batch.label[1], expected.label[1, ..., 3]
    )
    assert view.patient[16:24].unique().tolist() == [1]


def test_the_random_networks_of_gin_are_three_dimensional_on_volumes():
    """With kernels of one voxel, equal slices give the result of a slice."""
    image = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    networks = [draw_shallow_networks(2, 1, 4, 2, (1,), torch.Generator().manual_seed(1), n_axes=n) for n in (2, 3)]
    alpha = torch.tensor([0.4, 0.9])
    flat, volume = (
        random_intensity_transform(one, network, alpha)
        for one, network in zip((image, image[..., None].expand(-1, -1, -1, -1, 5)), networks, strict=True)
    )
    torch.testing.assert_close(volume, flat[..., None].expand_as(volume))
