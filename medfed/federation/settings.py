"""The `training` and `federation` blocks of a config: what every method of a comparison has in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from medfed.federation.selection import RULES

PARTITIONS = ("domains", "heterogeneous", "dirichlet")
USED_BY = {"mixing": "heterogeneous", "concentration": "dirichlet", "min_images": "dirichlet"}


@dataclass(frozen=True)
class Training:
    """How a site trains for one round. The same for all methods of one table.

    Args:
        optimizer: "adam" or "sgd".
        learning_rate: step size, in the first round.
        schedule: "constant" over the rounds, or "cosine": half a wave from the first round down towards 0, constant
            within a round.
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
    schedule: str = "constant"
    betas: tuple[float, float] = (0.9, 0.99)
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 5
    augment: bool = True
    optimizer_state: str = "keep"

    def __post_init__(self) -> None:
        _one_of("optimizer", self.optimizer, ("adam", "sgd"))
        _one_of("schedule", self.schedule, ("constant", "cosine"))
        _one_of("optimizer_state", self.optimizer_state, ("keep", "reset"))
        _require(self.learning_rate > 0, "learning_rate must be above 0", self.learning_rate)
        _require(all(0 <= beta < 1 for beta in self.betas), "betas must lie in [0, 1)", list(self.betas))
        _require(0 <= self.momentum < 1, "momentum must lie in [0, 1)", self.momentum)
        _require(self.weight_decay >= 0, "weight_decay must be at least 0", self.weight_decay)
        _require(self.batch_size >= 1, "batch_size must be at least 1", self.batch_size)

    def learning_rate_in(self, round_number: int, rounds: int) -> float:
        """The step size of a round, which counts from 1, of so many."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * (round_number - 1) / rounds)) / 2


@dataclass(frozen=True)
class Federation:
    """How the sites work together.

    Args:
        unseen_site: the site that takes no part in training and is tested at the end; empty trains on all.
        validation_site: a second site that never trains and shares nothing; it only tells how good each validated
            round is on its images. Empty has none.
        participating: how many of the source sites train: the first so many in an order that the seed draws, so that 2
            has the site of 1. The others are as if they were not there: nobody reads or scores their images. null is
            all.
        clients: how many clients the training people of the sites are handed out to; 0 makes each site a client.
        partition: of `clients`: "domains" (each holds one site's images, as many clients a site), "heterogeneous"
            (`mixing` between sites apart and all alike) or "dirichlet" (shares of each site drawn at random).
        mixing: of "heterogeneous", lambda in [0, 1]: 0 keeps the sites apart, 1 gives every client the same of each.
        concentration: of "dirichlet", above 0: the smaller, the more unequal the clients.
        min_images: of "dirichlet": shares are drawn again until each client has that many training images.
        rounds: communication rounds.
        local_epochs: passes over its images that a site makes in a round.
        clients_per_round: how many clients, drawn at random each round, take part; 0 is all of them.
        quorum: how many sites' answers must be left for a round to count, without those that did not come or were not
            accepted; 0 is all that were asked.
        on_bad_update: what an answer does that `update_checks` does not accept: "stop" the run, or "drop" the
            site from this round, which goes on where `quorum` sites are left.
        largest_change: how many times the median length of the sites' changes one may be; null does not judge it. Needs
            at least 3 sites.
        validate_every: rounds between two validations on the source sites' validation patients; the last round always.
        selection: which round is the result: "last", or "source_validation" (the best mean validation score over the
            clients) or "validation_site" (the best score on it). Never chosen on the unseen site.
        batch_norm: "average" its parameters and statistics over the sites (the counters by maximum), or keep them
            "local": each source site is scored with its own, an unseen site with their average.
        engine: what carries the messages: "in_process", "processes" (one a site), "nvflare" (NVIDIA FLARE's simulator).
        reply_timeout_s: how long a site in a process of its own may take for an answer; 0 waits as long as it works.
    """

    unseen_site: str = ""
    validation_site: str = ""
    participating: int | None = None
    clients: int = 0
    partition: str = "domains"
    mixing: float = 0.1
    concentration: float = 0.5
    min_images: int = 1
    rounds: int = 100
    local_epochs: int = 1
    clients_per_round: int = 0
    quorum: int = 0
    on_bad_update: str = "stop"
    largest_change: float | None = None
    validate_every: int = 1
    selection: str = "last"
    batch_norm: str = "average"
    engine: str = "in_process"
    reply_timeout_s: float = 0.0

    def __post_init__(self) -> None:
        _one_of("selection", self.selection, tuple(RULES))
        _one_of("batch_norm", self.batch_norm, ("average", "local"))
        _require(self.rounds >= 1, "rounds must be at least 1", self.rounds)
        _require(self.local_epochs >= 1, "local_epochs must be at least 1", self.local_epochs)
        _require(self.clients_per_round >= 0, "clients_per_round must be at least 0", self.clients_per_round)
        _require(self.reply_timeout_s >= 0, "reply_timeout_s must be at least 0", self.reply_timeout_s)
        _require(self.validate_every >= 1, "validate_every must be at least 1", self.validate_every)
        if self.participating is not None:
            _require(self.participating >= 1, "participating must be at least 1, or null for all", self.participating)
        if self.batch_norm == "local" and self.selection != "last":
            raise ValueError("selection must be 'last' when batch_norm is 'local': earlier local entries are not kept")
        if self.validation_site and self.validation_site == self.unseen_site:
            raise ValueError(
                f"validation_site: '{self.validation_site}' is the unseen site, on which nothing may be chosen; name "
                "another site"
            )
        self._check_clients()
        self._check_answers()

    def partition_label(self) -> str:
        """The rule that hands the sites' people out, with the number that it goes by."""
        number = {"heterogeneous": f" {self.mixing:g}", "dirichlet": f" {self.concentration:g}"}
        return self.partition + number.get(self.partition, "")

    def _check_answers(self) -> None:
        _one_of("on_bad_update", self.on_bad_update, ("stop", "drop"))
        _require(self.quorum >= 0, "quorum must be at least 0", self.quorum)
        most = self.clients_per_round
        _require(not most or self.quorum <= most, f"quorum must be at most clients_per_round ({most})", self.quorum)
        if self.largest_change is not None:
            _require(self.largest_change >= 1, "largest_change must be at least 1, or null", self.largest_change)

    def _check_clients(self) -> None:
        _one_of("partition", self.partition, PARTITIONS)
        _require(self.clients >= 0, "clients must be at least 0", self.clients)
        _require(0 <= self.mixing <= 1, "mixing must lie in [0, 1]", self.mixing)
        _require(self.concentration > 0, "concentration must be above 0", self.concentration)
        _require(self.min_images >= 1, "min_images must be at least 1", self.min_images)
        if self.clients and self.batch_norm == "local":
            raise ValueError(
                "batch_norm must be 'average' when clients are handed the sites' people: scores are by site, and what "
                f"a client keeps belongs to none; got 'local' and clients {self.clients}"
            )
        used = {"partition": bool(self.clients)} | {key: self.partition == of for key, of in USED_BY.items()}
        for key, is_used in used.items():
            found, default = getattr(self, key), getattr(Federation, key)
            if found != default and not (is_used and self.clients):
                needs = f"partition '{USED_BY[key]}'" if key in USED_BY and self.clients else "clients above 0"
                raise ValueError(
                    f"{key} is {found}, which has no effect without {needs}; set that too, or leave {key} out"
                )


def _require(holds: bool, rule: str, found: object) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {found}")


def _one_of(name: str, found: str, known: tuple[str, ...]) -> None:
    _require(found in known, f"{name} must be one of {', '.join(known)}", f"'{found}'")


@dataclass(frozen=True)
class Plan:
    """What a method's hooks at the coordinator may know about the federation they work in.

    Args:
        sites: the sites that train, sorted by name; in one round fewer may take part. Empty where it is not known, as
            when a hook is called outside a federation.
        rounds: communication rounds in all; 0 where it is not known.
        training: how each site trains for one round.
    """

    sites: tuple[str, ...] = ()
    rounds: int = 0
    training: Training = Training()
