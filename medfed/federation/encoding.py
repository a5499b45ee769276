"""Named tensors and plain JSON values as bytes: one encoder and one strict decoder for messages and checkpoints.

The bytes are in the safetensors format and never pickle, so that reading them cannot run code. They may come from
another machine, so the decoder checks everything before it returns anything, and raises `InvalidMessage` whatever is
wrong. The encoder raises the same error for content that the decoder would refuse, so that a mistake is found where it
is made.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import safetensors
import torch
from torch import Tensor

from medfed.functional.weights import DTYPES

FORMAT = 1  # increased when the layout of the bytes changes
MAX_HEADER_BYTES = 2**24  # of a message: names, shapes and facts of about 100,000 tensors
MAX_CONTAINERS = 2**19  # lists and dicts in the header of a message; each needs 70 bytes of memory for 2 bytes of text
MAX_NAME_LENGTH = 1000
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # a surrogate, which UTF-8 cannot represent
MAX_DEPTH = 8  # of lists within lists in a fact
MAX_DIMENSIONS = 16
MAX_EMPTY_ELEMENTS = 2**24  # an empty tensor may be (0, 3, 384, 384), but no dimension costs memory when it is copied


class InvalidMessage(ValueError):
    """Bytes are not a valid message or checkpoint, or content cannot be sent as one."""


def pack(groups: Mapping[str, Mapping[str, Tensor]], header: Mapping[str, Any]) -> bytes:
    """Convert groups of named tensors, and a header of JSON values, to bytes; equal content gives equal bytes.

    `groups` is, for example, {"weights": {"conv.bias": tensor}}; a name has no "/". InvalidMessage if a tensor is
    sparse or its dtype is not one of `DTYPES`, a name is not valid (`check_name`), or a value is NaN, infinite or not a
    JSON value.
    """
    named: dict[str, Tensor] = {}
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            check_name(name)
            check_encodable(name, tensor)
            named[f"{group}/{name}"] = tensor.detach().to("cpu").contiguous()
    try:
        text = json.dumps({"format": FORMAT, "order": list(named), **header}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"a value is neither a finite number nor text, a list or a dict of these ({error})"
        ) from error
    specs = {  # as `safetensors.torch.save` makes them, which takes fifteen times as long for small tensors
        name: safetensors.TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tensor.shape,
            data_ptr=tensor.data_ptr(),
            data_len=tensor.nbytes,
        )
        for name, tensor in named.items()
    }
    # One metadata entry only: safetensors does not promise an order among several, and the bytes must be stable.
    return safetensors.serialize(specs, metadata={"medfed": text})


def unpack(data: bytes, groups: Collection[str]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Convert the bytes that `pack` returned back to groups of tensors (on the CPU, in their order) and a header.

    `groups` are the allowed groups. The memory used is about the size of `data`. InvalidMessage if `data` was not
    written by `pack`, has another group, or another format.
    """
    try:
        views = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        raise not_a_message(error) from error
    outer = parse_json(bytes(header_of(data)).decode())
    metadata = outer.get("__metadata__") or {}
    if not isinstance(text := metadata.get("medfed"), str):
        raise not_a_message("'medfed' is missing")
    header = defaultdict(lambda: None, parse_json(text))  # the readers refuse None
    check_format("format", header.get("format"), FORMAT)
    order = header["order"]
    if (
        not isinstance(order, list)
        or not all(isinstance(name, str) for name in order)
        or len(order) != len(views)
        or set(order) != views.keys()
    ):
        raise not_a_message("'order' does not list its tensors")
    packed: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
    for name in order:
        group, _, key = name.partition("/")
        check_name(key)
        if group not in groups:
            raise not_a_message(f"{reprlib.repr(name)} is in no known group")
        packed[group][key] = _tensor(key, **views[name])
    return packed, header


def header_of(data: bytes) -> memoryview:
    """Return the JSON header of bytes in the safetensors format, which follows 8 bytes with its length."""
    return memoryview(data)[8 : 8 + int.from_bytes(data[:8], "little")]


