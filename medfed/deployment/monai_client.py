"""A medfed site inside somebody else's MONAI federation: `monai.fl`'s client interface over the same site object."""

from __future__ import annotations

import copy
import secrets
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
from medfed.experiments.setup import build_site
from medfed.federation.message import Message
from medfed.federation.privacy import Privacy
from medfed.federation.site import Site

ROUND, LAST = "round", "last"  # in `extra`, where the host counts; this object counts for itself otherwise


class Aborted(Exception):
    """The host called `abort` while the site trained."""


class MedfedClient(ClientAlgo):
    """Any method of medfed that needs nothing but averages at the coordinator (FedAvg, FedProx, MixStyle, RSC, ...)
    works as it is. A method with more (ELCFS, CCST) needs a host that carries tensors: what the site shares is
    `get_data_stats().statistics`, what the coordinator's hooks make of it goes into `train` as `data.statistics`, and
    what the site sends beside the weights comes out of `get_weights` as `statistics`.

    All tensors that come out are copies, and weights keep their dtypes: BatchNorm's counters stay whole numbers, also
    where a host has averaged them into fractions.

    Args:
        site: a site whose images have been read; or use `from_config`.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._update: Message | None = None
        self._round, self._aborted = 0, False
        self._site.progress = self._stop_if_aborted
        if site.privacy != Privacy():
            site.noise_key = secrets.token_bytes(32)  # what follows from the config's seed, the host could draw again

    @classmethod
    def from_config(cls, config: str | Path, site: str, overrides: Sequence[str] = ()) -> MedfedClient:
        """The site of a config.

        Raises:
            UserError: for whatever is wrong with the config or the site's files, or if it is the validation site.
        """
        set_deterministic()
        found = build_site(load(config, overrides), site)
        if not isinstance(found, Site):
            raise UserError(f"{config}: '{site}' is the validation site, which does not train; name another")
        return cls(found)

    def initialize(self, extra: dict | None = None) -> None:
        """UserError if the host calls this client by a name that is not the site's."""
        name = (extra or {}).get(ExtraItems.CLIENT_NAME, self._site.name)
        if name != self._site.name:
            raise UserError(
                f"the host calls this client '{name}', but it holds the images of {self._site.name}; name it so"
            )

    def get_data_stats(self, extra: dict | None = None) -> ExchangeObject:
        """What the method shares, by name, and the number of training images.

        Args:
            extra: may hold `weights`, the global ones; before the first round those that the seed gives are the same.
        """
        weights = self._weights((extra or {}).get("weights") or self._site.network.state_dict())
        answer = self._site.reply(Message("share", weights, {}, {"round": self._round + 1}))
        n_images = len(self._site.training)
        return ExchangeObject(statistics={**copy.deepcopy(answer.tensors), FlStatistics.DATA_COUNT: n_images})

    def train(self, data: ExchangeObject, extra: dict | None = None) -> None:
        """One round from the weights of `data`; `get_weights` has the outcome.

        Raises:
            ValueError: if `data` holds no full weights that fit the network.
            Aborted: if the host called `abort` meanwhile.
        """
        extra, self._aborted = extra or {}, False
        number = int(extra.get(ROUND, self._round + 1))
        facts = {"round": number, "last": int(extra.get(LAST, self._round))}
        told = {name: entry for name, entry in (data.statistics or {}).items() if name not in set(FlStatistics)}
        tensors = {name: torch.as_tensor(entry).clone() for name, entry in told.items()}
        before = copy.deepcopy(self._site.memory)
        # A copy at once: the weights are still the network's own, which another site of this process may use next.
        try:
            self._update = copy.deepcopy(self._site.reply(Message("train", self._weights_of(data), tensors, facts)))
        except BaseException:
            self._site.memory = before  # a round that stopped half way counts for nothing
            raise
        self._round = number

    def get_weights(self, extra: dict | None = None) -> ExchangeObject:
        """Full weights after the last `train`, and as statistics how many steps and images they are from.

        Raises:
            ValueError: if nothing was trained yet.
        """
        if self._update is None:
            raise ValueError(f"{self._site.name}: has not trained yet; call train first")
        facts = self._update.facts
        statistics = {**copy.deepcopy(self._update.tensors), FlStatistics.NUM_EXECUTED_ITERATIONS: facts["steps"],
                      FlStatistics.DATA_COUNT: facts["examples"]}  # fmt: skip
        weights = copy.deepcopy(self._update.weights)
        return ExchangeObject(weights=weights, weight_type=WeightType.WEIGHTS, statistics=statistics)

    def evaluate(self, data: ExchangeObject, extra: dict | None = None) -> ExchangeObject:
        """The validation score of the weights of `data` on the site's validation people; no metrics if it has none."""
        letter = Message("validate", self._weights_of(data), {}, {"round": self._round})
        return ExchangeObject(metrics=dict(self._site.reply(letter).facts))

    def abort(self, extra: dict | None = None) -> None:
        """Training ends after the step that it is in."""
        self._aborted = True

    def finalize(self, extra: dict | None = None) -> None:
        """Let go of the last update."""
        self._update = None

    def _stop_if_aborted(self, site: str, step: int, n_steps: int) -> None:
        if self._aborted:
            raise Aborted(f"{site}: stopped by the host after step {step} of {n_steps}")

    def _weights_of(self, data: ExchangeObject) -> dict[str, Tensor]:
        if data.weight_type != WeightType.WEIGHTS or not data.weights:
            raise ValueError(f"{self._site.name}: expected full weights ({WeightType.WEIGHTS}), got {data.weight_type}")
        return self._weights(data.weights)

    def _weights(self, weights: Mapping[str, object]) -> dict[str, Tensor]:
        """Copies, on the CPU, in the dtypes of the network."""
        dtypes = {name: entry.dtype for name, entry in self._site.network.state_dict().items()}
        found = {name: torch.as_tensor(entry).detach().cpu() for name, entry in weights.items()}
        return {name: _in(entry, dtypes.get(name, entry.dtype)).clone() for name, entry in found.items()}


def _in(entry: Tensor, dtype: torch.dtype) -> Tensor:
    return (entry.round() if entry.is_floating_point() and not dtype.is_floating_point else entry).to(dtype)
