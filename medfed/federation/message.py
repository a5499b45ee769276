"""Messages between coordinator and sites, and the coordinator's state, both as named tensors and plain JSON values.

The coordinator sends a request (`Message`) to each site and receives a reply (`Message`) from it; engines carry both as
the bytes of `Message.to_bytes`. `State` is everything that the coordinator remembers between rounds: a checkpoint is a
stored `State`. Messages and states are written as safetensors and never as pickle, so that reading them cannot run
code. Equal content always gives equal bytes; that makes it possible to compare runs, and to recognise a request that
was sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from medfed.core.errors import argument
from medfed.federation.settings import Plan

FORMAT = 1  # increased when the layout of messages changes
CHECKPOINT_FORMAT = 2  # increased when the layout of checkpoints changes
FAILED = "failed"  # the kind of a reply in which a site says why it could not do what was requested
WEIGHTS_NEEDED = "weights_needed"  # the kind of a reply: "send the weights, I have only their checksum"


@dataclass(frozen=True)
class Message:
    """A request of the coordinator, or a site's reply.

    Attributes:
        kind: what is requested: "share" (send the method's statistics), "train" (train for one round), "validate"
            (score the weights) or "end" (the run is over). A reply has the kind of its request, except in two cases:
            "failed" (the site gives the reason), and "weights_needed" (the request has only the checksum of weights
            that the site does not have).
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

    def to_bytes(self) -> bytes:
        """Return the message as bytes in the safetensors format; equal messages give equal bytes.

        A fact is a named value of the message without a shape, such as the number of the round.

        Raises:
            ValueError: if a fact is NaN or infinite.
            TypeError: if a fact is not a JSON value.
        """
        header: dict[str, Any] = {"kind": self.kind, "facts": self.facts}
        if self.weights_digest:
            header["weights_digest"] = self.weights_digest
        return pack({"weights": self.weights, "tensors": self.tensors}, header)

    @staticmethod
    def from_bytes(data: bytes) -> Message:
        """Return the message that `to_bytes` converted to bytes.

        Args:
            data: the bytes of one message, in the safetensors format.

        Raises:
            ValueError: if `data` is not a message, or was written by a version of medfed with another message format.
        """
        groups, header = unpack(data)
        kind, facts, named = _entry(header, "kind"), _entry(header, "facts"), str(header.get("weights_digest", ""))
        return Message(kind, groups.get("weights", {}), groups.get("tensors", {}), facts, named)


def failed_reply(why: str) -> Message:
    """Return a reply of kind "failed", which says that a site did not do what was requested.

    Args:
        why: the reason, as a clause whose subject is the site, such as "did not reply within 60 s".
    """
    return Message(FAILED, facts={"why": why})


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
    """

    round: int
    weights: dict[str, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)
    took_part: dict[str, int] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    plan: Plan = field(default=Plan(), compare=False)

    @staticmethod
    def of(network: nn.Module) -> State:
        """Return the state before the first round of training.

        Args:
            network: the network with its initial weights. The weights are copied to the CPU.
        """
        weights = {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()}
        parameters = dict(network.named_parameters(remove_duplicate=False))
        return State(0, weights, parameters=frozenset(parameters) & weights.keys())

    def to_bytes(self) -> bytes:
        """Return the state as bytes in the safetensors format; equal states give equal bytes.

        All fields except `plan` (the sites, the number of rounds and the training settings) are included.
        """
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

        The field `plan` (the sites, the number of rounds and the training settings) is not stored and has its default
        value.

        Args:
            data: the bytes of one checkpoint, in the safetensors format.

        Raises:
            ValueError: if `data` is not a checkpoint, or was written by a version of medfed with another checkpoint
                format.
        """
        groups, header = unpack(data)
        _check_format("checkpoint", header.get("checkpoint", 1), CHECKPOINT_FORMAT)
        return State(
            _entry(header, "round"),
            groups.get("weights", {}),
            groups.get("memory", {}),
            _entry(header, "took_part"),
            frozenset(_entry(header, "parameters")),
        )


def pack(groups: Mapping[str, Mapping[str, Tensor]], header: Mapping[str, Any]) -> bytes:
    """Convert several groups of named tensors, and a header, to bytes in the safetensors format.

    Equal content gives equal bytes. The tensors may be on any device and of any shape.

    Args:
        groups: for each name of a group, its tensors by name, such as {"weights": {"conv.bias": tensor}}. The name of a
            group must not contain "/".
        header: JSON values by name.

    Raises:
        ValueError: if a value of the header is NaN or infinite.
        TypeError: if a value of the header is not a JSON value.
    """
    named: dict[str, Tensor] = {}
    storages = set()
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            tensor = tensor.detach().to("cpu").contiguous()
            address = tensor.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory
            named[f"{group}/{name}"] = tensor.clone() if address in storages else tensor
            storages.add(address)
    text = json.dumps({"format": FORMAT, "order": list(named), **header}, sort_keys=True, allow_nan=False)
    # One metadata entry only: safetensors does not promise an order among several, and the bytes must be stable.
    return safetensors.torch.save(named, metadata={"medfed": text})


def unpack(data: bytes) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Convert the bytes that `pack` returned back to groups of tensors and a header.

    Args:
        data: the bytes, in the safetensors format.

    Returns:
        Two dicts. The first has, for each name of a group, its tensors by name, on the CPU and in the order in which
        they were packed; a group without tensors is missing. The second is the header: JSON values by name.

    Raises:
        ValueError: if `data` was not written by `pack`, or was written by a version of medfed with another format.
    """
    try:
        named = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["medfed"])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"these bytes are not a medfed message or checkpoint ({error})") from error
    _check_format("format", header.get("format"), FORMAT)
    groups: dict[str, dict[str, Tensor]] = {}
    for name in _entry(header, "order"):
        group, _, key = name.partition("/")
        groups.setdefault(group, {})[key] = _entry(named, name)
    return groups, header


def _entry(header: Mapping[str, Any], name: str) -> Any:
    if name not in header:
        raise ValueError(f"these bytes are not a medfed message or checkpoint ('{name}' is missing)")
    return header[name]


def _check_format(name: str, version: object, expected: int) -> None:
    if version != expected:
        raise ValueError(
            f"the data have {name} version {version}, but the installed medfed reads {name} version {expected}; use "
            f"the version of medfed that wrote the data, or start another run with {argument('out')}"
        )


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
