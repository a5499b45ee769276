"""SWA (Izmailov et al., UAI 2018): the model is an average of the global weights over rounds.

P. Izmailov, D. Podoprikhin, T. Garipov, D. Vetrov, A. G. Wilson: "Averaging Weights Leads to Wider Optima and Better
Generalization", UAI 2018, https://arxiv.org/abs/1803.05407.

Idea: the weights of late rounds move around a good solution. Their average lies nearer to its centre, where the loss is
flatter, and flat solutions generalise better to other data. Sites send the same messages as FedAvg; only the
coordinator averages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from medfed.core.bounds import RatioBelowOne
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, Tensors
from medfed.functional.weights import add_prefix, select_prefix

MEAN, COUNT = "mean/", "n_averaged"  # in the coordinator's memory: the average, and (1,) the number of averaged rounds


@dataclass(frozen=True)
class SWA(Method):
    """FedAvg whose result is the average of the global weights after the rounds t0, t0 + 1, ..., T.

        a_t = a_{t-1} + (w_t - a_{t-1}) / n,   n = t - t0 + 1       the mean of n rounds (the paper's update of w_SWA)
        a_t = decay a_{t-1} + (1 - decay) w_t                       with `decay`, an exponential moving average

    Training goes on from the global weights w_t, and not from the average: `history.csv` has the scores of w_t. Only
    the result of the run is the average, up to the round that `federation.selection` chooses. In a stack, any
    aggregation can be averaged. Entries that are integers (BatchNorm's counters) are those of the last round.

    Departures: the paper averages the weights of one training over epochs with a cyclical or constant learning rate,
    and then computes BatchNorm's statistics once more from all images. Here the global weights are averaged over
    rounds, with the config's learning rate, and BatchNorm's statistics are averaged like the weights. `decay` is not in
    the paper.

    Args:
        start: fraction of the rounds that are not averaged, in [0, 1). With T rounds, averaging starts with round t0 =
            floor(start * T) + 1. The default 0.5 is our choice.
        decay: weight of the old average in an exponential moving average, in [0, 1). 0 gives the weights of the last
            round. null averages all rounds from t0 on alike.
    """

    start: RatioBelowOne = 0.5
    decay: RatioBelowOne | None = None

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Add the last round's weights to the average: `mean/ENTRY` in float64, and `n_averaged`, (1,)."""
        if state.round <= math.floor(self.start * state.plan.rounds + 1e-9):
            return {}
        n = int(state.memory[COUNT]) if COUNT in state.memory else 0
        mean = self._averaged(select_prefix(state.memory, MEAN), state.weights, n)
        return {**add_prefix(mean, MEAN), COUNT: torch.tensor([n + 1])}

    def result_weights(self, state: State) -> Tensors:
        """Return the average, with the weights of this last round; the weights themselves before round t0."""
        if COUNT not in state.memory:
            return super().result_weights(state)
        mean = self._averaged(select_prefix(state.memory, MEAN), state.weights, int(state.memory[COUNT]))
        return {name: mean[name].to(entry.dtype) for name, entry in state.weights.items()}

    def _averaged(self, mean: Mapping[str, Tensor], weights: Mapping[str, Tensor], n: int) -> Tensors:
        """Add the weights of one more round to the average of n rounds; integers are those of this round."""
        step = 1.0 if n == 0 else 1 / (n + 1) if self.decay is None else 1 - self.decay
        averaged = {}
        for name, entry in weights.items():
            new = entry.double() if entry.is_floating_point() else entry
            averaged[name] = new if n == 0 or not entry.is_floating_point() else mean[name] + step * (new - mean[name])
        return averaged
