"""Networks of MONAI by class name and arguments."""

from importlib.util import find_spec

import pytest
import torch
from monai.bundle import ConfigParser

from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.functional.hooks import capture_features
from medfed.networks.monai_network import MonaiNetwork

NETWORKS = [
    ("UNet", {"channels": (4, 8, 16), "strides": (2, 2), "num_res_units": 2, "norm": "batch", "act": "prelu"}),
    ("UNet", {"channels": (4, 8), "strides": (2,)}),
    ("BasicUNet", {"features": (4, 4, 8, 8, 8, 4), "act": "relu"}),
    ("AttentionUnet", {"channels": (4, 8, 16), "strides": (2, 2)}),
    ("AttentionUnet", {"channels": (4, 8), "strides": (2,)}),
    ("SegResNet", {"init_filters": 8, "blocks_down": (1, 1), "blocks_up": (1,)}),
    ("DynUNet", {"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2), "filters": (4, 4, 8)}),
    ("FlexibleUNet", {"backbone": "efficientnet-b0", "decoder_channels": (8, 8, 8, 8, 8), "is_pad": False}),
    ("FlexibleUNet", {"backbone": "resnet18", "decoder_channels": (8, 8, 8, 8, 8)}),
    pytest.param(
        ("SwinUNETR", {"feature_size": 12, "depths": (1, 1, 1, 1)}),
        marks=pytest.mark.skipif(find_spec("einops") is None, reason="SwinUNETR needs einops"),
    ),
    ("DenseNet", {"init_features": 8, "growth_rate": 4, "block_config": (2, 2)}),
    ("DenseNet121", {"init_features": 8, "growth_rate": 4, "block_config": (2, 1)}),
    ("ResNet", {"block": "basic", "layers": (1, 1, 1, 1), "block_inplanes": (4, 8, 8, 8)}),
    ("resnet10", {"widen_factor": 0.125}),
    ("SEResNet50", {"layers": (1, 1, 1, 1)}),
]
SMALL = MonaiNetwork("UNet", {"channels": (4, 8, 16), "strides": (2, 2)})


@pytest.fixture(scope="module", params=NETWORKS, ids=str)
def settings(request):
    return MonaiNetwork(*request.param)


@pytest.fixture(scope="module")
def network(settings):
    return settings.build(1, 2).eval()


def test_the_named_places_exist_and_the_head_turns_the_last_features_into_logits(settings, network):
    places = (*settings.encoder_stages, *settings.decoder_levels, settings.last_features, settings.embedding)
    with capture_features(network, [place for place in places if place]) as seen, torch.no_grad():
        logits = network(torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == ((2, 2) if settings.embedding else (2, 2, 64, 64))
    features = seen[settings.embedding].flatten(1) if settings.embedding else seen[settings.last_features]
    assert torch.equal(network.get_submodule(settings.head)(features), logits)
    for names, is_falling in [(settings.encoder_stages, True), (settings.decoder_levels, True)]:
        sides = [seen[name].shape[-1] for name in names]
        assert sides == sorted(sides, reverse=is_falling)  # the finest first
    assert settings.decoder_levels[:1] == ((settings.last_features,) if settings.decoder_levels else ())


def test_no_weight_is_in_the_network_twice_and_monai_builds_the_same_from_the_definition(settings, network):
    tensors = [entry.data_ptr() for entry in network.state_dict().values() if entry.numel()]
    assert len(set(tensors)) == len(tensors)
    theirs = ConfigParser({"network_def": settings.network_def(1, 2)}).get_parsed_content("network_def")
    assert type(theirs).__name__ == settings.architecture.replace("resnet10", "ResNet")  # which is a function
    theirs.load_state_dict(settings.monai_weights(network, 1, 2))
    image = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(image), network(image), atol=rounding(settings.architecture), rtol=0)


def rounding(architecture):
    """Feature maps channels last are added in another order."""
    return 1e-5 if architecture.startswith("DenseNet") else 0


def test_building_for_a_check_draws_no_random_numbers(settings):
    before = torch.random.get_rng_state()
    MonaiNetwork(settings.architecture, settings.arguments).check_image_size(64)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_size_that_the_strides_do_not_divide_is_rejected_with_one_that_fits():
    SMALL.check_image_size(24)
    with pytest.raises(UserError, match="data.image_size is 22, which this UNet cannot process.* for example 24"):
        SMALL.check_image_size(22)
    with pytest.raises(UserError, match="for example 64"):  # five halvings to 2 pixels
        MonaiNetwork("FlexibleUNet", {"backbone": "efficientnet-b0"}).check_image_size(48)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("UNETR", {}, "architecture"),
        ("UNet", {"channels": (4, 8), "strides": (2,), "depth": 3}, "MONAI cannot build this UNet .*'depth'"),
        ("UNet", {"channels": (4, 8)}, "MONAI cannot build this UNet .*'strides'.*expected channels, strides"),
        ("UNet", {"channels": (4, 8), "strides": (2,), "spatial_dims": 3}, "spatial_dims follows from the images"),
        ("FlexibleUNet", {"backbone": "resnet18", "pretrained": True}, "pretrained would download weights"),
        ("SegResNet", {"act": "$__import__('os').system('true')"}, "arguments.act: expected plain values"),
        ("SegResNet", {"act": "prelu"}, "its layers share weights, such as 'conv_final.1.weight'"),
        ("DynUNet", {"deep_supervision": True}, "deep_supervision adds outputs"),
    ],
)
def test_wrong_arguments_are_rejected(name, arguments, expected):
    with pytest.raises(ValueError, match=expected):
        MonaiNetwork(name, arguments)


def test_a_config_with_arguments_is_written_and_read_back():
    text = """
        data: {name: prostate_phantom, root: images}
        network: {name: monai_network, architecture: UNet, arguments: {channels: [4, 8, 16], strides: [2, 2]}}
        method: {name: fedavg}
    """
    config = load_text(text, "a.yaml")
    assert config.network == SMALL and load_text(config.yaml, "b.yaml").network == SMALL


def test_arguments_for_volumes_give_a_network_of_three_dimensions():
    """Kernel sizes of three numbers, as in plans of nnU-Net, fit three dimensions only."""
    sizes = {"kernel_size": [[3, 3, 1], [3, 3, 3], [3, 3, 3]], "strides": [[1, 1, 1], [2, 2, 1], [2, 2, 2]]}
    settings = MonaiNetwork("DynUNet", {**sizes, "upsample_kernel_size": [[2, 2, 1], [2, 2, 2]], "filters": [4, 4, 8]})
    assert settings.dimensions == 3
    assert settings.build(1, 2)(torch.rand(2, 1, 16, 16, 8)).shape == (2, 2, 16, 16, 8)
    settings.check_patch_size((16, 16, 8))
    with pytest.raises(UserError, match="is a 3-D network; set data.patch_size"):
        settings.check_image_size(32)
