import math

import pytest
import torch
from conftest import ToySegmentation

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound, SiteData
from medfed.federation.message import Message, State
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.fourier import low_frequency_window, pack_window
from medfed.methods.elcfs import BANK, ELCFS, WINDOWS
from medfed.networks.unet import UNet
from medfed.testing.toy import disc_slices

ALPHA = 0.1  # 7x7 at 32 pixels


def local_round(method: ELCFS, toy: ToySegmentation, banks: dict | None = None, double: bool = True) -> LocalRound:
    network = toy.network(method)
    return LocalRound(
        site="north",
        round=1,
        network=network.double() if double else network,
        architecture=toy.architecture,
        task=toy.task,
        message=Message("train", tensors=banks or {}),
        memory={},
        rng=stream(0, "test"),
        device=torch.device("cpu"),
        training=toy.samples("north"),
    )


def batch(n: int = 4, double: bool = True) -> Batch:
    found = disc_slices("north").batch(range(n))
    return Batch(found.image.double() if double else found.image, found.label)


def bank_of(site: str) -> dict:
    return {BANK + site: pack_window(low_frequency_window(disc_slices(site).images.double(), ALPHA))}


def gradients(local: LocalRound, loss: torch.Tensor) -> dict:
    found = torch.autograd.grad(loss, list(local.network.parameters()))
    return dict(zip(dict(local.network.named_parameters()), found, strict=True))


def test_with_no_step_no_boundary_and_no_exchange_the_gradient_is_twice_that_of_dice(toy):
    method = ELCFS(meta_step=0.0, gamma=0.0, exchange=False)
    local = local_round(method, toy)
    once = gradients(local, toy.task.loss(local.forward(batch()).logits, batch().label))
    found = gradients(local, method.loss(local, batch())[0])
    assert all(torch.allclose(found[name], 2 * once[name], atol=1e-12) for name in once)


def test_without_the_exchange_a_bank_of_an_older_run_goes_nowhere_and_changes_nothing(toy):
    """Checkpoints of before hold one, as sites were asked for windows whatever the setting."""
    method = ELCFS(alpha=ALPHA, exchange=False)
    assert method.broadcast(State(1, {}, bank_of("south")), "north") == {}
    plain, banked = (local_round(method, toy, banks) for banks in (None, bank_of("south")))
    assert torch.equal(method.loss(plain, batch())[0], method.loss(banked, batch())[0])


def test_the_gradient_is_that_at_theta_plus_that_at_the_fast_weights(toy):
    """First order: g = g_in(theta) + g_out(theta'), theta' = theta - beta clamp(g_in)."""
    method = ELCFS(meta_step=0.1, gamma=0.0, exchange=False, inner_clamp=0.01)
    local = local_round(method, toy)
    found = gradients(local, method.loss(local, batch())[0])
    inner = gradients(local, toy.task.loss(local.forward(batch()).logits, batch().label))
    with torch.no_grad():
        for name, p in local.network.named_parameters():
            p -= 0.1 * inner[name].clamp(-0.01, 0.01)
    outer = gradients(local, toy.task.loss(local.forward(batch()).logits, batch().label))
    assert all(torch.allclose(found[name], inner[name] + outer[name], atol=1e-10) for name in inner)


def test_second_order_differs_from_first_order(toy):
    results = []
    for second_order in (False, True):
        local = local_round(method := ELCFS(meta_step=0.1, gamma=0.0, exchange=False, second_order=second_order), toy)
        results.append(gradients(local, method.loss(local, batch())[0])["conv_0.conv_0.conv.weight"])
    assert not torch.allclose(*results) and torch.allclose(*results, atol=1.0)


def test_a_site_shares_packed_windows_and_nothing_else(toy):
    data = SiteData("north", disc_slices("north"), toy.task, None, stream(0, "share"))
    shared = ELCFS(alpha=ALPHA).share(data, toy.network(ELCFS()))
    assert list(shared) == [WINDOWS]
    assert shared[WINDOWS].shape == (10, 1, 25) and shared[WINDOWS].dtype == torch.float32


def test_an_rgb_image_at_384_costs_300_bytes():
    class Colour:
        n_patients = 8

        def __len__(self):
            return 8

        def batch(self, indices):
            return Batch(torch.rand(len(indices), 3, 384, 384), torch.zeros(len(indices), 1, 384, 384))

    shared = ELCFS().share(SiteData("a", Colour(), None, None, stream(0, "share")), None)[WINDOWS]
    assert shared.numel() * 4 / 8 == 300


def test_a_small_site_shares_nothing_and_says_why(toy):
    data = SiteData("north", disc_slices("north", 4), toy.task, None, stream(0, "share"))  # four slices of two patients
    with pytest.warns(UserWarning, match="north: has 2 training patients and shares no frequency windows"):
        assert ELCFS(alpha=ALPHA).share(data, None) == {}


def test_a_window_that_shrank_to_the_mean_is_told(toy):
    data = SiteData("north", disc_slices("north"), toy.task, None, stream(0, "share"))
    with pytest.warns(UserWarning, match="alpha 0.01 at 32 pixels is a window of one number.*wants alpha 0.109"):
        shared = ELCFS(alpha=0.01).share(data, None)
    assert shared[WINDOWS].shape == (10, 1, 1)


def test_a_share_of_the_bank_is_drawn_at_random(toy):
    method = ELCFS(alpha=ALPHA, bank_share=0.3)
    sites = [SiteData("n", disc_slices("north"), toy.task, None, stream(seed, "x")) for seed in (0, 0, 1)]
    shared = [method.share(site, None)[WINDOWS] for site in sites]
    assert len(shared[0]) == 3 and torch.equal(shared[0], shared[1]) and not torch.equal(shared[0], shared[2])


