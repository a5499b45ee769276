import pytest
import torch
from toy_runs import batch_of, first_round, local_round

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.message import digest
from medfed.functional.hooks import capture_features, replace_output
from medfed.methods.fedavg import FedAvg
from medfed.methods.mixstyle import MixStyle
from medfed.methods.rsc import RSC, _places, channel_mask, position_mask, select_largest_drops
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet
from medfed.tasks.classification import Classification
from medfed.testing.toy import ToyClassification, ToySegmentation

ALL = {"sample_shares": (1.0,)}


@pytest.mark.parametrize("mask", ["positions", "channels"])
def test_the_loss_equals_that_of_features_masked_by_hand(mask):
    """On a ResNet, with mean over positions and linear head computed by hand.

    The second prediction counts for the two of six samples whose confidence decreased most."""
    toy = ToyClassification(ResidualNetwork(depth=10, width=8), image_side=64)
    toy.task = Classification(("x", "y", "z"), 3, 64)
    rng = stream(0, "images")
    batch = Batch(torch.rand(6, 3, 64, 64, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2]))
    local = local_round(toy, RSC())
    with capture_features(local.network, ("layer4",)) as seen:
        logits = local.network(toy.task.standardise(batch.image))
    z, head = seen["layer4"].detach(), local.network.fc
    weight = head.weight[batch.label]  # H W times the gradient
    if mask == "channels":
        n = 20  # 64 / 3.2
        keep = torch.ones(6, 64).scatter(1, weight.argsort(dim=1, descending=True)[:, :n], 0.0)
        pooled = z.mean(dim=(2, 3)) * keep
    else:
        n = 2  # 4 / 3, rounded up
        seen_as = torch.einsum("bchw,bc->bhw", z, weight).flatten(1)
        keep = torch.ones(6, 4).scatter(1, seen_as.argsort(dim=1, descending=True)[:, :n], 0.0)
        pooled = (z * keep.view(6, 1, 2, 2)).mean(dim=(2, 3))
    masked = head(pooled)
    drop = (logits.softmax(dim=1) - masked.softmax(dim=1)).gather(1, batch.label[:, None])[:, 0]
    counts = drop >= drop.sort(descending=True).values[1]
    assert drop[counts].min() > 0
    expected = torch.nn.functional.cross_entropy(torch.where(counts[:, None], masked, logits), batch.label)
    actual, _ = RSC(mask=mask).loss(local_round(toy, RSC()), batch)
    assert torch.allclose(actual, expected, atol=1e-6)
    assert actual != torch.nn.functional.cross_entropy(logits, batch.label)


def place_of(toy) -> str:
    return toy.architecture.encoder_stages[-1] if toy.architecture.decoder_levels else toy.architecture.last_features


