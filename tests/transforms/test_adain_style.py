"""The MONAI style transforms follow MONAI's conventions."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose
from monai.utils import TransformBackends

from medfed.functional.style import channel_mean_std, moment_match
from medfed.networks.adain import load_codec
from medfed.transforms.adain_style import (
    AdaINStyle,
    MomentMatch,
    RandAdaINStyle,
    RandAdaINStyled,
    RandMomentMatch,
    RandMomentMatchd,
)

SHAPE = (3, 33, 40)


def image_of(shape=SHAPE, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def codec():
    return load_codec()


@pytest.fixture(scope="module")
def bank(codec):
    """Styles of four images, each darker than the one before."""
    return [tuple(part[0] for part in codec.style(image_of(seed=i)[None] / i)) for i in range(1, 5)]


def intensity_bank(count=4):
    return [tuple(part[0] for part in channel_mean_std(image_of(seed=i)[None] / i)) for i in range(1, count + 1)]


@pytest.mark.parametrize("kind", [torch.as_tensor, MetaTensor, torch.Tensor.numpy], ids=["torch", "meta", "numpy"])
def test_transforms_equal_the_functions(codec, bank, kind):
    image = image_of()
    redrawn = AdaINStyle(codec, *bank[1], 0.7)(kind(image))
    matched = MomentMatch(*intensity_bank()[1], 0.7)(kind(image))
    assert isinstance(redrawn, torch.Tensor) and isinstance(matched, torch.Tensor)
    expected = codec.stylise(image[None], *bank[1], 0.7)[0]
    torch.testing.assert_close(torch.as_tensor(redrawn).as_subclass(torch.Tensor), expected)
    expected = moment_match(image[None], *intensity_bank()[1], 0.7)[0]
    torch.testing.assert_close(torch.as_tensor(matched).as_subclass(torch.Tensor), expected)


def test_grey_stays_grey(codec, bank):
    assert AdaINStyle(codec, *bank[0])(image_of((1, 20, 24))).shape == (1, 20, 24)


def test_affine_and_metadata_stay(codec, bank):
    affine = torch.diag(torch.tensor([0.4, 0.4, 1.0, 1.0]))
    image = MetaTensor(image_of(), affine=affine, meta={"filename_or_obj": "case.png"})
    for out in (RandAdaINStyle(codec, bank, 1.0)(image), RandMomentMatch(intensity_bank(), 1.0)(image)):
        assert torch.equal(out.affine, affine) and out.meta["filename_or_obj"] == "case.png"


def test_integers_come_back_as_float32_and_double_stays_double(codec, bank):
    image = torch.ones(SHAPE, dtype=torch.uint8)
    assert AdaINStyle(codec, *bank[0])(image).dtype == torch.float32
    assert AdaINStyle(codec, *bank[0])(image_of().double()).dtype == torch.float64


def test_same_seed_same_result_and_global_seeds_do_not_matter(codec, bank):
    outs = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        outs.append(RandAdaINStyle(codec, bank, 1.0, (0.2, 1)).set_random_state(seed=5)(image_of()))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], RandAdaINStyle(codec, bank, 1.0, (0.2, 1)).set_random_state(seed=6)(image_of()))


def test_draws_every_style_and_strengths_within_the_range():
    transform = RandMomentMatch(intensity_bank(), 1.0, (0.2, 0.6)).set_random_state(seed=0)
    draws = []
    for _ in range(100):
        transform.randomize()
        draws.append((transform._donor, transform._amount))
    donors, alphas = zip(*draws, strict=True)
    assert set(donors) == {0, 1, 2, 3}
    assert 0.2 <= min(alphas) < 0.25 and 0.55 < max(alphas) <= 0.6


def test_probability_zero_returns_the_image(codec, bank):
    out = RandAdaINStyle(codec, bank, 0.0)(image_of())
    assert torch.equal(out, image_of()) and isinstance(out, torch.Tensor)
    data = RandAdaINStyled("image", codec, bank, 0.0)({"image": image_of().numpy(), "label": 3})
    assert isinstance(data["image"], torch.Tensor) and data["label"] == 3


def test_all_keys_share_one_draw_and_the_label_is_untouched(codec, bank):
    label = torch.ones(1, 33, 40)
    data = {"image": image_of(), "copy": image_of(), "label": label}
    for transform in (
        RandAdaINStyled(("image", "copy"), codec, bank, 1.0, (0.2, 1)),
        RandMomentMatchd(("image", "copy"), intensity_bank(), 1.0, (0.2, 1)),
    ):
        out = transform.set_random_state(seed=3)(data)
        assert torch.equal(out["image"], out["copy"]) and out["label"] is label
        assert not torch.equal(out["image"], image_of())
    torch.testing.assert_close(data["image"], image_of())


def test_dictionary_version_equals_the_array_version(codec, bank):
    dictionary = RandAdaINStyled("image", codec, bank, 1.0, (0, 1)).set_random_state(seed=3)
    array = RandAdaINStyle(codec, bank, 1.0, (0, 1)).set_random_state(seed=3)
    assert torch.equal(dictionary({"image": image_of()})["image"], array(image_of()))


def test_a_missing_key_is_an_error_unless_allowed():
    with pytest.raises(KeyError):
        RandMomentMatchd("image", intensity_bank(), 1.0)({})
    assert RandMomentMatchd("image", intensity_bank(), 1.0, allow_missing_keys=True)({}) == {}


def test_survives_pickling_and_composes(codec, bank):
    composed = Compose([RandAdaINStyled("image", codec, bank, 1.0)]).set_random_state(seed=1)
    again = pickle.loads(pickle.dumps(composed))
    data = {"image": image_of()}
    assert torch.equal(again(data)["image"], composed(data)["image"])


def test_the_backend_is_that_of_monai():
    for transform in (AdaINStyle, MomentMatch, RandAdaINStyle, RandMomentMatch, RandAdaINStyled, RandMomentMatchd):
        assert transform.backend == [TransformBackends.TORCH]


def test_an_image_out_of_range_warns_and_one_in_range_does_not():
    with pytest.warns(UserWarning, match="scale images to"):
        MomentMatch(*intensity_bank()[0])(255 * image_of())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MomentMatch(*intensity_bank()[0])(image_of())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda codec, bank: AdaINStyle(codec, *bank[0], alpha=1.5), "alpha must be a number in"),
        (lambda codec, bank: AdaINStyle(codec, *intensity_bank()[0]), "must have 128 channels, as the codec has"),
        (lambda codec, bank: RandAdaINStyle(codec, []), "one or more"),
        (lambda codec, bank: RandAdaINStyle(codec, bank, alpha=(0.6, 0.2)), "alpha must be a number in"),
        (lambda codec, bank: RandMomentMatch([(torch.ones(3), torch.ones(1))]), "one or more"),
        (
            lambda codec, bank: RandMomentMatch([(torch.ones(3), torch.ones(3)), (torch.ones(1), torch.ones(1))]),
            "the same",
        ),
        (lambda codec, bank: AdaINStyle(codec, *codec.style(torch.rand(2, 1, 32, 32))), "of one style"),
        (lambda codec, bank: MomentMatch(*intensity_bank()[0])(image_of((1, 8, 8))), "mean must be"),
        (lambda codec, bank: AdaINStyle(codec, *bank[0])(image_of((2, 8, 8))), "images must be"),
    ],
)
def test_wrong_arguments_are_rejected(codec, bank, build, message):
    with pytest.raises(ValueError, match=message):
        build(codec, bank)


def test_the_styles_of_a_batch_are_an_entry_of_a_bank(codec):
    """`codec.style` of four images is one entry with four styles; one entry for each image gives the same draws."""
    images = torch.stack([image_of(seed=seed) / (seed + 1) for seed in range(4)])
    one_entry = RandAdaINStyle(codec, [codec.style(images)], 1.0).set_random_state(seed=2)
    entries = RandAdaINStyle(codec, [codec.style(image[None]) for image in images], 1.0).set_random_state(seed=2)
    assert len(one_entry.bank) == len(entries.bank) == 4
    for _ in range(3):
        torch.testing.assert_close(one_entry(image_of()), entries(image_of()), atol=1e-5, rtol=0)


def test_the_style_of_one_image_is_an_argument_of_the_transform(codec):
    mean, std = codec.style(image_of(seed=1)[None])
    assert torch.equal(AdaINStyle(codec, mean, std)(image_of()), AdaINStyle(codec, mean[0], std[0])(image_of()))
