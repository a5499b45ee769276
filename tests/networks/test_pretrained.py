"""Pretrained weights from files. torchvision is not needed: its entry names are written out here."""

import re
import warnings
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.parts.pretrained import read_state_dict
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet

SMALL = ResidualNetwork(10, 4)


def norm(name: str, n: int) -> dict[str, Tensor]:
    shapes = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (n,)) | {"num_batches_tracked": ()}
    return {f"{name}.{part}": torch.rand(shape) for part, shape in shapes.items()}


def torchvision_resnet18(n_classes: int = 1000) -> dict[str, Tensor]:
    entries = {"conv1.weight": torch.rand(64, 3, 7, 7), **norm("bn1", 64)}
    n_in = 64
    for stage, n in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            place = f"layer{stage}.{block}"
            for number in (1, 2):
                entries[f"{place}.conv{number}.weight"] = torch.rand(n, n_in if number == 1 else n, 3, 3)
                entries |= norm(f"{place}.bn{number}", n)
            if n_in != n:
                entries[f"{place}.downsample.0.weight"] = torch.rand(n, n_in, 1, 1)
                entries |= norm(f"{place}.downsample.1", n)
            n_in = n
    return entries | {"fc.weight": torch.rand(n_classes, 512), "fc.bias": torch.rand(n_classes)}


def torchvision_densenet121(dot: str = "") -> dict[str, Tensor]:
    """`dot` is "." in the files before torchvision 0.3: `norm.1`, `conv.2`."""
    entries = {"features.conv0.weight": torch.rand(64, 3, 7, 7), **norm("features.norm0", 64)}
    n = 64
    for block, count in enumerate((6, 12, 24, 16), start=1):
        for layer in range(1, count + 1):
            place = f"features.denseblock{block}.denselayer{layer}"
            entries |= norm(f"{place}.norm{dot}1", n) | norm(f"{place}.norm{dot}2", 128)
            entries[f"{place}.conv{dot}1.weight"] = torch.rand(128, n, 1, 1)
            entries[f"{place}.conv{dot}2.weight"] = torch.rand(32, 128, 3, 3)
            n += 32
        if block < 4:
            entries |= norm(f"features.transition{block}.norm", n)
            entries[f"features.transition{block}.conv.weight"] = torch.rand(n // 2, n, 1, 1)
            n //= 2
    entries |= norm("features.norm5", n)
    return entries | {"classifier.weight": torch.rand(1000, n), "classifier.bias": torch.rand(1000)}


def load(settings: NetworkSettings, entries: dict[str, Tensor], path, n_in: int = 3, n_out: int = 7) -> nn.Module:
    safetensors.torch.save_file(entries, path / "w.safetensors")
    network = settings.build(n_in, n_out)
    replace(settings, weights=str(path / "w.safetensors")).load_pretrained(network)
    return network


def body(network: nn.Module, head: str) -> dict[str, Tensor]:
    return {name: entry for name, entry in network.state_dict().items() if not name.startswith(f"{head}.")}


def test_torchvision_resnet18_fills_everything_but_a_head_of_other_classes(tmp_path):
    theirs = torchvision_resnet18()
    head = r"'fc.weight' is \(1000, 512\) in the file and \(7, 512\) in the network"
    with pytest.warns(UserWarning, match=head):
        network = load(ResidualNetwork(), theirs, tmp_path)
    ours = body(network, "fc")
    assert ours.keys() == theirs.keys() - {"fc.weight", "fc.bias"}
    assert all(torch.equal(entry, theirs[name].to(entry.dtype)) for name, entry in ours.items())


def test_a_last_layer_with_the_same_classes_is_loaded_without_a_warning(tmp_path):
    theirs = torchvision_resnet18(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = load(ResidualNetwork(), theirs, tmp_path)
    assert torch.equal(network.fc.weight, theirs["fc.weight"])


@pytest.mark.parametrize("dot", ["", "."])
def test_torchvision_densenet121_fills_everything_but_the_head(tmp_path, dot):
    theirs = torchvision_densenet121(dot)
    with pytest.warns(UserWarning, match="class_layers.out.weight"):
        network = load(DenseNetwork(), theirs, tmp_path)
    ours = body(network, "class_layers.out")
    assert len(ours) == len(theirs) - 2
    for name, entry in ours.items():
        theirs_name = re.sub(r"\.layers\.(norm|conv)", rf".\1{dot}", name)
        assert torch.equal(entry, theirs[theirs_name].to(entry.dtype)), name


@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        DenseNetwork(8, 4, (2, 2)),
        UNet(features=(4, 4, 8, 8, 8, 4)),
        ElcfsUNet(2),
        EfficientNetUNet(),
        EfficientNetLite(),
    ],
)
@pytest.mark.parametrize("ending", ["safetensors", "pt", "pth"])
def test_the_network_s_own_weights_load_from_every_file_format(tmp_path, settings, ending):
    path, donor, network = tmp_path / f"w.{ending}", settings.build(3, 2), settings.build(3, 2)
    entries_to_save = {name: entry for name, entry in donor.state_dict().items() if "num_batches_tracked" not in name}
    safetensors.torch.save_file(entries_to_save, path) if ending == "safetensors" else torch.save(entries_to_save, path)
    replace(settings, weights=str(path)).load_pretrained(network)
    expected = donor.state_dict()
    assert all(torch.equal(entry, expected[name]) for name, entry in network.state_dict().items())


