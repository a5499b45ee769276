"""What the hooks of a method receive at a site: the site's data for sharing, and one round of local training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medfed.core.batch import Batch
from medfed.federation.message import Message
from medfed.federation.settings import Cache, Training
from medfed.functional.hooks import capture_features, evaluation_mode
from medfed.functional.weights import trainable_parameters


@dataclass(frozen=True)
class Output:
    """The network's output for one batch.

    Args:
        image: images (B, C, H, W) in [0, 1], as they were in the batch, before standardising.
        label: class indices (B,) int64, or masks (B, S, H, W) of S structures.
        logits: (B, K) for K classes, or (B, S, H, W) for masks of S structures.
        features: outputs of the submodules whose features were requested, by the name of the submodule.
        moments: the moments of the images' volumes, as in the batch (`Batch.moments`).
    """

    image: Tensor
    label: Tensor
    logits: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)
    moments: Tensor | None = None


class Samples(Protocol):
    """A sequence of images with labels.

    Samples may also have an attribute `patient`, (N,) int64, with equal numbers for images of the same patient
    (`count_patients`).
    """

    @property
    def n_patients(self) -> int:
        """Number of different patients that the images show."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples with the given indices, in this order, as one batch on the CPU."""


class Task(Protocol):
    """What the network learns: classes or masks. The implementations are in `medfed.tasks`."""

    @abstractmethod
    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar.

        Args:
            logits: (B, K) for K classes, or (B, S, H, W) for masks of S structures.
            label: class indices (B,) int64, or masks (B, S, H, W) of 0 and 1.
        """

    def standardise(self, image: Tensor, moments: Tensor | None = None) -> Tensor:
        """Return images (B, C, H, W) in [0, 1] as the network receives them (`data.standardise`).

        `moments` are the moments of the images' volumes, from their batch (`Batch.moments`).
        """

    @abstractmethod
    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Return a copy of the batch after random rotation, scaling and flipping.

        An image, its mask and its views (such as restyled versions) are transformed in the same way; class labels do
        not change. `rng` is a CPU generator, whatever the device of the batch.
        """

    @property
    def slice_ratio(self) -> float:
        """The voxel size in the plane of a slice divided by the distance of two slices; 1 for images."""

    @abstractmethod
    def validate(self, network: nn.Module, samples: Any, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Return validation scores by name; the main one, "score", lies in [0, 1], and higher is better.

        Some scores use the features of `decoder_levels`, the names of the decoder's submodules from full resolution to
        the coarsest; without names these scores are left out.
        """


class Architecture(Protocol):
    """Names of the submodules of a network that methods use, as `nn.Module.get_submodule` takes them.

    The implementation is `medfed.networks.parts.base.NetworkSettings`.
    """

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        """Submodules that output the decoder's levels, from full resolution down; empty for classification."""

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        """Submodules that output the encoder's stages, from the first to the deepest."""

    @property
    def last_features(self) -> str:
        """Submodule that outputs the last feature map (B, C, h, w), before pooling or the last layer."""

    @property
    def embedding(self) -> str:
        """Submodule whose flattened output (B, D) enters the last layer; "" for segmentation."""

    @property
    def head(self) -> str:
        """The last layer, which computes the logits."""


@dataclass(frozen=True)
class SiteData:
    """What `Method.share` may read at one site."""

    name: str
    samples: Samples  # the site's training samples, without augmentation
    task: Task  # standardises images and computes losses
    architecture: Architecture  # of the network that `Method.share` receives
    rng: torch.Generator  # on the CPU, seeded for this site, this round and this purpose
    validation: Samples | None = None  # of the site's validation patients, who are not in `samples`
    # For each tensor that the method shares, by name, from how many patients each of its numbers is computed, at least.
    # `Method.share` writes it. It never leaves the site.
    n_patients: dict[str, int] = field(default_factory=dict)


@dataclass
class LocalRound:
    """One round of local training at one site, as the hooks of a method see it.

    Args:
        site: name of the site.
        round: number of the round, from 1.
        network: the network that is being trained, on `device`.
        architecture: names of the network's submodules that methods use.
        task: the task, for standardising images and computing losses.
        message: the coordinator's request: the global `weights`, the `tensors` of `Method.broadcast`, and `facts` (JSON
            values by name, such as the number of the round).
        memory: tensors that stay at this site between rounds, by name. A method may add, change and remove its own
            entries; they are on the CPU at the start of a round and must be so again after `on_round_end`.
        rng: CPU generator, seeded for this site and round. Draw on the CPU, then move the result to `device`.
        device: device of the network and of the batches.
        training: the site's own training samples, not those that `Method.expand` returned.
        validation: samples of the site's validation patients; None if it has none.
        local_keys: names of the network's entries that stay at this site, because of the method or of
            `federation.batch_norm: local`.
        start_weights: the state dict with which the network starts this round, on `device`: the global weights, except
            for entries of `local_keys`, which are the site's own. Not to be changed.
        settings: the optimiser and its settings.
        learning_rate: step size of the optimiser in this round.
        n_steps: number of training steps in this round; 0 before `on_round_start`.
        rounds: number of communication rounds of the whole training.
        cache: where a method stores the images that it computes, such as restyled ones, and how many bytes it may use.
        facts: numbers that the method reports with the site's update of this round, by name (`Method.fact_names`), such
            as a count over all steps; empty at the start of a round. A value may be a tensor with one element on
            `device`. The numbers are sent as facts of the message and become columns of `history.csv`.
        n_patients: for each tensor that the method sends with the update, by name, from how many patients each of its
            numbers is computed, at least. `Method.on_round_end` writes it. It never leaves the site.
    """

    site: str
    round: int
    network: nn.Module
    architecture: Architecture
    task: Task
    message: Message
    memory: dict[str, Tensor]
    rng: torch.Generator
    device: torch.device
    training: Samples
    validation: Samples | None = None
    local_keys: frozenset[str] = frozenset()
    start_weights: Mapping[str, Tensor] = field(default_factory=dict)
    settings: Training = Training()
    learning_rate: float = 0.0
    n_steps: int = 0
    rounds: int = 0
    cache: Cache = Cache()
    facts: dict[str, float | Tensor] = field(default_factory=dict)
    n_patients: dict[str, int] = field(default_factory=dict)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the network's trainable parameters by state-dict name, not copied.

        Buffers, such as BatchNorm's running statistics, and frozen parameters are left out.
        """
        return trainable_parameters(self.network)

    def sent_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters that the site sends (`trainable` without `local_keys`), not copied."""
        return {name: entry for name, entry in self.trainable().items() if name not in self.local_keys}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters of the network, trained and frozen, by state-dict name, not copied.

        As `fast_weights` of `forward` they give the same logits as None, but BatchNorm's running statistics are not
        updated in training mode.
        """
        return dict(self.network.named_parameters())

    @property
    def head_input(self) -> str:
        """Name of the submodule whose output the head (the last layer) receives.

        For classification it is `architecture.embedding`, for segmentation `architecture.last_features`.
        """
        return self.architecture.embedding or self.architecture.last_features

    def forward(
        self, batch: Batch, taps: Sequence[str] = (), fast_weights: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Standardise the images of a batch and run the network on them.

        With `training.precision: bf16`, the network computes in bfloat16 where PyTorch's autocast allows it; logits and
        features are float32 again, so that losses and statistics are computed in float32.

        Args:
            batch: images (B, C, H, W) in [0, 1], not standardised, and their labels, on `device`.
            taps: names of submodules whose outputs are returned in `Output.features`.
            fast_weights: entries of the state dict by name that replace the network's own in this pass: parameters, and
                buffers if they are another model's, whose BatchNorm statistics then count. The network's own running
                statistics stay unchanged. With None, a pass in training mode updates these statistics. For further
                passes, such as on a changed copy of the batch, pass the network's own parameters (`parameters()`).
        """
        image = self.task.standardise(batch.image, batch.moments)
        uses_bf16 = self.settings.precision == "bf16"
        with (
            capture_features(self.network, taps) as features,
            torch.autocast(self.device.type, torch.bfloat16, enabled=uses_bf16),
        ):
            if fast_weights is None:
                logits = self.network(image)
            else:
                buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
                logits = functional_call(self.network, {**buffers, **fast_weights}, (image,), strict=True)
        logits = logits.float() if uses_bf16 else logits
        return Output(batch.image, batch.label, logits, dict(features), batch.moments)


def count_patients(samples: Samples, indices: Tensor) -> int:
    """Return how many different patients the images `indices`, (n,) int64, of the samples show.

    Without the attribute `patient`, all images count as those of one patient.
    """
    patient = getattr(samples, "patient", None)
    return min(len(indices), 1) if patient is None else len(patient[indices].unique())


def batches(samples: Samples, size: int, order: Tensor | None = None) -> Iterator[Batch]:
    """Yield batches of at most `size` images on the CPU, of all samples or of the indices `order`, (n,) int64."""
    for part in (torch.arange(len(samples)) if order is None else order).split(size):
        yield samples.batch(part.tolist())


@torch.no_grad()
def mean_loss(network: nn.Module, task: Task, samples: Samples) -> Tensor:
    """Return the task's mean loss over all images, (1,) float32 on the CPU, with the network in evaluation mode."""
    device, total = next(network.parameters()).device, 0.0
    with evaluation_mode(network):
        for batch in batches(samples, 16):
            batch = batch.to(device)
            logits = network(task.standardise(batch.image, batch.moments))
            total += len(batch.image) * float(task.loss(logits, batch.label))
    return torch.tensor([total / len(samples)])
