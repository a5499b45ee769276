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
from medfed.federation.message import Message
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
        """Return the number of images."""
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return some of the images and their labels as one batch.

        Args:
            indices: indices of the B chosen images, from 0 to N - 1.

        Returns:
            Images (B, C, H, W) and labels (B, ...).
        """
        chosen = torch.as_tensor(indices)
        moments = None if self.moments is None else self.moments[chosen]
        return Batch(self.images[chosen], self.labels[chosen], moments=moments)


@dataclass(frozen=True)
class SharedStatistics:
    """A site together with the statistics that it would send before the first round.

    Create an instance with `from_site`.

    Args:
        site: the audited site.
        weights: initial weights of the network, which the coordinator sends with its request. With `data.standardise:
            dataset` they contain the constants of all sites.
        sent: the tensors that the site would send, by name.
        n_bytes: size in bytes of all messages that contain the tensors.
        per_image_entries: names of the tensors that have one row for each image. The other tensors describe the site
            as a whole.
    """

    site: Site
    weights: Tensors
    sent: Tensors
    n_bytes: int
    per_image_entries: frozenset[str]

    @classmethod
    def from_site(cls, site: Site, weights: Tensors) -> SharedStatistics:
        """Compute the statistics that a site would send before the first round, and return a new `SharedStatistics`.

        The statistics of a single image are computed too, to find out which tensors have one row for each image.

        Args:
            site: the site to audit, with its training images.
            weights: initial weights of the network, by name. With `data.standardise: dataset` they contain the
                constants of all sites (`medfed.federation.image_moments.pool`).
        """
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
        """Compute the statistics that the site would send if the given images were its training images.

        The settings `method.min_patients` and `data.min_patients` say that nothing is sent for too few patients. So
        that a small batch still gives statistics, the site reports the number of patients in its whole training set,
        and not the number in the batch.

        Args:
            batch: images (N, C, H, W) in [0, 1], not standardised, and their labels.
            purpose: words and numbers from which the random seed of the computation is made. Equal words and numbers
                give equal random numbers.

        Returns:
            Tensors by name; empty if the site would send nothing, for example for blank images.
        """
        images = ImageSet(batch.image, batch.label, self.site.training.n_patients, batch.moments)
        seed = stream_seed(self.site.seed, "audit", *purpose)
        site = replace(self.site, training=images, validation=None, seed=seed)
        return _merged(_replies(site, self.weights))

    def vectors(self, tensors: Tensors) -> Tensor:
        """Convert statistics to vectors: flatten the floating-point tensors and concatenate them in order of name.

        Args:
            tensors: tensors by name, such as the attribute `sent` or the result of `statistics_of`.

        Returns:
            (R, D) float64: R vectors of length D. If the site sends tensors with one row for each image
            (`per_image_entries`), only these tensors are used, and there is one vector for each of their rows.
            Otherwise there is one vector for the whole site. The shape is (0, 0) if there are no floating-point
            tensors.
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
        """Compute the statistics that the site would send for the given images, as one vector.

        If the site sends one vector for each image, the result is the mean of these vectors. If the site sends
        statistics of the whole site, the result is the vector of these statistics.

        Args:
            batch: images (N, C, H, W) in [0, 1], not standardised, and their labels.
            purpose: words and numbers from which the random seed of the computation is made. Equal words and numbers
                give equal random numbers.

        Returns:
            (1, D) float64, where D is the length of the vectors that `vectors` returns. The shape is (0, 0) if the site
            would send nothing.
        """
        rows = self.vectors(self.statistics_of(batch, *purpose))
        return rows.mean(dim=0, keepdim=True) if len(rows) else rows

    def entries(self) -> list[dict]:
        """Describe every tensor that the site would send, sorted by name.

        Returns:
            One dictionary of plain JSON values for each tensor: "name"; "shape", a list; "type", such as "float32";
            "bytes", the size of the tensor; and "row_for_each_image", whether the tensor has one row for each image.
        """
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
    """Context manager in which `torch.no_grad` and `Tensor.detach` do not stop gradients.

    Methods compute their shared statistics without gradients. Inside this context, the audit can compute the gradients
    of the shared statistics with respect to an image.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a torch function with gradients enabled; `detach` returns its argument."""
        if func is Tensor.detach:
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


def images_by_patient(samples: Samples) -> list[list[int]]:
    """Group the indices of images by patient.

    Args:
        samples: prepared images of a site.

    Returns:
        One list for each patient: the indices of the patient's images. The patients are in the order of their first
        image. Each image counts as a patient if the samples contain no information about patients.
    """
    images: dict[int, list[int]] = {}
    for index, patient in enumerate(samples.patient.tolist() if hasattr(samples, "patient") else range(len(samples))):
        images.setdefault(patient, []).append(index)
    return list(images.values())


def evenly_spaced(items: Sequence, n: int) -> list:
    """Choose `n` items that are spread evenly over a sequence.

    Args:
        items: items to choose from.
        n: number of items to choose, at least 0.

    Returns:
        The chosen items in their original order; all items if there are at most `n`.
    """
    return [items[(2 * k + 1) * len(items) // (2 * n)] for k in range(n)] if n < len(items) else list(items)


def _replies(site: Site, weights: Tensors) -> list[Message]:
    """Return the site's replies to all requests of the coordinator for statistics before the first round."""
    requests = [moments_request()] if has_constants(weights) else []
    requests += [Message("share", weights, {}, {"round": 1})] if site.method.shares != NEVER else []
    return [site.reply(request) for request in requests]


def _merged(replies: Sequence[Message]) -> Tensors:
    """Return the tensors of several replies, which have different names, by name."""
    return {name: entry for reply in replies for name, entry in reply.tensors.items()}


def _has_one_row_per_image(of_one: torch.Size, of_all: torch.Size) -> bool:
    """Return whether a tensor of one image is shorter than that of all images, and otherwise of the same shape."""
    return len(of_one) > 1 and of_one[1:] == of_all[1:] and of_one[0] < of_all[0]
