"""The validation site: it never trains and shares nothing; it only scores the global weights on its own images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from medfed.federation.local_round import Samples, Task
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message


@dataclass
class ValidationSite:
    """A site that only scores weights; its scores can select the resulting round (`federation.selection`)."""

    name: str
    samples: Samples  # prepared images of all its patients
    task: Task
    network: nn.Module  # other sites may share it, because each request loads its own weights

    def reply(self, request: Message) -> Message:
        """Return the scores of the weights in a "validate" request as facts; ValueError for another kind of request."""
        if request.kind != Kind.VALIDATE:
            raise ValueError(
                f"{self.name}: is the validation site and replies to 'validate' only, not to '{request.kind}'"
            )
        if request.weights_digest and not request.weights:
            return Message(WEIGHTS_NEEDED)
        self.network.load_state_dict(request.weights)
        return Message(Kind.VALIDATE, facts=self.task.validate(self.network, self.samples))
