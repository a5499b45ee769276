"""What a method sees at a site: the site's data before training, and one round of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medfed.core.batch import Batch
from medfed.federation.message import Message
from medfed.federation.settings import Training
from medfed.functional.hooks import capture_features
from medfed.functional.weights import trainable_parameters


@dataclass(frozen=True)
class Output:
    """What the network made of a batch: logits, and the outputs of the tapped places by name."""

    image: Tensor
    label: Tensor
    logits: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)


class Samples(Protocol):
    """A site's training images, and of how many patients they are."""

    @property
    def n_patients(self) -> int: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch: ...


class Task(Protocol):
    """What is learned. `medfed.tasks` has the real ones."""

    def loss(self, logits: Tensor, label: Tensor) -> Tensor: ...

    def standardise(self, image: Tensor) -> Tensor: ...

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch: ...

    def validate(
        self, network: nn.Module, samples: Any, decoder_levels: Sequence[str] = ()
    ) -> dict[str, float]: ...


class Architecture(Protocol):
    """The named places of a network (`medfed.networks.base.NetworkSettings`)."""

    @property
    def decoder_levels(self) -> tuple[str, ...]: ...

    @property
    def encoder_stages(self) -> tuple[str, ...]: ...

    @property
    def last_features(self) -> str: ...

    @property
    def embedding(self) -> str: ...

    @property
    def head(self) -> str: ...


@dataclass(frozen=True)
class SiteData:
    """What `Method.share` may look at: one site's images, and a random stream of its own.

    architecture: the named places of the network that comes with it.
    validation: images of other people of the site; None where it keeps none apart.
    """

    name: str
    samples: Samples
    task: Task
    architecture: Architecture
    rng: torch.Generator
    validation: Samples | None = None


@dataclass
class LocalRound:
    """One site in one round.

    message: what came from the coordinator (weights, the method's tensors, facts).
    memory: stays at this site between rounds, as tensors; a method may change it.
    rng: the stream of this site and round; draw on the CPU, then move.
    training, validation: the site's own images, not those that a method made of them.
    local_keys: entries of the network that stay at this site, whoever asked for that.
    start_weights: the state dict with which the network starts this round, on its device: the message's weights,
        overlaid by the entries that stay at this site. Not to be changed.
    settings: the optimiser and its settings.
    learning_rate, n_steps: of this round's optimiser, and how many steps it takes.
    rounds: communication rounds of the whole training.
    max_cache_bytes: limit in bytes for images that a method derives and keeps in memory.
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
    max_cache_bytes: int = 2 * 2**30

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name: no buffers, and none that is frozen."""
        return trainable_parameters(self.network)

    def sent_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained and then sent to the coordinator: without those that stay at the site."""
        return {name: entry for name, entry in self.trainable().items() if name not in self.local_keys}

    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name. A pass with these `fast_weights` does not move BatchNorm's running statistics."""
        return dict(self.network.named_parameters())

    @property
    def head_input(self) -> str:
        """The place whose output the head reads: the embedding, or the last feature map of a network for masks."""
        return self.architecture.embedding or self.architecture.last_features

    def forward(
        self, batch: Batch, taps: Sequence[str] = (), fast_weights: Mapping[str, Tensor] | None = None
    ) -> Output:
        """Standardise the raw images and run the network on them.

        With `fast_weights` (parameters by name) the network runs on those, and BatchNorm's running statistics stay
        as they are: only a forward pass on raw images may move them.
        """
        image = self.task.standardise(batch.image)
        with capture_features(self.network, taps) as features:
            if fast_weights is None:
                logits = self.network(image)
            else:
                buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
                logits = functional_call(self.network, {**buffers, **fast_weights}, (image,), strict=True)
        return Output(batch.image, batch.label, logits, dict(features))


def batches(samples: Samples, size: int, order: Tensor | None = None) -> Iterator[Batch]:
    """The samples in batches of at most `size`: all of them, or those of the indices `order` (N,)."""
    for part in (torch.arange(len(samples)) if order is None else order).split(size):
        yield samples.batch(part.tolist())


@torch.no_grad()
def mean_loss(network: nn.Module, task: Task, samples: Samples, size: int = 16) -> Tensor:
    """(1,) float32: the task's loss, averaged over all images, in evaluation mode; `size` images at a time."""
    was_training, device, total = network.training, next(network.parameters()).device, 0.0
    network.eval()
    for batch in batches(samples, size):
        batch = batch.to(device)
        total += len(batch.image) * float(task.loss(network(task.standardise(batch.image)), batch.label))
    network.train(was_training)
    return torch.tensor([total / len(samples)])