def test_a_site_is_sent_every_bank_but_its_own():
    method = ELCFS()
    memory = method.combine(State(0, {}), {s: {WINDOWS: torch.zeros(1)} for s in "abc"} | {"small": {}}, None)
    assert set(memory) == {BANK + s for s in "abc"}
    assert set(method.broadcast(State(0, {}, memory), "b")) == {BANK + "a", BANK + "c"}
    assert set(method.broadcast(State(0, {}, memory), "small")) == set(memory)


@pytest.mark.parametrize(("views", "expected"), [(1, 1), (3, 3), (0, 2)])
def test_views_are_counted_as_said_and_keep_their_labels(toy, views, expected):
    method = ELCFS(alpha=ALPHA, views=views)
    local = local_round(method, toy, bank_of("south") | bank_of("west"))
    found = method._restyled(local, batch())
    assert len(found.image) == 4 * expected and torch.equal(found.label, batch().label.repeat(expected, 1, 1, 1))
    assert found.image.min() >= 0 and found.image.max() <= 1
    assert not torch.allclose(found.image[:4], batch().image)


def test_released_swaps_the_mean_brightness_whole(toy):
    """alpha = 0 and ratio one: the view is x - mean(x) + mean(donor), up to clipping to [0, 1]."""
    method = ELCFS(**ELCFS.presets["released"])
    bank = {BANK + "south": pack_window(low_frequency_window(disc_slices("south").images.double(), method.alpha))}
    means = disc_slices("south").images.double().mean(dim=(1, 2, 3))
    found = method._restyled(local_round(method, toy, bank), batch()).image
    for view, own in zip(found, batch().image, strict=True):
        candidates = [(own - own.mean() + mean).clamp(0, 1) for mean in means]
        assert min((view - c).abs().max() for c in candidates) < 1e-7


def test_a_fixed_ratio_lies_between_the_image_and_the_whole_swap(toy):
    """Before clipping the view is linear in r: at 0 the image, at 1 the swap, at 0.5 halfway, of the same donors."""
    bank = bank_of("south")
    views = {r: ELCFS(alpha=ALPHA, ratio=r)._restyled(local_round(ELCFS(alpha=ALPHA), toy, bank), batch()).image
             for r in (0.0, 0.5, 1, "one")}  # fmt: skip
    assert torch.allclose(views[0.0], batch().image, atol=1e-6) and torch.equal(views[1], views["one"])
    inside = (views[0.0] > 0.01) & (views[0.0] < 0.99) & (views[1] > 0.01) & (views[1] < 0.99)
    assert inside.any() and torch.allclose(views[0.5][inside], (views[0.0] + views[1])[inside] / 2, atol=1e-6)
    assert not torch.allclose(views[0.0], views[1], atol=1e-2)


def test_alone_it_still_trains(toy):
    local = local_round(method := ELCFS(alpha=ALPHA), toy)
    loss, _ = method.loss(local, batch())
    assert torch.isfinite(loss)


def test_slices_without_the_organ_give_a_finite_loss_and_gradient(toy):
    local = local_round(method := ELCFS(alpha=ALPHA), toy, bank_of("south"))
    empty = Batch(batch().image, torch.zeros_like(batch().label))
    found = gradients(local, method.loss(local, empty)[0])
    assert all(torch.isfinite(g).all() for g in found.values())


def test_the_boundary_loss_is_small_where_rim_and_ring_are_told_apart(toy):
    """Features that are one direction on the rim and another in the ring: log(1 + n e^-20) with n negatives."""
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


def test_the_outer_pass_leaves_running_statistics_alone():
    toy = ToySegmentation(architecture=UNet(features=(4, 4, 4, 8, 8, 4), norm="batch"))
    local = local_round(method := ELCFS(alpha=ALPHA), toy, bank_of("south"))
    method.loss(local, batch())
    counters = [b for name, b in local.network.named_buffers() if name.endswith("num_batches_tracked")]
    assert counters and all(c == 1 for c in counters)


def test_styles_for_pictures_come_from_every_site_of_the_bank(toy):
    method = ELCFS(alpha=ALPHA)
    image = disc_slices("north").images[:1].double()
    state = State(1, {}, bank_of("south") | bank_of("west"))
    found = method.styles(state, image)
    assert set(found) == {"south", "west"} and all(s.shape == image.shape for s in found.values())


def test_nothing_image_like_is_ever_sent(toy):
    """No tensor that leaves a site beside the weights has an image's size or more numbers an image than the window."""
    method = ELCFS(alpha=ALPHA)
    (done,) = federate(method, toy.engine(method), toy.start(method), Federation(rounds=1), 0)
    weights = set(toy.start(method).weights)
    up = [r for r in done.ledger if r["direction"] == "up" and r["dtype"] != "fact" and r["name"] not in weights]
    assert {r["name"] for r in up} == {WINDOWS} and {r["shape"] for r in up} == {"10x1x25"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.5}, "alpha must lie in"),
        ({"alpha": -0.1}, "alpha must lie in"),
        ({"ratio": "half"}, "ratio must be"),
        ({"ratio": 1.5}, "ratio must be"),
        ({"ratio": -0.1}, "ratio must be"),
        ({"denominator": "all"}, "denominator must be"),
        ({"bank_share": 0.0}, "bank_share must lie in"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"gamma": -1.0}, "gamma must be at least 0"),
        ({"decoder_levels": 0}, "decoder_levels must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ELCFS(**settings)
