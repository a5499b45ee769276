"""The losses of a codec's training, against the equations of AdaIN (Huang & Belongie, ICCV 2017)."""

import copy

import pytest
import torch

from medfed.style_codec.images import ImagePool, crop_rng
from medfed.style_codec.recipe import Recipe
from medfed.style_codec.training import CodecTraining

SIZE, BATCH = 16, 4


@pytest.fixture
def training_of(monkeypatch):
    """A training from random weights: the small codec starts so well that its losses would be nearly 0."""
    monkeypatch.setattr("medfed.style_codec.training.init_identity", lambda encoder, decoder: None)
    monkeypatch.setattr("medfed.style_codec.training.N_NORMALISATION_CROPS", 8)

    def make(**values) -> CodecTraining:
        content, style = (pool(seed) for seed in (0, 1))
        return CodecTraining(Recipe("small", steps=1, batch_size=BATCH, size=SIZE, **values), content, style)

    return make


def pool(seed: int) -> ImagePool:
    """Noise around other colours; otherwise crops could not be distinguished."""
    rng = torch.Generator().manual_seed(seed)
    colours = torch.randint(30, 150, (6, 3, 1, 1), generator=rng)
    return ImagePool(tuple((colours + torch.randint(0, 100, (6, 3, 24, 24), generator=rng)).to(torch.uint8)), "noise")


def moments(maps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of each map, each (B, C)."""
    return maps.mean((2, 3)), (maps.var((2, 3), correction=1) + 1e-5).sqrt()


def first_batch(training: CodecTraining) -> tuple[torch.Tensor, torch.Tensor]:
    rng = crop_rng(training.recipe.seed, "step", 0)
    content = training.content.batch(BATCH, SIZE, rng)
    return content, training.style.batch(BATCH, SIZE, rng)


def by_hand(codec, content: torch.Tensor, style: torch.Tensor, leak: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Content and style loss (eq. 12, 13), and the image g = D(t), of a codec with gradients in its decoder."""
    features = codec.encoder(content)[-1]
    styles = [moments(maps) for maps in codec.encoder(style)]
    (own_mean, own_std), (mean, std) = moments(features), styles[-1]
    own_mean, own_std, mean, std = (one[:, :, None, None] for one in (own_mean, own_std, mean, std))
    t = (std * (features - own_mean) / own_std + mean).detach()  # eq. 8
    g = codec.decoder(t)
    g = leak * g + (1 - leak) * g.clamp(0, 1)
    result = codec.encoder(g)
    content_loss = ((result[-1] - t) ** 2).mean()  # eq. 12
    style_loss = torch.zeros(())
    for maps, (mean, std) in zip(result, styles, strict=True):  # eq. 13
        g_mean, g_std = moments(maps)
        style_loss = style_loss + ((g_mean - mean) ** 2).mean() + ((g_std - std) ** 2).mean()
    assert len(result) == 4
    return content_loss, style_loss, g


def check_gradients(training: CodecTraining, codec) -> None:
    """Compare the gradients after the step with gradients computed by hand."""
    ours, theirs = (dict(one.decoder.named_parameters()) for one in (training.codec, codec))
    assert ours.keys() == theirs.keys()
    for name, entry in theirs.items():
        scale = float(entry.grad.abs().max())
        torch.testing.assert_close(ours[name].grad, entry.grad, atol=1e-4 * scale, rtol=1e-4, msg=name)


def test_losses_and_the_first_gradient_are_those_of_equations_11_to_13(training_of):
    training = training_of(content_weight=2.0, style_weight=3.0)
    codec = copy.deepcopy(training.codec)
    content, style, _ = by_hand(codec, *first_batch(training))
    losses = training.train_step()
    assert losses == pytest.approx({"content": content.item(), "style": style.item()}, rel=1e-4)
    (2.0 * content + 3.0 * style).backward()  # eq. 11
    check_gradients(training, codec)


def test_the_paper_weighs_style_ten_times(training_of):
    training = training_of()
    codec = copy.deepcopy(training.codec)
    content, style, _ = by_hand(codec, *first_batch(training))
    training.train_step()
    (content + 10 * style).backward()
    check_gradients(training, codec)


def test_with_a_pixel_weight_a_quarter_of_the_batch_is_redrawn_in_its_own_style(training_of):
    """One of four images; values outside [0, 1] count by `leak` in every loss."""
    training = training_of(pixel_weight=5.0, leak=0.25)
    codec = copy.deepcopy(training.codec)
    images, styles = first_batch(training)
    styles[0] = images[0]
    content, style, g = by_hand(codec, images, styles, leak=0.25)
    pixel = (g[0] - images[0]).abs().mean()
    losses = training.train_step()
    wanted = {"content": content.item(), "style": style.item(), "pixel": pixel.item()}
    assert losses == pytest.approx(wanted, rel=1e-4)
    (content + 10 * style + 5 * pixel).backward()
    check_gradients(training, codec)


def test_a_step_changes_only_the_decoder(training_of):
    training = training_of()
    before = copy.deepcopy(training.codec)
    training.train_step()
    assert all(torch.equal(a, b) for a, b in zip(training.codec.encoder.parameters(), before.encoder.parameters()))
    assert all(not torch.equal(a, b) for a, b in zip(training.codec.decoder.parameters(), before.decoder.parameters()))
