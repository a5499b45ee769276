"""What all networks have in common: sizes, named submodules, definitions for bundles, and refused settings."""

import pytest
import torch

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.functional.hooks import capture_features, replace_output
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet

SMALL_DENSENET, SMALL_UNET = DenseNetwork(8, 4, (2, 2)), UNet(features=(4, 4, 8, 8, 8, 4))


@pytest.mark.parametrize(
    ("settings", "n_in", "n_out", "expected"),
    [
        (DenseNetwork(), 3, 2, 6_955_906),  # DenseNet-121
        (DenseNetwork(norm="batch_statistics"), 3, 2, 6_872_258),
        (EfficientNetLite(), 3, 7, 4_652_008 - 993 * 1281),  # 993 classes fewer, each of 1280 weights and a bias
        (EfficientNetUNet(), 3, 1, 3_653_161),
        (ElcfsUNet(), 1, 1, 3_179_569),
        (ElcfsUNet(), 3, 2, 3_179_890),
        (ResidualNetwork(), 3, 7, 11_689_512 - 993 * 513),  # torchvision's for 1000 classes
        (ResidualNetwork(depth=50), 3, 7, 25_557_032 - 993 * 2049),
        (ResidualNetwork(depth=50, embedding_size=2048), 3, 7, 25_557_032 - 993 * 2049 + 2048 * 2049),  # FISC's layer
    ],
)
def test_a_network_has_the_published_number_of_parameters(settings, n_in, n_out, expected):
    with torch.device("meta"):
        network = settings.build(n_in, n_out)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_statistics_and_counters_are_buffers():
    """DenseNet-121 has 83,648 statistics and 121 counters."""
    assert sum(buffer.numel() for buffer in DenseNetwork().build(3, 2).buffers()) == 83_648 + 121
    assert not list(DenseNetwork(norm="batch_statistics").build(3, 2).buffers())
    assert len(ElcfsUNet().build(1, 1).state_dict()) == 54


@pytest.mark.parametrize(
    ("settings", "stages", "levels"),
    [
        (SMALL_UNET, [64, 32, 16, 8, 4], [64, 32, 16, 8]),
        (ElcfsUNet(width=2), [64, 32, 16, 8, 4], [64, 32, 16, 8]),
        (EfficientNetUNet(), [32, 16, 8, 4, 2], [64, 32, 16, 8, 4]),
        (EfficientNetLite(), [32, 16, 8, 4, 2], []),
        (SMALL_DENSENET, [16, 8], []),
        (DenseNetwork(8, 4, (2, 2), "batch_statistics"), [16, 8], []),
        (ResidualNetwork(10, 4), [16, 8, 4, 2], []),
        (ResidualNetwork(10, 4, 5), [16, 8, 4, 2], []),
        (ResidualNetwork(50, 4), [16, 8, 4, 2], []),
        (ResidualNetwork(50, 4, 5), [16, 8, 4, 2], []),
    ],
)
def test_named_submodules_have_their_sizes_and_the_head_turns_the_last_of_them_into_logits(settings, stages, levels):
    network, image = settings.build(3, 5).eval(), torch.rand(2, 3, 96, 64)
    names = {*settings.encoder_stages, *settings.decoder_levels, settings.last_features, settings.embedding} - {""}
    with capture_features(network, tuple(names)) as seen:
        logits = network(image)
    assert [seen[stage].shape[-1] for stage in settings.encoder_stages] == stages
    assert [seen[level].shape[-1] for level in settings.decoder_levels] == levels
    features, head = seen[settings.last_features], network.get_submodule(settings.head)
    if levels:
        assert settings.last_features == settings.decoder_levels[0] and settings.embedding == ""
        assert logits.shape == (2, 5, 96, 64) and torch.equal(head(features), logits)
        return
    assert features.min() >= 0 or not isinstance(settings, DenseNetwork), "after the ReLU"
    embedding = seen[settings.embedding].flatten(1)
    assert logits.shape == (2, 5) and torch.equal(head(embedding), logits)
    pooled = features.mean((2, 3))
    if getattr(settings, "embedding_size", 0):
        pooled = network.fc.embedding(pooled)
    torch.testing.assert_close(pooled, embedding)


def test_the_last_two_decoder_levels_of_elcfs_unet_have_32_and_64_channels():
    settings = ElcfsUNet()
    with capture_features(network := settings.build(1, 1), settings.decoder_levels[:2]) as seen:
        network(torch.zeros(1, 1, 32, 32))
    assert [seen[level].shape[1] for level in settings.decoder_levels[:2]] == [32, 64]


def test_nothing_but_pooling_comes_after_the_last_features_of_a_densenet():
    """A negative map reaches the last layer unchanged: the ReLU comes before the named module's output."""
    network = SMALL_DENSENET.build(3, 5)
    lowered = replace_output(network, {SMALL_DENSENET.last_features: lambda features: features - 5})
    with lowered, capture_features(network, (SMALL_DENSENET.last_features, SMALL_DENSENET.embedding)) as seen:
        network(torch.rand(2, 3, 32, 32))
    assert (seen[SMALL_DENSENET.embedding] < -1).any() and seen[SMALL_DENSENET.last_features].min() >= -5


@pytest.mark.parametrize(
    "settings",
    [
        DenseNetwork(norm="batch_statistics"),
        EfficientNetLite(),
        EfficientNetUNet(),
        ElcfsUNet(),
        ResidualNetwork(10, 4, 5),
    ],
)
def test_a_network_that_monai_lacks_has_no_bundle_definition(settings):
    assert settings.network_def(3, 2) is None


@pytest.mark.parametrize(
    ("settings", "wrong", "right", "expected"),
    [
        (DenseNetwork(), (63,), 64, "at least 64 pixels"),
        (EfficientNetLite(), (32, 100), 96, "multiple of 32"),
        (EfficientNetUNet(), (32, 100), 96, "multiple of 32"),
        (ResidualNetwork(), (32,), 33, "cannot process; choose another size, for example 40"),
        (UNet(), (16, 20, 100), 96, "multiple of 16"),
    ],
)
def test_an_image_size_that_does_not_fit_is_rejected(settings, wrong, right, expected):
    settings.check_image_size(right)
    for size in wrong:
        with pytest.raises(UserError, match=f"image_size is {size}.*{expected}"):
            settings.check_image_size(size)


@pytest.mark.parametrize("cls", [DenseNetwork, EfficientNetLite, EfficientNetUNet, ElcfsUNet, ResidualNetwork, UNet])
def test_the_settings_are_registered_by_their_file_name(cls):
    assert resolve("networks", cls.__module__.rpartition(".")[2]) is cls
