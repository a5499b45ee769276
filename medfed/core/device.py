"""Which device computes."""

from __future__ import annotations

import torch

from medfed.core.errors import UserError


def pick_device(name: str) -> torch.device:
    """ "auto" takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda: PyTorch finds no CUDA device here; use --device cpu, or auto to take what is there"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
