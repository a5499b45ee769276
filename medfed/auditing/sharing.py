"""What a site would send, from the method's own `share`, and what the same code would say of any other images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from medfed.core.batch import Batch
from medfed.core.seeds import stream_seed
from medfed.federation.local_round import Samples
from medfed.federation.message import Message
from medfed.federation.method import Tensors
from medfed.federation.site import Site


@dataclass(frozen=True)
class ImageSet:
    """Some images (N, C, H, W) with their labels, as `share` takes them."""

    images: Tensor
    labels: Tensor
    n_patients: int

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return Batch(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True)
class SharedStatistics:
    """A site and what it would send before the first round.

    sent: the tensors, as they would leave.
    n_bytes: of the whole message.
    growing: names of the entries with a row for an image; the others are of the site as a whole.
    """

    site: Site
    weights: Tensors
    sent: Tensors
    n_bytes: int
    per_image_entries: frozenset[str]

    @classmethod
    def of(cls, site: Site, weights: Tensors) -> SharedStatistics:
        """Ask the site as the coordinator would, and once more about a single image, to see which entries grow."""
        answer = site.reply(_share_request(weights))
        whole = cls(site, weights, answer.tensors, len(answer.to_bytes()), frozenset())
        one = whole.share_of(site.training.batch([int(len(site.training) / 2)])) if answer.tensors else {}
        per_image_entries = {
            n
            for n, entry in one.items()
            if n in whole.sent and _has_one_row_per_image(entry.shape, whole.sent[n].shape)
        }
        return replace(whole, per_image_entries=frozenset(per_image_entries))

    def share_of(self, batch: Batch, *purpose: str | int) -> Tensors:
        """What the site would send if these were its training images; empty if they say nothing (blank ones).

        The site's own patient count is reported; otherwise the method's `min_patients` rule would suppress the
        candidate's statistic. What the method draws follows from `purpose`.
        """
        pile = ImageSet(batch.image, batch.label, self.site.training.n_patients)
        seed = stream_seed(self.site.seed, "audit", *purpose)
        return (
            replace(self.site, training=pile, validation=None, seed=seed).reply(_share_request(self.weights)).tensors
        )

    def vectors(self, tensors: Tensors) -> Tensor:
        """As vectors (R, D), float64: a row for each image where the method sends such, else one; (0, 0) of nothing."""
        entries = [entry.detach().double().cpu() for name, entry in sorted(tensors.items())
                   if entry.is_floating_point() and (not self.per_image_entries or name in self.per_image_entries)]
        if not entries:
            return torch.zeros(0, 0, dtype=torch.float64)
        return torch.cat(
            [entry.flatten(1) if self.per_image_entries else entry.flatten()[None] for entry in entries], dim=1
        )

    def mean_vector(self, batch: Batch, *purpose: str | int) -> Tensor:
        """(1, D): what the site would send of these, as one vector; (0, 0) if they say nothing."""
        rows = self.vectors(self.share_of(batch, *purpose))
        return rows.mean(dim=0, keepdim=True) if len(rows) else rows

    def entries(self) -> list[dict]:
        """Name, shape, type and bytes of each tensor."""
        return [{"name": name, "shape": list(entry.shape), "type": str(entry.dtype).removeprefix("torch."),
                 "bytes": entry.numel() * entry.element_size(), "row_for_each_image": name in self.per_image_entries}
                for name, entry in sorted(self.sent.items())]


class ForceGradients(TorchFunctionMode):
    """Inside, gradients pass `no_grad` and `detach`: a method's own `share` can then be differentiated as it stands."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.detach:
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


def images_by_patient(samples: Samples) -> list[list[int]]:
    """The indices of each patient's images; each image counts as a patient where samples have no patients."""
    if hasattr(samples, "patient"):
        names = samples.patient.tolist()
    else:
        names = [case.subject for case in samples.cases] if hasattr(samples, "cases") else list(range(len(samples)))
    return [[place for place, name in enumerate(names) if name == one] for one in dict.fromkeys(names)]


def evenly_spaced(items: Sequence, n: int) -> list:
    """At most n of them, evenly over their order."""
    return [items[(2 * place + 1) * len(items) // (2 * n)] for place in range(n)] if n < len(items) else list(items)


def _share_request(weights: Tensors) -> Message:
    return Message("share", weights, {}, {"round": 1})


def _has_one_row_per_image(one: torch.Size, all_of_them: torch.Size) -> bool:
    return len(one) > 1 and one[1:] == all_of_them[1:] and one[0] < all_of_them[0]
