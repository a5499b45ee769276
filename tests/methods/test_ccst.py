"""CCST: styles and numbers of images computed by hand, and what leaves a site."""

import warnings
from dataclasses import replace

import pytest
import torch
from toy_runs import first_round, rounds_of

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import SiteData
from medfed.federation.message import Message
from medfed.federation.settings import Cache
from medfed.functional.style import EPSILON
from medfed.methods.ccst import CCST
from medfed.networks.parts.adain import build_codec, load_codec
from medfed.networks.parts.style_transfer import BLANK_STD
from medfed.transforms.style_expansion import ORIGINAL

pytestmark = pytest.mark.filterwarnings("ignore:.*method.k is")
MOMENTS = CCST(transfer="moments", min_patients=1)


class Grey:
    """Images of one site: noise around a brightness; image 0 is blank if wanted."""

    def __init__(self, site: str, brightness: float, n: int = 40, blank: bool = False) -> None:
        self.images = (brightness + 0.1 * torch.randn(n, 3, 12, 12, generator=stream(0, site))).clamp(0, 1)
        if blank:
            self.images[0] = 0.9
        self.labels = torch.arange(n)

    n_patients = 9

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices) -> Batch:
        return Batch(self.images[list(indices)], self.labels[list(indices)])


def shared(method: CCST, samples: Grey) -> dict:
    return method.share(SiteData("a", samples, None, None, stream(0, "share")), torch.nn.Linear(1, 1))


def expanded(method: CCST, samples: Grey, brightnesses=(0.2, 0.8)):
    bank = {
        f"style/{name}/{key}": entry
        for name, grey in zip("abc", (0.5, *brightnesses))
        for key, entry in shared(method, Grey(name, grey)).items()
    }
    message = type("M", (), {"tensors": bank})
    local = type("L", (), {"site": "a", "message": message, "device": torch.device("cpu"), "cache": Cache(None)})
    return method.expand(local, samples, stream(0, "expand"))


def test_the_overall_style_is_computed_over_the_pixels_of_all_images():
    samples = Grey("a", 0.5)
    actual = shared(MOMENTS, samples)
    pixels = samples.images.double().movedim(1, 0).flatten(1)
    assert torch.allclose(actual["mean"].double(), pixels.mean(dim=1), atol=1e-7)
    assert torch.allclose(actual["std"].double(), (pixels.var(dim=1, correction=0) + EPSILON).sqrt(), atol=1e-7)


def test_the_number_of_single_styles_is_one_per_32_images_rounded_up():
    assert shared(replace(MOMENTS, style="single"), Grey("a", 0.5, n=65))["mean"].shape == (3, 3)


@pytest.mark.parametrize("side", [0, 24])
def test_with_a_codec_a_site_shares_mean_and_std_of_features(side):
    """The codec has 128 feature channels; images are resized before they are encoded."""
    samples = Grey("a", 0.5)
    actual = shared(CCST(min_patients=1, transfer_size=side), samples)
    images = samples.images
    if side:
        images = torch.nn.functional.interpolate(images, (side, side), mode="bilinear", antialias=True).clamp(0, 1)
    maps = load_codec("small").encode(images).double().movedim(1, 0).flatten(1)
    assert actual["mean"].shape == actual["std"].shape == (128,)
    assert torch.allclose(actual["mean"].double(), maps.mean(dim=1), atol=1e-6)
    assert torch.allclose(actual["std"].double(), (maps.var(dim=1, correction=0) + EPSILON).sqrt(), atol=1e-6)


def test_with_a_codec_single_styles_are_those_of_randomly_drawn_images():
    samples = Grey("a", 0.5)
    actual = shared(CCST(min_patients=1, style="single", images_per_style=14), samples)
    chosen = torch.randperm(40, generator=stream(0, "share"))[:3]
    maps = load_codec("small").encode(samples.images[chosen]).double()
    assert torch.allclose(actual["mean"].double(), maps.mean(dim=(2, 3)), atol=1e-6)
    assert torch.allclose(actual["std"].double(), (maps.var(dim=(2, 3)) + EPSILON).sqrt(), atol=1e-6)


def test_blank_images_do_not_contribute_to_the_style():
    with_blank, without = Grey("a", 0.3, blank=True), Grey("a", 0.3)
    without.images = without.images[1:]
    assert with_blank.images[0].std() < BLANK_STD
    for one, other in zip(shared(MOMENTS, with_blank).values(), shared(MOMENTS, without).values()):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("colour", [(0.9, 0.9, 0.9), (0.92, 0.80, 0.90)], ids=["grey", "empty slide"])
