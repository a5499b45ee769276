"""The MONAI amplitude transforms follow MONAI's conventions."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose
from monai.utils import TransformBackends

from medfed.functional import fourier
from medfed.transforms.amplitude_mix import AmplitudeMix, RandAmplitudeMix, RandAmplitudeMixd

ALPHA = 0.1
SIZES = [(3, 33, 40), (1, 20, 24, 21)]
FIRST = (3, 33, 40)


def image_of(shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 255


def bank_of(shape, count=4):
    return fourier.low_frequency_window(torch.stack([image_of(shape, 1 + i) for i in range(count)]), ALPHA)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("kind", [torch.as_tensor, MetaTensor, torch.Tensor.numpy], ids=["torch", "meta", "numpy"])
def test_transform_equals_the_function_in_2d_and_3d(shape, kind):
    image, window = image_of(shape), bank_of(shape)[0]
    out = AmplitudeMix(window, 0.7, ALPHA)(kind(image))
    expected = fourier.exchange_amplitude(image[None], window[None], torch.tensor([0.7]), ALPHA)[0]
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(torch.as_tensor(out).as_subclass(torch.Tensor), expected)


def test_ratio_zero_and_own_window_return_the_image():
    image = image_of(FIRST)
    own = fourier.low_frequency_window(image[None], ALPHA)[0]
    torch.testing.assert_close(AmplitudeMix(bank_of(FIRST)[0], 0.0, ALPHA)(image).as_subclass(torch.Tensor), image)
    torch.testing.assert_close(AmplitudeMix(own, 1.0, ALPHA)(image).as_subclass(torch.Tensor), image)


def test_affine_and_metadata_stay():
    affine = torch.diag(torch.tensor([0.4, 0.4, 3.0, 1.0]))
    image = MetaTensor(image_of((1, 20, 24, 21)), affine=affine, meta={"filename_or_obj": "case.nii.gz"})
    out = RandAmplitudeMix(bank_of((1, 20, 24, 21)), 1.0, ALPHA)(image)
    assert torch.equal(out.affine, image.affine) and out.meta["filename_or_obj"] == "case.nii.gz"


def test_clip_holds_the_result_in_range():
    image, window = image_of(FIRST), 2 * bank_of(FIRST)[0]
    assert AmplitudeMix(window, 1.0, ALPHA)(image).max() > 255
    clipped = AmplitudeMix(window, 1.0, ALPHA, clip=(0, 255))(image)
    assert clipped.max() == 255 and clipped.min() >= 0


def test_integers_come_back_as_float32_and_double_stays_double():
    window = bank_of(FIRST)[0]
    assert AmplitudeMix(window, 0.5, ALPHA)(image_of(FIRST).to(torch.uint8)).dtype == torch.float32
    assert AmplitudeMix(window, 0.5, ALPHA)(image_of(FIRST).double()).dtype == torch.float64


def test_same_seed_same_result_and_global_seeds_do_not_matter():
    image, bank = image_of(FIRST), bank_of(FIRST)
    outs = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        outs.append(RandAmplitudeMix(bank, 1.0, ALPHA).set_random_state(seed=5)(image))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], RandAmplitudeMix(bank, 1.0, ALPHA).set_random_state(seed=6)(image))


def test_draws_every_donor_and_ratios_within_the_range():
    transform = RandAmplitudeMix(bank_of(FIRST), 1.0, ALPHA, ratio_range=(0.2, 0.6)).set_random_state(seed=0)
    draws = []
    for _ in range(100):
        transform.randomize()
        draws.append((transform._donor, transform._amount))
    donors, ratios = zip(*draws, strict=True)
    assert set(donors) == {0, 1, 2, 3}
    assert 0.2 <= min(ratios) < 0.25 and 0.55 < max(ratios) <= 0.6


def test_a_single_number_as_ratio_range_starts_at_zero():
    assert RandAmplitudeMix(bank_of(FIRST), ratio_range=0.4).amounts == (0.0, 0.4)


def test_probability_zero_returns_the_image():
    image = image_of(FIRST)
    out = RandAmplitudeMix(bank_of(FIRST), 0.0, ALPHA)(image)
    assert torch.equal(out, image) and isinstance(out, torch.Tensor)
    data = RandAmplitudeMixd("image", bank_of(FIRST), 0.0, ALPHA)({"image": image.numpy(), "label": 3})
    assert isinstance(data["image"], torch.Tensor) and data["label"] == 3


def test_without_randomize_the_last_draw_is_used_again():
    transform = RandAmplitudeMix(bank_of(FIRST), 1.0, ALPHA).set_random_state(seed=0)
    first = transform(image_of(FIRST))
    assert torch.equal(transform(image_of(FIRST), randomize=False), first)


def test_all_keys_share_one_draw_and_the_label_is_untouched():
    image, label = image_of(FIRST), torch.ones(1, 33, 40)
    data = {"image": image, "copy": image.clone(), "label": label}
    out = RandAmplitudeMixd(("image", "copy"), bank_of(FIRST), 1.0, ALPHA).set_random_state(seed=3)(data)
    assert torch.equal(out["image"], out["copy"]) and out["label"] is label
    assert not torch.equal(out["image"], image)
    torch.testing.assert_close(data["image"], image)


def test_dictionary_version_equals_the_array_version():
    """The dictionary version draws whether to act, then lets the array version draw once, as MONAI's do."""
    image, bank = image_of(FIRST), bank_of(FIRST)
    dictionary = RandAmplitudeMixd("image", bank, 1.0, ALPHA).set_random_state(seed=3)
    array = RandAmplitudeMix(bank, 1.0, ALPHA).set_random_state(seed=3)
    assert torch.equal(dictionary({"image": image})["image"], array(image))


