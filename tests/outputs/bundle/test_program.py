"""Tests that an exported program predicts as its network, and that only its author's own check accepts it."""

import zipfile

import pytest
import torch
from monai.bundle import ConfigParser
from torch import nn

from medfed.core.errors import UserError
from medfed.methods.fedsr import FedSR
from medfed.methods.harmofl import HarmoFL
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.resnet import ResidualNetwork
from medfed.outputs.bundle.program import PROGRAM, PROGRAM_DEF, save_program

CASES = [  # network, method, image channels, side of the images
    pytest.param(ElcfsUNet(width=2), None, 1, 32, id="elcfs_unet"),
    pytest.param(EfficientNetLite(), None, 3, 64, id="efficientnet_lite", marks=pytest.mark.slow),
    pytest.param(EfficientNetUNet(), None, 3, 64, id="efficientnet_unet", marks=pytest.mark.slow),
    pytest.param(DenseNetwork(4, 2, (1, 2)), HarmoFL(), 3, 32, id="HarmoFL"),
    pytest.param(ResidualNetwork(10, 4), StableFDG(), 3, 64, id="StableFDG's attention"),
    pytest.param(ResidualNetwork(10, 4, 5), FedSR(), 3, 64, id="FedSR on a resnet with an embedding"),
]


def built(network, method, channels):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = network.build(channels, 2)
        module = (method.wrap_network(module, network) if method else module).eval()
        if hasattr(module, "amplitude"):
            module.amplitude.window.uniform_(0, 0.1)
    return module


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize(("network", "method", "channels", "side"), CASES)
def test_a_program_has_the_weights_and_outputs_of_its_network_for_any_batch(network, method, channels, side, tmp_path):
    module = built(network, method, channels)
    (tmp_path / "models").mkdir()
    save_program(tmp_path / PROGRAM, module, channels, side)
    parser = ConfigParser({"bundle_root": str(tmp_path), "network_def": PROGRAM_DEF})  # as MONAI reads a bundle
    program = parser.get_parsed_content("network_def").eval()
    assert program.state_dict().keys() == module.state_dict().keys()
    assert all(torch.equal(entry, module.state_dict()[name]) for name, entry in program.state_dict().items())
    images = torch.rand(3, channels, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for batch in (images, images[:1]):
            torch.testing.assert_close(program(batch), module(batch), rtol=0, atol=1e-6)
        assert program.to("meta")(images.to("meta")).shape[0] == 3, "no tensor stays on the CPU"
    with zipfile.ZipFile(tmp_path / PROGRAM) as archive:
        text = archive.read("model/models/model.json").decode()
    assert "medfed" not in text and "/" not in text, "neither classes nor paths of this machine"


class ShiftedWindows(nn.Module):
    """The operations with which SwinUNETR masks the attention between its shifted windows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, images):
        regions = torch.zeros((1, 1, *images.shape[-2:]))
        regions[..., 4:] = 1
        mask = torch.roll(regions, 2, -1)
        mask = mask.masked_fill(mask != 0, -9.0).masked_fill(mask == 0, 0.0)[:, :, self.order]
        return (images + mask).contiguous().clone().view(images.shape[0] * 2, -1)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_program_creates_tensors_on_the_device_of_the_images(tmp_path):
    module = ShiftedWindows().eval()
    save_program(tmp_path / "model.pt2", module, 1, 8)
    program = torch.export.UnflattenedModule(torch.export.load(tmp_path / "model.pt2")).eval()
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(program(images), module(images))
    assert program.to("meta")(images.to("meta")).device.type == "meta"


class Branching(nn.Module):
    def forward(self, images):
        return images if images.sum() > 0 else -images


def test_a_network_that_cannot_be_recorded_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="torch.export cannot record it .*; choose another network.name"):
        save_program(tmp_path / "model.pt2", Branching().eval(), 1, 8)