@pytest.mark.parametrize("settings", [SMALL, EfficientNetLite(pretrained=False), EfficientNetUNet(pretrained=False)])
def test_without_weights_nothing_is_loaded(settings):
    network = settings.build(3, 2)
    before = {name: entry.clone() for name, entry in network.state_dict().items()}
    settings.load_pretrained(network)
    assert all(torch.equal(entry, before[name]) for name, entry in network.state_dict().items())


def test_published_weights_lack_the_embedding_and_our_own_have_it(tmp_path):
    plain, embedded = SMALL.build(3, 1000).state_dict(), ResidualNetwork(10, 4, 6)
    with pytest.warns(UserWarning) as caught:
        load(embedded, plain, tmp_path)
    assert len(caught) == 2 and "'fc.embedding.weight' is missing in the file" in str(caught[0].message)
    ours = embedded.build(3, 5)
    with pytest.warns(UserWarning, match="fc.head.weight") as caught:
        network = load(embedded, ours.state_dict(), tmp_path)
    assert len(caught) == 1 and torch.equal(network.fc.embedding.weight, ours.fc.embedding.weight)


def test_colour_weights_process_a_grey_image_as_in_three_channels(tmp_path):
    colour, image = SMALL.build(3, 2).eval(), torch.rand(2, 1, 64, 64)
    with pytest.warns(UserWarning, match="'conv1.weight' is for colour images; it was summed"):
        grey = load(SMALL, colour.state_dict(), tmp_path, n_in=1, n_out=2).eval()
    torch.testing.assert_close(grey(image), colour(image.expand(2, 3, 64, 64)))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda entries: entries.pop("layer1.0.conv1.weight"), "'layer1.0.conv1.weight' is missing; found"),
        (lambda entries: entries.update(extra=torch.ones(1)), "'extra' is unknown; found"),
        (lambda entries: entries.update({"bn1.bias": torch.ones(5)}), r"'bn1.bias' is \(5,\), expected \(4,\); found"),
        (lambda entries: entries.update({"conv1.weight": torch.ones(4, 2, 7, 7)}), r"'conv1.weight' is \(4, 2, 7, 7\)"),
        (lambda entries: entries["bn1.bias"].fill_(torch.nan), "contains NaN .* the entry 'bn1.bias'"),
        (lambda entries: entries.clear(), r"'conv1.weight' is missing; .* and \d+ more; found 0 entries, expected"),
    ],
)
def test_a_file_of_another_network_is_rejected_and_changes_nothing(tmp_path, spoil, sentence):
    network, entries = SMALL.build(3, 2), SMALL.build(3, 2).state_dict()
    spoil(entries)
    safetensors.torch.save_file(entries, tmp_path / "w.safetensors")
    before = {name: entry.clone() for name, entry in network.state_dict().items()}
    with pytest.raises(UserError, match=sentence):
        ResidualNetwork(10, 4, weights=str(tmp_path / "w.safetensors")).load_pretrained(network)
    assert all(torch.equal(entry, before[name]) for name, entry in network.state_dict().items())


