import math

import pytest
import torch
from toy_runs import first_round, local_round

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.experiments.method_figures import interpolated, restyled
from medfed.federation.local_round import LocalRound, SiteData
from medfed.federation.message import Message, State
from medfed.federation.privacy import Privacy
from medfed.functional.fourier import low_frequency_window, pack_window
from medfed.methods.elcfs import BANK, ELCFS, WINDOWS
from medfed.methods.fedavg import FedAvg
from medfed.methods.stack import Stack
from medfed.testing.toy import disc_slices

ALPHA = 0.1  # 7x7 at 32 pixels


def doubled_round(toy, method: ELCFS, banks: dict | None = None) -> LocalRound:
    """Round 1 at north in float64."""
    return local_round(toy, method, banks, toy.network(method).double(), site="north", training=toy.samples("north"))


def batch(n: int = 4) -> Batch:
    actual = disc_slices("north").batch(range(n))
    return Batch(actual.image.double(), actual.label)


def bank_of(site: str) -> dict:
    return {BANK + site: pack_window(low_frequency_window(disc_slices(site).images.double(), ALPHA))}


def gradients(local: LocalRound, loss: torch.Tensor) -> dict:
    actual = torch.autograd.grad(loss, list(local.network.parameters()))
    return dict(zip(dict(local.network.named_parameters()), actual, strict=True))


def test_the_gradient_is_the_sum_of_those_at_theta_and_at_the_fast_weights(toy):
    """First order: g = g_in(theta) + g_out(theta') with theta' = theta - beta clamp(g_in)."""
    method = ELCFS(meta_step=0.1, gamma=0.0, exchange=False, inner_clamp=0.01)
    local = doubled_round(toy, method)
    actual = gradients(local, method.loss(local, batch())[0])
    inner = gradients(local, toy.task.loss(local.forward(batch()).logits, batch().label))
    with torch.no_grad():
        for name, p in local.network.named_parameters():
            p -= 0.1 * inner[name].clamp(-0.01, 0.01)
    outer = gradients(local, toy.task.loss(local.forward(batch()).logits, batch().label))
    assert all(torch.allclose(actual[name], inner[name] + outer[name], atol=1e-10) for name in inner)


def loss_of(toy, method: ELCFS) -> torch.Tensor:
    return method.loss(doubled_round(toy, method), batch())[0]


def test_the_balance_never_enlarges_the_weight_of_the_boundary_loss(toy):
    """At a high temperature, the boundary loss has hardly a gradient."""
    results = [loss_of(toy, ELCFS(balance=balance, temperature=1e4)) for balance in ("gradient", "none")]
    assert torch.equal(*results)


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan])
def test_a_boundary_loss_whose_gradient_is_zero_or_not_finite_is_left_out(toy, scale):
    class Spoilt(ELCFS):
        def boundary_loss(self, outputs, slice_ratio):
            return (outputs[0].features["upcat_1"] * scale).sum()

    assert torch.equal(loss_of(toy, Spoilt()), loss_of(toy, ELCFS(gamma=0.0)))


@pytest.mark.parametrize(
    "settings",
    [
        {"views": 3},
        {"episodic": False},
        {"boundary_features": "after_inner_step"},
        {"second_order": True},
        {"decoder_levels": 1},
    ],
)
def test_the_gradient_is_finite_with_other_settings_and_for_a_single_site(toy, settings):
    method = ELCFS(alpha=ALPHA, **settings)
    for banks in (bank_of("south"), None):
        local = doubled_round(toy, method, banks)
        actual = gradients(local, method.loss(local, batch())[0])
        assert all(torch.isfinite(g).all() for g in actual.values())


@pytest.mark.parametrize("side", [64, 96, 384])
def test_the_automatic_window_is_seven_by_seven_and_that_of_the_paper_at_384_pixels(side):
    image = torch.rand(1, 1, side, side, generator=stream(0, "x"))
    window = ELCFS().spectrum(image).window()
    assert window.shape[2:] == (7, 7)
    assert torch.equal(window, low_frequency_window(image, 0.01)) is (side == 384)


def test_the_automatic_window_of_a_tiny_image_fits_it():
    assert ELCFS().spectrum(torch.rand(1, 1, 6, 9)).window().shape[2:] == (5, 5)


def test_a_window_that_contains_only_the_mean_gives_a_warning(toy):
    data = SiteData("north", disc_slices("north"), toy.task, None, stream(0, "share"))
    warning = "method.alpha 0.01 and 32 pixels .* only the mean brightness.*set method.alpha to auto"
    with pytest.warns(UserWarning, match=warning):
        shared = ELCFS(alpha=0.01).share(data, None)
    assert shared[WINDOWS].shape == (10, 1, 1)


