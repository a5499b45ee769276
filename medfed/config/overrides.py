"""Values from the command line (`--set key.sub=value`) that replace those of a config file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from medfed.config import strict_yaml
from medfed.core.bounds import DEFAULT_PRESET
from medfed.core.errors import UserError
from medfed.core.mistakes import Mistake, describe_value

_RESET = {  # keys that reset their block when they change, in the order in which they apply; and the keys that stay
    ("data", "name"): (),
    ("network", "name"): (),
    ("method", "name"): (),
    ("method", "preset"): ("name",),
}

BY_SITE = ("data", "by_site")

# A quoted value (a quote opens one only where a value begins), the exponent of a number, or a single character.
_TOKEN = re.compile(
    r"""(?:^|(?<=[=,:+\[{\s]))(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|(?<=[\d.])[eE]\+(?=\d)|.""", re.DOTALL
)
_PATTERN = re.compile(r"\s*\{[a-z][a-z0-9_]*(?::[^ ].*?)?\}[^\s,}]")  # of paths, such as {site}/{case}.png


@dataclass(frozen=True)
class Override:
    """A new value for one key of a config, such as `training.batch_size=8` after the flag `--set`."""

    path: tuple[str, ...]  # parts of the dotted key
    value: object  # as YAML would give it
    text: str  # what the user wrote, for messages
    flag: str = "--set"  # the flag before the text, for messages; "" if the text itself contains the argument

    @classmethod
    def of(cls, key: str, value: object) -> Override:
        """Return an override for a program that changes a config."""
        return cls(tuple(key.split(".")), value, f"{key}={value}")

    @property
    def key(self) -> str:
        """The dotted key, such as `training.batch_size`."""
        return ".".join(self.path)

    def __str__(self) -> str:
        return f"{self.flag} {self.text}".strip()

    def entries(self) -> list[Override]:
        """One override for each setting in `data.by_site` or a site in it, whose others stay; otherwise this one."""
        is_block = self.path[:2] == BY_SITE and len(self.path) < 4
        if not (is_block and isinstance(self.value, Mapping) and self.value):
            return [self]
        inner = [replace(self, path=(*self.path, str(key)), value=value) for key, value in self.value.items()]
        return [entry for override in inner for entry in override.entries()]

    @classmethod
    def parse(cls, text: str, flag: str = "--set") -> Override:
        """Parse `key.sub=value`, the value in YAML or empty; UserError if it is not of this form.

        A text may begin with `*` or a field such as `{site}/` without quotes, because a shell removes them.
        """
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UserError(f"{flag} {text}: expected key=value, such as {flag} training.batch_size=8")
        if not value.strip() or _PATTERN.match(value):
            return cls(path, value.strip(), text, flag)
        return cls(path, strict_yaml.parse(value, f"{flag} {text}", "text"), text, flag)

    @classmethod
    def parse_each(cls, text: str, flag: str) -> list[Override]:
        """Parse several values of one key, separated by commas, such as `training.batch_size=4,8`."""
        key, equals, written = text.partition("=")
        values = [value.strip() for value in split(written, ",")]
        if not equals or not all(values):
            raise UserError(f"{flag} {text}: expected key=value,value, such as {flag} training.batch_size=4,8")
        overrides = [cls.parse(f"{key.strip()}={value}", flag) for value in values]
        for place, override in enumerate(overrides):
            if override.value in [other.value for other in overrides[:place]]:
                raise UserError(f"{flag} {text}: {override.text} comes twice; leave one out")
        return overrides


def split(text: str, separator: str) -> list[str]:
    """Split a text, but not inside quotes, brackets or braces, nor within a number such as 1e+20."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        if token == separator and not depth:
            parts.append("")
        else:
            depth += (token in ("[", "{")) - (token in ("]", "}"))
            parts[-1] += token
    return parts


def apply(document: dict[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """Replace values of a config document, in place; return the values of `method` that a changed preset removed.

    Another `name` or `preset` comes first, and removes the keys of its block that belonged to the previous one.
    """
    order, overrides = list(_RESET), list(overrides)
    dropped: dict[str, Any] = {}
    written = {entry.path for entry in overrides}
    for override in sorted(overrides, key=lambda each: order.index(each.path) if each.path in _RESET else len(order)):
        block = _block(document, override)
        last = override.path[-1]
        before = block.get(last, DEFAULT_PRESET if last == "preset" else None)
        if override.path in _RESET and before != override.value:
            values = {name: block.pop(name) for name in list(block) if name not in _RESET[override.path]}
            if last == "preset":
                dropped |= {key: value for key, value in values.items() if ("method", key) not in written}
        block[last] = override.value
    dropped.pop("preset", None)
    return dropped


def origin(mistake: Mistake, overrides: Iterable[Override]) -> str:
    """Return the last override that may have caused a mistake, such as `--set seed=x`; "" if the config file did."""
    keys = [f"{key}." for key in (mistake.key.replace("[", "."), *mistake.others)]
    for override in reversed(list(overrides)):
        own = f"{override.key}."
        if any(key.startswith(own) or own.startswith(key) for key in keys):
            return str(override)
    return ""


def _block(document: dict[str, Any], override: Override) -> dict[str, Any]:
    """Return the block that an override writes to; it is added to the document if it is missing."""
    block = document
    for depth, name in enumerate(override.path[:-1], start=1):
        if block.get(name) is None:
            block[name] = {}
        block = block[name]
        if not isinstance(block, dict):
            key = ".".join(override.path[:depth])
            raise UserError(f"{override}: {key}: expected a block of keys and values, got {describe_value(block)}")
    return block
