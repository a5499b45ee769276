"""What is drawn for a batch before it is applied: samples to add (StableFDG), partners and ratios to mix (MixStyle)."""

from __future__ import annotations

import torch
from scipy.special import betaincinv
from torch import Tensor


def draw_oversampled(labels: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """Draw n samples to add so that the classes come out as even as possible: each from the class rarest by then.

    Counts 3, 2, 1 become 3, 2, 2 with one more, 3, 3, 3 with three, 4, 4, 4 with six. A tie between classes is drawn,
    and so is the sample within the class, where none is added a second time before each was once.

    Args:
        labels: (B,), integers. A class that the batch lacks stays out.
        n: how many to add, at least 0.
        rng: a CPU generator.

    Returns:
        (n,) int64 on the device of `labels`, numbers of samples in the batch.

    Raises:
        ValueError: if labels are not (B,) integers, n is negative, or there is nothing to add from.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(f"labels must be integers, (B,), got {labels.dtype} {tuple(labels.shape)}")
    if n < 0 or (n > 0 and len(labels) == 0):
        raise ValueError(f"cannot add {n} samples to a batch of {len(labels)}")
    present, class_of, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    members = [(class_of == number).nonzero()[:, 0] for number in range(len(present))]
    waiting: list[list[int]] = [[] for _ in members]
    added = []
    for _ in range(n):
        rarest = (counts == counts.min()).nonzero()[:, 0]
        number = int(rarest[torch.randint(len(rarest), (), generator=rng)])
        if not waiting[number]:
            waiting[number] = members[number][torch.randperm(len(members[number]), generator=rng)].tolist()
        added.append(waiting[number].pop())
        counts[number] += 1
    return torch.tensor(added, dtype=torch.long, device=labels.device)


def draw_mixing_partners(n: int, concentration: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What MixStyle needs: ratio (n,), float64, from Beta(c, c), and partners (n,), a random permutation; on the CPU.

    The quantile function of Beta at uniform numbers, because torch's own Beta takes no generator. The small c of both
    papers, 0.1, puts most ratios near 0 or 1.

    Raises:
        ValueError: if the concentration c is not above 0.
    """
    if not concentration > 0:
        raise ValueError(f"concentration must be above 0, got {concentration}")
    uniform = torch.rand(n, dtype=torch.float64, generator=rng)
    ratio = torch.from_numpy(betaincinv(concentration, concentration, uniform.numpy()))
    return ratio, torch.randperm(n, generator=rng)


def class_ids(label: Tensor) -> Tensor:
    """A class for every sample: (B,) classes as they are; of masks (B, S, H, W), a number for the set of structures.

    Two images have the same number if they show the same structures.
    """
    if label.ndim == 1:
        return label
    present = label.flatten(2).any(dim=2)
    return (present.long() << torch.arange(present.shape[1], device=present.device)).sum(dim=1)


def draw_same_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    """For every sample another one of its class, at random; itself where there is none.

    Args:
        labels: (B,), integers, on the CPU.

    Returns:
        (B,), int64.
    """
    others = labels[:, None] == labels[None, :]
    others.fill_diagonal_(False)
    chosen, found = _draw_column_per_row(others, rng)
    return torch.where(found, chosen, torch.arange(len(labels)))


def draw_other_class(labels: Tensor, candidates: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For every sample one candidate of another class, at random.

    Args:
        labels: (A,), integers, on the CPU; candidates: (B,), theirs.

    Returns:
        Numbers of candidates (A,), and whether there is one (A,); where not, the number means nothing.
    """
    return _draw_column_per_row(labels[:, None] != candidates[None, :], rng)


def _draw_column_per_row(allowed: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of each row of (A, B) one column that is allowed, all equally likely; and whether there is any."""
    draws = torch.rand(allowed.shape, generator=rng).masked_fill(~allowed, -1)
    return draws.argmax(dim=1), allowed.any(dim=1)
