"""The statistics that a site would send before training, and the same statistics of any other images.

The audit calls the site's own replies to the coordinator's "share" requests, so it measures exactly what would be sent:
the statistics of the method, and with `data.standardise: dataset` the moments of the images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from medfed.core.batch import Batch
from medfed.core.seeds import stream_seed
from medfed.federation.image_moments import has_constants, moments_request
from medfed.federation.local_round import Samples
from medfed.federation.message import Kind, Message
from medfed.federation.method import NEVER, Tensors
from medfed.federation.site import Site


@dataclass(frozen=True)
class ImageSet:
    """Images in memory that replace a site's training images when its statistics are computed.

    Args:
        images: (N, C, H, W) in [0, 1], not standardised.
        labels: (N, ...), the class numbers or masks of the images.
        n_patients: number of patients that the site reports to the method.
        moments: (N, 2, C), the moments of the images' volumes (`Batch.moments`), or None.
    """

    images: Tensor
    labels: Tensor
    n_patients: int
    moments: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        moments = None if self.moments is None else self.moments[chosen]
        return Batch(self.images[chosen], self.labels[chosen], moments=moments)


@dataclass(frozen=True)
class SharedStatistics:
    """A site together with the statistics that it would send before the first round; create it with `from_site`.

    Args:
        weights: initial weights of the network, which the coordinator sends with its request. With `data.standardise:
            dataset` they contain the constants of all sites.
        sent: the tensors that the site would send, by name.
        n_bytes: size in bytes of all messages that contain the tensors.
        per_image_entries: names of the tensors that have one row for each image. The other tensors describe the site as
            a whole.
    """

    site: Site
    weights: Tensors
    sent: Tensors
    n_bytes: int
    per_image_entries: frozenset[str]

    @classmethod
    def from_site(cls, site: Site, weights: Tensors) -> SharedStatistics:
        """Compute what the site would send, and for a single image, to find out which tensors have one row for each
        image."""
        replies = _replies(site, weights)
        of_all = cls(site, weights, _merged(replies), sum(len(reply.to_bytes()) for reply in replies), frozenset())
        of_one = of_all.statistics_of(site.training.batch([int(len(site.training) / 2)])) if of_all.sent else {}
        per_image_entries = {
            name
            for name, entry in of_one.items()
            if name in of_all.sent and _has_one_row_per_image(entry.shape, of_all.sent[name].shape)
        }
        return replace(of_all, per_image_entries=frozenset(per_image_entries))

    def statistics_of(self, batch: Batch, *purpose: str | int) -> Tensors:
        """What the site would send if the given images were its training images; empty if nothing, as for blank images.

        The site reports the number of patients in its whole training set, so that a small batch still gives statistics
        despite `method.min_patients` and `data.min_patients`. `purpose` gives the random seed of the computation.
        """
        images = ImageSet(batch.image, batch.label, self.site.training.n_patients, batch.moments)
        seed = stream_seed(self.site.seed, "audit", *purpose)
        site = replace(self.site, training=images, validation=None, seed=seed)
        return _merged(_replies(site, self.weights))

    def vectors(self, tensors: Tensors) -> Tensor:
        """Flatten and concatenate the floating-point tensors in order of name, (R, D) float64; (0, 0) without any.

        If the site sends tensors with one row for each image (`per_image_entries`), only these are used, with one
        vector for each row. Otherwise there is one vector for the whole site.
        """
        entries = [
            entry.detach().double().cpu()
            for name, entry in sorted(tensors.items())
            if entry.is_floating_point() and (not self.per_image_entries or name in self.per_image_entries)
        ]
        if not entries:
            return torch.zeros(0, 0, dtype=torch.float64)
        return torch.cat(
            [entry.flatten(1) if self.per_image_entries else entry.flatten()[None] for entry in entries], dim=1
        )

    def mean_vector(self, batch: Batch, *purpose: str | int) -> Tensor:
        """The mean of `vectors` of `statistics_of`, (1, D) float64; (0, 0) if the site would send nothing."""
        rows = self.vectors(self.statistics_of(batch, *purpose))
        return rows.mean(dim=0, keepdim=True) if len(rows) else rows

    def entries(self) -> list[dict]:
        """Plain JSON values of each tensor by name: "name", "shape", "type", "bytes" and "row_for_each_image"."""
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
    """Context manager in which `torch.no_grad` and `Tensor.detach` do not stop gradients. Methods compute their shared
    statistics without gradients, which the audit needs with respect to an image."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute every operation of PyTorch with gradients, and ignore `Tensor.detach`."""
        if func is Tensor.detach:
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


def images_by_patient(samples: Samples) -> list[list[int]]:
    """The indices of each patient's images, in the order of their first image. Each image counts as a patient if the
    samples contain no information about patients."""
    images: dict[int, list[int]] = {}
    for index, patient in enumerate(samples.patient.tolist() if hasattr(samples, "patient") else range(len(samples))):
        images.setdefault(patient, []).append(index)
    return list(images.values())


def evenly_spaced(items: Sequence, n: int) -> list:
    """`n` items spread evenly over a sequence, in their order; all items if there are at most `n`."""
    return [items[(2 * k + 1) * len(items) // (2 * n)] for k in range(n)] if n < len(items) else list(items)


def _replies(site: Site, weights: Tensors) -> list[Message]:
    """The site's replies to all requests of the coordinator for statistics before the first round."""
    requests = [moments_request()] if has_constants(weights) else []
    requests += [Message(Kind.SHARE, weights, {}, {"round": 1})] if site.method.shares != NEVER else []
    return [site.reply(request) for request in requests]


def _merged(replies: Sequence[Message]) -> Tensors:
    """The tensors of several replies, which have different names, by name."""
    return {name: entry for reply in replies for name, entry in reply.tensors.items()}


def _has_one_row_per_image(of_one: torch.Size, of_all: torch.Size) -> bool:
    """Whether a tensor of one image is shorter than that of all images, and otherwise of the same shape."""
    return len(of_one) > 1 and of_one[1:] == of_all[1:] and of_one[0] < of_all[0]
