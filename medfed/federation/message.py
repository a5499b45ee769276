"""What travels between coordinator and sites, and what the coordinator remembers: named tensors and plain facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.federation.settings import Plan

FORMAT = 1  # raised when the layout of messages changes
CHECKPOINT_FORMAT = 2  # raised when the layout of checkpoints changes
FAILED = "failed"  # the kind of a reply that says why there is no other


@dataclass(frozen=True)
class Message:
    """One letter.

    kind: what is asked or answered: "share", "train", "validate".
    weights: entries of the network's state dict.
    tensors: whatever else a method sends, by name.
    facts: plain JSON values (numbers, strings, lists).
    """

    kind: str
    weights: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As safetensors; no pickle, so reading it cannot run code."""
        return pack({"weights": self.weights, "tensors": self.tensors}, {"kind": self.kind, "facts": self.facts})

    @staticmethod
    def from_bytes(data: bytes) -> Message:
        """Raises ValueError if these bytes are not a message of this format."""
        groups, header = unpack(data)
        return Message(
            _entry(header, "kind"), groups.get("weights", {}), groups.get("tensors", {}), _entry(header, "facts")
        )


def failed_reply(why: str) -> Message:
    """The reply in place of one that a site could not give.

    Args:
        why: a clause, such as "did not reply within 60 s".
    """
    return Message(FAILED, facts={"why": why})


@dataclass(frozen=True)
class State:
    """Everything that the coordinator needs to go on: a checkpoint is exactly this.

    round: rounds finished; 0 before the first.
    weights: the global state dict.
    parameters: the entries of `weights` that are parameters of the network. The others are buffers: BatchNorm's running
        statistics and counters.
    memory: what the method keeps at the coordinator, by name.
    took_part: the last round that each site trained in, of those that counted; 0 of a site that failed to share before
        round 1 and so never does.
    plan: the sites, rounds and optimiser of this federation. `federate` sets it; it is not part of a checkpoint.
    """

    round: int
    weights: dict[str, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)
    took_part: dict[str, int] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    plan: Plan = field(default=Plan(), compare=False)

    @staticmethod
    def of(network: nn.Module) -> State:
        """The state before the first round: copies of the network's weights, on the CPU."""
        weights = {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()}
        parameters = dict(network.named_parameters(remove_duplicate=False))
        return State(0, weights, parameters=frozenset(parameters) & weights.keys())

    def to_bytes(self) -> bytes:
        header = {
            "checkpoint": CHECKPOINT_FORMAT,
            "round": self.round,
            "took_part": self.took_part,
            "parameters": sorted(self.parameters),
        }
        return pack({"weights": self.weights, "memory": self.memory}, header)

    @staticmethod
    def from_bytes(data: bytes) -> State:
        """Raises ValueError if these bytes are not a checkpoint of this format."""
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
    """Groups of named tensors and a JSON header as safetensors bytes; equal content gives equal bytes."""
    named: dict[str, Tensor] = {}
    stored = set()
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            tensor = tensor.detach().to("cpu").contiguous()
            place = tensor.untyped_storage().data_ptr()
            named[f"{group}/{name}"] = tensor.clone() if place in stored else tensor  # safetensors refuses to share
            stored.add(place)
    text = json.dumps({"format": FORMAT, "order": list(named), **header}, sort_keys=True, allow_nan=False)
    # One metadata entry only: safetensors does not promise an order among several, and the bytes must be stable.
    return safetensors.torch.save(named, metadata={"medfed": text})


def unpack(data: bytes) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What `pack` put in: the tensors by group, in their order, and the header."""
    try:
        named = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["medfed"])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"these bytes are no medfed message or checkpoint ({error})") from error
    _check_format("format", header.get("format"), FORMAT)
    groups: dict[str, dict[str, Tensor]] = {}
    for name in _entry(header, "order"):
        group, _, key = name.partition("/")
        groups.setdefault(group, {})[key] = _entry(named, name)
    return groups, header


def _entry(header: Mapping[str, Any], name: str) -> Any:
    """One entry of a header; ValueError if it is missing."""
    if name not in header:
        raise ValueError(f"these bytes are no medfed message or checkpoint ('{name}' is missing)")
    return header[name]


def _check_format(what: str, found: object, expected: int) -> None:
    if found != expected:
        raise ValueError(
            f"this is {what} {found}, and this version of medfed reads {what} {expected}; use the version of medfed "
            "that wrote it, or start another run with --out"
        )


def digest(*parts: bytes) -> str:
    """SHA-256 of the parts one after another, in hexadecimal."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def n_bytes(tensor: Tensor) -> int:
    """What a tensor costs on the wire, without its name."""
    return tensor.numel() * torch.empty((), dtype=tensor.dtype).element_size()
