"""FPL (Huang et al., CVPR 2023): sites tell each other what classes look like on average, once a kind of site."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.prototypes import (
    clustered,
    embeddings_of_regions,
    prototype_contrast,
    prototype_distance,
    sums_by_kind,
)

PROTOTYPE, CLUSTERS = "prototype/", "clusters/"
AT_ONCE = 32  # images looked at together


@dataclass(frozen=True)
class FPL(Method):
    """Federated prototype learning under domain shift.

    After its round each site sends its prototypes: for every class that it has the mean embedding z over its images (D
    numbers a class; ResNet18 with 7 classes: 14,336 bytes). The coordinator clusters those of each class over the sites
    by FINCH and sends the clusters' means c back with the next weights. From the second round on

        L = L_task + contrast * L_con + consistency * mean (z - u_y)^2
        L_con = -log( sum_{c of class y} e^s(z, c) / sum_c e^s(z, c) ),   s = cosine / temperature

    where u_y, the unbiased prototype, is the mean over the clusters of class y (each site computes it from what it
    gets). Before that, and for a class that nobody sent, the terms are absent.

    With three sites or fewer FINCH makes one cluster: c is then the sites' mean. The clusters found are in the summary.

    Args:
        contrast, consistency: weights of the two terms; 0 switches one off, and both is FedAvg, which sends nothing.
        temperature: tau.
        min_images: a class with fewer images at a site is left out of what the site tells: the prototype of one image
            is that image's embedding. For masks, images with the structure.
        min_patients: a site with fewer training patients tells nothing: it would be of single people. The images of one
            class may still be of few people.
        ring_width: of the background beside the structures, in pixels (segmentation).

    The authors' code collects embeddings during the last epoch, in training mode, of weights that move; here a pass of
    its own over the unaltered images, in evaluation mode and after training, makes them, for one more forward pass an
    image. It also counts no images, and neither do we: a site of ten weighs as much as one of a thousand, and no number
    of images is sent. It crashes where classes differ in their number of clusters; here they are tensors by name.
    Where not all sites take part, clusters are of those that did; a class that none of them has keeps its clusters of
    before.

    Both weights are 1 in the paper. "released" tells prototypes of single images and people, too.

    Segmentation (ours): a class is a structure, or the background ring beside them; z is the mean of the finest decoder
    level inside it, one an image.
    """

    contrast: float = 1.0
    consistency: float = 1.0
    temperature: float = 0.02
    min_images: int = 3
    min_patients: int = 3
    ring_width: int = 5

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {},
        "released": {"min_images": 1, "min_patients": 1},
    }

    def __post_init__(self) -> None:
        for name in ("contrast", "consistency"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        for name in ("min_images", "min_patients", "ring_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def _compares(self) -> bool:
        return self.contrast > 0 or self.consistency > 0

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        if not self._compares or not local.message.tensors:
            return super().loss(local, batch)
        output = local.forward(batch, (_place(local),))
        vectors, kinds = self._embeddings(local, output)
        known = {int(name.removeprefix(CLUSTERS)): entry for name, entry in sorted(local.message.tensors.items())}
        prototypes = torch.cat(list(known.values())).to(vectors)
        of = torch.tensor([kind for kind, entry in known.items() for _ in entry], device=kinds.device)
        loss = local.task.loss(output.logits, batch.label)
        if self.contrast:
            loss = loss + self.contrast * prototype_contrast(vectors, kinds, prototypes, of, self.temperature)
        if self.consistency:
            loss = loss + self.consistency * prototype_distance(vectors, kinds, prototypes, of)
        return loss, output

    def on_round_end(self, local: LocalRound) -> Tensors:
        """prototype/CLASS, (D,), of each class with images enough."""
        if not self._compares:
            return {}
        if local.training.n_patients < self.min_patients:
            warnings.warn(
                f"{local.site}: has {local.training.n_patients} training patients and shares no prototypes, as "
                f"method.min_patients is {self.min_patients}; it trains with the others' all the same",
                stacklevel=2,
            )
            return {}
        total: dict[int, tuple[Tensor, int]] = {}
        for found in self._passes(local):
            for kind, (vector, n) in found.items():
                before, n_before = total.get(kind, (0, 0))
                total[kind] = before + vector, n_before + n
        return {f"{PROTOTYPE}{k}": (s / n).float().cpu() for k, (s, n) in sorted(total.items()) if n >= self.min_images}

    @torch.no_grad()
    def _passes(self, local: LocalRound) -> Iterator[dict[int, tuple[Tensor, int]]]:
        """Sums of embeddings by class, of some images after the others, in evaluation mode."""
        local.network.eval()
        for part in torch.arange(len(local.training)).split(AT_ONCE):
            output = local.forward(local.training.batch(part.tolist()).to(local.device), (_place(local),))
            yield sums_by_kind(*self._embeddings(local, output))
        local.network.train()

    def _embeddings(self, local: LocalRound, output: Output) -> tuple[Tensor, Tensor]:
        """(R, D) and their classes (R,): one an image, or one a structure and background ring that an image shows."""
        features = output.features[_place(local)]
        if local.architecture.embedding:
            return features.flatten(1), output.label
        return embeddings_of_regions(features, output.label, self.ring_width)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """clusters/CLASS, (M, D), the cluster prototypes of each class."""
        told = [updates[site].tensors for site in sorted(updates)]
        memory = dict(state.memory)
        for name in sorted({name for tensors in told for name in tensors}):
            found = clustered([tensors[name] for tensors in told if name in tensors])
            if found is not None:
                memory[CLUSTERS + name.removeprefix(PROTOTYPE)] = found
        return memory

    def broadcast(self, state: State, site: str) -> Tensors:
        return dict(state.memory)

    def facts(self, state: State) -> dict[str, Any]:
        """How many clusters FINCH found of each class, by its number."""
        return {"clusters_of_classes": {n.removeprefix(CLUSTERS): len(entry) for n, entry in state.memory.items()}}


def _place(local: LocalRound) -> str:
    return local.architecture.embedding or local.architecture.last_features
