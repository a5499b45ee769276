"""Networks and weights of MONAI bundles, read as data."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from monai.bundle import ConfigParser
from monai.networks import nets
from monai.networks.nets import DenseNet

from medfed.core.errors import UserError
from medfed.networks.bundle import Bundle
from medfed.networks.densenet import DenseNetwork
from medfed.networks.monai_network import MonaiNetwork
from medfed.networks.parts.bundle_config import Expression, is_expression, read_config
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet
from tests.networks.test_monai_network import NETWORKS as MONAI_NETWORKS
from tests.networks.test_monai_network import rounding

SMALL = {
    "_target_": "monai.networks.nets.BasicUNet",
    "spatial_dims": 2,
    "in_channels": 1,
    "out_channels": 2,
    "features": [4, 4, 8, 8, 8, 4],
}


def bundle(folder, definition, network=None, **others):
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "inference.json").write_text(json.dumps({**others, "network_def": definition}))
    if network is not None:
        torch.save(network.state_dict(), folder / "models" / "model.pt")
    return str(folder)


@pytest.mark.parametrize(
    "settings", [UNet(features=(4, 4, 8, 8, 8, 4), norm="batch"), DenseNetwork(8, 4, (2, 2)), ResidualNetwork(10, 8)]
)
def test_an_exported_definition_gives_the_same_network_with_the_same_first_weights(tmp_path, settings):
    result = Bundle(bundle(tmp_path / "b", settings.network_def(1, 2)))
    assert isinstance(result.without_weights(), MonaiNetwork) and not result.without_weights().weights
    for name in ("head", "encoder_stages", "decoder_levels", "last_features", "embedding"):
        assert getattr(result, name) == getattr(settings, name)
    assert result.network_def(1, 2) == settings.network_def(1, 2)
    ours, theirs = (built_with_seed(lambda source=source: source.build(1, 2)) for source in (result, settings))
    assert same_entries(ours.state_dict(), theirs.state_dict())
    image = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(image), theirs(image))


# As the configs of MONAI's model zoo and its tutorials record them.
RECORDED = [
    {
        "_target_": "BasicUNet",
        "spatial_dims": 2,
        "in_channels": 5,
        "out_channels": 1,
        "features": [32, 64, 128, 256, 512, 32],
    },
    {"_target_": "BasicUNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 2, "act": "relu", "norm": "batch"},
    {"_target_": "DenseNet121", "spatial_dims": 2, "in_channels": 4, "out_channels": 5},
    {"_target_": "resnet18", "spatial_dims": 2, "n_input_channels": 3, "num_classes": 2, "pretrained": False},
    {
        "_target_": "monai.networks.nets.ResNet",
        "block": "basic",
        "layers": [2, 2, 2, 2],
        "block_inplanes": [64, 128, 256, 512],
        "spatial_dims": 2,
        "n_input_channels": 1,
        "num_classes": 3,
    },
    {
        "_target_": "UNet",
        "spatial_dims": 2,
        "in_channels": 1,
        "out_channels": 4,
        "channels": [16, 32, 64, 128, 256],
        "strides": [2, 2, 2, 2],
        "num_res_units": 2,
        "norm": "batch",
    },
]


@pytest.mark.parametrize("definition", RECORDED, ids=lambda definition: definition["_target_"])
def test_a_bundle_gives_the_network_and_the_weights_of_monais_class(tmp_path, definition):
    parser = ConfigParser({"network_def": definition})
    theirs = built_with_seed(lambda: parser.get_parsed_content("network_def"))
    n_in = definition.get("in_channels", definition.get("n_input_channels"))
    n_out = definition.get("out_channels", definition.get("num_classes"))
    result = Bundle(bundle(tmp_path / "b", definition, theirs))
    ours = built_with_seed(lambda: result.build(n_in, n_out))
    assert same_entries(ours.state_dict(), theirs.state_dict())  # the same random numbers
    other = result.without_weights().build(n_in, n_out)
    assert not same_entries(other.state_dict(), theirs.state_dict())
    result.load_pretrained(other)
    assert same_entries(other.state_dict(), theirs.state_dict())
    image = torch.randn(2, n_in, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(other.eval()(image), theirs.eval()(image), atol=rounding(definition["_target_"]), rtol=0)


def built_with_seed(build):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build()


def same_entries(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(entry, theirs[name]) for name, entry in ours.items())


def test_with_other_classes_the_last_layer_keeps_random_weights(tmp_path):
    theirs = DenseNet(2, 3, 5, init_features=8, growth_rate=4, block_config=(2, 2))
    result = Bundle(bundle(tmp_path / "b", DenseNetwork(8, 4, (2, 2)).network_def(3, 5), theirs))
    with pytest.warns(UserWarning, match="keeps its random weights"):
        result.load_pretrained(result.build(3, 2))


# The values that a config names from `network_def`, and the expressions of a hostile bundle.
REFERENCES = {
    "sizes": {"channels": [4, 8, "@widest"], "norm": "batch"},
    "widest": 16,
    "dims": "@two",
    "two": 2,
    "hostile": "$__import__('os').system('touch ran')",
    "built": {"_target_": "os.system", "command": "touch ran"},
    "a0": 1,
    **{f"a{n}": [f"@a{n - 1}", f"@a{n - 1}"] for n in range(1, 40)},  # doubles at each step
}
UNET = {
    "_target_": "UNet",
    "spatial_dims": "@dims",
    "in_channels": 1,
    "out_channels": 4,
    "channels": "@sizes::channels",
    "strides": ["@two", 2],
    "norm": "@sizes#norm",
}


REFUSED = {
    "other class": ({"_target_": "os.system", "command": "touch ran"}, "network_def is 'os.system'; expected one of"),
    "expression": ({**SMALL, "out_channels": "$__import__('os').system('touch ran')"}, "out_channels is an expression"),
    "no such value": ({**SMALL, "features": "@features"}, "`@features` is not defined"),
    "reference to itself": ({**SMALL, "features": "@network_def"}, "circular references"),
    "reference to an expression": ({**UNET, "norm": "@hostile"}, "norm is an expression, which medfed does not run"),
    "reference to a target": ({**UNET, "norm": "@built"}, "norm is an expression, which medfed does not run"),
    "references that double": ({**UNET, "channels": "@a39"}, "has more than 5,000 values"),
    "macro": ({**SMALL, "features": "%/etc/passwd"}, "features is an expression"),
    "hidden target": ({**SMALL, "act": ["relu", {"inplace": {"_target_": "os.system"}}]}, "act is an expression"),
    "hidden call": ({"_target_": "UNet", "channels": [4, 8], "strides": [2], "_mode_": "debug"}, "is an expression"),
    "file of a class": ({"_target_": "monai.networks.nets.UNet.__init__"}, "expected one of"),
    "code of the bundle": ({"_target_": "scripts.net.UNet"}, "network_def is 'scripts.net.UNet'; expected one of"),
    "only an expression": ("$__import__('os').system('touch ran')", "expected _target_"),
    "unknown argument of a UNet": ({"_target_": "UNet", "spatial_dims": 2, "depth": 3}, "unexpected keyword argument"),
    "no last layer": ({"_target_": "resnet18", "spatial_dims": 2, "feed_forward": False}, "no last layer 'fc'"),
    "program as an argument": ({**SMALL, "act": {"_target_": "torch.jit.load", "f": "x"}}, "act is an expression"),
    "unknown argument": ({**SMALL, "depth": 3}, "unexpected keyword argument 'depth'"),
    "no network": (None, "has the key network_def"),
    "program": (
        {"_target_": "torch.export.UnflattenedModule", "export_module": {"_target_": "torch.export.load", "f": "$x"}},
        "loads a program, which medfed never runs; training can start only from a network of",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_in_a_bundle_is_executed_and_unknown_networks_are_rejected(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    definition, expected = REFUSED[case]
    with pytest.raises(ValueError, match="configs") as caught:
        Bundle(bundle(tmp_path / "b", definition, **REFERENCES))
    assert expected in str(caught.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("definition", [{**SMALL, "spatial_dims": 3}, {"_target_": "SegResNet"}])
def test_a_bundle_decides_the_dimensions_of_its_network(tmp_path, definition):
    """MONAI's SegResNet has three dimensions by default."""
    volumes, images = Bundle(bundle(tmp_path / "3", definition)), Bundle(bundle(tmp_path / "2", SMALL))
    assert (volumes.dimensions, images.dimensions) == (3, 2) and volumes.without_weights().dimensions == 3
    assert volumes.build(1, 2)(torch.rand(1, 1, 32, 32, 32)).shape == (1, 2, 32, 32, 32)
    volumes.check_patch_size((32, 32, 32))
    images.check_image_size(32)
    with pytest.raises(UserError, match="is a 3-D network; set data.patch_size"):
        replace(volumes, dimensions=2).check_image_size(32)
    with pytest.raises(UserError, match="need a segmentation network with three dimensions"):
        replace(images, dimensions=3).check_patch_size((32, 32, 32))


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_references_to_plain_values_are_replaced(tmp_path, ending):
    folder = bundle(tmp_path / "b", None)
    (tmp_path / "b" / "configs" / "inference.json").unlink()
    text = (json.dumps if ending == "json" else yaml.safe_dump)({**REFERENCES, "network_def": UNET})
    (tmp_path / "b" / "configs" / f"train.{ending}").write_text(text)
    assert Bundle(folder).without_weights() == MonaiNetwork(
        "UNet", {"channels": (4, 8, 16), "strides": (2, 2), "norm": "batch"}
    )


