"""The MONAI transforms of styles and amplitudes equal their functions and follow MONAI's conventions."""

import pickle
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose

from medfed.functional import fourier
from medfed.functional.style import channel_mean_std, moment_match
from medfed.networks.parts.adain import load_codec
from medfed.transforms.adain_style import (
    AdaINStyle,
    MomentMatch,
    RandAdaINStyle,
    RandAdaINStyled,
    RandMomentMatch,
    RandMomentMatchd,
)
from medfed.transforms.amplitude_mix import AmplitudeMix, RandAmplitudeMix, RandAmplitudeMixd

ALPHA = 0.1
FIRST, VOLUME = (3, 33, 40), (1, 20, 24, 21)


def image_of(shape=FIRST, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def windows(shape=FIRST):
    return fourier.low_frequency_window(torch.stack([image_of(shape, 1 + i) for i in range(4)]), ALPHA)


@cache
def codec():
    return load_codec()


@cache
def styles():
    """Styles of four images, each darker than the one before."""
    return [tuple(part[0] for part in codec().style(image_of(seed=i)[None] / i)) for i in range(1, 5)]


@cache
def intensities():
    return [tuple(part[0] for part in channel_mean_std(image_of(seed=i)[None] / i)) for i in range(1, 5)]


# A random transform of arrays and of dictionaries, with the range of its strength.
RANDOM = {
    "adain": (
        lambda p=1.0, strength=(0.2, 1): RandAdaINStyle(codec(), styles(), p, strength),
        lambda keys, p=1.0, strength=(0.2, 1), **more: RandAdaINStyled(keys, codec(), styles(), p, strength, **more),
    ),
    "moments": (
        lambda p=1.0, strength=(0.2, 1): RandMomentMatch(intensities(), p, strength),
        lambda keys, p=1.0, strength=(0.2, 1), **more: RandMomentMatchd(keys, intensities(), p, strength, **more),
    ),
    "amplitudes": (
        lambda p=1.0, strength=(0.2, 1): RandAmplitudeMix(windows(), p, ALPHA, strength),
        lambda keys, p=1.0, strength=(0.2, 1), **more: RandAmplitudeMixd(keys, windows(), p, ALPHA, strength, **more),
    ),
}
each = pytest.mark.parametrize(("array", "dictionary"), RANDOM.values(), ids=RANDOM)


def plain(image) -> torch.Tensor:
    assert isinstance(image, torch.Tensor)
    return torch.as_tensor(image).as_subclass(torch.Tensor)


@pytest.mark.parametrize("kind", [torch.as_tensor, MetaTensor, torch.Tensor.numpy], ids=["torch", "meta", "numpy"])
def test_transforms_equal_the_functions(kind):
    image = image_of()
    redrawn = AdaINStyle(codec(), *styles()[1], 0.7)(kind(image))
    torch.testing.assert_close(plain(redrawn), codec().stylise(image[None], *styles()[1], 0.7)[0])
    matched = MomentMatch(*intensities()[1], 0.7)(kind(image))
    torch.testing.assert_close(plain(matched), moment_match(image[None], *intensities()[1], 0.7)[0])
    for shape in (FIRST, VOLUME):
        image, window = 255 * image_of(shape), 255 * windows(shape)[0]
        expected = fourier.exchange_amplitude(image[None], window[None], torch.tensor([0.7]), ALPHA)[0]
        torch.testing.assert_close(plain(AmplitudeMix(window, 0.7, ALPHA)(kind(image))), expected)


def test_grey_stays_grey():
    assert AdaINStyle(codec(), *styles()[0])(image_of((1, 20, 24))).shape == (1, 20, 24)


def test_affine_and_metadata_stay():
    affine = torch.diag(torch.tensor([0.4, 0.4, 3.0, 1.0]))
    for transform, shape in (
        *((array(), FIRST) for array, _ in RANDOM.values()),
        (RandAmplitudeMix(windows(VOLUME), 1.0, ALPHA), VOLUME),
    ):
        out = transform(MetaTensor(image_of(shape), affine=affine, meta={"filename_or_obj": "case.nii.gz"}))
        assert torch.equal(out.affine, affine) and out.meta["filename_or_obj"] == "case.nii.gz"


@each
def test_integers_come_back_as_float32_and_double_stays_double(array, dictionary):
    assert array()(torch.ones(FIRST, dtype=torch.uint8)).dtype == torch.float32
    assert array()(image_of().double()).dtype == torch.float64


@each
def test_same_seed_same_result_and_global_seeds_do_not_matter(array, dictionary):
    outs = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        outs.append(array().set_random_state(seed=5)(image_of()))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], array().set_random_state(seed=6)(image_of()))


@each
def test_draws_every_donor_and_strengths_within_the_range(array, dictionary):
    transform, draws = array(strength=(0.2, 0.6)).set_random_state(seed=0), []
    for _ in range(100):
        transform.randomize()
        draws.append((transform._donor, transform._amount))
    donors, strengths = zip(*draws, strict=True)
    assert set(donors) == {0, 1, 2, 3}
    assert 0.2 <= min(strengths) < 0.25 and 0.55 < max(strengths) <= 0.6


@each
def test_probability_zero_returns_the_image(array, dictionary):
    out = array(0.0)(image_of())
    assert torch.equal(out, image_of()) and isinstance(out, torch.Tensor)
    data = dictionary("image", 0.0)({"image": image_of().numpy(), "label": 3})
    assert isinstance(data["image"], torch.Tensor) and data["label"] == 3


