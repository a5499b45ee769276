"""The exported program `models/model.pt2` (tensor operations and weights) of a network that MONAI cannot build.

MONAI's config loads it with PyTorch alone. `torch.export.load` can unpickle parts of a file and look up any function of
PyTorch by its name, so this module also checks that a file holds only known tensor operations and plain tensors.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from medfed.core.errors import UserError
from medfed.core.files import DAMAGED_ZIP

PROGRAM = "models/model.pt2"
LOAD, UNFLATTEN = "torch.export.load", "torch.export.unflatten"
PROGRAM_DEF: dict[str, Any] = {
    "_target_": UNFLATTEN,
    "module": {"_target_": LOAD, "f": f"$@bundle_root + '/{PROGRAM}'"},
}

TOLERANCE = 1e-5
MAX_JSON_BYTES = 1 << 24  # the operations of EfficientNet take 0.4 MB
_ATEN = (
    "abs.default adaptive_avg_pool2d.default add.Tensor add_.Tensor addmm.default alias.default amax.default "
    "angle.default any.default avg_pool2d.default batch_norm.default cat.default clamp.default clamp_min.default "
    "clone.default complex.default _conj.default conj.default contiguous.default conv2d.default "
    "conv_transpose2d.input div.Tensor dropout.default einsum.default elu.default eq.Scalar exp.default "
    "expand.default expand_as.default fill_.Tensor flatten.using_ints gelu.default group_norm.default gt.Tensor "
    "hardtanh.default index.Tensor instance_norm.default layer_norm.default leaky_relu.default leaky_relu_.default "
    "lift_fresh_copy.default linalg_vector_norm.default linear.default log_softmax.int logsumexp.default "
    "masked_fill.Scalar matmul.default max_pool2d.default mean.default mean.dim movedim.int mul.Tensor mul_.Tensor "
    "ne.Scalar neg.default new_zeros.default numpy_T.default ones_like.default pad.default permute.default "
    "prelu.default relu.default relu_.default reshape.default roll.default select.int sigmoid.default "
    "sigmoid_.default silu.default silu_.default slice.Tensor softmax.int softplus.default split.Tensor squeeze.dim "
    "stack.default sub.Tensor sum.dim_IntList sym_size.int t.default tanh.default tensordot.default to.dtype "
    "transpose.int unflatten.int unsqueeze.default upsample_bilinear2d.vec upsample_nearest2d.vec view.default "
    "view_as_complex.default view_as_real.default where.self zeros_like.default"
).split()
OPERATIONS = frozenset(["_operator.mul", *(f"torch.ops.aten.{name}" for name in _ATEN)])
# Kinds of arguments of an operation. Others could hold a further graph, a device, or an object that is unpickled.
ARGUMENTS = frozenset(
    "as_bool as_bools as_expr as_float as_floats as_int as_ints as_layout as_memory_format as_name as_none as_nones "
    "as_optional_tensors as_scalar_type as_string as_sym_int as_sym_ints as_tensor as_tensors".split()
)
PARTS = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json))"
)
EXAMPLES = "data/sample_inputs/model.pt"
TENSOR_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
REQUIRED_PARTS = ("archive_format", "archive_version", "models/model.json", EXAMPLES, *TENSOR_CONFIGS)
# The parts of an expression for a size, which PyTorch evaluates: the batch size, whole numbers, sums and products.
SIZE = re.compile(r"s\d+|Symbol\('s\d+', positive=True, integer=True\)|Integer|Mul|Add|\d|\*(?!\*)|[(),+ ]")
MAX_SIZE_LENGTH = 1000  # characters
TEXTS = {  # the text that a key may have, unless it is a plain word
    "as_string": re.compile(r"[a-z,>\- ]*"),
    "path_name": re.compile(r"(weight|tensor)_\d+"),
    "type": re.compile(r"cpu|builtins\.tuple|builtins\.dict"),
    "context": re.compile(r"null|\[\]"),
    "nn_module_stack": re.compile(r"[\w.,;]*"),
}
WORD = re.compile(r"[\w.+]*")


def save_program(path: Path, network: nn.Module, channels: int, side: int) -> None:
    """Export a network (in evaluation mode, on the CPU) for batches of any number of `side` x `side` images; UserError
    if `torch.export` cannot record it, or its output differs."""
    images = torch.rand(4, channels, side, side, generator=torch.Generator().manual_seed(0))
    batches = [images, images[:1], images[:2] * torch.linspace(0, 1, side)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own code
        outputs = [network(batch) for batch in batches]
        try:
            batch = torch.export.Dim("batch", min=1)
            recorded = _without_private(network)
            program = torch.export.export(recorded, (images,), dynamic_shapes=({0: batch},), strict=False)
            _create_zeros_beside_images(program.graph)
            for node in program.graph.nodes:
                if node.target is torch.ops.aten._assert_tensor_metadata.default:  # it names a device
                    program.graph.erase_node(node)
                # Other notes on nodes contain paths and lines of source files.
                node.meta = {key: node.meta[key] for key in ("val",) if key in node.meta}
                node.meta["nn_module_stack"] = {"": ("", "torch.nn.Module")}
            program.example_inputs = None  # the file would contain them as a pickle
            torch.export.save(program, path)
            exported = torch.export.unflatten(torch.export.load(path)).eval()
            exported.load_state_dict(network.state_dict())  # as MONAI does with model.pt
            for images, expected in zip(batches, outputs, strict=True):
                torch.testing.assert_close(exported(images), expected, rtol=TOLERANCE, atol=TOLERANCE)
        except Exception as error:  # torch.export raises many types of errors
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"MONAI does not have this network, and torch.export cannot record it ({reason}); choose "
                "another network.name"
            ) from error


def _create_zeros_beside_images(graph: torch.fx.Graph) -> None:
    """Replace `zeros`, which names the device of this machine, by `new_zeros`, which takes the device of the images."""
    images = [node for node in graph.nodes if node.op == "placeholder"][-1]  # the weights come first
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.zeros.default):
        node.target = torch.ops.aten.new_zeros.default
        node.args, node.kwargs = (images, node.args[0]), {"dtype": node.meta["val"].dtype}


def _without_private(network: nn.Module) -> nn.Module:
    """A copy without the parameters that are missing in its state dict, which never leave a site."""
    copied = copy.deepcopy(network)
    for name in dict(copied.named_parameters()).keys() - copied.state_dict().keys():
        owner, _, last = name.rpartition(".")
        delattr(copied.get_submodule(owner), last)
    return copied


def check_program(file: IO[bytes], source: str) -> None:
    """Check, without executing it, that a program holds only known tensor operations and plain tensors; UserError
    otherwise. The parts are read as `torch.export.load` reads them. Memory and time of the operations have no bound."""
    try:
        n_file_bytes = file.seek(0, os.SEEK_END)
        members = zipfile.ZipFile(file).namelist()
        file.seek(0)
        reader = torch._C.PyTorchFileReader(file)
        names = reader.get_all_records()
        n_bytes = {name: reader.get_record_size(name) for name in names}
    except (*DAMAGED_ZIP, ValueError) as error:
        raise UserError(
            f"{source}: is not a file of torch.export ({str(error).splitlines()[0]}); copy the bundle again"
        ) from error
    _check_parts(names, members, source)
    if sum(n_bytes.values()) > n_file_bytes:
        raise UserError(f"{source}: is compressed, which no program of medfed is; export the bundle again")
    if n_bytes[EXAMPLES]:
        raise UserError(f"{source}: {EXAMPLES} holds a pickle, which PyTorch would load; export the bundle again")
    for name in names:
        if name.endswith(".json"):
            if n_bytes[name] > MAX_JSON_BYTES:
                raise UserError(f"{source}: {name} has more than {MAX_JSON_BYTES:,} bytes; export the bundle again")
            content = _parse(reader.get_record(name), f"{source}: {name}")
            _check_json(content, f"{source}: {name}")
            if name in TENSOR_CONFIGS:
                _check_sizes(content, n_bytes, name, source)


def _check_parts(names: Sequence[str], members: Sequence[str], source: str) -> None:
    """Check the names of the parts. If PyTorch's reader fails, `torch.export.load` reads an old format with `zipfile`,
    and unpickles it, so both must list the same parts."""
    for name, count in Counter(names).items():
        if not PARTS.fullmatch(f"program/{name}") or count > 1:
            raise UserError(f"{source}: has the part {name!a}, which no program of medfed has; export the bundle again")
    if missing := [name for name in REQUIRED_PARTS if name not in names]:
        raise UserError(f"{source}: the part {missing[0]} is missing; export the bundle again")
    top = next(iter(members), "").partition("/")[0]
    if sorted(members) != sorted(f"{top}/{name}" for name in names):
        raise UserError(f"{source}: Python finds other parts in it than PyTorch; export the bundle again")


def _check_sizes(content: Any, n_bytes: Mapping[str, int], config: str, source: str) -> None:
    """Check that no tensor has more elements than its part has bytes; PyTorch would create others in memory."""
    try:
        for tensor in content["config"].values():
            n_elements = math.prod(size["as_int"] for size in tensor["tensor_meta"]["sizes"])
            if n_elements > n_bytes[f"{config.rpartition('/')[0]}/{tensor['path_name']}"]:
                raise UserError(
                    f"{source}: {tensor['path_name']} has fewer bytes than the {n_elements:,} elements of "
                    "its tensor; export the bundle again"
                )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{source}: {config} does not describe tensors ({error!r}); export the bundle again") from error


def _check_json(content: Any, source: str) -> None:
    """Check each key and each text in a part of the program, which decide what PyTorch evaluates or unpickles."""
    for key, value in _entries(content):
        if key.startswith("as_") and key not in ARGUMENTS:
            raise UserError(f"{source}: an argument of the kind '{key}' is not allowed; export the bundle again")
        if key == "target" and str(value) not in OPERATIONS:
            raise UserError(f"{source}: the operation {value!a} is not allowed; export the bundle again")
        if (key == "guards_code" and value != []) or (key == "use_pickle" and value is not False):
            raise UserError(f"{source}: {key} holds code or a pickle; export the bundle again")
        if key in ("in_spec", "out_spec") and isinstance(value, str):
            _check_json(_parse(value, f"{source}: {key}"), f"{source}: {key}")
        elif key == "expr_str" and len(str(value)) <= MAX_SIZE_LENGTH and not SIZE.sub("", str(value)):
            continue
        elif not WORD.fullmatch(key) or (isinstance(value, str) and not TEXTS.get(key, WORD).fullmatch(value)):
            raise UserError(f"{source}: {key!a}: {value!a:.80} is not allowed; export the bundle again")


def _parse(text: str | bytes, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: is not JSON ({error}); export the bundle again") from error


def _entries(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of all nested values; the entries of a list have the key of the list."""
    yield key, content
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _entries(value, name)
    elif isinstance(content, list):
        for value in content:
            yield from _entries(value, key)
