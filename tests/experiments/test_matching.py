"""Images of the unseen site are matched to the federation's mean window or style, with values worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_yaml

from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.experiments.evaluation import match_of
from medfed.experiments.setup import check_match
from medfed.federation.message import State
from medfed.functional.fourier import low_frequency_window, pack_window
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import BANK, ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.methods.stack import Stack

SIDE, ALPHA = 16, 0.2  # up to floor(0.2 * 16) = 3 waves along a side


def windows(images):
    return pack_window(low_frequency_window(images, ALPHA))


def state_of(banks, prefix=""):
    return State(1, {}, {f"{prefix}{BANK}{site}": windows(images) for site, images in banks.items()})


def waves(brightness, contrast, shift=0.0):
    """(1, 1, S, S): one wave along the columns, around a mean brightness."""
    columns = torch.arange(SIDE, dtype=torch.float64) / SIDE
    return (brightness + contrast * torch.cos(2 * math.pi * columns + shift)).expand(1, 1, SIDE, SIDE)


def settings(method, **evaluation):
    kind = {"match": "window", "match_ratio": 1.0} | evaluation
    return SimpleNamespace(method=method, evaluation=SimpleNamespace(**kind))


def matched(images, banks, method=None, **evaluation):
    return match_of(settings(method or ELCFS(alpha=ALPHA), **evaluation), state_of(banks))(images)


def test_a_constant_shift_of_intensity_is_undone():
    image = 0.2 + 0.5 * torch.rand(1, 1, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(matched(image + 0.1, {"a": image}), image, atol=1e-6)


def test_a_scaled_amplitude_is_undone_and_the_phase_is_kept():
    """The federation's contrast is 0.3; that of the image is 0.1, and its wave starts a quarter of a period later."""
    image, expected = (waves(0.5, contrast, math.pi / 2) for contrast in (0.1, 0.3))
    assert torch.allclose(matched(image, {"a": waves(0.5, 0.3)}), expected, atol=1e-6)


def test_the_ratio_is_the_weight_of_the_federations_amplitudes():
    """Brightness 0.8 and 0.4 give 0.7 with a ratio of 1 / 4; contrast 0.1 and 0.2 give 0.125."""
    image, bank = waves(0.8, 0.1), {"a": waves(0.4, 0.2)}
    assert torch.allclose(matched(image, bank, match_ratio=0.25), waves(0.7, 0.125), atol=1e-6)
    assert torch.allclose(matched(image, bank, match_ratio=0.0), image, atol=1e-6)


def test_each_site_has_the_same_weight_in_the_mean():
    """Brightness 0.3 at a site with one image and 0.5 at a site with three: the mean is 0.4, and not 0.45."""
    banks = {"a": waves(0.3, 0.1), "b": waves(0.5, 0.1).repeat(3, 1, 1, 1)}
    assert torch.allclose(matched(waves(0.8, 0.1), banks), waves(0.4, 0.1), atol=1e-6)


def test_each_image_is_changed_on_its_own_and_a_blank_one_stays():
    images = torch.cat([waves(0.8, 0.1), waves(0.2, 0.0), waves(0.5, 0.2)])
    together = matched(images, {"a": waves(0.4, 0.2)})
    assert torch.allclose(together, torch.cat([waves(0.4, 0.2), waves(0.2, 0.0), waves(0.4, 0.2)]), atol=1e-6)


def test_a_match_in_moments_gives_the_mean_of_the_sites_means_and_standard_deviations():
    """Sites with 0.2 +- 0.05 and 0.4 +- 0.15 give 0.3 +- 0.1, FISC's style; the image's 0.9 and 0.7 become 0.4, 0.2."""
    styles = {"a/mean": 0.2, "a/std": 0.05, "b/mean": 0.4, "b/std": 0.15}
    memory = {f"style/{name}": torch.tensor([value]) for name, value in styles.items()}
    image = torch.tensor([0.9, 0.7]).repeat(8).expand(1, 1, SIDE, SIDE)
    common = {"style/mean": torch.tensor([0.3]), "style/std": torch.tensor([0.1])}
    for method, shared, ratio, expected in (
        (CCST(transfer="moments"), memory, 1.0, [0.4, 0.2]),
        (CCST(transfer="moments"), memory, 0.5, [0.65, 0.45]),
        (FISC(transfer="moments"), common, 1.0, [0.4, 0.2]),
    ):
        match = match_of(settings(method, match="style", match_ratio=ratio), State(1, {}, shared))
        assert match(image)[0, 0, 0, :2].tolist() == pytest.approx(expected, abs=1e-3)


def test_in_a_stack_the_method_that_shares_windows_does_the_match():
    stack = Stack((CCST(transfer="moments"), ELCFS(alpha=ALPHA)))
    assert stack.match_kinds == {"window", "style"}
    match = match_of(settings(stack), state_of({"a": waves(0.4, 0.1)}, prefix="1/"))
    assert torch.allclose(match(waves(0.8, 0.1)), waves(0.4, 0.1), atol=1e-6)


def test_without_shared_statistics_nothing_is_matched_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="no site shared low-frequency windows of its images, so the images are not"):
        assert match_of(settings(ELCFS(alpha=ALPHA)), State(1, {})) is None


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        (["method.name=fedavg", "evaluation.match=window"], "fedavg with these settings shares no low-frequency"),
        (["evaluation.match=style"], "set evaluation.match to none or window"),
        (["federation.unseen_site=", "evaluation.match=window"], "has no effect without federation.unseen_site"),
        (["method.exchange=false", "evaluation.match=window"], "elcfs with these settings shares no"),
    ],
)
def test_a_match_that_cannot_be_computed_is_refused_in_one_sentence(tmp_path, overrides, sentence):
    config = load_text(tiny_yaml(tmp_path), "a.yaml", overrides)
    with pytest.raises(UserError) as refused:
        check_match(config)
    assert str(refused.value).startswith("a.yaml: evaluation.match: ") and sentence in str(refused.value)


def test_tent_and_methods_that_share_nothing_allow_no_match(tmp_path):
    with pytest.raises(UserError, match=r"evaluation.match: 'window' comes together with evaluation.tent: true"):
        load_text(tiny_yaml(tmp_path), "a.yaml", ["evaluation.match=window", "evaluation.tent=true"])
    assert FedAvg().match_kinds == frozenset() and FISC(positives="augmented").match_kinds == frozenset()
