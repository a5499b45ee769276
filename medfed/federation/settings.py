"""The blocks `training`, `federation` and `cache` of a config: settings that all methods of a comparison share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from medfed.core import bounds
from medfed.core.bounds import (
    Count,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Ratio,
    RatioBelowOne,
)
from medfed.core.errors import UserError

Partition = Literal["domains", "heterogeneous", "dirichlet"]
NEEDED_PARTITION = {"mixing": "heterogeneous", "concentration": "dirichlet", "min_images": "dirichlet"}


@dataclass(frozen=True)
class Training:
    """How a site trains for one round. All methods of one comparison share these settings.

    Args:
        optimizer: optimizer of the local training, "adam" or "sgd".
        learning_rate: step size in the first round, above 0.
        schedule: how the step size changes over the rounds: "constant"; "cosine", which falls from `learning_rate` in
            the first round towards 0 along half a cosine wave; or "step", which multiplies the step size by
            `decay_factor` after every `decay_rounds` rounds. The step size is constant within a round.
        decay_rounds: for the schedule "step": the number of rounds with the same step size, at least 1. StableFDG's
            paper decays "every 20 steps" on Digits-DG and does not say what a step is; medfed reads it as a round.
        decay_factor: for the schedule "step": the step size is multiplied by this number, in (0, 1), at each decay.
        betas: Adam's two decay rates, each in [0, 1). ELCFS's paper has (0.9, 0.99), its code PyTorch's (0.9, 0.999).
        momentum: momentum of SGD, in [0, 1). Adam does not use it.
        weight_decay: weight of the L2 penalty of the optimizer, at least 0.
        batch_size: images per training step. A site with fewer images uses all of them, with a notice.
        augment: whether images are randomly rotated, scaled and flipped before the method changes them. Images with
            classes and slices of volumes are flipped from left to right, 2-D images with masks upside down.
        optimizer_state: "keep" carries each site's optimizer moments over the rounds (ELCFS, HarmoFL, FedDG-GA);
            "reset" clears them before every round (CCST, StableFDG, FISC).
        threads: CPU threads of one site's training, and of everything else that a run computes. It is part of the
            config, because another number of threads rounds sums differently. To use several cores, use the flag
            `--jobs`.
        precision: "float32", or "bf16" for GPUs, which computes the network's forward pass in bfloat16 (PyTorch's
            autocast). Weights, losses, Fourier transforms, statistics, aggregation and evaluation stay float32.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "cosine", "step"] = "constant"
    decay_rounds: Count = 20
    decay_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    betas: tuple[RatioBelowOne, RatioBelowOne] = (0.9, 0.99)
    momentum: RatioBelowOne = 0.0
    weight_decay: NonNegativeFloat = 0.0
    batch_size: Count = 5
    augment: bool = True
    optimizer_state: Literal["keep", "reset"] = "keep"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    precision: Literal["float32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    def learning_rate_in(self, round_number: int, rounds: int) -> float:
        """Return the step size of a round, counted from 1, in a run of `rounds` rounds; see `schedule`."""
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "step":
            return self.learning_rate * self.decay_factor ** ((round_number - 1) // self.decay_rounds)
        return self.learning_rate * (1 + math.cos(math.pi * (round_number - 1) / rounds)) / 2

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other key) for a setting of the schedule "step" that another schedule does not use."""
        for key in ("decay_rounds", "decay_factor"):
            value: Any = getattr(self, key)
            if value != getattr(Training, key) and self.schedule != "step":
                yield key, _needs(value, "schedule 'step'", key), "schedule"


@dataclass(frozen=True)
class Federation:
    """How the sites work together.

    Args:
        unseen_site: the site that takes no part in training and is tested at the end. "" trains on all sites.
        unseen_ratio: fraction of the unseen site's cases (images or volumes), above 0, that is tested. The cases are
            sampled at random by the seed, whatever their patients, because none of them is used for training; at least
            one is tested. 1 tests all.
        validation_site: a second site that does not train and shares nothing. Its images score each validated round,
            for `selection`. "" has none.
        participating: how many of the source sites train. The seed puts the source sites into a random order, and the
            first sites of this order train, so that a larger number adds sites and replaces none. The other sites are
            neither read nor scored. null trains on all source sites. `medfed.evaluate --methods local` trains each
            source site alone.
        clients: how many clients the training patients of the sites are divided among. 0 makes each site a client. 1
            trains on all images in one place, without a federation, as `medfed.evaluate --methods pooled` does.
        partition: how `clients` divide the patients: "domains" (each client has the patients of one site, every site
            has as many clients), "heterogeneous" (see `mixing`) or "dirichlet" (each client has random shares of the
            sites, see `concentration`).
        mixing: for the partition "heterogeneous": lambda in [0, 1]. 0 gives a client the patients of one site only, 1
            gives every client the same share of each site.
        concentration: for the partition "dirichlet": the parameter of the Dirichlet distribution, above 0. The smaller
            it is, the more the clients differ.
        min_images: for the partition "dirichlet": the shares are drawn again until each client has at least this many
            training images.
        rounds: number of communication rounds.
        local_epochs: how many times a site goes over its training images in a round.
        clients_per_round: how many clients, drawn at random in each round, take part. 0 takes all of them.
        quorum: how many accepted replies a round needs. 0 needs one from every site that was asked.
        on_bad_update: what happens if a reply fails the checks of `medfed.federation.checks`: "stop" ends the
            run; "drop" leaves the site out of this round, which continues if `quorum` replies remain.
        largest_change: a reply is rejected if it changes the global weights more than this many times as much as the
            median site, by the L2 norm or by the largest element. A site with k times as many images and training steps
            may change the weights k times as much (k at most 10). The running statistics of BatchNorm are compared with
            the median of the sites, too, by fixed limits. With fewer than 3 sites in a round neither is compared. An
            update with the weights of an earlier round is rejected as a copy. null checks none of this.
        largest_count: a reply is rejected if its number of training images, or of training steps, is more than this
            many times the median of the other sites. Two sites are named instead, because nothing shows which of them
            is wrong.
        validate_every: number of rounds between two validations on the source sites' validation patients. The last
            round is always validated.
        selection: which round's weights are the result: "last"; "source_validation" (the best mean validation score of
            the clients) or "validation_site" (the best score on that site). The unseen site is never used.
        batch_norm: "average" averages the BatchNorm parameters and statistics over the sites, and takes the maximum of
            the batch counters. "local" keeps all these values at the sites: each source site is scored with its own
            values, and an unseen site with their average. If patients are divided among `clients`, each client keeps
            its values, and all sites are scored with the average of the clients' values.
        engine: what carries the messages: "in_process", "processes" (one process per site, so that a site that crashes
            does not stop the others), "nvflare" (NVIDIA FLARE's simulator), or the dotted name of a class outside of
            medfed. The flag `--jobs N` lets N sites work at the same time: "in_process" divides the sites among N
            worker processes, and "processes" lets N of its processes work. The result depends neither on N nor on
            `engine`.
        reply_timeout_s: seconds that a site in a process of its own may take to reply. 0 waits without a limit.
        survey: whether the sites that train describe their images before round 1 (`survey.csv`), so that other units,
            missing classes or flipped images are named before any site trains: "none" asks no site, "warn" names each
            difference and trains, "stop" trains only if no site lacks a structure or class that another site reports.
            Neither a structure or class that no site has, nor a site that refuses the survey or has too few patients,
            stops the run. "auto" is "warn" in a federation of hospitals (`medfed.coordinator prepare`) and "none" in a
            simulation, where `medfed.data check` shows the same. A site with fewer patients than `data.min_patients`
            only says so. The trained weights do not depend on this setting.
    """

    unseen_site: str = ""
    unseen_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    validation_site: str = ""
    participating: PositiveInt | None = None
    clients: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    partition: Partition = "domains"
    mixing: Ratio = 0.1
    concentration: PositiveFloat = 0.5
    min_images: PositiveInt = 1
    rounds: Count = 100
    local_epochs: Count = 1
    clients_per_round: NonNegativeInt = 0
    quorum: NonNegativeInt = 0
    on_bad_update: Literal["stop", "drop"] = "stop"
    largest_change: Annotated[float, Field(ge=1)] | None = 10.0
    largest_count: Annotated[float, Field(ge=1)] = 100.0
    validate_every: PositiveInt = 1
    selection: Literal["last", "source_validation", "validation_site"] = "last"
    batch_norm: Literal["average", "local"] = "average"
    engine: str = "in_process"
    reply_timeout_s: NonNegativeFloat = 0.0
    survey: Literal["auto", "none", "warn", "stop"] = "auto"

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    def check_quorum(self, n_sites: int) -> None:
        """Raise UserError if `quorum` is larger than the number of sites in a round."""
        n_asked = min(self.clients_per_round or n_sites, n_sites)
        if self.quorum > n_asked:
            raise UserError(
                f"federation.quorum: is {self.quorum}, but only {n_asked} sites take part in a round; lower it"
            )

    @property
    def surveys(self) -> bool:
        """Whether the sites describe their images before round 1."""
        return self.survey in ("warn", "stop")

    def partition_label(self) -> str:
        """Return the setting `partition` with its parameter, such as "dirichlet 0.5" or "domains"."""
        parameter = {"heterogeneous": f" {self.mixing:g}", "dirichlet": f" {self.concentration:g}"}
        return self.partition + parameter.get(self.partition, "")

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other keys ...) for each value that has no effect or does not fit to another one."""
        if self.batch_norm == "local" and self.selection != "last":
            sentence = "must be 'last' when batch_norm is 'local': earlier local entries are not kept"
            yield "selection", sentence, "batch_norm"
        if self.validation_site and self.validation_site == self.unseen_site:
            sentence = (
                f"'{self.validation_site}' is the unseen site, which must not choose the round; name another site"
            )
            yield "validation_site", sentence, "unseen_site"
        if self.surveys and self.clients:
            sentence = f"is {self.survey}, but the participants are simulated clients, not sites; remove it"
            yield "survey", sentence, "clients"
        if self.clients_per_round and self.quorum > self.clients_per_round:
            sentence = f"must be at most clients_per_round ({self.clients_per_round}), got {self.quorum}"
            yield "quorum", sentence, "clients_per_round"
        yield from self._without_effect()

    def _without_effect(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other keys) for settings of clients that differ from their default and are not used."""
        if self.partition != Federation.partition and not self.clients:
            yield "partition", _needs(self.partition, "clients above 0", "partition"), "clients"
        for key, partition in NEEDED_PARTITION.items():
            value: Any = getattr(self, key)
            if value != getattr(Federation, key) and not (self.clients and self.partition == partition):
                missing = f"partition '{partition}'" if self.clients else "clients above 0"
                yield key, _needs(value, missing, key), "clients", "partition"


def _needs(value: object, missing: str, key: str) -> str:
    """Sentence that a setting has no effect without another one."""
    return f"is {value}, which has no effect without {missing}; set that too, or leave {key} out"


@dataclass(frozen=True)
class Cache:
    """Where each site stores the restyled images of a method (CCST, FISC). No score depends on these settings.

    Args:
        folder: where the images are stored during the run, in a file without a name, which the operating system removes
            when the program ends, also after a crash. "" is the temporary folder of the computer (the environment
            variable TMPDIR, else /tmp). null stores the images in memory. The folder must not lie in `data.root` or in
            the folder of the results of a run or of a comparison.
        max_gb: largest size of the stored images of one site in GB (10^9 bytes). Simulated clients together store no
            more than their sites would. Further images are computed again when they are needed. 0 stores none.
    """

    folder: str | None = ""
    max_gb: NonNegativeFloat = 10.0

    def __post_init__(self) -> None:
        bounds.check(self)

    @property
    def max_bytes(self) -> int:
        return int(self.max_gb * 1e9)

    def check_outside(self, folder: Path, source: str) -> None:
        """Raise UserError if images would be stored in a folder of results, which others may receive."""
        if self.folder and Path(self.folder).resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{source}: cache.folder: {self.folder} lies in the folder of results {folder}, which must not hold "
                "images of patients; choose another folder"
            )


@dataclass(frozen=True)
class Plan:
    """What a method's hooks at the coordinator may know about the federation.

    Args:
        sites: sorted names of the sites that train; in one round fewer may take part. Empty if they are not known, as
            when a hook is called outside of a federation.
        rounds: number of communication rounds; 0 if it is not known.
        training: how each site trains for one round.
    """

    sites: tuple[str, ...] = ()
    rounds: int = 0
    training: Training = Training()
