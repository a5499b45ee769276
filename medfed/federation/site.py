"""A site: it holds images, and replies to the coordinator's requests to share statistics, to train and to validate.

Images never leave this class. What a site keeps between rounds is `Site.memory` alone, so an engine can store it,
restore it from the last accepted round, and repeat a round with a bit-identical reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.seeds import seeded_layers, stream
from medfed.federation.device_samples import max_device_bytes, on_device
from medfed.federation.encoding import pack
from medfed.federation.engine import OnStep
from medfed.federation.image_moments import ASKED, moments_reply
from medfed.federation.image_moments import RANGES as MOMENT_RANGES
from medfed.federation.local_round import Architecture, LocalRound, Samples, SiteData, Task
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message, digest
from medfed.federation.method import NEVER, Method
from medfed.federation.privacy import Privacy, protect
from medfed.federation.settings import Cache, Training
from medfed.federation.step_losses import StepLosses
from medfed.federation.survey import SiteSurvey
from medfed.functional.weights import check_same_entries, running_variances

OPTIMIZER, LOCAL = "optimizer/", "local/"  # prefixes of names in a site's memory


@dataclass
class Site:
    """A site that trains: a hospital with its own images, which replies to the coordinator's requests."""

    name: str
    training: Samples  # prepared images of the site's patients
    validation: Samples | None
    task: Task
    method: Method
    network: nn.Module  # several sites of one process may share it, because each request loads its own weights
    architecture: Architecture
    settings: Training
    local_keys: frozenset[str]  # names of the network's entries that stay at this site and are never sent
    local_epochs: int  # passes over the training images in a round
    seed: int  # of all random streams
    rounds: int = 1  # of the whole training, for learning rate schedules
    cache: Cache = Cache()
    privacy: Privacy = Privacy()
    min_patients: int = 3  # with fewer training patients, the site does not share the moments of its images
    noise_key: bytes = b""  # 32 secret bytes from which the noise is derived; empty: from the seed, for simulations
    progress: OnStep | None = None
    max_steps: int | None = None  # training steps in a round, for a dry run; None does all of them
    survey: SiteSurvey | None = None  # None if the site is not asked to describe its images
    # Kept between rounds: the optimiser's state ("optimizer/..."), local entries ("local/..."), tensors of the method.
    memory: dict[str, Tensor] = field(default_factory=dict)
    # By name of each tensor of the last reply, without weights: from how many patients each of its numbers comes,
    # at least; 1 if the method does not say. It never leaves the site.
    n_patients: dict[str, int] = field(default_factory=dict, init=False)
    _expanded: tuple[str, Samples] | None = None
    _on_device: tuple[Samples, Samples] | None = None  # `training`, and its copy on the device

    def reply_key(self) -> str:
        """Return a text of all settings, but not images, that affect this site's replies: the key of stored replies."""
        rounds = self.rounds if self.settings.schedule == "cosine" else None
        local_keys = sorted(self.local_keys)
        settings = (self.settings, self.method, self.local_epochs, rounds, self.seed, local_keys, self.privacy)
        return repr((*settings, self.min_patients))

    def reply(self, request: Message) -> Message:
        """Return the site's reply to one request, clipped and with noise as the `privacy` section of the config says.

        A request has the fact `round` (from 1) and the global weights; a "survey" request, and a "share" request whose
        statistics do not depend on the network, may lack the weights. The reply to a request that has only the checksum
        of the weights is "weights_needed"; an engine that keeps the weights at the site adds them to the request first.

        Raises:
            ValueError: if the kind is unknown, or the weights do not fit the network.
            UserError: if the training loss, or a number that must be clipped, is NaN or infinite.
        """
        handlers: dict[str, Callable[[Message], Message]] = {
            Kind.SHARE: self._share,
            Kind.TRAIN: self._train,
            Kind.VALIDATE: self._validate,
        }
        if self.survey:
            handlers[Kind.SURVEY] = self.survey.reply
        if request.kind not in handlers:
            raise ValueError(f"{self.name}: cannot reply to a request of kind '{request.kind}'")
        if request.weights_digest and not request.weights:
            return Message(WEIGHTS_NEEDED)
        self.n_patients = {}
        request = replace(request, weights_digest="")  # the noise below depends on the bytes of the complete request
        reply = handlers[request.kind](request)
        if self.privacy == Privacy():
            return reply
        secret = self.noise_key or f"simulation {self.seed}".encode()
        # The reply is part of the key, so that only the same reply to the same request gets the same noise again: the
        # difference of two replies with equal noise contains no noise.
        key = digest(secret, self.name.encode(), repr(self.privacy).encode(), request.to_bytes(), reply.to_bytes())
        ranges = {
            **dict.fromkeys(running_variances(self.network), (0.0, math.inf)),
            **MOMENT_RANGES,
            **self.method.statistic_ranges,
        }
        return protect(reply, request, self.privacy, secret + bytes.fromhex(key), ranges)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the global weights; entries of `local_keys` get the site's own. ValueError if they do not fit."""
        merged = self._merged(weights)
        check_same_entries(self.network.state_dict(), merged)
        self.network.load_state_dict(merged)

    def local_entries(self) -> dict[str, Tensor]:
        """Return the network entries that stay at this site, as trained last; empty before the first training round."""
        return {name.removeprefix(LOCAL): entry for name, entry in self.memory.items() if name.startswith(LOCAL)}

    def _merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**weights, **self.local_entries()}

    def _share(self, request: Message) -> Message:
        """The statistics that the method shares (`Method.share`), or if requested, the moments of the images."""
        if ASKED in request.facts:
            reply = moments_reply(self.name, self.training, self.min_patients)
            self.n_patients = dict.fromkeys(reply.tensors, self.training.n_patients)
            return reply
        if self.method.shares == NEVER:
            return Message(Kind.SHARE)
        if self.method.share_reads_network:
            self.load(request.weights)
        self.network.eval()
        rng = stream(self.seed, "share", self.name, request.facts["round"])
        data = SiteData(self.name, self.training, self.task, self.architecture, rng, self.validation)
        tensors = self.method.share(data, self.network)
        self.n_patients = {name: data.n_patients.get(name, 1) for name in tensors}
        return Message(Kind.SHARE, tensors=tensors)

    def _validate(self, request: Message) -> Message:
        """The reply to a request for validation scores; without facts if the site has no validation patients."""
        if self.validation is None:
            return Message(Kind.VALIDATE)
        self.load(request.weights)
        facts = self.task.validate(self.network, self.validation, self.architecture.decoder_levels)
        return Message(Kind.VALIDATE, facts=facts)

    def _train(self, request: Message) -> Message:
        """The weights after local training, what the method sends with them, and what it reports."""
        self.load(request.weights)
        self.network.train()
        local = self._local_round(request)
        optimizer = self._optimizer(local.learning_rate)
        samples = self._samples(local)
        batches = list(self._batches(local.round, len(samples)))[: self.max_steps]
        local.n_steps = len(batches)
        # Each purpose has its own stream, so that batches and augmentations do not depend on the method's own samples.
        augmentation_rng = stream(self.seed, "augmentation", self.name, local.round)
        losses = StepLosses(self.name, local.round, local.device)
        with seeded_layers(self.seed, "layers", self.name, local.round):
            self.method.on_round_start(local)
            for step, indices in enumerate(batches, start=1):
                losses.add(self._step(local, optimizer, samples.batch(indices), augmentation_rng))
                if self.progress:
                    self.progress(self.name, step, len(batches))
            mean_loss = losses.mean()  # raises if training diverged, before the method computes with such weights
            tensors = self.method.on_round_end(local)
        self.n_patients = {name: local.n_patients.get(name, 1) for name in tensors}
        self._update_memory(optimizer)
        weights = {n: entry for n, entry in self.network.state_dict().items() if n not in self.local_keys}
        of_method = {name: fact.item() if isinstance(fact, Tensor) else fact for name, fact in local.facts.items()}
        facts = {**of_method, "examples": len(self.training), "steps": len(batches), "loss": mean_loss}
        return Message(Kind.TRAIN, weights, tensors, facts)

    def _local_round(self, request: Message) -> LocalRound:
        number, device = request.facts["round"], next(self.network.parameters()).device
        return LocalRound(
            site=self.name,
            round=number,
            network=self.network,
            architecture=self.architecture,
            task=self.task,
            message=request,
            memory=self.memory,
            rng=stream(self.seed, "method", self.name, number),
            device=device,
            training=self.training,
            validation=self.validation,
            local_keys=self.local_keys,
            start_weights={name: entry.to(device) for name, entry in self._merged(request.weights).items()},
            settings=self.settings,
            learning_rate=self.settings.learning_rate_in(number, self.rounds),
            rounds=self.rounds,
            cache=self.cache,
        )

    def _samples(self, local: LocalRound) -> Samples:
        """Return the samples that the method trains on (`Method.expand`), computed again if what it reads changes.

        The site's own images are kept on the device if they fit. Images that a method computes are not, because it may
        compute them only when they are requested.
        """
        if type(self.method).expand is Method.expand:
            if self._on_device is None or self._on_device[0] is not self.training:
                copy = on_device(self.training, local.device, max_device_bytes(local.device))
                self._on_device = self.training, copy
            return self._on_device[1]
        received, names = local.message.tensors, self.method.expand_reads
        tensors = {name: entry for name, entry in received.items() if name.startswith(names)}
        key = digest(pack({"tensors": tensors}, {}))
        if self._expanded is None or self._expanded[0] != key:
            self._expanded = None  # frees the images that the method computed before
            view = replace(local, message=replace(local.message, tensors=tensors))  # nothing that is not in the key
            expanded = self.method.expand(view, self.training, stream(self.seed, "expand", self.name))
            self._expanded = key, expanded
        return self._expanded[1]

    def _step(self, local: LocalRound, optimizer: torch.optim.Optimizer, batch: Batch, rng: torch.Generator) -> Tensor:
        """Do one training step; return its loss on the device, without waiting for it."""
        batch = batch.to(local.device)
        if self.settings.augment:
            batch = self.task.augment(batch, rng)
        batch = self.method.augment(local, batch)
        optimizer.zero_grad(set_to_none=True)
        loss, output = self.method.loss(local, batch)
        loss = loss + self.method.regulariser(local, output)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _batches(self, round_number: int, n_samples: int) -> Iterator[list[int]]:
        """Yield the indices of each training batch of a round, in an order that depends on seed, site and round."""
        size, rng = min(self.settings.batch_size, n_samples), stream(self.seed, "batches", self.name, round_number)
        for _ in range(self.local_epochs):
            order = torch.randperm(n_samples, generator=rng).tolist()
            yield from (order[start : start + size] for start in range(0, len(order), size))

    def _optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """A new optimizer, with the state of the site's last round if `optimizer_state` is "keep"."""
        parameters, settings = self.network.parameters(), self.settings
        optimizer: torch.optim.Optimizer
        if settings.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, learning_rate, settings.betas, weight_decay=settings.weight_decay)
        else:
            optimizer = torch.optim.SGD(
                parameters, learning_rate, settings.momentum, weight_decay=settings.weight_decay
            )
        if settings.optimizer_state == "keep":
            restored: dict[int, dict[str, Tensor]] = {}
            for name, entry in self.memory.items():
                if name.startswith(OPTIMIZER):
                    _, index, key = name.split("/")
                    restored.setdefault(int(index), {})[key] = entry.clone()
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": restored, "param_groups": groups})
        return optimizer

    def _update_memory(self, optimizer: torch.optim.Optimizer) -> None:
        """Store what the site keeps for its next round: its own network entries, and the optimizer's state."""
        if self.settings.optimizer_state == "keep":
            for index, moments in optimizer.state_dict()["state"].items():
                for key, entry in moments.items():
                    if entry is not None:
                        self.memory[f"{OPTIMIZER}{index}/{key}"] = torch.as_tensor(entry).detach().cpu()
        entries = self.network.state_dict()
        for name in sorted(self.local_keys):
            self.memory[LOCAL + name] = entries[name].detach().cpu().clone()
