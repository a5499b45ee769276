import pytest
import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.functional.hooks import capture_features
from medfed.networks.resnet import ResidualNetwork


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ResidualNetwork(), 11_180_103),
        (ResidualNetwork(depth=50), 23_522_375),
        (ResidualNetwork(depth=50, embedding_size=2048), 27_718_727),
    ],
)
def test_with_seven_classes_it_has_the_published_number_of_parameters(settings, expected):
    """torchvision's 11,689,512 and 25,557,032 for 1000 classes, minus 993 classes of 512 or 2048 weights and a bias;
    FISC adds 2048 * 2048 + 2048."""
    with torch.device("meta"):
        network = settings.build(3, 7)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("embedding_size", [0, 5])
@pytest.mark.parametrize("depth", [10, 50])
def test_the_head_turns_the_embedding_into_logits(depth, embedding_size):
    settings = ResidualNetwork(depth, 4, embedding_size)
    network = settings.build(3, 7)
    with capture_features(network, (settings.embedding, settings.last_features, *settings.encoder_stages)) as seen:
        logits = network(torch.rand(2, 3, 64, 64))
    head = network.get_submodule(settings.head)
    assert head.out_features == 7 and torch.equal(head(seen[settings.embedding].flatten(1)), logits)
    assert [seen[stage].shape[-1] for stage in settings.encoder_stages] == [16, 8, 4, 2]
    pooled = seen[settings.last_features].mean((2, 3))
    if embedding_size:
        pooled = network.fc.embedding(pooled)
    torch.testing.assert_close(pooled, seen[settings.embedding].flatten(1))


def test_the_bundle_definition_builds_the_same_network():
    from monai.bundle import ConfigParser

    settings = ResidualNetwork(18, 4)
    built = ConfigParser({"network": settings.network_def(3, 2)}).get_parsed_content("network").eval()
    ours = settings.build(3, 2).eval()
    built.load_state_dict(ours.state_dict(), strict=True)
    images: Tensor = torch.rand(2, 3, 64, 64)
    assert torch.equal(built(images), ours(images))


def test_monai_has_no_network_with_an_embedding():
    assert ResidualNetwork(10, 4, 5).network_def(3, 2) is None


def test_an_image_size_that_leaves_one_pixel_is_rejected():
    with pytest.raises(UserError, match="image_size is 32.*at least 33"):
        ResidualNetwork().check_image_size(32)
    ResidualNetwork().check_image_size(33)
    assert ResidualNetwork(10, 4).build(3, 2)(torch.rand(1, 3, 33, 33)).shape == (1, 2)


def test_wrong_settings_are_rejected():
    with pytest.raises(ValueError, match="one of 10, 18, 34, 50, got 20"):
        ResidualNetwork(depth=20)
    with pytest.raises(ValueError, match="at least 1"):
        ResidualNetwork(width=0)
    with pytest.raises(ValueError, match="at least 0"):
        ResidualNetwork(embedding_size=-1)


def test_the_settings_are_registered_by_their_file_name():
    assert resolve("networks", "resnet") is ResidualNetwork
