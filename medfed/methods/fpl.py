"""FPL (Huang et al., CVPR 2023): pull embeddings towards the class means (prototypes) of all sites.

W. Huang, M. Ye, Z. Shi, H. Li, B. Du: "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html.

Idea: sites exchange the mean embedding of each class. The coordinator clusters those of similar sites, so that frequent
kinds of sites do not dominate. Embeddings are then attracted by the cluster means of their class. Besides the weights,
a site sends one vector per class (ResNet18 with 7 classes: 14,336 bytes), and receives the cluster means of all classes
from round 2 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from medfed.federation.local_round import LocalRound, Output, count_patients
from medfed.federation.message import Message, State
from medfed.federation.method import MAX_FEATURE, Method, Tensors, has_too_few_patients
from medfed.federation.sent import Sent
from medfed.functional.clustering import cluster_means, finch_partition
from medfed.functional.contrastive import region_embeddings
from medfed.functional.hooks import evaluation_mode
from medfed.functional.weights import select_prefix

PROTOTYPE, CLUSTERS = "prototype/", "clusters/"  # prefixes of tensor names
MAX_BATCH = 32  # largest number of images in one forward pass


@dataclass(frozen=True)
class FPL(Method):
    """FedAvg that pulls embeddings towards the clustered class means (prototypes) of all sites.

    After its training, each site sends its prototypes: the mean embedding z over its images of each class. The
    coordinator clusters the prototypes of each class over the sites with FINCH and sends the means c of the clusters
    with the next weights. From the second round on, for an image of class y:

        L = L_task + contrast * L_con + consistency * sum_v (z_v - u_y,v)^2                        (eq. 10 and 12)
        L_con = -log( sum_{c of class y} e^s(z, c) / sum_c e^s(z, c) ),   s = cosine / temperature (eq. 7-8)

    The unbiased prototype u_y is the mean over the clusters of class y (eq. 6); each site computes it. In the first
    round, and for a class that no site sent, the terms are absent. With three sites or fewer, FINCH makes one cluster,
    and c is the mean of the sites' prototypes.

    As in the authors' code, a site with ten images counts as much as one with a thousand. The clusters are those of the
    sites that took part in the round; a class that none of them has keeps its earlier clusters.

    Segmentation (ours): a class is a structure, or the ring of background around the structures; z is the mean feature
    of the finest decoder level inside it, one for each image.

    Departures: prototypes come from a separate pass after local training, over the images without augmentation and in
    evaluation mode. (The authors' code collects the embeddings during the last epoch, in training mode and while the
    weights change.) The paper links first neighbours (eq. 4) and does not say how often; as in the code, FINCH repeats
    this until its coarsest partition. The code fails if classes have different numbers of clusters; here each class has
    a tensor of its own.

    Args:
        contrast: weight of the contrastive loss between embeddings and the class prototypes of all sites, at least 0. 1
            in the paper. 0 switches it off. If both weights are 0, the method is FedAvg and no prototypes are sent.
        consistency: weight of the squared distance between an embedding and the mean prototype of its class, at least
            0. 1 in the paper. 0 switches it off.
        over_features: "sum" adds the squared differences of the D features, as in the paper (eq. 10). "mean" divides
            this sum by D (512 for ResNet10 and ResNet18), as the authors' code does; the weight of the term then does
            not depend on the width of the network.
        temperature: temperature of the contrastive loss (tau in the paper), above 0. 0.02 in the paper.
        min_images: a class with fewer images than this at a site is left out of the site's prototypes, because the
            prototype of one image is that image's embedding. For masks, the number of images that show the structure.
            At least 1. Not in the paper.
        min_patients: a site with fewer training patients than this sends no prototypes, because they would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper. The images of one class may
            still be of few patients.
        ring_width: width in pixels of the ring of background around the structures, at least 1. For segmentation only;
            not in the paper.
    """

    contrast: NonNegativeFloat = 1.0
    consistency: NonNegativeFloat = 1.0
    over_features: Literal["mean", "sum"] = "mean"
    temperature: PositiveFloat = 0.02
    min_images: PositiveInt = 3
    min_patients: PositiveInt = 3
    ring_width: PositiveInt = 5

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Add the contrastive (eq. 7-8) and the consistency loss (eq. 10) with the received cluster means."""
        if not self._compares or not local.message.tensors:
            return super().loss(local, batch)
        output = local.forward(batch, (local.head_input,))
        vectors, kinds, _ = self._embeddings(local, output)  # z, y
        clusters = sorted(select_prefix(local.message.tensors, CLUSTERS).items())
        prototypes = torch.cat([means for _, means in clusters]).to(vectors)  # c
        classes = torch.tensor([int(kind) for kind, means in clusters for _ in means], device=kinds.device)
        loss = local.task.loss(output.logits, batch.label)
        if self.contrast:
            contrast = prototype_contrastive_loss(vectors, kinds, prototypes, classes, self.temperature)  # eq. 7-8
            loss = loss + self.contrast * contrast
        if self.consistency:
            distance = prototype_distance_loss(vectors, kinds, prototypes, classes, self.over_features)  # eq. 10
            loss = loss + self.consistency * distance
        return loss, output

    def _embeddings(self, local: LocalRound, output: Output) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings (R, D) of images, or of the structures and rings in them, their classes and images (R,)."""
        features = output.features[local.head_input]
        if local.architecture.embedding:
            return features.flatten(1), output.label, torch.arange(len(features), device=features.device)
        return region_embeddings(features, output.label, self.ring_width)

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Send `prototype/CLASS`, (D,), for each frequent class; of S structures, class S is the ring."""
        if not self._compares or has_too_few_patients(local.site, local.training, self.min_patients, "prototypes"):
            return {}
        sums: dict[int, Tensor] = {}
        images: dict[int, list[Tensor]] = {}  # indices of the images with an embedding of the class
        with evaluation_mode(local.network), torch.no_grad():
            for indices in torch.arange(len(local.training)).split(MAX_BATCH):
                batch = local.training.batch(indices.tolist()).to(local.device)
                vectors, kinds, numbers = self._embeddings(local, local.forward(batch, (local.head_input,)))
                for kind in kinds.unique().tolist():
                    sums[kind] = sums.get(kind, 0) + vectors[kinds == kind].double().sum(dim=0)
                    images.setdefault(kind, []).append(indices[numbers[kinds == kind].cpu()])
        prototypes: Tensors = {}
        for kind in sorted(sums):
            shown = torch.cat(images[kind])
            if len(shown) >= self.min_images:
                prototypes[f"{PROTOTYPE}{kind}"] = (sums[kind] / len(shown)).float().cpu()
                local.n_patients[f"{PROTOTYPE}{kind}"] = count_patients(local.training, shown)
        return prototypes

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Return the means of the M clusters of each class's prototypes, `clusters/CLASS`, (M, D) (eq. 4-5)."""
        prototypes = [updates[site].tensors for site in sorted(updates)]
        shapes = {name: tensor.shape for tensors in prototypes for name, tensor in tensors.items()}
        if wrong := [
            name for name in shapes if not (name.startswith(PROTOTYPE) and name[len(PROTOTYPE) :].isdecimal())
        ]:
            raise ValueError(f"'{wrong[0]}' is not the prototype of a class")
        if len(widths := set(shapes.values())) > 1:
            raise ValueError(f"prototypes of different sizes: {sorted(map(tuple, widths))}")
        memory = dict(state.memory)
        for name in sorted({name for tensors in prototypes for name in tensors}):
            clusters = cluster_prototypes([tensors[name] for tensors in prototypes if name in tensors])  # eq. 4-5
            if clusters is not None:
                memory[CLUSTERS + name.removeprefix(PROTOTYPE)] = clusters
        return memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the cluster means of all classes to every site."""
        return dict(state.memory)

    def summarise(self, state: State) -> dict[str, Any]:
        """Return the number of clusters of each class."""
        clusters = select_prefix(state.memory, CLUSTERS)
        return {"clusters_of_classes": {kind: len(means) for kind, means in clusters.items()}}

    @property
    def _compares(self) -> bool:
        return self.contrast > 0 or self.consistency > 0

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"over_features": "sum", "min_images": 1, "min_patients": 1},
        "released": {"min_images": 1, "min_patients": 1},
    }
    patients_advice: ClassVar[str] = "increase method.min_images, which leaves out classes with few images at a site"
    sent: ClassVar[Mapping[str, Sent]] = dict.fromkeys(
        (f"{PROTOTYPE}*", f"{CLUSTERS}*"),
        Sent(
            "prototypes: mean features of a class",
            "The features of a typical image of a class; if a class has one image, the features of that image.",
        ),
    )
    statistic_ranges = {PROTOTYPE: (-MAX_FEATURE, MAX_FEATURE)}


def cluster_prototypes(prototypes: Sequence[Tensor]) -> Tensor | None:
    """Return the means (M, D) of FINCH's coarsest clusters of the sites' prototypes of one class (eq. 4-5).

    Up to three sites always form one cluster. Prototypes of exactly zero have no direction and are left out; None
    without any other."""
    nonzero = [prototype for prototype in prototypes if bool(prototype.any())]
    if not nonzero:
        return None
    rows = torch.stack(nonzero)
    return cluster_means(rows, finch_partition(rows, "last"))  # eq. 4-5


def prototype_contrastive_loss(
    vectors: Tensor, classes: Tensor, prototypes: Tensor, prototype_classes: Tensor, temperature: float
) -> Tensor:
    """Return -log(sum of e^s over the prototypes of the own class / sum over all), the mean over embeddings (eq. 7-8).

    s is the cosine similarity of an embedding (N, D) and a prototype (M, D), divided by the temperature. Embeddings
    whose class has no prototype are left out; without any, the loss is 0 with gradient 0."""
    own = classes[:, None] == prototype_classes[None, :]
    known = own.any(dim=1)
    if not bool(known.any()):
        return vectors.sum() * 0
    own, vectors = own[known], vectors[known]
    scores = F.normalize(vectors, dim=1) @ F.normalize(prototypes, dim=1).T / temperature
    return (scores.logsumexp(dim=1) - scores.masked_fill(~own, -torch.inf).logsumexp(dim=1)).mean()  # eq. 7-8


def prototype_distance_loss(
    vectors: Tensor,
    classes: Tensor,
    prototypes: Tensor,
    prototype_classes: Tensor,
    over_features: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Return the squared difference between embeddings (N, D) and the means of their classes' prototypes (M, D).

    The mean gives a cluster of many sites the weight of a cluster of one (eq. 6). The sum over D is eq. 10;
    the mean is the released code. Embeddings whose class has no prototype are left out."""
    own = (classes[:, None] == prototype_classes[None, :]).to(vectors)
    n_clusters = own.sum(dim=1, keepdim=True)
    known = n_clusters[:, 0] > 0
    if not bool(known.any()):
        return vectors.sum() * 0
    unbiased = own @ prototypes.to(vectors) / n_clusters.clamp(min=1)  # eq. 6
    mean = F.mse_loss(vectors[known], unbiased[known])  # eq. 10
    return mean * vectors.shape[1] if over_features == "sum" else mean
