"""Networks and weights of MONAI bundles, read as data."""

import json

import pytest
import torch
from monai.networks.nets import BasicUNet, DenseNet

from medfed.networks.bundle import Bundle
from medfed.networks.densenet import DenseNetwork
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet

SMALL = {"_target_": "monai.networks.nets.BasicUNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 2,
         "features": [4, 4, 8, 8, 8, 4]}  # fmt: skip


def bundle(folder, definition, network=None):
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "inference.json").write_text(json.dumps({"network_def": definition}))
    if network is not None:
        torch.save(network.state_dict(), folder / "models" / "model.pt")
    return str(folder)


@pytest.mark.parametrize(
    "settings", [UNet(features=(4, 4, 8, 8, 8, 4), norm="batch"), DenseNetwork(8, 4, (2, 2)), ResidualNetwork(10, 8)]
)
def test_exported_definitions_are_read_back_as_the_same_settings(tmp_path, settings):
    result = Bundle(bundle(tmp_path / "b", settings.network_def(1, 2)))
    assert result.without_weights() == settings
    assert (result.head, result.encoder_stages) == (settings.head, settings.encoder_stages)
    assert result.network_def(1, 2) == settings.network_def(1, 2)


def test_a_foreign_bundle_may_omit_monais_default_arguments(tmp_path):
    theirs = BasicUNet(**{key: value for key, value in SMALL.items() if key != "_target_"})
    result = Bundle(bundle(tmp_path / "b", SMALL, theirs))
    ours = result.build(1, 2)
    result.load_pretrained(ours)
    image = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.eval()(image), theirs.eval()(image))


def test_with_other_classes_the_last_layer_keeps_random_weights(tmp_path):
    theirs = DenseNet(2, 3, 5, init_features=8, growth_rate=4, block_config=(2, 2))
    result = Bundle(bundle(tmp_path / "b", DenseNetwork(8, 4, (2, 2)).network_def(3, 5), theirs))
    with pytest.warns(UserWarning, match="keeps its random weights"):
        result.load_pretrained(result.build(3, 2))


REFUSED = {
    "other class": ({"_target_": "os.system", "command": "touch ran"}, "network_def is 'os.system'; expected one of"),
    "expression": ({**SMALL, "out_channels": "$__import__('os').system('touch ran')"}, "out_channels is an expression"),
    "reference": ({**SMALL, "features": "@features"}, "features is an expression"),
    "hidden target": ({**SMALL, "act": ["relu", {"inplace": {"_target_": "os.system"}}]}, "act is an expression"),
    "three dimensions": ({**SMALL, "spatial_dims": 3}, "has arguments that medfed does not set"),
    "other activation": ({**SMALL, "act": "relu"}, "has arguments that medfed does not set"),
    "unknown argument": ({**SMALL, "depth": 3}, "unexpected keyword argument 'depth'"),
    "no network": (None, "has the key network_def"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_in_a_bundle_is_executed_and_unknown_networks_are_rejected(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    definition, expected = REFUSED[case]
    with pytest.raises(ValueError, match="configs") as caught:
        Bundle(bundle(tmp_path / "b", definition))
    assert expected in str(caught.value) and not (tmp_path / "ran").exists()


def test_a_folder_that_is_no_bundle_and_a_bundle_without_weights_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="is not a MONAI bundle"):
        Bundle(str(tmp_path))
    result = Bundle(bundle(tmp_path / "b", SMALL))
    with pytest.raises(Exception, match="has no models/model.safetensors or models/model.pt"):
        result.load_pretrained(result.build(1, 2))


def test_weights_that_could_run_code_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = Bundle(bundle(tmp_path / "b", SMALL))
    (tmp_path / "b" / "models" / "model.pt").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(Exception, match="cannot be read as a state dict"):
        result.load_pretrained(result.build(1, 2))
    assert not (tmp_path / "ran").exists()
