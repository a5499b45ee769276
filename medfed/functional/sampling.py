"""Random choices for one batch: samples to repeat, partners to mix with, and samples of the same or another class."""

from __future__ import annotations

import torch
from scipy.special import betaincinv
from torch import Tensor


def draw_oversampled(labels: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """Draw n samples of a batch to repeat, so that the class counts of the longer batch are as equal as possible.

    One sample after another is drawn from the class that is rarest at that moment; ties between classes are broken at
    random. For example, class counts (3, 2, 1) become (3, 2, 2) for n = 1, (3, 3, 3) for n = 3 and (4, 4, 4) for n = 6.
    Within a class, no sample is drawn a second time before all others were drawn once. This is step 3 (feature-level
    oversampling) of StableFDG (Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain
    Generalization", NeurIPS 2023, https://arxiv.org/abs/2311.00227).

    Args:
        labels: (B,), integers, the class of each sample. Classes that do not occur in the batch are ignored.
        n: number of samples to add, at least 0.
        rng: a CPU generator.

    Returns:
        (n,) int64 on the device of `labels`: indices into the batch.

    Raises:
        ValueError: if the labels are not (B,) integers, n is negative, or n is above 0 and the batch is empty.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(f"labels must be integers, (B,), got {labels.dtype} {tuple(labels.shape)}")
    if n < 0 or (n > 0 and len(labels) == 0):
        raise ValueError(f"cannot add {n} samples to a batch of {len(labels)}")
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
    """Draw a mixing ratio and a partner for each sample of a batch, for `mix_styles` and `mix_histograms`.

    The ratios follow the distribution Beta(c, c). They are computed as quantiles of uniform numbers, because PyTorch's
    own Beta distribution takes no generator.

    Args:
        n: number of samples in the batch.
        concentration: the parameter c of the Beta distribution, above 0. Small values put most ratios near 0 or 1. The
            papers of MixStyle and EFDMix use 0.1.
        rng: a CPU generator.

    Returns:
        A pair on the CPU: `ratio`, (n,) float64 in [0, 1], and `partners`, (n,) int64, a random permutation of 0..n-1.

    Raises:
        ValueError: if the concentration is not above 0.
    """
    if not concentration > 0:
        raise ValueError(f"concentration must be above 0, got {concentration}")
    uniform = torch.rand(n, dtype=torch.float64, generator=rng)
    ratio = torch.from_numpy(betaincinv(concentration, concentration, uniform.numpy()))
    return ratio, torch.randperm(n, generator=rng)


def class_ids(label: Tensor) -> Tensor:
    """Return one class number for each image of a batch, from class numbers or from segmentation masks.

    With masks, images that show the same set of structures form one class: bit s of the number is set if structure s
    has at least one pixel.

    Args:
        label: (B,), class numbers, which are returned unchanged; or (B, S, H, W), masks of S structures, 0 outside.

    Returns:
        (B,), integers; int64 in 0..2^S-1 for masks.
    """
    if label.ndim == 1:
        return label
    present = label.flatten(2).any(dim=2)
    return (present.long() << torch.arange(present.shape[1], device=present.device)).sum(dim=1)


def draw_same_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Draw, for each sample of a batch, another sample of the same class. All such samples are equally likely.

    Args:
        labels: (B,), integers, on the CPU.
        rng: a CPU generator.

    Returns:
        (B,) int64: indices into the batch. For a sample without another sample of its class, this is its own index.
    """
    others = labels[:, None] == labels[None, :]
    others.fill_diagonal_(False)
    chosen, exists = _draw_column_per_row(others, rng)
    return torch.where(exists, chosen, torch.arange(len(labels)))


def draw_other_class(labels: Tensor, candidates: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw, for each sample, one candidate of a different class. All such candidates are equally likely.

    Args:
        labels: (A,), integers, on the CPU: the classes of the samples.
        candidates: (B,), integers, on the CPU: the classes of the candidates.
        rng: a CPU generator.

    Returns:
        A pair: (A,) int64, the index of the drawn candidate for each sample, and (A,) bool, False for a sample if no
        candidate has a different class. The index of such a sample has no meaning.
    """
    return _draw_column_per_row(labels[:, None] != candidates[None, :], rng)


def _draw_column_per_row(allowed: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one allowed column of each row of (A, B) bool, and say whether the row allows any: (A,) and (A,)."""
    draws = torch.rand(allowed.shape, generator=rng).masked_fill(~allowed, -1)
    return draws.argmax(dim=1), allowed.any(dim=1)
