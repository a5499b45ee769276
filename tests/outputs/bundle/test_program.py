"""Tests that an exported program predicts as its network, and that a program which could run code is refused."""

import io
import json
import os
import pickle
import struct
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
from medfed.outputs.bundle.check import check_inference
from medfed.outputs.bundle.program import LOAD, PROGRAM, PROGRAM_DEF, UNFLATTEN, check_program, save_program

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
    with (tmp_path / PROGRAM).open("rb") as file:
        check_program(file, PROGRAM)
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
    with (tmp_path / "model.pt2").open("rb") as file:
        check_program(file, "model.pt2")
    program = torch.export.unflatten(torch.export.load(tmp_path / "model.pt2")).eval()
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(program(images), module(images))
    assert program.to("meta")(images.to("meta")).device.type == "meta"


class Branching(nn.Module):
    def forward(self, images):
        return images if images.sum() > 0 else -images


def test_a_network_that_cannot_be_recorded_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="torch.export cannot record it .*; choose another network.name"):
        save_program(tmp_path / "model.pt2", Branching().eval(), 1, 8)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Contents of a small program by name of the part."""
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    save_program(path, nn.Conv2d(1, 1, 3).eval(), 1, 8)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, more=(), compression=zipfile.ZIP_STORED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in [*parts.items(), *more]:
            archive.writestr(name, content)
    data.seek(0)
    return data


GRAPH, WEIGHTS = "model/models/model.json", "model/data/weights/model_weights_config.json"
NODE = ("graph_module", "graph", "nodes", 0)
SIZE = ("graph_module", "graph", "tensor_values", "input", "sizes", 0, "as_expr", "expr_str")
LENGTH = ("config", "weight", "tensor_meta", "sizes", 0, "as_int")
CONTAINER = ("graph_module", "module_call_graph", 0, "signature", "in_spec")
OS_CONTAINER = '[1, {"type": "os.system", "context": "[]", "children_spec": []}]'
CODE = "__import__('os').system('true')"
HOSTILE = {  # part, keys of a value, new value, sentence
    "a function of PyTorch": (GRAPH, (*NODE, "target"), "torch.os.system", "operation 'torch.os.system'"),
    "an operation that writes files": (GRAPH, (*NODE, "target"), "torch.ops.aten.from_file.default", "operation"),
    "a list of operations": (GRAPH, (*NODE, "target"), ["torch.ops.aten.add.Tensor"], "operation"),
    "a further graph": (GRAPH, (*NODE, "inputs", 0, "arg"), {"as_graph": {}}, "as_graph"),
    "an object": (GRAPH, (*NODE, "inputs", 0, "arg"), {"as_custom_obj": {}}, "as_custom_obj"),
    "a device": (GRAPH, (*NODE, "inputs", 0, "arg"), {"as_device": {"type": "cpu"}}, "as_device"),
    "a file name": (GRAPH, (*NODE, "inputs", 0, "arg"), {"as_string": "/etc/passwd"}, "'/etc/passwd' is not allowed"),
    "code as a name": (GRAPH, (*NODE, "name"), f"x = {CODE} #", "is not allowed"),
    "code as a size": (GRAPH, SIZE, CODE, "expr_str"),
    "a power as a size": (GRAPH, SIZE, "9**9**9", "expr_str"),
    "a long size": (GRAPH, SIZE, "9*" * 600 + "9", "expr_str"),
    "a weight that fills the memory": (WEIGHTS, LENGTH, 1 << 40, "weight_. has fewer bytes than"),
    "code as a guard": (GRAPH, ("guards_code",), [CODE], "guards_code"),
    "code as a key": (GRAPH, ("range_constraints", CODE), {"min_val": 1, "max_val": None}, "is not allowed"),
    "another type of container": (GRAPH, CONTAINER, OS_CONTAINER, "os.system"),
    "a pickled weight": (WEIGHTS, ("config", "weight", "use_pickle"), True, "use_pickle"),
    "a pickled object": (WEIGHTS, ("config", "weight", "path_name"), "custom_obj_0", "custom_obj_0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_that_could_run_code_is_refused(parts, name):
    part, keys, value, sentence = HOSTILE[name]
    content = json.loads(parts[part])
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    with pytest.raises(UserError, match=f"^model.pt2: .*{sentence}"):
        check_program(packed({**parts, part: json.dumps(content)}), "model.pt2")


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_pickles_which_torch_export_would_load_are_refused_without_loading_them(parts, tmp_path):
    examples = "model/data/sample_inputs/model.pt"
    file = packed({**parts, examples: pickle.dumps(Payload(tmp_path / "ran"))})
    with pytest.raises(UserError, match="holds a pickle"):
        check_program(file, "model.pt2")
    assert parts[examples] == b"" and not (tmp_path / "ran").exists()
    file.seek(0)
    with pytest.raises(RuntimeError):
        torch.export.load(file)
    assert (tmp_path / "ran").exists(), "this is why the check exists"


def test_missing_unknown_repeated_damaged_and_compressed_parts_are_refused_before_they_are_unpacked(parts):
    for name in ("archive_version", "models/model.json", "data/weights/model_weights_config.json"):
        less = {part: content for part, content in parts.items() if part != f"model/{name}"}
        with pytest.raises(UserError, match=f"the part {name} is missing"):
            check_program(packed(less), "model.pt2")  # PyTorch would read it in its old format, which is unpickled
    library = packed(parts, [("model/data/aotinductor/model/x.so", b"")])
    with pytest.raises(UserError, match="has the part 'data/aotinductor/model/x.so'"):
        check_program(library, "model.pt2")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = packed(parts, [(GRAPH, b"{}")])
    with pytest.raises(UserError, match="has the part 'models/model.json'"):
        check_program(twice, "model.pt2")
    with pytest.raises(UserError, match="model.json: is not JSON"):
        check_program(packed({**parts, GRAPH: b"{"}), "model.pt2")
    with pytest.raises(UserError, match="not a file of torch.export"):
        check_program(io.BytesIO(b"PK"), "model.pt2")
    check_program(packed(parts), "model.pt2")
    spaces = {**parts, GRAPH: parts[GRAPH] + b" " * (1 << 20)}
    check_program(packed(spaces), "model.pt2")
    with pytest.raises(UserError, match="is compressed"):
        check_program(packed(spaces, compression=zipfile.ZIP_DEFLATED), "model.pt2")


def test_a_file_in_which_python_and_pytorch_find_other_parts_is_refused(parts):
    """The second half of the file holds the parts of PyTorch's old format; both readers accept the file.

    `zipfile` takes the list of parts before the end record; PyTorch's reader takes the offset in this record.
    """
    first, second = (packed(parts).getvalue(), packed({"version": b"4", "serialized_constants.pt": b""}).getvalue())
    end = struct.Struct("<IHHHHIIH")
    (_, _, _, _, n_first, length_first, offset_first, _) = end.unpack(first[-end.size :])
    (_, _, _, _, _, length, offset, _) = end.unpack(second[-end.size :])
    comment = b"x" * (length_first - length)  # both lists have the same length
    listed = bytearray(second[offset : -end.size])
    last = listed.rindex(b"PK\1\2")
    listed[last + 32 : last + 34] = struct.pack("<H", len(comment))
    shift = end.pack(0x06054B50, 0, 0, n_first, n_first, length_first, offset_first, 0)
    data = first[: -end.size] + second[:offset] + bytes(listed) + comment + shift
    assert "version" in zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert "models/model.json" in torch._C.PyTorchFileReader(io.BytesIO(data)).get_all_records()
    with pytest.raises(UserError, match="Python finds other parts in it than PyTorch"):
        check_program(io.BytesIO(data), "model.pt2")


def test_a_config_may_load_only_the_checked_program():
    check_inference({"network_def": PROGRAM_DEF}, "inference.json")
    for definition in (
        {"_target_": LOAD, "f": "/tmp/model.pt2"},
        {"_target_": LOAD, "f": "$@bundle_root + '/models/model.pt2'", "extra_files": {}},
        {"_target_": UNFLATTEN, "module": "@network"},
    ):
        with pytest.raises(UserError, match="may load models/model.pt2 only"):
            check_inference({"network_def": definition}, "inference.json")
