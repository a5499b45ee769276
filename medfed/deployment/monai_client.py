"""A medfed site as a client of another MONAI federation, through MONAI's client interface `monai.fl.client.ClientAlgo`.

The host is the program of that federation, such as NVIDIA FLARE with MONAI's executor: it calls this client and
averages the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from monai.fl.client.client_algo import ClientAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from torch import Tensor

from medfed.config.schema import load
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.deployment.hospital_state import hospital_secret
from medfed.experiments.setup import build_sites
from medfed.federation.image_moments import has_constants
from medfed.federation.message import Kind, Message
from medfed.federation.privacy import Privacy
from medfed.federation.site import Site

ROUND, LAST = "round", "last"  # keys of `extra` for hosts that count rounds; otherwise the client counts


class Aborted(Exception):
    """The host has aborted the training."""


class MedfedClient(ClientAlgo):
    """Client of a MONAI federation that trains with a method of medfed.

    Methods that need only averages at the coordinator (FedAvg, FedProx, MixStyle, RSC, ...) work with any host. Other
    methods (ELCFS, CCST, ...) need a host that also carries tensors and calls the method's hooks at the coordinator:
    the shared statistics are returned by `get_data_stats`, the tensors that the coordinator computes from them are
    passed to `train` as `data.statistics`, and the tensors of an update are returned by `get_weights`.

    The host is trusted: there is no agreement, no limit of rounds or of epsilon, and no ledger, unlike in medfed's own
    federation of hospitals. All returned tensors are copies. Weights keep the dtypes of the network; if the host has
    averaged BatchNorm's integer counters into fractions, they are rounded.

    Args:
        site: a site whose images have been read; `from_config` builds it from a config.
    """

    def __init__(self, site: Site) -> None:
        if has_constants(site.network.state_dict()):
            raise UserError(
                "data.standardise: dataset needs medfed's coordinator, which pools the sites' numbers; "
                "choose none, slice, volume or imagenet for another host"
            )
        self._site = site
        self._update: Message | None = None
        self._round, self._aborted = 0, False
        self._site.progress = self._stop_if_aborted
        if site.privacy != Privacy():
            site.noise_key = hospital_secret()  # a key from the config's seed would let the host compute the noise

    @classmethod
    def from_config(cls, config: str | Path, site: str, overrides: Sequence[str] = ()) -> MedfedClient:
        """Create the client for one site of a config, and read its images; UserError for the validation site."""
        loaded = load(config, overrides)
        set_deterministic(loaded.training.threads)
        sites, _ = build_sites(loaded, [site])
        if not sites:
            raise UserError(f"{config}: '{site}' is the validation site, which does not train; choose another site")
        return cls(sites[0])

    def initialize(self, extra: dict | None = None) -> None:
        name = (extra or {}).get(ExtraItems.CLIENT_NAME, self._site.name)
        if name != self._site.name:
            raise UserError(
                f"the host calls this client '{name}', but it holds the images of {self._site.name}; use that name"
            )

    def get_data_stats(self, extra: dict | None = None) -> ExchangeObject:
        """Return the statistics that the method shares before a round, and the number of training images.

        `extra` may hold the global weights as "weights"; before the first round, they follow from the config.
        """
        weights = self._weights((extra or {}).get("weights") or self._site.network.state_dict())
        reply = self._site.reply(Message(Kind.SHARE, weights, {}, {"round": self._round + 1}))
        n_images = len(self._site.training)
        return ExchangeObject(statistics={**copy.deepcopy(reply.tensors), FlStatistics.DATA_COUNT: n_images})

    def train(self, data: ExchangeObject, extra: dict | None = None) -> None:
        """Train for one round on complete weights, and on what `Method.broadcast` sends as `data.statistics`.

        `extra` may hold the number of the round ("round") and of the last round in which the host accepted an update of
        this site ("last"); otherwise the client counts the rounds.
        """
        extra, self._aborted = extra or {}, False
        number = int(extra.get(ROUND, self._round + 1))
        facts = {"round": number, "last": int(extra.get(LAST, self._round))}
        statistics = {name: entry for name, entry in (data.statistics or {}).items() if name not in set(FlStatistics)}
        tensors = {name: torch.as_tensor(entry).clone() for name, entry in statistics.items()}
        before = copy.deepcopy(self._site.memory)
        # Copied at once, because the update still refers to the network, which another site may use next.
        try:
            self._update = copy.deepcopy(self._site.reply(Message(Kind.TRAIN, self._weights_of(data), tensors, facts)))
        except BaseException:
            self._site.memory = before  # an incomplete round must leave no trace
            raise
        self._round = number

    def get_weights(self, extra: dict | None = None) -> ExchangeObject:
        """Return the complete weights after the last `train`; as statistics, other tensors, and steps and images."""
        if self._update is None:
            raise ValueError(f"{self._site.name}: has not trained yet; call train first")
        facts = self._update.facts
        statistics = {
            **copy.deepcopy(self._update.tensors),
            FlStatistics.NUM_EXECUTED_ITERATIONS: facts["steps"],
            FlStatistics.DATA_COUNT: facts["examples"],
        }
        weights = copy.deepcopy(self._update.weights)
        return ExchangeObject(weights=weights, weight_type=WeightType.WEIGHTS, statistics=statistics)

    def evaluate(self, data: ExchangeObject, extra: dict | None = None) -> ExchangeObject:
        """Return scores on the site's validation patients as `metrics`, mainly "score"; none without such patients."""
        request = Message(Kind.VALIDATE, self._weights_of(data), {}, {"round": self._round})
        return ExchangeObject(metrics=dict(self._site.reply(request).facts))

    def abort(self, extra: dict | None = None) -> None:
        """Let a running call of `train` raise `Aborted` after its present training step."""
        self._aborted = True

    def finalize(self, extra: dict | None = None) -> None:
        """Free the memory of the result of the last `train`; afterwards, `get_weights` raises ValueError."""
        self._update = None

    def _stop_if_aborted(self, site: str, step: int, n_steps: int) -> None:
        if self._aborted:
            raise Aborted(f"{site}: stopped by the host after step {step} of {n_steps}")

    def _weights_of(self, data: ExchangeObject) -> dict[str, Tensor]:
        if data.weight_type != WeightType.WEIGHTS or not data.weights:
            raise ValueError(
                f"{self._site.name}: expected complete weights ({WeightType.WEIGHTS}), got {data.weight_type}"
            )
        return self._weights(data.weights)

    def _weights(self, weights: Mapping[str, object]) -> dict[str, Tensor]:
        """Return copies of the weights on the CPU, with the dtypes of the network."""
        dtypes = {name: entry.dtype for name, entry in self._site.network.state_dict().items()}
        tensors = {name: torch.as_tensor(entry).detach().cpu() for name, entry in weights.items()}
        for name, entry in tensors.items():
            if entry.is_floating_point() and name in dtypes and not dtypes[name].is_floating_point:
                tensors[name] = entry.round()
        return {name: entry.to(dtypes.get(name, entry.dtype)).clone() for name, entry in tensors.items()}