def of_truth(values: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if label.ndim == 1:
        return torch.stack([row[number] for row, number in zip(values, label)])
    return torch.stack([row[mask > 0].mean() for row, mask in zip(values, label)])


def by_hand(toy, batch, n: int, share: float):
    """Return the loss with masked channels of the last features (U-Net: the bottleneck), from two complete passes."""
    local = local_round(toy, RSC())
    place = place_of(toy)
    raw = local.forward(batch, (place,))
    gradient = torch.autograd.grad(of_truth(raw.logits, batch.label).sum(), raw.features[place], retain_graph=True)[0]
    keep = channel_mask(gradient, share)
    with replace_output(local.network, {place: lambda z: z * keep}):
        masked = local.forward(batch)
    probabilities = torch.sigmoid if batch.label.ndim == 4 else lambda logits: logits.softmax(dim=1)
    drop = of_truth(probabilities(raw.logits), batch.label) - of_truth(probabilities(masked.logits), batch.label)
    counts = torch.zeros(len(drop), dtype=torch.bool)
    counts[drop.topk(n).indices] = True
    counts &= drop > 0
    chosen = torch.stack([masked.logits[i] if count else raw.logits[i] for i, count in enumerate(counts)])
    local.task.loss(chosen, batch.label).backward()
    return local, counts


def test_the_gradient_equals_that_of_two_complete_passes(any_toy):
    """The second pass reuses the first one's features, so gradients flow back once; their sum is the same."""
    batch = batch_of(any_toy)
    expected, counts = by_hand(any_toy, batch, 3, 0.5)
    assert 0 < counts.sum() < len(counts), "otherwise the test would not depend on the selected samples"
    local = local_round(any_toy, RSC())
    RSC(mask="channels", channel_share=0.5, sample_shares=(0.5,)).loss(local, batch)[0].backward()
    for (name, one), other in zip(local.network.named_parameters(), expected.network.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5), name


def test_regularisers_receive_the_first_output(any_toy):
    _, output = RSC(**ALL).loss(local_round(any_toy, RSC()), batch_of(any_toy))
    _, plain = FedAvg().loss(local_round(any_toy, RSC()), batch_of(any_toy))
    assert torch.equal(output.logits, plain.logits) and output.logits.requires_grad


def test_the_fraction_of_samples_grows_as_in_the_released_code():
    method = RSC(**RSC.presets["released"])
    assert [method._sample_share(number) for number in (1, 10, 11, 20, 21, 99)] == [0.3, 0.3, 0.5, 0.5, 0.7, 0.7]
    assert {RSC()._sample_share(number) for number in (1, 50)} == {1 / 3}


def test_positions_and_channels_are_masked_equally_often(toy):
    """400 draws: 200 +- 4 * 10 of each; a fixed mask draws nothing."""
    local = local_round(toy, RSC())
    masks = [RSC()._sample_mask(local) for _ in range(400)]
    assert abs(masks.count(("positions", 1 / 3)) - 200) < 40
    assert set(masks) == {("positions", 1 / 3), ("channels", 1 / 3.2)}
    before = local.rng.get_state()
    assert RSC(mask="channels")._sample_mask(local) == ("channels", 1 / 3.2)
    assert torch.equal(local.rng.get_state(), before)


def test_domainbeds_mask_of_pooled_features_equals_the_mask_of_channels():
    """Before pooling and a linear head, a pooled feature's gradient is H W times its channel's mean gradient."""
    z = torch.rand(4, 12, 3, 3, dtype=torch.float64, generator=stream(0, "z")).requires_grad_()
    weight = torch.randn(3, 12, dtype=torch.float64, generator=stream(0, "weight"))
    label = torch.tensor([0, 1, 2, 0])
    pooled = z.mean(dim=(2, 3))
    logit = (pooled * weight[label]).sum()
    of_pooled, of_map = torch.autograd.grad(logit, (pooled, z))
    domainbed = of_pooled < of_pooled.sort(dim=1).values[:, [8]]  # masks 4 of 12, above percentile 66.7
    settings = {**RSC.presets["domainbed"]}
    keep = channel_mask(of_map, settings["channel_share"])
    assert torch.equal(keep[..., 0, 0], domainbed.double())
    assert torch.allclose((z * keep).mean(dim=(2, 3)), pooled * domainbed)


def test_an_image_without_structures_uses_its_first_prediction(toy):
    batch = batch_of(toy)
    batch = Batch(batch.image, torch.zeros_like(batch.label))
    masked, plain = (method.loss(local_round(toy, RSC()), batch)[0] for method in (RSC(**ALL), FedAvg()))
    assert torch.equal(masked, plain)


@pytest.mark.parametrize("stages", [(1, 2), (2, 3)])
def test_styles_are_not_mixed_again_in_the_second_pass(any_toy, stages):
    """If nothing is masked, the second pass is bit-identical to the first."""
    if not any_toy.architecture.decoder_levels:
        any_toy.architecture = ResidualNetwork(depth=10)
    local, batch = local_round(any_toy, MixStyle(probability=1.0, stages=stages)), batch_of(any_toy)
    raw = local.forward(batch, _places(any_toy.architecture))
    assert torch.equal(RSC()._second_pass(local, batch, raw.features).logits, raw.logits)


def test_it_works_with_dropout_after_the_features():
    toy = ToySegmentation(UNet(features=(4, 4, 4, 8, 8, 4), dropout=0.3), n_images=4)
    one, other = (first_round(toy, RSC()).state for _ in range(2))
    assert digest(one.to_bytes()) == digest(other.to_bytes())


def random_maps(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side, share, dropped", [(7, 1 / 3, 17), (12, 1 / 3, 48), (2, 0.3, 2), (1, 0.3, 0), (3, 1, 8)])
def test_the_given_fraction_of_positions_is_masked_on_maps_of_any_size(side, share, dropped):
    """49 / 3 rounded up is 17, and a map is never masked completely."""
    keep = position_mask(random_maps(4, 5, side, side), random_maps(4, 5, side, side, seed=1), share)
    assert keep.shape == (4, 1, side, side)
    assert (keep == 0).sum(dim=(1, 2, 3)).tolist() == [dropped] * 4


@pytest.mark.parametrize("channels, share, dropped", [(512, 1 / 3.2, 160), (16, 1 / 3, 6), (30, 0.1, 3), (8, 0, 0)])
def test_the_given_fraction_of_channels_is_masked(channels, share, dropped):
    keep = channel_mask(random_maps(2, channels, 3, 3), share)
    assert keep.shape == (2, channels, 1, 1) and (keep == 0).sum(dim=1).flatten().tolist() == [dropped] * 2


def test_positions_are_ranked_by_features_times_mean_gradient():
    """Two channels of mean gradient 1 and -1: what counts at a position is z_1 - z_2 = 3, -1, 0."""
    features = torch.tensor([[[[4.0, 1.0, 0.0]], [[1.0, 2.0, 0.0]]]])
    gradient = torch.tensor([[[[0.0, 3.0, 0.0]], [[-3.0, 0.0, 0.0]]]])
    assert position_mask(features, gradient, 1 / 3).flatten().tolist() == [0, 1, 1]
    assert position_mask(features, gradient, 2 / 3).flatten().tolist() == [0, 1, 0]


def test_channels_are_ranked_by_mean_gradient():
    gradient = torch.tensor([[[[5.0, -5.0]], [[1.0, 0.0]], [[-9.0, 0.0]]]])
    assert channel_mask(gradient, 1 / 3).flatten().tolist() == [1, 0, 1]


def test_masks_carry_no_gradient():
    features, gradient = random_maps(2, 3, 4, 4).requires_grad_(), random_maps(2, 3, 4, 4, seed=1).requires_grad_()
    assert not position_mask(features, gradient, 0.5).requires_grad and not channel_mask(gradient, 0.5).requires_grad


def test_samples_with_the_largest_positive_drops_are_selected():
    fall = torch.tensor([0.1, -0.2, 0.5, 0.3])
    assert select_largest_drops(fall, 2).tolist() == [False, False, True, True]
    assert select_largest_drops(fall, 4).tolist() == [True, False, True, True]
    assert not select_largest_drops(fall, 0).any() and not select_largest_drops(torch.zeros(3), 3).any()


def test_a_fraction_above_one_is_rejected():
    with pytest.raises(ValueError, match="fraction must be in"):
        channel_mask(random_maps(1, 3, 2, 2), 1.5)
