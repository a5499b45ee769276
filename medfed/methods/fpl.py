"""FPL (Huang et al., CVPR 2023): sites tell each other what classes look like on average, once a kind of site.

W. Huang, M. Ye, Z. Shi, H. Li, B. Du: "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html.
Idea: pull embeddings towards the clustered class means (prototypes) of all sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from medfed.federation.local_round import LocalRound, Output, batches
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors, has_too_few_patients
from medfed.functional.prototypes import (
    class_sums,
    cluster_prototypes,
    prototype_contrastive_loss,
    prototype_distance_loss,
    region_embeddings,
)
from medfed.functional.weights import select_prefix

PROTOTYPE, CLUSTERS = "prototype/", "clusters/"
MAX_BATCH = 32  # images in one pass


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

    contrast: NonNegativeFloat = 1.0
    consistency: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.02
    min_images: PositiveInt = 3
    min_patients: PositiveInt = 3
    ring_width: PositiveInt = 5

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {},
        "released": {"min_images": 1, "min_patients": 1},
    }

    @property
    def _compares(self) -> bool:
        return self.contrast > 0 or self.consistency > 0

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """L: the task loss plus the two terms, from the second round on."""
        if not self._compares or not local.message.tensors:
            return super().loss(local, batch)
        output = local.forward(batch, (local.head_input,))
        vectors, kinds = self._embeddings(local, output)  # z, y
        clusters = sorted(select_prefix(local.message.tensors, CLUSTERS).items())
        prototypes = torch.cat([entry for _, entry in clusters]).to(vectors)  # c
        of = torch.tensor([int(kind) for kind, entry in clusters for _ in entry], device=kinds.device)
        loss = local.task.loss(output.logits, batch.label)
        if self.contrast:
            loss = loss + self.contrast * prototype_contrastive_loss(
                vectors, kinds, prototypes, of, self.temperature
            )  # eq. 7
        if self.consistency:
            loss = loss + self.consistency * prototype_distance_loss(vectors, kinds, prototypes, of)  # eq. 9-10
        return loss, output

    def on_round_end(self, local: LocalRound) -> Tensors:
        """prototype/CLASS, (D,), of each class with images enough."""
        if not self._compares or has_too_few_patients(local.site, local.training, self.min_patients, "prototypes"):
            return {}
        sums: dict[int, Tensor] = {}
        counts: dict[int, int] = {}
        local.network.eval()
        for batch in batches(local.training, MAX_BATCH):
            with torch.no_grad():
                output = local.forward(batch.to(local.device), (local.head_input,))
            for kind, (vector, n) in class_sums(*self._embeddings(local, output)).items():
                sums[kind], counts[kind] = sums.get(kind, 0) + vector, counts.get(kind, 0) + n
        local.network.train()
        enough = [kind for kind in sorted(sums) if counts[kind] >= self.min_images]
        return {f"{PROTOTYPE}{kind}": (sums[kind] / counts[kind]).float().cpu() for kind in enough}

    def _embeddings(self, local: LocalRound, output: Output) -> tuple[Tensor, Tensor]:
        """(R, D) and their classes (R,): one an image, or one a structure and background ring that an image shows."""
        features = output.features[local.head_input]
        if local.architecture.embedding:
            return features.flatten(1), output.label
        return region_embeddings(features, output.label, self.ring_width)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """clusters/CLASS, (M, D), the cluster prototypes of each class."""
        sent = [updates[site].tensors for site in sorted(updates)]
        memory = dict(state.memory)
        for name in sorted({name for tensors in sent for name in tensors}):
            clusters = cluster_prototypes([tensors[name] for tensors in sent if name in tensors])  # eq. 3-4
            if clusters is not None:
                memory[CLUSTERS + name.removeprefix(PROTOTYPE)] = clusters
        return memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """The cluster prototypes of all classes."""
        return dict(state.memory)

    def facts(self, state: State) -> dict[str, Any]:
        """How many clusters FINCH found of each class, by its number."""
        return {"clusters_of_classes": {kind: len(e) for kind, e in select_prefix(state.memory, CLUSTERS).items()}}
