"""The statistics that a site would send before training, and the same statistics of any other images.

The audit calls the site's own replies to the coordinator's "share" requests, so it measures exactly what would be sent:
the statistics of the method, and with `data.standardise: dataset` the moments of the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from medfed.core.batch import Batch
from medfed.core.seeds import stream_seed
from medfed.federation.device_samples import DeviceSamples
from medfed.federation.image_moments import has_constants, moments_request
from medfed.federation.local_round import Samples
from medfed.federation.message import Kind, Message
from medfed.federation.method import NEVER, Tensors
from medfed.federation.privacy import Privacy, clipping_scale
from medfed.federation.site import Site


@dataclass(frozen=True)
class SharedStatistics:
    """A site together with the statistics that it would send before the first round; create it with `from_site`."""

    site: Site
    weights: Tensors  # that the coordinator sends with its request, with the constants of `data.standardise: dataset`
    sent: Tensors  # with noise, but multiplied by the inverse of the factor of the clipping
    clear: Tensors  # the same without noise
    n_bytes: int  # of all messages that contain the tensors
    per_image_entries: frozenset[str]  # tensors with one row for each image; the others describe the whole site

    @classmethod
    def from_site(cls, site: Site, weights: Tensors) -> SharedStatistics:
        """Compute what the site would send; the same for a single image shows which tensors grow with the images."""
        replies = clear = _replies(site, weights)
        if site.privacy != Privacy():
            clear = _replies(replace(site, privacy=Privacy()), weights)
        sent: Tensors = {}
        for reply, without_noise in zip(replies, clear, strict=True):
            clip = site.privacy.statistics_clip
            scale = clipping_scale(without_noise.tensors, clip) if clip else 1.0
            sent |= {name: t / scale if t.is_floating_point() else t for name, t in reply.tensors.items()}
        size = sum(len(reply.to_bytes()) for reply in replies)
        of_all = cls(site, weights, sent, _merged(clear), size, frozenset())
        of_one = of_all.statistics_of(site.training.batch([len(site.training) // 2])) if of_all.sent else {}
        shapes = [(name, entry.shape, of_all.sent[name].shape) for name, entry in of_one.items() if name in of_all.sent]
        grows = [name for name, a, b in shapes if len(a) > 1 and a[1:] == b[1:] and a[0] < b[0]]
        return replace(of_all, per_image_entries=frozenset(grows))

    def statistics_of(self, batch: Batch, *purpose: str | int) -> Tensors:
        """What the site would send if the given images were its training images; `purpose` gives the random seed.

        The site reports the number of patients in its whole training set, so that `min_patients` suppresses nothing.
        """
        return self._statistics_of(self.site, batch, purpose)

    def known_statistics_of(self, batch: Batch, *purpose: str | int) -> Tensors:
        """The same statistics as an attacker computes them who has the images: without clipping and noise."""
        return self._statistics_of(replace(self.site, privacy=Privacy()), batch, purpose)

    def row_of(self, batch: Batch, *purpose: str | int) -> int | None:
        """The index of the sent row of an image, which is recognised without the noise; None if no row is sent."""
        row, clear = self.vectors(self.known_statistics_of(batch, *purpose)), self.vectors(self.clear)
        if not len(row):
            return None
        distance, index = (clear - row).abs().amax(dim=1).min(dim=0)
        return int(index) if float(distance) <= 1e-4 * float(row.abs().max()) else None

    def _statistics_of(self, site: Site, batch: Batch, purpose: Sequence[str | int]) -> Tensors:
        images = DeviceSamples(batch, self.site.training.n_patients)
        seed = stream_seed(self.site.seed, "audit", *purpose)
        return _merged(_replies(replace(site, training=images, validation=None, seed=seed), self.weights))

    def vectors(self, tensors: Tensors) -> Tensor:
        """The floating-point tensors as vectors (R, D), float64; (0, 0) without any. There is one vector for each image
        if the site sends tensors with one row for each image, which are then used alone, otherwise one for the site."""
        entries = [
            entry.detach().double().cpu()
            for name, entry in sorted(tensors.items())
            if entry.is_floating_point() and (not self.per_image_entries or name in self.per_image_entries)
        ]
        rows = [entry.flatten(1) if self.per_image_entries else entry.flatten()[None] for entry in entries]
        return torch.cat(rows, dim=1) if rows else torch.zeros(0, 0, dtype=torch.float64)

    def entries(self) -> list[dict]:
        return [
            {
                "name": name,
                "shape": list(entry.shape),
                "type": str(entry.dtype).removeprefix("torch."),
                "bytes": entry.numel() * entry.element_size(),
                "row_for_each_image": name in self.per_image_entries,
            }
            for name, entry in sorted(self.sent.items())
        ]


class ForceGradients(TorchFunctionMode):
    """Context in which `torch.no_grad` and `Tensor.detach` do not stop gradients, as they do where methods share."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.detach:
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


def images_by_patient(samples: Samples) -> list[list[int]]:
    """The indices of each patient's images; each image counts as a patient if the samples do not know patients."""
    images: dict[int, list[int]] = {}
    for index, patient in enumerate(samples.patient.tolist() if hasattr(samples, "patient") else range(len(samples))):
        images.setdefault(patient, []).append(index)
    return list(images.values())


def evenly_spaced(items: Sequence, n: int) -> list:
    """`n` items spread evenly over a sequence, in their order; all items if there are at most `n`."""
    return [items[(2 * k + 1) * len(items) // (2 * n)] for k in range(n)] if n < len(items) else list(items)


def _replies(site: Site, weights: Tensors) -> list[Message]:
    """The replies to all requests of the coordinator for statistics before the first round."""
    requests = [moments_request()] if has_constants(weights) else []
    requests += [Message(Kind.SHARE, weights, {}, {"round": 1})] if site.method.shares != NEVER else []
    return [site.reply(request) for request in requests]


def _merged(replies: Sequence[Message]) -> Tensors:
    return {name: entry for reply in replies for name, entry in reply.tensors.items()}


def standardised_distances(a: Tensor, b: Tensor, examples: Tensor) -> Tensor:
    """Euclidean distances (A, B) of vectors (A, D) and (B, D) whose entries are standardised by examples (R, D): those
    that are positive in all examples on a logarithmic scale, and without those that are constant."""
    is_positive = (examples > 0).all(dim=0)
    examples, a, b = (torch.where(is_positive, rows.clamp_min(1e-12).log(), rows) for rows in (examples, a, b))
    mean, spread = examples.mean(dim=0), examples.std(dim=0)
    varies = spread > 1e-9 * (1 + mean.abs())
    a, b = (((rows - mean) / spread)[:, varies] for rows in (a, b))
    return torch.cdist(a, b)
