import pytest
import torch
from monai.bundle import ConfigParser

from medfed.core.errors import UserError
from medfed.functional.hooks import capture_features
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.unet import UNet


@pytest.mark.parametrize(("n_in", "n_out", "expected"), [(1, 1, 3_179_569), (3, 2, 3_179_890)])
def test_the_paper_network_has_the_published_number_of_parameters(n_in, n_out, expected):
    network = ElcfsUNet().build(n_in, n_out)
    assert sum(p.numel() for p in network.parameters()) == expected
    assert len(network.state_dict()) == 54


@pytest.mark.parametrize("settings", [UNet(features=(4, 4, 8, 8, 8, 4)), ElcfsUNet(width=2)])
def test_named_submodules_exist_and_have_the_documented_shapes(settings):
    network, image = settings.build(3, 2), torch.zeros(2, 3, 32, 48)
    names = settings.decoder_levels + settings.encoder_stages + (settings.head,)
    with capture_features(network, names) as seen:
        assert network(image).shape == (2, 2, 32, 48)
    assert seen[settings.decoder_levels[0]].shape[-2:] == (32, 48)
    assert seen[settings.decoder_levels[1]].shape[-2:] == (16, 24)
    assert seen[settings.encoder_stages[-1]].shape[-2:] == (2, 3)


@pytest.mark.parametrize("settings", [UNet(features=(4, 4, 8, 8, 8, 4)), ElcfsUNet(width=2)])
def test_the_head_turns_the_finest_decoder_level_into_logits(settings):
    network = settings.build(1, 2)
    with capture_features(network, (settings.last_features,)) as seen:
        logits = network(torch.rand(2, 1, 32, 32))
    assert settings.last_features == settings.decoder_levels[0] and settings.embedding == ""
    assert torch.equal(network.get_submodule(settings.head)(seen[settings.last_features]), logits)


def test_the_last_two_decoder_levels_of_elcfs_unet_have_32_and_64_channels():
    settings = ElcfsUNet()
    with capture_features(network := settings.build(1, 1), settings.decoder_levels[:2]) as seen:
        network(torch.zeros(1, 1, 32, 32))
    assert [seen[level].shape[1] for level in settings.decoder_levels[:2]] == [32, 64]


def test_the_bundle_definition_builds_a_network_with_the_same_entries():
    settings = UNet(features=(4, 4, 8, 8, 8, 4))
    parser = ConfigParser({"network_def": settings.network_def(1, 2)})
    theirs, ours = parser.get_parsed_content("network_def"), settings.build(1, 2)
    assert {k: v.shape for k, v in theirs.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}
    assert ElcfsUNet().network_def(1, 1) is None


@pytest.mark.parametrize("size", [20, 16, 100])
def test_a_size_that_the_levels_cannot_halve_is_rejected(size):
    with pytest.raises(UserError, match=f"data.image_size is {size}.*multiple of 16"):
        UNet().check_image_size(size)
    UNet().check_image_size(96)


def test_wrong_settings_are_rejected():
    with pytest.raises(ValueError, match=r"features: expected a list of 6 whole numbers, got 2: \[4, 4\]"):
        UNet(features=(4, 4))
    with pytest.raises(ValueError, match="norm must be"):
        UNet(norm="layer")
    with pytest.raises(ValueError, match="width must be"):
        ElcfsUNet(width=0)
