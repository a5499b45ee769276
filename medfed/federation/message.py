"""Messages between coordinator and sites, and the coordinator's state: named tensors and plain JSON values.

Engines carry requests and replies as the bytes of `Message.to_bytes`; a checkpoint is a stored `State`. Equal content
always gives equal bytes (`medfed.federation.encoding`), so that runs can be compared and a repeated request is
recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor, nn

from medfed.federation.encoding import (
    InvalidMessage,
    check_format,
    check_header_size,
    check_name,
    check_value,
    check_whole,
    header_of,
    not_a_message,
    pack,
    unpack,
)
from medfed.federation.settings import Plan

CHECKPOINT_FORMAT = 2  # increased when the layout of checkpoints changes
FAILED = "failed"  # the kind of a reply in which a site says why it could not do what was requested
WHOLE_FACTS = ("round", "last")  # facts of requests: the round, and the last round whose update was accepted
MAX_REASON_LENGTH = 1000  # characters of the reason in a failed reply
WEIGHTS_NEEDED = "weights_needed"  # the kind of a reply: "send the weights, I have only their checksum"


class Kind(str, Enum):
    """What a request asks of a site; messages and ledgers contain the value as text."""

    SURVEY = "survey"  # describe the images
    SHARE = "share"  # send the method's statistics
    TRAIN = "train"  # train for one round
    VALIDATE = "validate"  # score the weights
    END = "end"  # the run is over; the weights are those of the final model

    __str__ = str.__str__


@dataclass(frozen=True)
class Message:
    """A request of the coordinator, or a site's reply.

    Attributes:
        kind: what is requested: one of `Kind`, or another text in a message of an unknown sender. A reply has the kind
            of its request, except for "failed" (the site gives the reason) and "weights_needed" (the request has only
            the checksum of weights that the site does not have).
        weights: entries of the network's state dict.
        tensors: other tensors that the method sends, by name.
        facts: named values without a shape (plain JSON values), such as the number of the round or a loss.
        weights_digest: checksum of the global weights, in a request. If `weights` is empty, the site uses the weights
            that it received earlier with the same checksum. "" means that the request is complete: it contains its
            weights, or needs none. See `medfed.federation.model_transfer`.
    """

    kind: str
    weights: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    weights_digest: str = ""

    def check(self) -> None:
        """Check the types of all fields, but no numbers; the receiver does so before it uses anything of the message.

        Raises InvalidMessage.
        """
        for name in (self.kind, self.weights_digest):
            check_name(name)
        for group in (self.weights, self.tensors, self.facts):
            if not isinstance(group, dict):
                raise not_a_message(f"values of type {type(group).__name__}, but a dict is expected")
            for name in group:
                check_name(name)
        for name, tensor in [*self.weights.items(), *self.tensors.items()]:
            if not isinstance(tensor, Tensor):
                raise not_a_message(f"'{name}' is of type {type(tensor).__name__}, but a tensor is expected")
        for name, fact in self.facts.items():
            check_value(name, fact)
            if name in WHOLE_FACTS:
                check_whole(name, fact)
        if self.kind == FAILED and not isinstance(self.facts.get("why"), str):
            raise not_a_message("a failed reply without its reason, 'why'")

    def to_bytes(self) -> bytes:
        """Return the message in the safetensors format; equal messages give equal bytes.

        Raises:
            InvalidMessage: if `check` fails, a fact is NaN or infinite, or a tensor is not a dense tensor of real
                numbers.
        """
        self.check()
        header: dict[str, Any] = {"kind": self.kind, "facts": self.facts}
        if self.weights_digest:
            header["weights_digest"] = self.weights_digest
        data = pack({"weights": self.weights, "tensors": self.tensors}, header)
        check_header_size(header_of(data))
        return data

    @staticmethod
    def from_bytes(data: bytes) -> Message:
        """Read and check a message that `to_bytes` wrote.

        Raises:
            InvalidMessage: whatever is wrong with the bytes, for example if another version of medfed wrote them.
        """
        check_header_size(header_of(data))
        groups, header = unpack(data, ("weights", "tensors"))
        checksum = header.get("weights_digest", "")
        message = Message(header["kind"], groups["weights"], groups["tensors"], header["facts"], checksum)
        message.check()
        return message


def failed_reply(why: str) -> Message:
    """Return a reply of kind "failed" with a reason whose subject is the site, such as "did not reply within 60 s"."""
    return Message(FAILED, facts={"why": why[:MAX_REASON_LENGTH].encode(errors="replace").decode()})


def readable(reply: Message) -> Message:
    """Return a reply with fields of any type, or a failed reply with the reason if `Message.check` rejects it."""
    try:
        reply.check()
        return reply
    except InvalidMessage as error:
        return failed_reply(f"its reply cannot be read: {error}")


def failed_reply_to_error(error: Exception) -> Message:
    """Return a failed reply for an error of a site; a text with a path may name a patient, and is printed instead."""
    why = str(error)
    if "/" in why or os.sep in why:
        print(why, file=sys.stderr, flush=True)
        why = "could not reply; the reason names files and was printed where the site works"
    return failed_reply(why)


@dataclass(frozen=True)
class State:
    """The coordinator's state after a round; with it a run can be resumed, and a checkpoint stores exactly this.

    Attributes:
        round: number of finished rounds; 0 before the first round.
        weights: the global weights, as a state dict on the CPU.
        memory: the tensors that the method keeps at the coordinator, by name.
        took_part: by name of the site, the last round in which its update was accepted. 0 means that the site failed to
            share before round 1 and therefore never trains.
        parameters: the entries of `weights` that are parameters of the network. The others are buffers: running
            statistics and counters of BatchNorm.
        plan: sites, rounds and optimiser of this federation. `federate` sets it; it is not stored in a checkpoint.
        local_keys: names of the entries of `weights` that stay at the sites. None if they are not known; then the
            entries of an update are compared between the sites. It is not stored in a checkpoint.
    """

    round: int
    weights: dict[str, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)
    took_part: dict[str, int] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    plan: Plan = field(default=Plan(), compare=False)
    local_keys: frozenset[str] | None = field(default=None, compare=False)

    @staticmethod
    def of(network: nn.Module, local_keys: frozenset[str] | None = None) -> State:
        """Return the state before the first round, with a copy of the network's weights on the CPU."""
        weights = {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()}
        parameters = dict(network.named_parameters(remove_duplicate=False))
        return State(0, weights, parameters=frozenset(parameters) & weights.keys(), local_keys=local_keys)

    def to_bytes(self) -> bytes:
        """Return the checkpoint in the safetensors format, without `plan` and `local_keys`.

        Equal states give equal bytes. Raises InvalidMessage if `from_bytes` would refuse the bytes.
        """
        self._check()
        header = {
            "checkpoint": CHECKPOINT_FORMAT,
            "round": self.round,
            "took_part": self.took_part,
            "parameters": sorted(self.parameters),
        }
        return pack({"weights": self.weights, "memory": self.memory}, header)

    @staticmethod
    def from_bytes(data: bytes) -> State:
        """Read and check a checkpoint that `to_bytes` wrote; `plan` and `local_keys` get their default values.

        Raises:
            InvalidMessage: whatever is wrong with the bytes, for example if another version of medfed wrote them.
        """
        groups, header = unpack(data, ("weights", "memory"))
        check_format("checkpoint", header.get("checkpoint"), CHECKPOINT_FORMAT)
        if not isinstance(parameters := header["parameters"], list):
            raise not_a_message("'parameters' is not a list")
        for name in parameters:
            check_name(name)
        state = State(
            header["round"],
            groups["weights"],
            groups["memory"],
            header["took_part"],
            frozenset(parameters),
        )
        state._check()
        return state

    def _check(self) -> None:
        check_whole("round", self.round)
        if not isinstance(self.took_part, dict):
            raise not_a_message("'took_part' is not a dict")
        for site, number in self.took_part.items():
            check_name(site)
            check_whole(f"took_part of {site}", number)


def digest(*parts: bytes) -> str:
    """Return the SHA-256 checksum of the concatenated parts in hexadecimal."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 checksum, in hexadecimal, of names, order, dtypes, shapes and values."""
    return digest(pack({"weights": weights}, {}))


def n_bytes(tensor: Tensor) -> int:
    """Return how many bytes a tensor needs when it is sent; repeated elements of an expanded tensor all count."""
    return tensor.numel() * tensor.element_size()


def fact_bytes(fact: object) -> int:
    """Return the size of a fact's JSON text."""
    return len(json.dumps(fact).encode())
