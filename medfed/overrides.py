"""`--set key.sub=value`: values that the command line puts over those of a config file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from medfed import strict_yaml
from medfed.errors import UserError
from medfed.typed import Wrong, shown

DEFAULT_PRESET = "medfed"
_RESTART = {  # keys that restart their block when they change, in the order in which they apply; and what stays of it
    ("data", "name"): (),
    ("network", "name"): (),
    ("method", "name"): (),
    ("method", "preset"): ("name",),
}


@dataclass(frozen=True)
class Override:
    """One value at a dotted key; `text` is what the user wrote, for messages."""

    path: tuple[str, ...]
    value: object
    text: str

    @classmethod
    def of(cls, key: str, value: object) -> Override:
        """From a dotted key and a plain value, when a program changes a config."""
        return cls(tuple(key.split(".")), value, f"{key}={value}")

    @classmethod
    def parse(cls, text: str) -> Override:
        """From `key.sub=value`, the value in YAML; nothing after the = is empty text.

        Raises:
            UserError: if there is no =, a part of the key is empty, or the value is not YAML.
        """
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UserError(f"--set {text}: expected key=value, such as --set training.batch_size=8")
        return cls(path, strict_yaml.parse(value, f"--set {text}") if value.strip() else "", text)


def apply(document: dict[str, Any], overrides: Iterable[Override]) -> None:
    """Write the overrides into the document, in place.

    One that changes the `name` of a block, or the `preset` of the method, restarts the block: whatever the document
    has below it is dropped, since it belongs to the other class or preset. Those apply first, whatever their place;
    the others follow in the given order.

    Raises:
        UserError: where a key leads through a value that is no block.
    """
    order = list(_RESTART)
    for override in sorted(overrides, key=lambda one: order.index(one.path) if one.path in order else len(order)):
        block = _block(document, override)
        last = override.path[-1]
        before = block.get(last, DEFAULT_PRESET if last == "preset" else None)
        if override.path in _RESTART and before != override.value:
            for name in [name for name in block if name not in _RESTART[override.path]]:
                del block[name]
        block[last] = override.value


def origin(wrong: Wrong, overrides: Iterable[Override]) -> str:
    """`--set ...`, the last override that a mistake comes from; empty where it is the file's own.

    It is an override's when it lies at its key or below, or above it in a sentence that has the key's last word
    (`training: learning_rate must be above 0, got -1`), or when the override restarted a block that now lacks a key.
    """
    for override in reversed(list(overrides)):
        key, last = ".".join(override.path), override.path[-1]
        below = wrong.key == key or wrong.key.startswith((f"{key}.", f"{key}["))
        above = not wrong.key or key.startswith(f"{wrong.key}.")
        named = re.search(rf"\b{re.escape(last)}\b", wrong.sentence) or wrong.sentence.startswith("unknown key")
        emptied = override.path in _RESTART and wrong.key.startswith(f"{override.path[0]}.") and wrong.is_missing
        if below or (above and named) or emptied:
            return f"--set {override.text}"
    return ""


def _block(document: dict[str, Any], override: Override) -> dict[str, Any]:
    """The block that an override writes to; new where the document has none."""
    block = document
    for depth, name in enumerate(override.path[:-1], start=1):
        if block.get(name) is None:
            block[name] = {}
        block = block[name]
        if not isinstance(block, dict):
            key = ".".join(override.path[:depth])
            raise UserError(f"--set {override.text}: {key} is no block of keys and values, but {shown(block)}")
    return block
