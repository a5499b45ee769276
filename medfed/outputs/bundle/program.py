"""The exported program `models/model.pt2` (tensor operations and weights) of a network that MONAI cannot build.

MONAI's config loads it with PyTorch alone. `torch.export.load` can run code that a file contains, so medfed never loads
the program of a bundle, and `medfed.outputs.bundle.check` accepts no program of others.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfed.core.errors import UserError

PROGRAM = "models/model.pt2"
PROGRAM_DEF: dict[str, Any] = {
    # Not `torch.export.unflatten`, which Python 3.13 finds as the module of that name, not as the function.
    "_target_": "torch.export.UnflattenedModule",
    "export_module": {"_target_": "torch.export.load", "f": f"$@bundle_root + '/{PROGRAM}'"},
}

TOLERANCE = 1e-5


def save_program(path: Path, network: nn.Module, channels: int, side: int) -> None:
    """Export a network for any number of `side` x `side` images; UserError if `torch.export` cannot record it."""
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
            exported = torch.export.UnflattenedModule(torch.export.load(path)).eval()
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