def test_bank_share_draws_a_random_fraction_of_the_images(toy):
    method = ELCFS(alpha=ALPHA, bank_share=0.3)
    sites = [SiteData("n", disc_slices("north"), toy.task, None, stream(seed, "x")) for seed in (0, 0, 1)]
    shared = [method.share(site, None)[WINDOWS] for site in sites]
    assert len(shared[0]) == 3 and torch.equal(shared[0], shared[1]) and not torch.equal(shared[0], shared[2])


def test_a_site_receives_the_banks_of_all_other_sites():
    method = ELCFS()
    memory = method.combine(State(0, {}), {s: {WINDOWS: torch.zeros(1)} for s in "abc"} | {"small": {}}, None)
    assert set(memory) == {BANK + s for s in "abc"}
    assert set(method.broadcast(State(0, {}, memory), "b")) == {BANK + "a", BANK + "c"}
    assert set(method.broadcast(State(0, {}, memory), "small")) == set(memory)


@pytest.mark.parametrize(("views", "expected"), [(1, 1), (3, 3), (0, 2)])
def test_the_number_of_views_is_as_set_and_views_keep_their_labels(toy, views, expected):
    method = ELCFS(alpha=ALPHA, views=views)
    local = doubled_round(toy, method, bank_of("south") | bank_of("west"))
    actual = method._restyled(local, batch())
    assert len(actual.image) == 4 * expected and torch.equal(actual.label, batch().label.repeat(expected, 1, 1, 1))
    assert actual.image.min() >= 0 and actual.image.max() <= 1
    assert not torch.allclose(actual.image[:4], batch().image)


def test_the_released_preset_replaces_the_mean_brightness(toy):
    """With alpha 0 and ratio 1 the view is x - mean(x) + mean(donor), clipped to [0, 1]."""
    method = ELCFS(**ELCFS.presets["released"])
    bank = {BANK + "south": pack_window(low_frequency_window(disc_slices("south").images.double(), method.alpha))}
    means = disc_slices("south").images.double().mean(dim=(1, 2, 3))
    actual = method._restyled(doubled_round(toy, method, bank), batch()).image
    for view, own in zip(actual, batch().image, strict=True):
        candidates = [(own - own.mean() + mean).clamp(0, 1) for mean in means]
        assert min((view - c).abs().max() for c in candidates) < 1e-7


def test_a_fixed_ratio_lies_between_the_image_and_full_replacement(toy):
    """Before clipping, the view is linear in r: the image at 0, full replacement at 1, the mean of both at 0.5."""
    bank = bank_of("south")
    views = {
        r: ELCFS(alpha=ALPHA, ratio=r)._restyled(doubled_round(toy, ELCFS(alpha=ALPHA), bank), batch()).image
        for r in (0.0, 0.5, 1, (0.0, 1.0), "uniform")
    }
    assert torch.allclose(views[0.0], batch().image, atol=1e-6)
    assert torch.equal(views[0.0, 1.0], views["uniform"])
    inside = (views[0.0] > 0.01) & (views[0.0] < 0.99) & (views[1] > 0.01) & (views[1] < 0.99)
    assert inside.any() and torch.allclose(views[0.5][inside], (views[0.0] + views[1])[inside] / 2, atol=1e-6)
    assert not torch.allclose(views[0.0], views[1], atol=1e-2)


def test_a_range_of_ratios_is_drawn_uniformly_within_it(toy):
    """The mean of a view is (1 - r) mean(x) + r mean(donor), so r can be read off if the window is only the mean."""
    method = ELCFS(alpha=0.0, ratio=[0.2, 0.6], views=100)
    bank = {BANK + "south": torch.full((1, 1, 1), 0.5, dtype=torch.float64)}
    one = Batch(torch.full((1, 1, 8, 8), 0.1, dtype=torch.float64), torch.zeros(1, 1, 8, 8))
    ratio = (method._restyled(doubled_round(toy, method, bank), one).image.mean(dim=(1, 2, 3)) - 0.1) / 0.4
    assert 0.2 <= ratio.min() < 0.25 and 0.55 < ratio.max() <= 0.6 and abs(ratio.mean() - 0.4) < 0.04