class Code:
    """An object in a pickle that runs code when it is read."""

    def __reduce__(self):
        return print, ("this must never run",)


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("w.pt", lambda path: None, "is not a file; name a state dict"),
        ("w.pt", lambda path: path.mkdir(), "is not a file; name a state dict"),
        ("w.pth", lambda path: torch.save({"conv1.weight": Code()}, path), "cannot be read as a state dict"),
        ("w.pt", lambda path: torch.save(SMALL.build(3, 2), path), "cannot be read as a state dict"),
        ("w.pt", lambda path: torch.save({"state_dict": {}}, path), "is not a plain state dict"),
        ("w.pt", lambda path: path.write_bytes(b""), "cannot be read as a state dict"),
        (
            "w.pt",
            lambda path: torch.save({"w": torch.eye(3).to_sparse()}, path),
            "'w' is not a plain tensor of numbers",
        ),
        (
            "w.safetensors",
            lambda path: safetensors.torch.save_file({"w": torch.zeros(3).to(torch.float8_e4m3fn)}, path),
            r"'w' is not a plain tensor of numbers \(torch.strided, torch.float8_e4m3fn\)",
        ),
        ("w.pt", lambda path: torch.save({"w": torch.zeros(1).expand(1 << 30)}, path), "would need 4,294,967,296 in"),
        ("w.pt", lambda path: torch.save(dict.fromkeys(map(str, range(9)), torch.zeros(9999)), path), "would need 359"),
    ],
)
def test_a_file_that_is_no_state_dict_is_rejected_with_one_sentence(tmp_path, capsys, name, write, sentence):
    write(tmp_path / name)
    with pytest.raises(UserError, match=sentence) as refused:
        ResidualNetwork(10, 4, weights=str(tmp_path / name)).load_pretrained(SMALL.build(3, 2))
    assert "\n" not in str(refused.value) and capsys.readouterr().out == ""


def test_a_checkpoint_of_monai_and_layers_that_share_weights_are_read(tmp_path):
    entries = {"first": torch.rand(9999), "second": torch.rand(9999)[::2]}
    entries["shared"] = entries["first"]
    torch.save({"model": entries}, tmp_path / "w.pt")
    read = read_state_dict(tmp_path / "w.pt", "model")
    assert read.keys() == entries.keys() and all(torch.equal(read[name], entries[name]) for name in entries)
    with pytest.raises(UserError, match="is not a plain state dict"):
        read_state_dict(tmp_path / "w.pt")


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_truncated_file_is_rejected(tmp_path, ending):
    path, entries = tmp_path / f"w.{ending}", SMALL.build(3, 2).state_dict()
    safetensors.torch.save_file(entries, path) if ending == "safetensors" else torch.save(entries, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match="cannot be read as a state dict"):
        ResidualNetwork(10, 4, weights=str(path)).load_pretrained(SMALL.build(3, 2))


def test_a_relative_path_starts_at_the_working_directory(tmp_path, monkeypatch):
    donor, network = SMALL.build(3, 2), SMALL.build(3, 2)
    safetensors.torch.save_file(donor.state_dict(), tmp_path / "w.safetensors")
    monkeypatch.chdir(tmp_path)
    ResidualNetwork(10, 4, weights="w.safetensors").load_pretrained(network)
    assert torch.equal(network.conv1.weight, donor.conv1.weight)
