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

    def reply(self, request: Message) -> Message:
        """Return the validation scores of the request's weights on all images of this site.

        Args:
            request: of kind "validate", with all entries of the network.

        Returns:
            A message of kind "validate", with the scores as facts.

        Raises:
            ValueError: if the request is of another kind, as this site neither trains nor shares.
        """
        if request.kind != "validate":
            raise ValueError(
                f"{self.name}: is the validation site and replies to 'validate' only, not to '{request.kind}'"
            )
        self.network.load_state_dict(request.weights)
        return Message("validate", facts=self.task.validate(self.network, self.samples))
