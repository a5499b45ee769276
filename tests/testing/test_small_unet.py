import pytest
import torch

from medfed.testing.small_unet import SmallUNet


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_it_has_the_parts_that_its_settings_name_and_each_affects_the_logits(norm):
    settings = SmallUNet(norm=norm)
    network, sizes = settings.build(2, 3), {}
    for name in (*settings.encoder_stages, *settings.decoder_levels, settings.last_features, settings.head):
        network.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: sizes.update({name: out.shape}))
    logits = network(torch.rand(4, 2, 16, 24))
    assert logits.shape == (4, 3, 16, 24)
    assert [tuple(sizes[name][1:]) for name in settings.encoder_stages] == [(4, 16, 24), (4, 8, 12), (8, 4, 6)]
    assert [tuple(sizes[name][1:]) for name in settings.decoder_levels] == [(4, 16, 24), (4, 8, 12)]
    logits.square().sum().backward()
    weights = {name: entry for name, entry in network.named_parameters() if entry.ndim == 4}
    assert len(weights) == 6 and all(entry.grad.any() for entry in weights.values())
    for level in (network.upcat_1, network.upcat_2):
        inputs = level.conv.weight.grad.abs().sum(dim=(0, 2, 3))
        assert inputs.all(), "the skip connection and the coarser level both enter"
