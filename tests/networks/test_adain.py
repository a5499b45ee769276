"""The style codec: loading published weights, images of any size, grey images; and medfed's own small codec."""

import pytest
import safetensors.torch
import torch

from medfed.core.errors import UserError
from medfed.networks.parts import adain
from medfed.networks.parts.adain import SMALL_CODEC_FILE, load_codec, serialise_codec
from medfed.networks.parts.vgg import Decoder, VGGEncoder, load_published


def count(module):
    return sum(entry.numel() for entry in module.parameters())


def image_of(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def codec():
    return load_codec()


def test_vgg19_has_the_published_layers():
    """31 modules; 9 convolutions and the 1x1 one have 3,505,740 weights, the decoder has 3,505,219."""
    encoder = VGGEncoder()
    assert (len(encoder.layers), count(encoder), count(Decoder())) == (31, 3_505_740, 3_505_219)
    assert encoder(image_of(1, 3, 40, 36)).shape == (1, 512, 5, 5)  # ceil(9 / 2) = 5


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    ("kind", "names", "shape"),
    [(VGGEncoder, {"0.weight", "29.bias"}, (1, 3, 16, 16)), (Decoder, {"1.weight", "28.bias"}, (1, 512, 2, 2))],
)
def test_published_names_are_loaded_and_later_layers_ignored(tmp_path, suffix, kind, names, shape):
    theirs, ours, path = kind(), kind(), tmp_path / f"vgg{suffix}"
    public = {name.removeprefix("layers."): entry for name, entry in theirs.state_dict().items()}
    assert names <= set(public) and len(public) == (20 if kind is VGGEncoder else 18)
    further = {**public, "32.weight": torch.zeros(512, 512, 3, 3)}
    torch.save(further, path) if suffix == ".pth" else safetensors.torch.save_file(further, path)
    load_published(ours, path)
    assert torch.equal(ours(image_of(*shape)), theirs(image_of(*shape)))


def test_a_wrong_file_is_rejected_with_one_sentence(tmp_path):
    path = tmp_path / "weights.pth"
    with pytest.raises(UserError, match="weights.pth: not found"):
        load_published(VGGEncoder(), path)
    torch.save({"conv1_1.weight": torch.zeros(1)}, path)
    with pytest.raises(
        UserError, match="weights.pth belongs to another network: 'layers.0.weight' is missing.*expected 20"
    ):
        load_published(VGGEncoder(), path)


@pytest.mark.parametrize("size", [(32, 32), (33, 50), (9, 11), (96, 41)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_is_decoded_to_the_same_size_in_range(codec, size, channels):
    images = image_of(2, channels, *size)
    out = codec.stylise(images, *codec.style(image_of(2, 3, 40, 40, seed=1)))
    assert out.shape == images.shape and out.min() >= 0 and out.max() <= 1


@pytest.mark.parametrize("size", [(60, 48), (33, 50), (9, 17)])
def test_nothing_is_lost_at_alpha_zero(codec, size):
    """The encoder is a wavelet transform and the decoder its inverse, up to the last pixel at the border."""
    images = image_of(2, 3, *size)
    out = codec.stylise(images, torch.zeros(128), torch.ones(128), 0.0)
    torch.testing.assert_close(out, images, atol=1e-5, rtol=0)


def test_the_wavelet_gives_no_visible_blocks(codec):
    """The fine bands of a linear slope are 0, so scaling them changes nothing; a Haar wavelet would give steps."""
    slope = torch.linspace(0.2, 0.8, 48).expand(1, 3, 48, 48).contiguous()
    features = codec.encode(slope)
    colours, bands = 3, 16
    signals = features[:, : colours * bands] - features[:, 64 : 64 + colours * bands]
    assert signals[:, colours:, 3:-3, 3:-3].abs().max() < 1e-5 and signals[:, :colours].abs().max() > 0.5


def test_the_own_style_changes_nothing(codec):
    images = image_of(2, 3, 32, 32)
    torch.testing.assert_close(codec.stylise(images, *codec.style(images)), images, atol=1e-4, rtol=0)


def test_a_grey_image_gives_the_same_as_its_rgb_version(codec):
    grey, style = image_of(1, 1, 24, 24), codec.style(image_of(1, 3, 32, 32, seed=2))
    from_colour = codec.stylise(grey.expand(-1, 3, -1, -1), *style)
    torch.testing.assert_close(codec.stylise(grey, *style), from_colour.mean(1, keepdim=True))


def test_wrong_images_are_rejected(codec):
    for images in (image_of(1, 2, 32, 32), image_of(3, 32, 32), torch.ones(1, 3, 32, 32, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="images must be floating point"):
            codec.encode(images)
    with pytest.raises(ValueError, match="sides of 9 pixels or more"):
        codec.encode(image_of(1, 3, 8, 32))


def test_a_codec_is_equal_after_saving_and_loading(codec, tmp_path):
    data = serialise_codec(codec, {"architecture": "small", "channels": [16, 32, 96, 128]})
    assert data == serialise_codec(codec, {"architecture": "small", "channels": [16, 32, 96, 128]})
    (tmp_path / adain.CODEC_FILE_NAME).write_bytes(data)
    images = image_of(1, 3, 32, 32)
    for place in (tmp_path, tmp_path / adain.CODEC_FILE_NAME):
        assert torch.equal(load_codec(place).encode(images), codec.encode(images))


def test_a_file_that_is_no_codec_is_rejected_with_one_sentence(codec, tmp_path):
    path = tmp_path / adain.CODEC_FILE_NAME
    with pytest.raises(UserError, match="no codec found; expected 'small'"):
        load_codec(tmp_path / "nowhere")
    path.write_bytes(serialise_codec(codec, {"architecture": "small"})[:-9])
    with pytest.raises(UserError, match="codec.safetensors: the codec's file is damaged"):
        load_codec(path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="is not a codec of medfed"):
        load_codec(path)
    path.write_bytes(serialise_codec(codec, {"architecture": "small", "channels": [16, 32, 64, 128]}))
    with pytest.raises(UserError, match="expected"):
        load_codec(path)
    broken = load_codec()
    next(broken.decoder.parameters()).data.fill_(float("nan"))
    (tmp_path / "nan").mkdir()
    settings = {"architecture": "small", "channels": list(broken.encoder.channels)}
    (tmp_path / "nan" / "codec.safetensors").write_bytes(serialise_codec(broken, settings))
    with pytest.raises(UserError, match="codec.safetensors contains NaN or infinite values, first in .* 'decoder"):
        load_codec(tmp_path / "nan")


def test_the_bundled_codec_is_small_and_accurate():
    """The test image shows stripes, a disc and an edge, in colour."""
    codec = load_codec("small")
    assert SMALL_CODEC_FILE.stat().st_size < 3e6
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    disc = (torch.hypot(rows - 48, columns - 48) < 20).float()
    image = torch.stack([0.5 + 0.3 * torch.sin(columns / 3), 0.2 + 0.6 * disc, (rows > 40) * 0.5])[None]
    assert not any(entry.requires_grad for entry in codec.parameters())
    assert (codec.decode(codec.encode(image), (96, 96)) - image).abs().mean() < 1e-5
    mean, std = codec.style(image.flip(1))
    styled = codec.stylise(image, mean, std)
    before, after = ((one.mean((2, 3)) - image.flip(1).mean((2, 3))).abs().mean() for one in (image, styled))
    assert after < before / 2