def test_a_missing_key_is_an_error_unless_allowed():
    with pytest.raises(KeyError):
        RandAmplitudeMixd("image", bank_of(FIRST), 1.0, ALPHA)({})
    assert RandAmplitudeMixd("image", bank_of(FIRST), 1.0, ALPHA, allow_missing_keys=True)({}) == {}


def test_survives_pickling_and_composes():
    composed = Compose([RandAmplitudeMixd("image", list(bank_of(FIRST)), 1.0, ALPHA)]).set_random_state(seed=1)
    again = pickle.loads(pickle.dumps(composed))
    data = {"image": image_of(FIRST)}
    assert torch.equal(again(data)["image"], composed(data)["image"])


def test_the_backend_is_that_of_monai():
    assert AmplitudeMix.backend == RandAmplitudeMix.backend == RandAmplitudeMixd.backend == [TransformBackends.TORCH]


def test_a_window_of_one_number_warns_and_names_a_sufficient_alpha():
    """1 / 64 is 0.015625; to 4 digits, 0.0157."""
    image = image_of((1, 64, 80))
    with pytest.warns(UserWarning, match="64 x 80 gives a window of one number.*alpha to at least 0.0157"):
        AmplitudeMix(torch.ones(1, 1, 1), 0.5, alpha=0.01)(image)
    assert fourier.window_half_width((64, 80), 0.0157) == 1


def test_alpha_zero_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AmplitudeMix(torch.ones(1, 1, 1), 0.5, alpha=0.0)(image_of((1, 64, 80)))


def test_an_image_with_negative_intensities_warns():
    with pytest.warns(UserWarning, match="negative intensities"):
        AmplitudeMix(bank_of(FIRST)[0], 0.5, ALPHA)(image_of(FIRST) - 100)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda bank: AmplitudeMix(bank[0], 1.5), "ratios must be in"),
        (lambda bank: AmplitudeMix(bank[0], 0.5, alpha=0.5), "alpha must be in"),
        (lambda bank: AmplitudeMix(bank[0], 0.5, clip=(1, 0)), "clip must be"),
        (lambda bank: RandAmplitudeMix([], 0.5), "one or more"),
        (lambda bank: RandAmplitudeMix([bank[0], bank[0, :1]], 0.5), "one or more"),
        (lambda bank: RandAmplitudeMix(bank, ratio_range=(0.6, 0.2)), "ratios must be in"),
        (lambda bank: AmplitudeMix(bank[0], 0.5, alpha=0.2)(image_of(FIRST)), "window must be"),
    ],
)
def test_wrong_arguments_are_rejected(build, message):
    with pytest.raises(ValueError, match=message):
        build(bank_of(FIRST))
