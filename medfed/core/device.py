from __future__ import annotations

import torch
from torch import Tensor

from medfed.core.errors import UserError


def pick_device(name: str) -> torch.device:
    """Return the device for `--device`: "cpu", "cuda", or for "auto" CUDA if it is available; UserError otherwise."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"device: is '{name}'; expected auto, cpu or cuda (to choose one of several GPUs, set the environment "
            "variable CUDA_VISIBLE_DEVICES)"
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda: PyTorch found no CUDA device on this machine; use cpu, or auto, which uses a GPU only if "
            "there is one"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The copy from the CPU to a GPU does not wait for the GPU's earlier work."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # only pinned memory can be copied without waiting
    return tensor.to(device)