def test_a_range_of_ratios_is_read_from_the_command_line_and_in_stacks(tmp_path):
    from medfed.config.overrides import Override
    from medfed.config.schema import changed, load
    from medfed.experiments.grid import method_changes, parts_of

    path = tmp_path / "a.yaml"
    path.write_text("{data: {name: prostate, root: data}, network: {name: unet}, method: {name: elcfs}}")
    assert load(path, ["method.ratio=[0.5, 1.0]"]).method.ratio == (0.5, 1.0)
    stacked = changed(load(path), method_changes(parts_of("fedprox+elcfs:ratio=[0.0,0.5]"), load(path)))
    assert stacked.method.methods[1].ratio == (0.0, 0.5)
    values = [override.value for override in Override.parse_each("method.ratio=[0.0,0.5],[0.5,1.0],0.2", "--vary")]
    assert values == [[0.0, 0.5], [0.5, 1.0], 0.2]


def test_negative_amplitudes_of_a_site_are_refused_with_the_name_of_the_site(toy):
    class Spoilt(ELCFS):
        def share(self, site, network):
            shared = super().share(site, network)
            return {WINDOWS: -shared[WINDOWS] if site.name == "south" else shared[WINDOWS]}

    method = Spoilt(alpha=ALPHA)
    message = r"^south: its share of round 1 contains the number -0\.\d+ in 'windows', but numbers from 0 to 1 are"
    with pytest.raises(UserError, match=message):
        first_round(toy, method)


@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stack"])
def test_with_noise_on_the_statistics_a_site_sends_no_negative_amplitude(toy, stacked):
    method = ELCFS(alpha=ALPHA)
    method, name = (Stack((FedAvg(), method)), f"1/{WINDOWS}") if stacked else (method, WINDOWS)
    site, *_ = toy.engine(method).local_sites
    site.privacy = Privacy(statistics_clip=1.0, statistics_noise=1.0)
    sent = site.reply(Message("share", {}, {}, {"round": 1})).tensors[name]
    assert sent.min() == 0 and 0.3 < (sent == 0).float().mean() < 0.7  # about half of the noise is negative


def test_the_boundary_loss_is_small_if_boundary_and_ring_features_differ(toy):
    """With one direction on the boundary and another in the ring the loss is log(1 + n e^-20) for n negatives."""
    from medfed.federation.local_round import Output
    from medfed.functional.regions import boundary

    label = batch().label
    rim = boundary(label).double()
    told_apart = torch.cat([rim, 1 - rim], dim=1)
    blurred = torch.ones_like(told_apart)
    losses = [
        ELCFS().boundary_loss([Output(batch().image, label, told_apart.new_zeros(()), {"up": f})])
        for f in (told_apart, blurred)
    ]
    assert losses[0] < 1e-7 and torch.isclose(losses[1], torch.tensor(math.log(1 + 4)).double())


def test_styles_for_figures_come_from_every_site_of_the_bank(toy):
    method = ELCFS(alpha=ALPHA)
    image = disc_slices("north").images[:1].double()
    state = State(1, {}, bank_of("south") | bank_of("west"))
    actual = restyled(method, state, image)
    assert set(actual) == {"south", "west"} and all(s.shape == image.shape for s in actual.values())


@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stack"])
def test_interpolations_lie_between_an_image_and_a_random_image_of_each_other_site(toy, stacked):
    """With a window of one number, the mean of an image moves from its own to that of one of the donors."""
    method, prefix = ELCFS(alpha=0.0), "1/" * stacked
    own = torch.full((3, 1, 8, 8), 0.2)
    banks = {"a": torch.full((2, 1, 1), 0.3), "b": torch.full((5, 1, 1), 0.6), "own": torch.ones(1, 1, 1)}
    state = State(1, {}, {prefix + BANK + name: entry for name, entry in banks.items()})
    method = Stack((FedAvg(), method)) if stacked else method
    full, half, drawn = (interpolated(method, state, "own", own, ratio, stream(0, "x")) for ratio in (1.0, 0.5, None))
    assert [set(images) for images in (full, half, drawn)] == [{"a", "b"}] * 3
    for name, mean in (("a", 0.3), ("b", 0.6)):
        assert torch.allclose(full[name], torch.tensor(mean))
        assert torch.allclose(half[name], torch.tensor((0.2 + mean) / 2))
        ratios = (drawn[name].mean(dim=(1, 2, 3)) - 0.2) / (mean - 0.2)
        assert len(ratios.unique()) == 3 and 0 < ratios.min() and ratios.max() < 1


def test_no_tensor_of_an_images_size_is_sent(toy):
    """No tensor that leaves a site, except weights, has an image's size or more numbers per image than the window."""
    method = ELCFS(alpha=ALPHA)
    done = first_round(toy, method)
    up = [r for r in done.ledger if (r["direction"], r["content"]) == ("up", "statistic")]
    assert {(r["name"], r["shape"]) for r in up} == {(WINDOWS, "6x1x25")}