@each
def test_all_keys_share_one_draw_and_the_label_is_untouched(array, dictionary):
    label = torch.ones(1, 33, 40)
    data = {"image": image_of(), "copy": image_of(), "label": label}
    out = dictionary(("image", "copy")).set_random_state(seed=3)(data)
    assert torch.equal(out["image"], out["copy"]) and out["label"] is label
    assert not torch.equal(out["image"], image_of())
    torch.testing.assert_close(data["image"], image_of())


@each
def test_dictionary_version_equals_the_array_version(array, dictionary):
    """The dictionary version draws whether to act, then lets the array version draw once, as MONAI's do."""
    by_key, single = dictionary("image").set_random_state(seed=3), array().set_random_state(seed=3)
    assert torch.equal(by_key({"image": image_of()})["image"], single(image_of()))


@each
def test_a_missing_key_is_an_error_unless_allowed(array, dictionary):
    with pytest.raises(KeyError):
        dictionary("image")({})
    assert dictionary("image", allow_missing_keys=True)({}) == {}


@each
def test_survives_pickling_and_composes(array, dictionary):
    composed = Compose([dictionary("image")]).set_random_state(seed=1)
    again = pickle.loads(pickle.dumps(composed))
    data = {"image": image_of()}
    assert torch.equal(again(data)["image"], composed(data)["image"])


@each
def test_without_randomize_the_last_draw_is_used_again(array, dictionary):
    transform = array().set_random_state(seed=0)
    first = transform(image_of())
    assert torch.equal(transform(image_of(), randomize=False), first)


def test_the_styles_of_a_batch_are_an_entry_of_a_bank():
    """`codec.style` of four images is one entry with four styles; one entry for each image gives the same draws."""
    images = torch.stack([image_of(seed=seed) / (seed + 1) for seed in range(4)])
    one_entry = RandAdaINStyle(codec(), [codec().style(images)], 1.0).set_random_state(seed=2)
    entries = RandAdaINStyle(codec(), [codec().style(image[None]) for image in images], 1.0).set_random_state(seed=2)
    assert len(one_entry.bank) == len(entries.bank) == 4
    for _ in range(3):
        torch.testing.assert_close(one_entry(image_of()), entries(image_of()), atol=1e-5, rtol=0)


def test_the_style_of_one_image_is_an_argument_of_the_transform():
    mean, std = codec().style(image_of(seed=1)[None])
    assert torch.equal(AdaINStyle(codec(), mean, std)(image_of()), AdaINStyle(codec(), mean[0], std[0])(image_of()))


def test_clip_holds_the_result_in_range():
    image, window = 255 * image_of(), 510 * windows()[0]
    assert AmplitudeMix(window, 1.0, ALPHA)(image).max() > 255
    clipped = AmplitudeMix(window, 1.0, ALPHA, clip=(0, 255))(image)
    assert clipped.max() == 255 and clipped.min() >= 0


def test_a_single_number_as_ratio_range_starts_at_zero():
    assert RandAmplitudeMix(windows(), ratio_range=0.4).amounts == (0.0, 0.4)


def test_a_window_of_one_number_warns_and_names_a_sufficient_alpha():
    """1 / 64 is 0.015625; to 4 digits, 0.0157."""
    with pytest.warns(UserWarning, match="64 x 80 gives a window of one number.*alpha to at least 0.0157"):
        AmplitudeMix(torch.ones(1, 1, 1), 0.5, alpha=0.01)(image_of((1, 64, 80)))
    assert fourier.window_half_width((64, 80), 0.0157) == 1


def test_intensities_out_of_range_warn_and_others_do_not():
    with pytest.warns(UserWarning, match="scale images to"):
        MomentMatch(*intensities()[0])(255 * image_of())
    with pytest.warns(UserWarning, match="negative intensities"):
        AmplitudeMix(windows()[0], 0.5, ALPHA)(image_of() - 0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MomentMatch(*intensities()[0])(image_of())
        AmplitudeMix(torch.ones(1, 1, 1), 0.5, alpha=0.0)(image_of((1, 64, 80)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AdaINStyle(codec(), *styles()[0], alpha=1.5), "alpha must be a number in"),
        (lambda: AdaINStyle(codec(), *intensities()[0]), "must have 128 channels, as the codec has"),
        (lambda: RandAdaINStyle(codec(), []), "one or more"),
        (lambda: RandAdaINStyle(codec(), styles(), alpha=(0.6, 0.2)), "alpha must be a number in"),
        (lambda: RandMomentMatch([(torch.ones(3), torch.ones(1))]), "one or more"),
        (lambda: RandMomentMatch([(torch.ones(3), torch.ones(3)), (torch.ones(1), torch.ones(1))]), "the same"),
        (lambda: AdaINStyle(codec(), *codec().style(torch.rand(2, 1, 32, 32))), "of one style"),
        (lambda: MomentMatch(*intensities()[0])(image_of((1, 8, 8))), "mean must be"),
        (lambda: AdaINStyle(codec(), *styles()[0])(image_of((2, 8, 8))), "images must be"),
        (lambda: AmplitudeMix(windows()[0], 1.5), "ratios must be in"),
        (lambda: AmplitudeMix(windows()[0], 0.5, alpha=0.5), "alpha must be in"),
        (lambda: AmplitudeMix(windows()[0], 0.5, clip=(1, 0)), "clip must be"),
        (lambda: RandAmplitudeMix([], 0.5), "one or more"),
        (lambda: RandAmplitudeMix([windows()[0], windows()[0, :1]], 0.5), "one or more"),
        (lambda: RandAmplitudeMix(windows(), ratio_range=(0.6, 0.2)), "ratios must be in"),
        (lambda: AmplitudeMix(windows()[0], 0.5, alpha=0.2)(image_of()), "window must be"),
    ],
)
def test_wrong_arguments_are_rejected(build, message):
    with pytest.raises(ValueError, match=message):
        build()