def test_yaml_that_repeats_itself_without_end_or_names_python_is_rejected(tmp_path):
    folder = bundle(tmp_path / "b", None)
    (tmp_path / "b" / "configs" / "inference.json").unlink()
    file = tmp_path / "b" / "configs" / "inference.yaml"
    doubled = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    for text, expected in [
        (f"a0: &a0 [1]\n{doubled}network_def: {{_target_: UNet, channels: *a39}}\n", "has more than 5,000 values"),
        ("network_def: &a {_target_: UNet, channels: *a}\n", "nested too deeply|more than 5,000 values"),
        ("network_def: !!python/object/apply:os.system ['touch ran']\n", "is not a YAML object"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=expected):
            Bundle(folder)


def test_expressions_outside_of_the_entries_that_are_read_stay_data(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "b: {c: '@d', e: ['$1 + 1', '%f', '@a-b'], g: {_target_: os.system}}\nd: '$2'\nh: '$3'\n"
    )
    content = read_config(tmp_path / "a.yaml", ["b", "x"])
    assert content == {
        "b": {
            "c": Expression("$2"),
            "e": [Expression("$1 + 1"), Expression("%f"), Expression("@a-b")],
            "g": {"_target_": "os.system"},
        }
    }
    assert is_expression(content["b"]["c"]) and is_expression(content["b"]["g"]) and not is_expression({"a": [1, "b"]})


@pytest.mark.parametrize("named", MONAI_NETWORKS, ids=str)
def test_weights_of_monais_networks_are_loaded_and_give_the_same_logits(tmp_path, named):
    name, arguments = named
    definition = MonaiNetwork(name, arguments).network_def(1, 2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = getattr(nets, name)(**{key: value for key, value in definition.items() if key != "_target_"})
    result = Bundle(bundle(tmp_path / "b", definition, theirs))
    ours = result.build(1, 2)
    result.load_pretrained(ours)
    image = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.eval()(image), theirs.eval()(image), atol=rounding(name), rtol=0)
    again = result.monai_weights(ours, 1, 2)
    assert {name: entry.shape for name, entry in again.items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    assert all(torch.equal(entry, again[name]) for name, entry in theirs.state_dict().items())


def test_a_folder_that_is_no_bundle_and_a_bundle_without_weights_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="is not a MONAI bundle"):
        Bundle(str(tmp_path))
    result = Bundle(bundle(tmp_path / "b", SMALL))
    with pytest.raises(Exception, match="has no models/model.safetensors or models/model.pt"):
        result.load_pretrained(result.build(1, 2))
