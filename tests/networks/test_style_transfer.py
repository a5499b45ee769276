"""Redrawing images with the codec: against the formula, at any transfer size, in batches that limit the memory."""

import pytest
import torch
from torch.nn import functional

from medfed.networks.parts import style_transfer
from medfed.networks.parts.adain import StyleCodec, load_codec
from medfed.networks.parts.style_transfer import StyleTransfer

SIDE = 32


def random_images(count: int, side: int = SIDE, channels: int = 3, seed: int = 0) -> torch.Tensor:
    """Smooth blobs between 0.25 and 0.75, with other colours for each seed, so that little is clipped at 0 and 1."""
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(seed))
    return 0.25 + 0.5 * functional.interpolate(coarse, (side, side), mode="bilinear") ** (1 + seed)


def styles(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return load_codec("small").style(random_images(count, seed=1))


def scaled(images: torch.Tensor, side: int) -> torch.Tensor:
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True).clamp(0, 1)


def by_hand(image: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, alpha: float) -> torch.Tensor:
    """D(alpha t + (1 - alpha) F), F = E(image), t = std (F - m) / s + mean; image (1, C, H, W), style (D,)."""
    codec = load_codec("small")
    maps = codec.encode(image)
    pixels = maps.double().flatten(2)
    own_mean, own_std = pixels.mean(2), (pixels.var(2, correction=1) + 1e-5).sqrt()
    plain = (pixels - own_mean[..., None]) / own_std[..., None]
    t = std.double()[None, :, None] * plain + mean.double()[None, :, None]
    mixed = (alpha * t + (1 - alpha) * pixels).float().reshape(maps.shape)
    return codec.decode(mixed, tuple(image.shape[2:]), image.shape[1])


@pytest.fixture
def batches(monkeypatch):
    """Record how many images the codec encodes and decodes at a time."""
    seen: dict[str, list[int]] = {"encode": [], "decode": []}
    for name, counts in seen.items():
        whole = getattr(StyleCodec, name)

        def counting(codec, images, *rest, whole=whole, counts=counts):
            counts.append(len(images))
            return whole(codec, images, *rest)

        monkeypatch.setattr(StyleCodec, name, counting)
    return seen


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_images_are_redrawn_as_the_formula_says(alpha, channels, batches):
    """Each of two images in its own style, and one image in three styles."""
    transfer = StyleTransfer("codec", "small", alpha, 0)
    for n_images, n_styles in ((2, 2), (1, 3)):
        images, (mean, std) = random_images(n_images, channels=channels), styles(n_styles)
        batches["encode"].clear()
        result = transfer.restyle(images, mean, std)
        assert batches["encode"] == [n_images], "once, whatever the number of styles"
        wanted = [by_hand(images[i % n_images][None], mean[i], std[i], alpha) for i in range(n_styles)]
        torch.testing.assert_close(result, torch.cat(wanted), atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_with_a_transfer_size_images_are_enlarged_redrawn_and_resized_back(alpha):
    image, (mean, std) = random_images(1), styles(2)
    result = StyleTransfer("codec", "small", alpha, 2 * SIDE).restyle(image, mean, std)
    redrawn = torch.cat([by_hand(scaled(image, 2 * SIDE), *one, alpha) for one in zip(mean, std)])
    assert result.shape == (2, 3, SIDE, SIDE)
    torch.testing.assert_close(result, scaled(redrawn, SIDE), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("side", "size", "at_once"), [(96, 0, 32), (48, 0, 128), (16, 192, 8), (16, 200, 7), (16, 1024, 1)]
)
def test_the_batch_size_keeps_the_number_of_pixels_of_32_images_of_96(side, size, at_once):
    """32 * 96 * 96 = 294,912 pixels: 8 images of 192 x 192, 7 of 200 x 200, and at least one of 1024 x 1024."""
    assert StyleTransfer("codec", "small", 1.0, size)._batch_size(torch.zeros(1, 3, side, side)) == at_once


def test_features_in_batches_equal_features_image_by_image(batches):
    images, transfer = random_images(20), StyleTransfer("codec", "small", 1.0, 192)
    whole = torch.cat(list(transfer.features(images)))
    assert batches["encode"] == [8, 8, 4]
    one_by_one = torch.cat([load_codec("small").encode(scaled(image[None], 192)) for image in images])
    torch.testing.assert_close(whole, one_by_one, atol=1e-6, rtol=1e-6)


def test_the_next_batch_is_encoded_only_when_requested(batches):
    """Otherwise all feature maps would be in memory together."""
    parts = StyleTransfer("codec", "small", 1.0, 192).features(random_images(20))
    for number in (1, 2, 3):
        next(parts)
        assert len(batches["encode"]) == number


@pytest.mark.parametrize("count", [1, 5])
def test_images_redrawn_in_batches_equal_images_redrawn_one_by_one(batches, monkeypatch, count):
    monkeypatch.setattr(style_transfer, "MAX_PIXELS", 2 * SIDE**2)
    images, (mean, std) = random_images(count), styles(5)
    before = len(batches["encode"])
    result = StyleTransfer("codec", "small", 1.0, 0).restyle(images, mean, std)
    assert batches["decode"] == [2, 2, 1] and batches["encode"][before:] == ([1] if count == 1 else [2, 2, 1])
    wanted = torch.cat([by_hand(images[i % count][None], mean[i], std[i], 1.0) for i in range(5)])
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=0)


def test_the_reconstruction_error_is_that_of_encoding_and_decoding(batches):
    images = random_images(3)
    result = StyleTransfer("codec", "small", 1.0, 64).reconstruction_error(images)
    assert max(batches["encode"] + batches["decode"]) == 1
    style = torch.zeros(2, 128)
    again = torch.cat([scaled(by_hand(scaled(image[None], 64), *style, 0.0), SIDE) for image in images])
    assert float(result) == pytest.approx(float((again - images).abs().mean()), abs=1e-6)


def test_images_and_styles_of_different_numbers_are_rejected():
    for transfer in ("codec", "moments"):
        with pytest.raises(ValueError, match="one style for each of 3 images, got 2"):
            StyleTransfer(transfer, "small", 1.0, 0).restyle(random_images(3), torch.zeros(2, 3), torch.ones(2, 3))
