"""The training losses of one round, read from the device without waiting for it in every step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medfed.core.errors import UserError

STEPS_BETWEEN_CHECKS = 50  # on a GPU, where reading a number waits until all earlier steps have been computed


class StepLosses:
    """Collects the loss of each training step; UserError names the step whose loss is not finite."""

    def __init__(self, site: str, round_number: int, device: torch.device) -> None:
        self._site, self._round = site, round_number
        self._n_unread = 1 if device.type == "cpu" else STEPS_BETWEEN_CHECKS
        self._unread: list[Tensor] = []
        self._values: list[float] = []

    def add(self, loss: Tensor) -> None:
        self._unread.append(loss.detach().reshape(()))
        if len(self._unread) >= self._n_unread:
            self._read()

    def mean(self) -> float:
        """Return the mean over all steps, at least one, computed in float64."""
        self._read()
        total = 0.0
        for value in self._values:  # not `sum`, which rounds otherwise from Python 3.12 on
            total += value
        return total / len(self._values)

    def _read(self) -> None:
        values = torch.stack(self._unread).tolist() if self._unread else []
        self._unread = []
        for value in values:
            self._values.append(value)
            if not math.isfinite(value):
                raise UserError(
                    f"{self._site}: training diverged in round {self._round}, step {len(self._values)}: the loss is "
                    f"{value}; try a smaller training.learning_rate, or check the site's images with python -m "
                    "medfed.data check"
                )
