"""The program that converts published weights to a style codec."""

import pytest
import torch

from medfed import codec
from medfed.networks.parts.adain import load_codec
from medfed.networks.parts.vgg import Decoder, VGGEncoder


@pytest.fixture
def published(tmp_path):
    """A VGG-19 encoder and its decoder with random weights, and the flags that name their files."""
    torch.manual_seed(3)
    encoder, decoder = VGGEncoder(), Decoder()
    for module, name in ((encoder, "vgg_normalised.pth"), (decoder, "decoder.pth")):
        torch.save({key.removeprefix("layers."): entry for key, entry in module.state_dict().items()}, tmp_path / name)
    flags = ["--encoder", str(tmp_path / "vgg_normalised.pth"), "--decoder", str(tmp_path / "decoder.pth")]
    return encoder, decoder, [*flags, "--out", str(tmp_path / "weights" / "adain")]


def test_published_encoder_and_decoder_weights_become_a_codec(published, tmp_path, capsys):
    encoder, decoder, flags = published
    assert codec.main(flags) == 0
    assert capsys.readouterr().out == f"The codec is {tmp_path / 'weights' / 'adain' / 'codec.safetensors'}.\n"
    joined, image = load_codec(flags[-1]), torch.rand(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(joined.decode(joined.encode(image), (24, 24)), decoder(encoder(image)).clamp(0, 1))


def test_a_missing_file_is_one_sentence(published, tmp_path, capsys):
    _, _, flags = published
    (tmp_path / "decoder.pth").unlink()
    assert codec.main(flags) == 2
    output = capsys.readouterr().err
    assert "decoder.pth: not found" in output and output.count("\n") == 1
