"""A hospital's side of the federation: it answers messages with messages, and its images stay where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers, stream
from medfed.federation.engine import OnStep
from medfed.federation.local_round import Architecture, LocalRound, Samples, SiteData, Task
from medfed.federation.message import Message, digest, pack
from medfed.federation.method import NEVER, Method
from medfed.federation.privacy import Privacy, protect
from medfed.federation.settings import Training
from medfed.functional.weights import check_same_entries, running_variances

OPTIMIZER, LOCAL = "optimizer/", "local/"  # prefixes in a site's memory


@dataclass
class Site:
    """One site. What it keeps between rounds is `memory`; everything else comes with the message.

    Args:
        training, validation: prepared images of the site's own patients.
        network: scratch space; several sites of one process may share it, as each answer loads it afresh.
        local_keys: entries of the state dict that stay here.
        local_epochs: passes over the images in a round.
        kept_bytes: how much of what the method makes of the images may stay in memory.
        privacy: the noise on whatever leaves.
        noise_key: what that is drawn from: 32 bytes that are a hospital's secret; a simulation's follows from the seed.
        rounds: of the whole training, for a learning rate that follows them.
    """

    name: str
    training: Samples
    validation: Samples | None
    task: Task
    method: Method
    network: nn.Module
    architecture: Architecture
    settings: Training
    local_keys: frozenset[str]
    local_epochs: int
    seed: int
    rounds: int = 1
    kept_bytes: int = 2 * 2**30
    privacy: Privacy = Privacy()
    noise_key: bytes = b""
    progress: OnStep | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    _expanded: tuple[str, Samples] | None = None

    def reply_key(self) -> str:
        """Cache key: all settings, other than the message and the data, that affect this site's reply."""
        rounds = None if self.settings.schedule == "constant" else self.rounds
        own = sorted(self.local_keys)
        return repr((self.settings, self.method, self.local_epochs, rounds, self.seed, own, self.privacy))

    def reply(self, request: Message) -> Message:
        """Return the site's reply to a request of the coordinator, with the privacy noise of its config.

        Args:
            request: of kind "share", "train" or "validate", with the global weights and the fact `round`.

        Returns:
            A message of the same kind. "share": the method's statistics (`Method.share`). "train": the weights after
            local training, the tensors of `Method.on_round_end`, and the facts `examples` (number of training images),
            `steps` and `loss` (mean over the steps). "validate": the validation scores, as facts.

        Raises:
            ValueError: if the kind is unknown, or the weights do not fit the network.
            UserError: if the loss is not finite.
        """
        handlers = {"share": self._share, "train": self._train, "validate": self._validate}
        if request.kind not in handlers:
            raise ValueError(f"{self.name}: cannot reply to a request of kind '{request.kind}'")
        reply = handlers[request.kind](request)
        if self.privacy == Privacy():
            return reply
        secret = self.noise_key or f"simulation {self.seed}".encode()
        # The reply is part of the key, so that the same noise is used again only for the same reply to the same
        # request: two different replies with the same noise would reveal it by their difference.
        key = digest(secret, self.name.encode(), repr(self.privacy).encode(), request.to_bytes(), reply.to_bytes())
        return protect(reply, request, self.privacy, secret + bytes.fromhex(key), running_variances(self.network))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Put the global weights, overlaid by what stays at this site, into the network."""
        merged = self._merged(weights)
        check_same_entries(self.network.state_dict(), merged)
        self.network.load_state_dict(merged)

    def local_entries(self) -> dict[str, Tensor]:
        """What stays at this site of the state dict; empty before its first round."""
        return {name.removeprefix(LOCAL): entry for name, entry in self.memory.items() if name.startswith(LOCAL)}

    def _merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**weights, **self.local_entries()}

    def _share(self, message: Message) -> Message:
        if self.method.shares == NEVER:
            return Message("share")
        self.load(message.weights)
        self.network.eval()
        rng = stream(self.seed, "share", self.name, message.facts["round"])
        data = SiteData(self.name, self.training, self.task, self.architecture, rng, self.validation)
        return Message("share", tensors=self.method.share(data, self.network))

    def _validate(self, message: Message) -> Message:
        if self.validation is None:
            return Message("validate")
        self.load(message.weights)
        facts = self.task.validate(self.network, self.validation, self.architecture.decoder_levels)
        return Message("validate", facts=facts)

    def _train(self, message: Message) -> Message:
        self.load(message.weights)
        self.network.train()
        local = self._round(message)
        optimizer = self._optimizer(local.learning_rate)
        samples = self._samples(local)
        batches = list(self._batches(local.round, len(samples)))
        local.n_steps = len(batches)
        # A stream a purpose, so that methods see the same batches and augmentations whatever they draw themselves.
        turns = stream(self.seed, "augmentation", self.name, local.round)
        total = 0.0
        with seeded_layers(self.seed, "layers", self.name, local.round):
            self.method.on_round_start(local)
            for step, indices in enumerate(batches, start=1):
                total += self._step(local, optimizer, samples.batch(indices), turns, step)
                if self.progress:
                    self.progress(self.name, step, len(batches))
            tensors = self.method.on_round_end(local)
        self._keep(optimizer)
        weights = {n: entry for n, entry in self.network.state_dict().items() if n not in self.local_keys}
        facts = {"examples": len(self.training), "steps": len(batches), "loss": total / len(batches)}
        return Message("train", weights, tensors, facts)

    def _round(self, message: Message) -> LocalRound:
        number, device = message.facts["round"], next(self.network.parameters()).device
        return LocalRound(
            site=self.name,
            round=number,
            network=self.network,
            architecture=self.architecture,
            task=self.task,
            message=message,
            memory=self.memory,
            rng=stream(self.seed, "method", self.name, number),
            device=device,
            training=self.training,
            validation=self.validation,
            local_keys=self.local_keys,
            start_weights={name: entry.to(device) for name, entry in self._merged(message.weights).items()},
            settings=self.settings,
            learning_rate=self.settings.learning_rate_in(number, self.rounds),
            rounds=self.rounds,
            max_cache_bytes=self.kept_bytes,
        )

    def _samples(self, local: LocalRound) -> Samples:
        """What the method makes of the site's samples, made anew only where the coordinator sent something else."""
        if type(self.method).expand is Method.expand:
            return self.training
        sent = digest(pack({"tensors": local.message.tensors}, {}))
        if self._expanded is None or self._expanded[0] != sent:
            expanded = self.method.expand(local, self.training, stream(self.seed, "expand", self.name))
            self._expanded = sent, expanded
        return self._expanded[1]

    def _step(
        self, local: LocalRound, optimizer: torch.optim.Optimizer, batch: Batch, turns: torch.Generator, step: int
    ) -> float:
        if self.settings.augment:
            batch = self.task.augment(batch, turns)
        batch = self.method.augment(local, batch.to(local.device))
        optimizer.zero_grad(set_to_none=True)
        loss, output = self.method.loss(local, batch)
        loss = loss + self.method.regulariser(local, output)
        loss.backward()
        optimizer.step()
        if not math.isfinite(value := float(loss.detach())):
            raise UserError(
                f"{self.name}: training diverged in round {local.round}, step {step}: the loss is {value}; try a "
                "smaller training.learning_rate, or look at the site's images with python -m medfed.data check"
            )
        return value

    def _batches(self, round_number: int, n_samples: int) -> Iterator[list[int]]:
        size, rng = min(self.settings.batch_size, n_samples), stream(self.seed, "batches", self.name, round_number)
        for _ in range(self.local_epochs):
            order = torch.randperm(n_samples, generator=rng).tolist()
            yield from (order[start : start + size] for start in range(0, len(order), size))

    def _optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        parameters, s = self.network.parameters(), self.settings
        optimizer: torch.optim.Optimizer
        if s.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, learning_rate, s.betas, weight_decay=s.weight_decay)
        else:
            optimizer = torch.optim.SGD(parameters, learning_rate, s.momentum, weight_decay=s.weight_decay)
        if s.optimizer_state == "keep":
            restored: dict[int, dict[str, Tensor]] = {}
            for name, entry in self.memory.items():
                if name.startswith(OPTIMIZER):
                    _, index, key = name.split("/")
                    restored.setdefault(int(index), {})[key] = entry.clone()
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": restored, "param_groups": groups})
        return optimizer

    def _keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Move what stays at the site into its memory: the optimiser's moments and the local entries."""
        if self.settings.optimizer_state == "keep":
            for index, moments in optimizer.state_dict()["state"].items():
                for key, entry in moments.items():
                    if entry is not None:
                        self.memory[f"{OPTIMIZER}{index}/{key}"] = torch.as_tensor(entry).detach().cpu()
        entries = self.network.state_dict()
        for name in sorted(self.local_keys):
            self.memory[LOCAL + name] = entries[name].detach().cpu().clone()

