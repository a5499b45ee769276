"""Messages between coordinator and sites, and the coordinator's state, both as named tensors and plain JSON values.

The coordinator sends a request (`Message`) to each site and receives a reply (`Message`) from it; engines carry both as
the bytes of `Message.to_bytes`. `State` is everything that the coordinator remembers between rounds: a checkpoint is a
stored `State`. `medfed.federation.encoding` defines the bytes. Equal content always gives equal bytes; that makes it
possible to compare runs, and to recognise a request that was sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from medfed.federation.encoding import (
    InvalidMessage,
    check_format,
    check_header_size,
    check_name,
    check_value,
    check_whole,
    entry,
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


@dataclass(frozen=True)
class Message:
    """A request of the coordinator, or a site's reply.

    Attributes:
        kind: what is requested: "share" (send the method's statistics), "train" (train for one round), "validate"
            (score the weights), "survey" (describe the images) or "end" (the run is over). A reply has the kind of
            its request, except in two cases: "failed" (the site gives the reason), and "weights_needed" (the request
            has only the checksum of weights that the site does not have).
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
        """Check the types of all fields: names, and facts that can be written as JSON; no number is looked at.

        Whoever receives a message checks it before anything of it is used: `from_bytes` does, and so does the
        coordinator with every reply of an engine.

        Raises:
            InvalidMessage: if a field is invalid, if the fact `round` or `last` is not a whole number, or if a reply of
                kind "failed" does not give its reason as text.
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
        """Return the message as bytes in the safetensors format; equal messages give equal bytes.

        A fact is a named value of the message without a shape, such as the number of the round.

        Raises:
            InvalidMessage: if `from_bytes` would refuse the bytes: if `check` fails, a fact is NaN or infinite, or a
                tensor is not a dense tensor of real numbers.
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
        """Return the message that `to_bytes` converted to bytes.

        Args:
            data: the bytes of one message, in the safetensors format.

        Raises:
            InvalidMessage: if `data` is not a message, or was written by a version of medfed with another message
                format. No other exception is raised, whatever the bytes are.
        """
        check_header_size(header_of(data))
        groups, header = unpack(data, ("weights", "tensors"))
        kind, facts, named = entry(header, "kind"), entry(header, "facts"), header.get("weights_digest", "")
        message = Message(kind, groups.get("weights", {}), groups.get("tensors", {}), facts, named)
        message.check()
        return message


def failed_reply(why: str) -> Message:
    """Return a reply of kind "failed", which says that a site did not do what was requested.

    Args:
        why: the reason, as a clause whose subject is the site, such as "did not reply within 60 s". What cannot be sent
            as text, or is longer than `MAX_REASON_LENGTH` characters, is left out.
    """
    return Message(FAILED, facts={"why": why[:MAX_REASON_LENGTH].encode(errors="replace").decode()})


def readable(reply: Message) -> Message:
    """Return the reply, or a failed reply with the reason if the reply cannot be read (`Message.check`).

    Args:
        reply: a reply of a site, with fields of any type.
    """
    try:
        reply.check()
        return reply
    except InvalidMessage as error:
        return failed_reply(f"its reply cannot be read: {error}")


def failed_reply_to_error(error: Exception) -> Message:
    """Return a reply of kind "failed" for an error of a site, without the names of its files.

    The names of files and folders may contain names of patients, and the run folder stores the reasons of all failed
    replies. If the text of the error contains a path, the reply only says so, and the text is printed on stderr.

    Args:
        error: an error that a user can correct.
    """
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
        took_part: dictionary from the name of a site to the number of the last round in which its update was accepted.
            0 means that the site failed to share before round 1 and therefore never trains.
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
        """Return the state before the first round of training.

        Args:
            network: the network with its initial weights. The weights are copied to the CPU.
            local_keys: names of the entries that stay at the sites; None if they are not known.
        """
        weights = {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()}
        parameters = dict(network.named_parameters(remove_duplicate=False))
        return State(0, weights, parameters=frozenset(parameters) & weights.keys(), local_keys=local_keys)

    def to_bytes(self) -> bytes:
        """Return the state as bytes in the safetensors format; equal states give equal bytes.

        All fields except `plan` (the sites, the number of rounds and the training settings) and `local_keys` are
        included.

        Raises:
            InvalidMessage: if `from_bytes` would refuse the bytes.
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
        """Return the state that `to_bytes` converted to bytes.

        The fields `plan` (the sites, the number of rounds and the training settings) and `local_keys` are not stored
        and have their default values.

        Args:
            data: the bytes of one checkpoint, in the safetensors format.

        Raises:
            InvalidMessage: if `data` is not a checkpoint, or was written by a version of medfed with another checkpoint
                format. No other exception is raised, whatever the bytes are.
        """
        groups, header = unpack(data, ("weights", "memory"))
        check_format("checkpoint", header.get("checkpoint", 1), CHECKPOINT_FORMAT)
        if not isinstance(parameters := entry(header, "parameters"), list):
            raise not_a_message("'parameters' is not a list")
        for name in parameters:
            check_name(name)
        state = State(
            entry(header, "round"),
            groups.get("weights", {}),
            groups.get("memory", {}),
            entry(header, "took_part"),
            frozenset(parameters),
        )
        state._check()
        return state

    def _check(self) -> None:
        """Check the numbers of rounds and the names of sites; `pack` and `unpack` check the tensors."""
        check_whole("round", self.round)
        if not isinstance(self.took_part, dict):
            raise not_a_message("'took_part' is not a dict")
        for site, number in self.took_part.items():
            check_name(site)
            check_whole(f"took_part of {site}", number)


def digest(*parts: bytes) -> str:
    """Return the SHA-256 checksum of bytes, as 64 hexadecimal characters.

    Args:
        parts: the bytes, in any number of parts. Only their concatenation counts, not where one part ends.
    """
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def n_bytes(tensor: Tensor) -> int:
    """Return how many bytes the elements of a tensor need when it is sent.

    Args:
        tensor: a tensor of any shape and dtype. If it is expanded (a view that repeats elements), all repeated elements
            are counted, because all of them are sent.
    """
    return tensor.numel() * tensor.element_size()


def fact_bytes(fact: object) -> int:
    """Return how many bytes a fact needs when it is sent: the size of its JSON text.

    Args:
        fact: a JSON value, such as a loss or the number of a round.
    """
    return len(json.dumps(fact).encode())
