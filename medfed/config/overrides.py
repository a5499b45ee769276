"""`--set key.sub=value`: values that the command line puts over those of a config file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from medfed.config import strict_yaml
from medfed.core.errors import UserError
from medfed.core.mistakes import Mistake, describe_value

DEFAULT_PRESET = "medfed"
_RESTART = {  # keys that restart their block when they change, in the order in which they apply; and what stays of it
    ("data", "name"): (),
    ("network", "name"): (),
    ("method", "name"): (),
    ("method", "preset"): ("name",),
}


@dataclass(frozen=True)
class Override:
    """One value at a dotted key; `text` is what the user wrote, after which flag, for messages."""

    path: tuple[str, ...]
    value: object
    text: str
    flag: str = "--set"

    @classmethod
    def of(cls, key: str, value: object) -> Override:
        """From a dotted key and a plain value, when a program changes a config."""
        return cls(tuple(key.split(".")), value, f"{key}={value}")

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @classmethod
    def parse(cls, text: str, flag: str = "--set") -> Override:
        """From `key.sub=value`, the value in YAML; nothing after the = is empty text.

        Raises:
            UserError: if there is no =, a part of the key is empty, or the value is not YAML.
        """
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UserError(f"{flag} {text}: expected key=value, such as {flag} training.batch_size=8")
        return cls(path, strict_yaml.parse(value, f"{flag} {text}") if value.strip() else "", text, flag)

    @classmethod
    def parse_each(cls, text: str, flag: str) -> list[Override]:
        """From `key.sub=value,value`, one for each value; commas in brackets, braces and quotes are the value's own.

        Raises:
            UserError: as `parse`; and if a value is empty or comes twice.
        """
        key, equals, written = text.partition("=")
        values = [value.strip() for value in _split(written)]
        if not equals or not all(values):
            raise UserError(f"{flag} {text}: expected key=value,value, such as {flag} training.batch_size=4,8")
        found = [cls.parse(f"{key.strip()}={value}", flag) for value in values]
        for place, one in enumerate(found):
            if one.value in [other.value for other in found[:place]]:
                raise UserError(f"{flag} {text}: {one.text} comes twice; leave one out")
        return found


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


def origin(mistake: Mistake, overrides: Iterable[Override]) -> str:
    """Return the override that caused a mistake, such as `--set seed=x`; "" if the file caused it.

    Of several, the last one counts. An override caused a mistake
    - at its own key or below it;
    - above it, if the sentence is about its last word (`training: unknown key`);
    - at another key, if two values do not fit together and the sentence names the override's key;
    - at a key that is missing because the override reset its block.
    """
    for override in reversed(list(overrides)):
        key, last = override.key, override.path[-1]
        is_below = mistake.key == key or mistake.key.startswith((f"{key}.", f"{key}["))
        is_above = not mistake.key or key.startswith(f"{mistake.key}.")
        is_named = re.search(rf"\b{re.escape(last)}\b", mistake.sentence) is not None
        is_unknown = is_above and mistake.sentence.startswith("unknown key")
        is_reset = override.path in _RESTART and mistake.key.startswith(f"{override.path[0]}.") and mistake.is_missing
        if is_below or is_unknown or is_reset or (is_named and (is_above or mistake.is_conflict)):
            return f"{override.flag} {override.text}"
    return ""


def _split(text: str) -> list[str]:
    """At the commas that stand in no bracket, brace or quoted value."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and not parts[-1].strip():
            quote = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        parts[-1] += sign
    return parts


def _block(document: dict[str, Any], override: Override) -> dict[str, Any]:
    """The block that an override writes to; new where the document has none."""
    block = document
    for depth, name in enumerate(override.path[:-1], start=1):
        if block.get(name) is None:
            block[name] = {}
        block = block[name]
        if not isinstance(block, dict):
            key = ".".join(override.path[:depth])
            found = f"{key} is no block of keys and values, but {describe_value(block)}"
            raise UserError(f"{override.flag} {override.text}: {found}")
    return block
