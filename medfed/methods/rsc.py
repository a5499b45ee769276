"""RSC (Huang et al., ECCV 2020): hide the features that an answer leans on most, so that the network finds others.

Z. Huang, H. Wang, E. P. Xing, D. Huang: "Self-Challenging Improves Cross-Domain Generalization", ECCV 2020,
https://arxiv.org/abs/2007.02454. Idea: mute the features with the largest gradients, and train on the logits of the
rest.
"""

from __future__ import annotations

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
from medfed.functional.self_challenging import channel_mask, position_mask, select_largest_drops


@dataclass(frozen=True)
class RSC(Method):
    """Representation self-challenging: FedAvg with another loss; nothing beside the weights is shared.

    For the last feature map z (B, C, h, w), and g = d (logit of the true class) / dz, a batch is answered twice, the
    second time from z * m. With probability one half m leaves out the positions where sum_c z_c(x) mean_x(g_c) is
    highest, and else the channels where mean_x(g_c) is. The loss is the task's on the second answer for the share of
    samples whose confidence in the truth fell most, and on the first for the others. m is a constant to the gradient.

    Cost: a second forward pass, or twice the time (ResNet18 1.8, U-Net 2.2). It starts anew from the images, but what
    flows on is the first pass's z, so there is one way back through the network, not two. BatchNorm's running
    statistics see the first pass alone. Dropout behind z draws anew in the second, and a BatchNorm there (a U-Net's
    decoder) sees a batch of muted maps.

    Segmentation (ours): z is the encoder's last stage, the answer is the mean logit over the voxels that belong to a
    structure, and confidence their mean probability. What goes round z through the skips is not muted. An image
    without any structure has no answer to challenge, and counts with its first one.

    Args:
        mask: "either", "positions" or "channels".
        position_share, channel_share: of those left out, rounded up, but never all.
        sample_shares: of a batch whose second answer counts, rounded; the first for `rounds_each` rounds, then the
            next, and the last to the end. Where too few samples lose confidence, fewer count.
        rounds_each: of the federation. The code counts epochs, 10 each; with one local epoch a round that is the same.

    Where paper and public code differ: the paper ranks positions by the mean of g over channels. Behind average pooling
    and a linear head, as in its ResNets, that is one number everywhere and ranks nothing; the code weighs by z, as
    Grad-CAM does, and so do we. The code fits maps of 7x7 alone and takes g in evaluation mode, where we take it from
    the pass that trains; its BatchNorms lie before z, so that this is the same there. The growing share of samples
    came with a later version. Its users report 82.4 to 83.4 % on PACS in place of the paper's 85.15.

    DomainBed's form (CCST ran it as its RSC) masks the pooled features, a third of them for a third of the samples.
    Behind average pooling and a linear head this is the mask of channels, exactly: hence the preset `domainbed`. Its
    percentiles may count a sample more or less than we do by rounding.

        what                         medfed, paper       released                    domainbed
        share of samples             1/3                 0.3, then 0.5, then 0.7     1/3
        mask                         either              either                      channels
        share of channels            1/3.2               1/3.2                       1/3
    """

    mask: Literal["either", "positions", "channels"] = "either"
    position_share: Ratio = 1 / 3
    channel_share: Ratio = 1 / 3.2
    sample_shares: Annotated[tuple[Ratio, ...], Field(min_length=1)] = (1 / 3,)
    rounds_each: PositiveInt = 10

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {},
        "released": {"sample_shares": (0.3, 0.5, 0.7)},
        "domainbed": {"mask": "channels", "channel_share": 1 / 3},
    }

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The task loss of the second logits for the samples that lost most confidence, of the first for the others."""
        kind, share = self._sample_mask(local)
        n = round(self._sample_share(local.round) * len(batch.image))
        if n == 0 or share == 0:
            return super().loss(local, batch)
        places = _places(local.architecture)
        raw = local.forward(batch, places)
        features = raw.features[places[-1]]
        gradient = torch.autograd.grad(_true_logits(raw).sum(), features, retain_graph=True)[0]  # g
        keep = position_mask(features, gradient, share) if kind == "positions" else channel_mask(gradient, share)
        muted = self._second_pass(local, batch, {**raw.features, places[-1]: features * keep})  # z * m
        counts = select_largest_drops(_confidence(raw) - _confidence(muted), n)
        logits = torch.where(counts.view(-1, *[1] * (raw.logits.ndim - 1)), muted.logits, raw.logits)
        return local.task.loss(logits, batch.label), raw

    def _sample_share(self, round_number: int) -> float:
        return self.sample_shares[min((round_number - 1) // self.rounds_each, len(self.sample_shares) - 1)]

    def _sample_mask(self, local: LocalRound) -> tuple[str, float]:
        """The mask of this batch, and the share that it leaves out."""
        kind = self.mask
        if kind == "either":
            kind = "positions" if float(torch.rand((), generator=local.rng)) < 0.5 else "channels"
        return kind, self.position_share if kind == "positions" else self.channel_share

    def _second_pass(self, local: LocalRound, batch: Batch, features: Mapping[str, Tensor]) -> Output:
        """The output of the network if the named places return these tensors."""
        changes = {place: partial(_replaced, entry) for place, entry in features.items()}
        with replace_output(local.network, changes):
            return local.forward(batch, fast_weights=local.parameters())


def _replaced(features: Tensor, own: Tensor) -> Tensor:
    return features


def _places(architecture: Architecture) -> tuple[str, ...]:
    """Where the first pass is kept; the last one is muted. Of a U-Net all encoder stages, for its skips."""
    return tuple(architecture.encoder_stages) if architecture.decoder_levels else (architecture.last_features,)


def _true_logits(output: Output) -> Tensor:
    """(B,): the logit of the true class, or the mean logit over all voxels of structures, 0 where there is none."""
    return _of_true_class(output.logits, output.label)


def _confidence(output: Output) -> Tensor:
    """(B,), in [0, 1]: the same of probabilities, without gradient."""
    logits = output.logits.detach()
    return _of_true_class(logits.softmax(dim=1) if output.label.ndim == 1 else logits.sigmoid(), output.label)


def _of_true_class(values: Tensor, label: Tensor) -> Tensor:
    if label.ndim == 1:
        return values.gather(1, label[:, None])[:, 0]
    inside = label.to(values.dtype)
    return (values * inside).flatten(1).sum(dim=1) / inside.flatten(1).sum(dim=1).clamp(min=1)
