"""A site's prepared images on the GPU, so that they are not copied there again in every training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from medfed.core.batch import Batch
from medfed.core.device import to_device
from medfed.federation.local_round import Samples, batches
from medfed.federation.message import n_bytes

MAX_FREE_FRACTION = 0.25  # of the GPU's free memory; the rest is for the network, its gradients and the other sites
COPY_BATCH_SIZE = 64  # images


@dataclass(frozen=True)
class DeviceSamples:
    """Samples that are all in one batch, `all`, on one device; it has the interface `Samples`."""

    all: Batch
    n_patients: int

    def __len__(self) -> int:
        return len(self.all.image)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples with the given indices, in this order, as one batch on the device."""
        chosen = to_device(torch.as_tensor(indices), self.all.image.device)
        moments = None if self.all.moments is None else self.all.moments[chosen]
        return replace(self.all.transform(lambda part: part[chosen], self.all.label[chosen]), moments=moments)


def max_device_bytes(device: torch.device) -> int:
    """Return how many bytes of images may be copied: a quarter of a GPU's free memory, 0 for another device."""
    return int(MAX_FREE_FRACTION * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0


def on_device(samples: Samples, device: torch.device, max_bytes: int) -> Samples:
    """Return a copy on the device if it has at most `max_bytes` bytes; otherwise the given samples, at least one."""
    first = samples.batch([0])
    if len(samples) * sum(map(n_bytes, (first.image, first.label, *first.views.values()))) > max_bytes:
        return samples
    parts = [part.to(device) for part in batches(samples, COPY_BATCH_SIZE)]
    views = {name: torch.cat([part.views[name] for part in parts]) for name in first.views}
    moments = None if first.moments is None else torch.cat([part.moments for part in parts if part.moments is not None])
    labels = torch.cat([part.label for part in parts])
    whole = Batch(torch.cat([part.image for part in parts]), labels, views, moments)
    return DeviceSamples(whole, samples.n_patients)
