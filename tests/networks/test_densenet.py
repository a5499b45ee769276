import pytest
import torch
from torch import nn

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.functional.hooks import capture_features, replace_output
from medfed.networks.densenet import DenseNetwork


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_defaults_are_densenet121():
    """6,955,906 parameters, 83,648 statistics and 121 counters for colour and two classes."""
    network = DenseNetwork().build(3, 2)
    assert count(network) == 6_955_906 and sum(buffer.numel() for buffer in network.buffers()) == 83_648 + 121


def test_batch_statistics_have_neither_weights_nor_buffers():
    network = DenseNetwork(norm="batch_statistics").build(3, 2)
    assert count(network) == 6_872_258 and not list(network.buffers())


def test_the_bundle_definition_builds_the_same_entries():
    from monai.bundle import ConfigParser

    small = DenseNetwork(8, 4, (2, 2))
    built = ConfigParser({"network": small.network_def(3, 2)}).get_parsed_content("network")
    assert built.state_dict().keys() == small.build(3, 2).state_dict().keys()
    assert DenseNetwork(norm="batch_statistics").network_def(3, 2) is None


def test_named_submodules_exist():
    small = DenseNetwork(8, 4, (2, 2))
    network = small.build(3, 5)
    assert [network.get_submodule(stage) is not None for stage in small.encoder_stages] == [True, True]
    assert network.get_submodule(small.head).out_features == 5
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize("norm", ["batch", "batch_statistics"])
def test_the_pooled_features_are_the_embedding_and_the_head_turns_it_into_logits(norm):
    small = DenseNetwork(8, 4, (2, 2), norm)
    network = small.build(3, 5)
    with capture_features(network, (small.last_features, small.embedding)) as seen:
        logits = network(torch.rand(2, 3, 32, 32))
    embedding = seen[small.embedding].flatten(1)
    assert seen[small.last_features].shape == (2, 16, 4, 4) and (seen[small.last_features] >= 0).all()
    torch.testing.assert_close(seen[small.last_features].mean((2, 3)), embedding)
    assert torch.equal(network.get_submodule(small.head)(embedding), logits)


def test_nothing_but_pooling_comes_after_the_last_features():
    """A negative map reaches the last layer unchanged: the ReLU comes before the named module's output."""
    small = DenseNetwork(8, 4, (2, 2))
    network = small.build(3, 5)
    lowered = replace_output(network, {small.last_features: lambda features: features - 5})
    with lowered, capture_features(network, (small.embedding,)) as seen:
        network(torch.rand(2, 3, 32, 32))
    assert (seen[small.embedding] < -1).any()


def test_too_small_images_are_rejected():
    with pytest.raises(UserError, match="at least 64 pixels"):
        DenseNetwork().check_image_size(63)


def test_the_settings_are_registered_by_their_file_name():
    assert resolve("networks", "densenet") is DenseNetwork
