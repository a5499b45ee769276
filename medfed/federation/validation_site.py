"""The validation site: it never trains and shares nothing; it only scores the global weights on its own images.

Its score can select the round that is the result (`federation.selection: validation_site`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from medfed.federation.local_round import Samples, Task
from medfed.federation.message import WEIGHTS_NEEDED, Message


@dataclass
class ValidationSite:
    """A site that never trains and only scores weights on its own images (setting `federation.validation_site`).

    Args:
        name: the name of the site.
        samples: prepared images of all its patients.
        task: computes the validation scores.
        network: the network; it may be shared with other sites, because each request loads its own weights.
    """

    name: str
    samples: Samples
    task: Task
    network: nn.Module

    def reply(self, request: Message) -> Message:
        """Compute the validation scores of the weights in a request, on all images of this site.

        Args:
            request: a message of kind "validate" with all entries of the network's state dict as `weights`.

        Returns:
            A message of kind "validate". Its `facts` are the scores by name, such as `score`. Exception: if the request
            has only the checksum of the weights (`Message.weights_digest`), and not the weights, the reply is an empty
            message of kind "weights_needed".

        Raises:
            ValueError: if the request has another kind, because this site neither trains nor shares.
        """
        if request.kind != "validate":
            raise ValueError(
                f"{self.name}: is the validation site and replies to 'validate' only, not to '{request.kind}'"
            )
        if request.weights_digest and not request.weights:
            return Message(WEIGHTS_NEEDED)
        self.network.load_state_dict(request.weights)
        return Message("validate", facts=self.task.validate(self.network, self.samples))
