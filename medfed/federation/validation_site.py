"""A site that never trains and shares nothing: it tells how good the global weights are on its images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from medfed.federation.local_round import Samples, Task
from medfed.federation.message import Message


@dataclass
class ValidationSite:
    """The validation site (`federation.validation_site`). It has nothing to train with.

    Args:
        samples: prepared images of all its patients.
        network: scratch space, as a `Site` has it.
    """

    name: str
    samples: Samples
    task: Task
    network: nn.Module

    def answer(self, message: Message) -> Message:
        """The score of the weights; ValueError for whatever else the coordinator asks."""
        if message.kind != "validate":
            raise ValueError(f"{self.name}: is the validation site and answers 'validate' alone, not '{message.kind}'")
        self.network.load_state_dict(message.weights)
        return Message("validate", facts=self.task.validate(self.network, self.samples))