def check_header_size(header: bytes | memoryview) -> None:
    """Raise InvalidMessage if the parsed header would need much memory: too many characters, lists or dicts."""
    if len(header) > MAX_HEADER_BYTES:
        raise not_a_message(f"its header has {len(header):,} bytes, but at most {MAX_HEADER_BYTES:,} are allowed")
    text = bytes(header)
    if (n := text.count(b"[") + text.count(b"{")) > MAX_CONTAINERS:
        raise not_a_message(f"its header has {n:,} lists and dicts, but at most {MAX_CONTAINERS:,} are allowed")


def parse_json(text: str) -> dict[str, Any]:
    """Parse a JSON object; raise InvalidMessage for anything else, deep nesting, or a number that is not finite."""
    try:
        parsed = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise not_a_message(error) from error
    if not isinstance(parsed, dict):
        raise not_a_message("its header is not a JSON object")
    return parsed


def check_format(name: str, version: object, expected: int) -> None:
    """Raise InvalidMessage if the data have another version; `name` is what is versioned."""
    if type(version) is not int or version != expected:
        raise InvalidMessage(
            f"the data have {name} version {reprlib.repr(version)}, but the installed medfed reads {name} version "
            f"{expected}; use the version of medfed that wrote the data, or start another run with --out"
        )


def check_name(name: object) -> None:
    """Raise InvalidMessage unless this is text of at most `MAX_NAME_LENGTH` printable characters."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise not_a_message(
            f"{reprlib.repr(name)} is used as a name; expected at most {MAX_NAME_LENGTH} printable characters"
        )


def check_value(name: str, value: object, depth: int = 0) -> None:
    """Raise InvalidMessage unless a named value can be written as JSON and read back; NaN and infinity pass."""
    if depth > MAX_DEPTH:
        raise not_a_message(f"'{name}' has more than {MAX_DEPTH} lists within each other")
    if isinstance(value, list | tuple):
        for element in value:
            check_value(name, element, depth + 1)
    elif isinstance(value, dict):
        for key, element in value.items():
            check_name(key)
            check_value(name, element, depth + 1)
    elif isinstance(value, str):
        if HALF_CHARACTER.search(value):
            raise not_a_message(f"'{name}' is text with half a character, {ascii(value[:40])}")
    elif not (value is None or isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63)):
        raise not_a_message(f"'{name}' is of type {type(value).__name__}, which is not a JSON value of 64 bits")


def check_whole(name: str, value: object) -> None:
    """Raise InvalidMessage unless the value is a whole number of at least 0."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise not_a_message(f"'{name}' is {reprlib.repr(value)}, but a whole number from 0 is expected")


def not_a_message(reason: object) -> InvalidMessage:
    return InvalidMessage(f"this is not a medfed message or checkpoint ({reason})")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def check_encodable(name: str, tensor: object) -> None:
    """Check, before a tensor is encoded, what `_tensor` checks when it is decoded."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dtype not in DTYPES.values():
        kind = f"{tensor.layout} {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise not_a_message(f"'{name}' is {kind}, but a dense tensor of real numbers is expected")
    _check_shape(name, tensor.shape)


def _check_shape(name: str, shape: Collection[int]) -> None:
    if len(shape) > MAX_DIMENSIONS or (0 in shape and math.prod(n for n in shape if n) > MAX_EMPTY_ELEMENTS):
        raise not_a_message(f"'{name}' has the shape {reprlib.repr(tuple(shape))}, which is too large")


def _tensor(name: str, dtype: str, shape: list[int], data: bytearray) -> Tensor:
    """Return a tensor that uses the memory of `data`, whose length safetensors has compared with the shape."""
    if dtype not in DTYPES:
        raise not_a_message(f"'{name}' is {dtype}, but real numbers are expected")
    _check_shape(name, shape)
    if not data:
        return torch.empty(shape, dtype=DTYPES[dtype])
    if dtype == "BOOL" and torch.frombuffer(data, dtype=torch.uint8).amax() > 1:
        raise not_a_message(f"'{name}' has booleans that are neither 0 nor 1")
    return torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape)