def test_a_site_with_only_blank_images_warns_and_shares_nothing(colour):
    samples = Grey("a", 0.5)
    samples.images[:] = torch.tensor(colour)[:, None, None]
    with pytest.warns(UserWarning, match="a: all training images are blank"):
        assert shared(MOMENTS, samples) == {}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_expanded_set_has_k_n_images_in_distinct_styles(k):
    samples = Grey("a", 0.5)
    larger = expanded(replace(MOMENTS, k=k), samples)
    assert len(larger) == k * len(samples) and larger.n_patients == samples.n_patients
    assert all(len(set(choice)) == k for choice in larger.choices.tolist())
    assert torch.equal(larger.batch(range(len(larger))).label, samples.labels.repeat_interleave(k))


def test_with_all_styles_each_original_occurs_once_and_a_copy_has_the_mean_of_the_other_site():
    samples = Grey("a", 0.5)
    larger = expanded(replace(MOMENTS, k=3), samples)
    styles = larger.choices.flatten().tolist()
    originals, dark = ([i for i, style in enumerate(styles) if style == wanted] for wanted in (ORIGINAL, 0))  # 0 is b
    assert torch.equal(larger.batch(originals).image, samples.images)
    actual = larger.batch(dark).image.mean(dim=(0, 2, 3))
    assert torch.allclose(actual, Grey("b", 0.2).images.mean(dim=(0, 2, 3)), atol=5e-3)  # values below 0 are clamped


def test_every_single_style_of_a_site_is_used():
    """J = ceil(40 / 14) = 3 styles per other site: every copy has the mean of one of these six, and all six occur."""
    method = replace(MOMENTS, style="single", images_per_style=14)
    larger = expanded(method, Grey("a", 0.5), brightnesses=(0.4, 0.7))  # no value is clamped to 0 or 1
    offered = torch.cat([shared(method, Grey(name, grey))["mean"] for name, grey in (("b", 0.4), ("c", 0.7))])
    assert offered.shape == (6, 3)
    copies = [i for i, style in enumerate(larger.choices.flatten().tolist()) if style != ORIGINAL]
    means = larger.batch(copies).image.mean(dim=(2, 3))
    distance = (means[:, None] - offered).abs().amax(dim=2)
    assert len(copies) == 80 and distance.amin(dim=1).max() < 1e-3
    assert torch.bincount(distance.argmin(dim=1), minlength=6).min() >= 5  # 13 or so of each


def test_with_alpha_zero_the_style_has_no_effect():
    larger = expanded(replace(MOMENTS, k=3, alpha=0.0), Grey("a", 0.5))
    images = larger.batch(range(6)).image.reshape(2, 3, *larger.batch([0]).image.shape[1:])
    assert torch.allclose(images[:, :1].expand_as(images), images, atol=5e-4)  # stored as float16


def test_each_site_sends_one_style_once_and_trains_on_k_n_images(toy):
    done = rounds_of(toy, MOMENTS, 2)
    up = [row for one in done for row in one.ledger if (row["direction"], row["content"]) == ("up", "statistic")]
    assert sorted(row["name"] for row in up) == ["mean"] * 3 + ["std"] * 3 and {row["bytes"] for row in up} == {4}
    assert {row["round"] for row in up} == {1}
    trained = [row for row in done[0].ledger if row["kind"] == "train" and "examples; " in row["name"]]
    assert len(trained) == 3 and done[0].state.memory.keys() == done[1].state.memory.keys()


def test_an_overall_vgg_style_has_4096_bytes():
    codec = build_codec({"architecture": "vgg19"})
    assert sum(entry.numel() * 4 for entry in (codec.style(torch.rand(1, 3, 32, 32)))) == 4096


def test_k_above_the_number_of_sites_uses_all_styles_and_warns(toy):
    method = replace(MOMENTS, k=9)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        first_round(toy, method)
    assert any("method.k is 9, but only 3 sites have a style; all of them are used" in str(w.message) for w in warned)


def test_sites_are_weighted_by_their_own_images_for_any_k(toy):
    """A site that shares no style has one style more to choose from than the other sites."""
    engine = toy.engine(MOMENTS)
    site = engine.local_sites[0]
    bank = {f"style/{name}/{key}": torch.tensor([0.5]) for name in ("south", "west") for key in ("mean", "std")}
    update = site.reply(Message("train", toy.start(MOMENTS).weights, bank, {"round": 1}))
    assert len(site._expanded[1]) == 3 * len(site.training)
    assert update.facts["examples"] == len(site.training)


def test_images_that_are_too_small_for_the_codec_are_rejected():
    with pytest.raises(UserError, match="data.image_size is 8, but the codec needs at least 9 pixels"):
        CCST().check(8, 3)
    with pytest.raises(UserError, match="method.transfer_size is 4"):
        CCST(transfer_size=4).check(96, 3)
    with pytest.raises(UserError, match="no codec found"):
        CCST(codec="nowhere").check(96, 3)
    MOMENTS.check(4, 2)
