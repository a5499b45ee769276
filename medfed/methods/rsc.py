"""RSC (Huang et al., ECCV 2020): mask the features on which a prediction depends most, and train on the rest.

Z. Huang, H. Wang, E. P. Xing, D. Huang: "Self-Challenging Improves Cross-Domain Generalization", ECCV 2020,
https://arxiv.org/abs/2007.02454.

Idea: the features with the largest gradients are set to 0, so that the network must also learn from other features.
Sites send the same messages as FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medfed.core.batch import Batch
from medfed.core.bounds import PositiveInt, Ratio
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.method import Method
from medfed.functional.hooks import replace_output


@dataclass(frozen=True)
class RSC(Method):
    """FedAvg that masks the features with the largest gradients (representation self-challenging).

    Let z (B, C, h, w) be the last feature map and g = d (logit of the true class) / dz (eq. 1). A second prediction is
    made from z * m (eq. 3-4). In half of the batches, the mask m (eq. 2) is 0 at the positions where sum_c z_c(x)
    mean_x(g_c) is largest, and in the others it is 0 for the channels where mean_x(g_c) is largest. For the fraction of
    samples whose confidence in the true class decreased most, the loss is that of the second prediction; for the
    others, that of the first (section 3.3). m is a constant for the gradient.

    The second forward pass takes about as much time again (ResNet18 1.8 times in total, U-Net 2.2). It starts from the
    images, but continues with the first pass's z, so gradients flow back only once. Only the first pass updates
    BatchNorm's running statistics. Dropout after z is drawn again in the second pass, and a BatchNorm after z (in a
    U-Net's decoder) normalises a batch of masked maps.

    Segmentation (ours): z is the encoder's last stage, the logit of the true class is the mean logit over the voxels of
    all structures, and the confidence is their mean probability. Skip connections around z are not masked. An image
    without any structure has no logit to mask by and always uses its first prediction.

    Departures: the paper ranks positions by the mean of the gradient over channels. Before average pooling and a linear
    head, as in its ResNets, this is the same number at all positions and ranks nothing. The public code multiplies by
    the features, as Grad-CAM does, and so do we. The code supports only 7 x 7 maps and computes the gradient in
    evaluation mode; we take it from the training pass, which is the same where all BatchNorm layers lie before the
    features. The increasing fraction of samples was added to the code later. Its users report 82.4 to 83.4 % on PACS
    instead of the paper's 85.15 %. Equation numbers are those that DomainBed cites.

    DomainBed's version, which CCST used as RSC, masks the pooled features. Before average pooling and a linear head
    this is exactly the mask of channels: hence the preset "domainbed". Its percentiles may differ from ours by one
    sample because of rounding.

    Args:
        mask: what is masked: "positions", "channels", or "either", which draws one of them for each batch, as in the
            paper.
        position_share: fraction of the positions that is masked, in [0, 1]; rounded up, but never all. 1/3 in the
            authors' code.
        channel_share: fraction of the channels that is masked, in [0, 1]; rounded up, but never all. 1/3.2 in the
            authors' code.
        sample_shares: fractions of a batch for which the second prediction counts, in [0, 1]. The first value is used
            for the first `rounds_each` rounds, the next for as many, and the last until the end. Fewer samples count if
            fewer lost confidence.
        rounds_each: number of communication rounds for each value of `sample_shares`, at least 1. The authors' code has
            10 epochs, which is the same with one local epoch per round.
    """

    mask: Literal["either", "positions", "channels"] = "either"
    position_share: Ratio = 1 / 3
    channel_share: Ratio = 1 / 3.2
    sample_shares: Annotated[tuple[Ratio, ...], Field(min_length=1)] = (1 / 3,)
    rounds_each: PositiveInt = 10

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {},
        "released": {"sample_shares": (0.3, 0.5, 0.7)},  # the authors' code
        "domainbed": {"mask": "channels", "channel_share": 1 / 3},
    }

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss, with the second prediction for the images that lost most confidence."""
        kind, share = self._sample_mask(local)
        n_challenged = round(self._sample_share(local.round) * len(batch.image))
        if n_challenged == 0 or share == 0:
            return super().loss(local, batch)
        places = _places(local.architecture)
        raw = local.forward(batch, places)
        features = raw.features[places[-1]]
        gradient = torch.autograd.grad(_true_logits(raw).sum(), features, retain_graph=True)[0]  # eq. 1
        is_spatial = kind == "positions"
        mask = position_mask(features, gradient, share) if is_spatial else channel_mask(gradient, share)  # eq. 2
        masked = self._second_pass(local, batch, {**raw.features, places[-1]: features * mask})  # eq. 3-4
        challenged = select_largest_drops(_confidence(raw) - _confidence(masked), n_challenged)  # sec. 3.3
        logits = torch.where(challenged.view(-1, *[1] * (raw.logits.ndim - 1)), masked.logits, raw.logits)
        return local.task.loss(logits, batch.label), raw

    def _sample_share(self, round_number: int) -> float:
        """The fraction of a batch for which the second prediction counts in this round."""
        return self.sample_shares[min((round_number - 1) // self.rounds_each, len(self.sample_shares) - 1)]

    def _sample_mask(self, local: LocalRound) -> tuple[str, float]:
        """Return what is masked in this batch, "positions" or "channels", and which fraction of it."""
        kind = self.mask
        if kind == "either":
            kind = "positions" if float(torch.rand((), generator=local.rng)) < 0.5 else "channels"
        return kind, self.position_share if kind == "positions" else self.channel_share

    def _second_pass(self, local: LocalRound, batch: Batch, features: Mapping[str, Tensor]) -> Output:
        """The network's output if the named submodules return these features."""
        changes = {place: partial(_replaced, entry) for place, entry in features.items()}
        with replace_output(local.network, changes):
            return local.forward(batch, fast_weights=local.parameters())


def _replaced(features: Tensor, own: Tensor) -> Tensor:
    """Return `features` instead of the submodule's own output."""
    return features


def _places(architecture: Architecture) -> tuple[str, ...]:
    """Return the submodules whose first-pass outputs the second pass reuses; the last one is masked.

    For a U-Net these are all encoder stages, because its skip connections read them.
    """
    return tuple(architecture.encoder_stages) if architecture.decoder_levels else (architecture.last_features,)


def _true_logits(output: Output) -> Tensor:
    """The logit of the true class (B,), or for masks the mean logit over the structures' voxels, 0 if none."""
    return _of_true_class(output.logits, output.label)


def _confidence(output: Output) -> Tensor:
    """The probability of the true class (B,), or for masks the mean over the structures' voxels; without gradient."""
    logits = output.logits.detach()
    return _of_true_class(logits.softmax(dim=1) if output.label.ndim == 1 else logits.sigmoid(), output.label)


def _of_true_class(values: Tensor, label: Tensor) -> Tensor:
    """Return each image's value for its class, of values (B, K), or its mean over the masks, of (B, S, H, W)."""
    if label.ndim == 1:
        return values.gather(1, label[:, None])[:, 0]
    inside = label.to(values.dtype)
    return (values * inside).flatten(1).sum(dim=1) / inside.flatten(1).sum(dim=1).clamp(min=1)


def position_mask(features: Tensor, gradient: Tensor, fraction: float) -> Tensor:
    """Return (B, 1, H, W): 0 at the ceil(fraction H W) positions that contribute most to a score (never all), else 1.

    A position's contribution is the sum of its channels, weighted by their mean gradients, as in Grad-CAM."""
    contribution = (features.detach() * gradient.detach().mean(dim=(2, 3), keepdim=True)).sum(dim=1)
    mask = _mask_highest(contribution.flatten(1), fraction)
    return mask.view(len(contribution), 1, *contribution.shape[1:]).to(features.dtype)


def channel_mask(gradient: Tensor, fraction: float) -> Tensor:
    """Return (B, C, 1, 1): 0 for the ceil(fraction C) channels with the highest mean gradient (never all), else 1."""
    mask = _mask_highest(gradient.detach().mean(dim=(2, 3)), fraction)
    return mask[..., None, None].to(gradient.dtype)


def select_largest_drops(drop: Tensor, n: int) -> Tensor:
    """Mark, (B,) bool, the up to n samples of a batch whose confidence dropped most (`drop` is before minus after)."""
    chosen = torch.zeros_like(drop, dtype=torch.bool)
    chosen[drop.detach().argsort(descending=True, stable=True)[:n]] = True
    return chosen & (drop.detach() > 0)


def _mask_highest(numbers: Tensor, fraction: float) -> Tensor:
    """Return (B, N) bool: False at the ceil(fraction * N) highest numbers of each row (B, N), True at least once."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    n = min(math.ceil(fraction * numbers.shape[1] - 1e-9), numbers.shape[1] - 1)
    highest = numbers.argsort(dim=1, descending=True, stable=True)[:, :n]
    return torch.ones_like(numbers, dtype=torch.bool).scatter(1, highest, False)
