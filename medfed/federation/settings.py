"""The `training` and `federation` blocks of a config: what every method of a comparison has in common."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.federation.selection import RULES


@dataclass(frozen=True)
class Training:
    """How a site trains for one round. The same for all methods of one table.

    Args:
        optimizer: "adam" or "sgd".
        learning_rate: step size, constant over the rounds.
        betas: Adam's decay rates in [0, 1). ELCFS's paper has (0.9, 0.99), its code PyTorch's (0.9, 0.999).
        momentum: of SGD, in [0, 1).
        weight_decay: at least 0.
        batch_size: images a step; clamped, with a notice, to the number of images of a small site.
        augment: random rotation, scaling and flipping before whatever the method does to the images.
        optimizer_state: "keep" each site's moments over the rounds (ELCFS, HarmoFL, FedDG-GA), or "reset" them every
            round (CCST, StableFDG, FISC).
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 5
    augment: bool = True
    optimizer_state: str = "keep"

    def __post_init__(self) -> None:
        _one_of("optimizer", self.optimizer, ("adam", "sgd"))
        _one_of("optimizer_state", self.optimizer_state, ("keep", "reset"))
        _require(self.learning_rate > 0, "learning_rate must be above 0", self.learning_rate)
        _require(all(0 <= beta < 1 for beta in self.betas), "betas must lie in [0, 1)", list(self.betas))
        _require(0 <= self.momentum < 1, "momentum must lie in [0, 1)", self.momentum)
        _require(self.weight_decay >= 0, "weight_decay must be at least 0", self.weight_decay)
        _require(self.batch_size >= 1, "batch_size must be at least 1", self.batch_size)


@dataclass(frozen=True)
class Federation:
    """How the sites work together.

    Args:
        unseen_site: the site that takes no part in training and is tested at the end; empty trains on all.
        rounds: communication rounds.
        local_epochs: passes over its images that a site makes in a round.
        clients_per_round: how many sites, drawn at random each round, take part; 0 is all of them.
        validate_every: rounds between two validations on the source sites' validation patients; the last round always.
        selection: which round is the result: "last", or "source_validation" (the best mean validation score over the
            source sites). Never chosen on the unseen site.
        batch_norm: "average" its parameters and statistics over the sites (the counters by maximum), or keep them
            "local": each source site is scored with its own, an unseen site with their average.
        engine: what carries the messages.
    """

    unseen_site: str = ""
    rounds: int = 100
    local_epochs: int = 1
    clients_per_round: int = 0
    validate_every: int = 1
    selection: str = "last"
    batch_norm: str = "average"
    engine: str = "in_process"

    def __post_init__(self) -> None:
        _one_of("selection", self.selection, tuple(RULES))
        _one_of("batch_norm", self.batch_norm, ("average", "local"))
        _require(self.rounds >= 1, "rounds must be at least 1", self.rounds)
        _require(self.local_epochs >= 1, "local_epochs must be at least 1", self.local_epochs)
        _require(self.clients_per_round >= 0, "clients_per_round must be at least 0", self.clients_per_round)
        _require(self.validate_every >= 1, "validate_every must be at least 1", self.validate_every)
        if self.batch_norm == "local" and self.selection != "last":
            raise ValueError("selection must be 'last' when batch_norm is 'local': earlier local entries are not kept")


def _require(holds: bool, rule: str, found: object) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {found}")


def _one_of(name: str, found: str, known: tuple[str, ...]) -> None:
    _require(found in known, f"{name} must be one of {', '.join(known)}", f"'{found}'")
