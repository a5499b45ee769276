"""Random choices for one batch: samples to repeat, partners to mix with, and samples of the same or another class."""

from __future__ import annotations

import torch
from scipy.special import betaincinv
from torch import Tensor


def draw_oversampled(labels: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """Draw n samples of a batch to repeat, so that the class counts become as equal as possible (StableFDG, step 3).

    Returns indices (n,). Each sample is drawn from the class that is rarest at that moment, so class counts (3, 2, 1)
    become (3, 3, 3) for n = 3. Within a class, no sample is drawn a second time before all others were drawn once.
    """
    classes, class_of, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    members = [(class_of == number).nonzero()[:, 0] for number in range(len(classes))]
    remaining: list[list[int]] = [[] for _ in members]  # by class, samples to draw before one is repeated
    added = []
    for _ in range(n):
        rarest = (counts == counts.min()).nonzero()[:, 0]
        number = int(rarest[torch.randint(len(rarest), (), generator=rng)])
        if not remaining[number]:
            remaining[number] = members[number][torch.randperm(len(members[number]), generator=rng)].tolist()
        added.append(remaining[number].pop())
        counts[number] += 1
    return torch.tensor(added, dtype=torch.long, device=labels.device)


def draw_mixing_partners(n: int, concentration: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a ratio, Beta(c, c) with c = `concentration`, and a partner for each of n samples, both (n,) on the CPU.

    `mix_styles` and `mix_histograms` take them; MixStyle and EFDMix use c = 0.1. The ratios are quantiles of uniform
    numbers, because PyTorch's own Beta distribution takes no generator.
    """
    if not concentration > 0:
        raise ValueError(f"concentration must be above 0, got {concentration}")
    uniform = torch.rand(n, dtype=torch.float64, generator=rng)
    ratio = torch.from_numpy(betaincinv(concentration, concentration, uniform.numpy()))
    return ratio, torch.randperm(n, generator=rng)


def class_ids(label: Tensor) -> Tensor:
    """Return one class number for each image of a batch, (B,), from class numbers (B,) or from masks (B, S, H, W).

    With masks, bit s of the number is set if structure s has a pixel, so images with the same structures form a class.
    """
    if label.ndim == 1:
        return label
    present = label.flatten(2).any(dim=2)
    return (present.long() << torch.arange(present.shape[1], device=present.device)).sum(dim=1)


def draw_same_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Draw for each sample of a batch another sample of the same class, or the sample itself if there is no other."""
    others = labels[:, None] == labels[None, :]
    others.fill_diagonal_(False)
    chosen, exists = _draw_column_per_row(others, rng)
    return torch.where(exists, chosen, torch.arange(len(labels)))


def draw_other_class(labels: Tensor, candidates: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw for each sample one candidate of a different class; the second tensor is False where there is none."""
    return _draw_column_per_row(labels[:, None] != candidates[None, :], rng)


def _draw_column_per_row(allowed: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one allowed column of each row of (A, B) bool, and say whether the row allows any: (A,) and (A,)."""
    draws = torch.rand(allowed.shape, generator=rng).masked_fill(~allowed, -1)
    return draws.argmax(dim=1), allowed.any(dim=1)
