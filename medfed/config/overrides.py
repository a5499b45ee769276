"""Values from the command line (`--set key.sub=value`) that replace those of a config file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medfed.config import strict_yaml
from medfed.core.errors import UserError
from medfed.core.mistakes import Mistake, describe_value

DEFAULT_PRESET = "medfed"
_RESET = {  # keys that reset their block when they change, in the order in which they apply; and the keys that stay
    ("data", "name"): (),
    ("network", "name"): (),
    ("method", "name"): (),
    ("method", "preset"): ("name",),
}

# A quoted value (a quote opens one only where a value begins), the exponent of a number, or a single character.
_TOKEN = re.compile(
    r"""(?:^|(?<=[=,:+\[{\s]))(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|(?<=[\d.])[eE]\+(?=\d)|.""", re.DOTALL
)


@dataclass(frozen=True)
class Override:
    """A new value for one key of a config, such as `training.batch_size=8` after the flag `--set`.

    Args:
        path: the parts of the dotted key, such as ("training", "batch_size").
        value: the new value, as YAML would give it: a number, text, list or dictionary.
        text: what the user wrote, for messages.
        flag: the command-line flag before the text, for messages; "" if the text itself contains the argument.
    """

    path: tuple[str, ...]
    value: object
    text: str
    flag: str = "--set"

    @classmethod
    def of(cls, key: str, value: object) -> Override:
        """Return an override from a dotted key and a value, for a program that changes a config.

        Args:
            key: the dotted key, such as "training.batch_size".
            value: the new value, as YAML would give it: a number, text, list or dictionary.
        """
        return cls(tuple(key.split(".")), value, f"{key}={value}")

    @property
    def key(self) -> str:
        """The dotted key whose value is replaced, such as `training.batch_size`."""
        return ".".join(self.path)

    @classmethod
    def parse(cls, text: str, flag: str = "--set") -> Override:
        """Return the override that a user wrote on the command line as `key.sub=value`.

        Args:
            text: the dotted key and the value in YAML, such as "training.batch_size=8". If nothing follows the =, the
                value is the empty text. A text may begin with `*` without quotes, also in a list, because a shell
                removes the quotes of data.mask_name='*_seg'; in YAML it would be an alias.
            flag: the command-line flag before the text, for error messages.

        Raises:
            UserError: if there is no =, a part of the key is empty, or the value is not YAML.
        """
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise UserError(f"{flag} {text}: expected key=value, such as {flag} training.batch_size=8")
        return cls(path, strict_yaml.parse(value, f"{flag} {text}", True) if value.strip() else "", text, flag)

    @classmethod
    def parse_each(cls, text: str, flag: str) -> list[Override]:
        """Return one override for each of several values of the same key, such as `training.batch_size=4,8`.

        Args:
            text: the dotted key, "=" and the values in YAML, separated by commas. Commas in brackets, braces and quotes
                do not separate values.
            flag: the command-line flag before the text, for error messages.

        Raises:
            UserError: if there is no =, a part of the key is empty, a value is not YAML, is empty or is given twice.
        """
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
    """Split a text at a separator, but not inside quotes, brackets or braces, nor within a number such as 1e+20.

    Args:
        text: the text, such as `k=1,codec="a,b"`.
        separator: one character, such as ",".

    Returns:
        The parts without the separators; one part if the text has no separator.
    """
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        if token == separator and not depth:
            parts.append("")
        else:
            depth += (token in ("[", "{")) - (token in ("]", "}"))
            parts[-1] += token
    return parts


@dataclass(frozen=True)
class DroppedValues:
    """The values of the block `method` that an override of the preset removed from a config.

    Args:
        override: the override, such as `method.preset=released`.
        values: the removed values by key, such as `{"gamma": 0.1}`.
    """

    override: Override
    values: Mapping[str, object]

    def notice(self, source: str, method: Mapping[str, object]) -> str:
        """Return a sentence with the removed values and how to keep them; "" if no value has changed.

        Args:
            source: name of the config file.
            method: the block `method` of the new config with all its values.
        """
        changed = {key: value for key, value in self.values.items() if key in method and method[key] != value}
        if not changed:
            return ""
        drops = ", ".join(f"{key}: {_yaml(value)} (now {_yaml(method[key])})" for key, value in changed.items())
        written = f"{self.override.flag} {self.override.text}".strip()
        pairs = [f"{key}={_yaml(value)}" for key, value in changed.items()]
        add = "add " if len(changed) == 1 else "add its setting: "
        if self.override.flag == "--set":
            how = add + " or ".join(_quoted(f"--set method.{pair}") for pair in pairs)
        elif self.override.flag:
            how = "set " + " or ".join(f"method.{pair}" for pair in pairs) + " too"
        else:  # a method of a comparison, such as `elcfs:preset=released`
            how = "add " + " or ".join(f",{pair}" for pair in pairs) + " to its settings"
        values, keep = ("this value", "keep") if len(changed) == 1 else ("these values", "keep one of them")
        return f"{written}: the new preset replaces {values} of {source or 'the config'}: {drops}; to {keep}, {how}"


def apply(document: dict[str, Any], overrides: Iterable[Override]) -> list[DroppedValues]:
    """Replace values of a config document by the values of the overrides, in place.

    A block is a group of keys under one name, such as `method:` in the YAML file. An override that changes the `name`
    of the block `data`, `network` or `method` removes all other keys of this block from the document, because they
    belong to the previous class. An override that changes the `preset` of the method (the name of a group of default
    settings) removes all other keys of the block `method` except `name`. Such overrides are applied first; the others
    follow in the given order.

    Args:
        document: the config as nested dictionaries. It is changed.
        overrides: the new values.

    Returns:
        The values that a changed preset removed. Values that a changed `name` removed are not among them, because they
        belong to another class; neither are those that another override sets.

    Raises:
        UserError: if a part of a dotted key, other than the last one, names a value that is not a block.
    """
    order, dropped, overrides = list(_RESET), [], list(overrides)
    written = {entry.path for entry in overrides}
    for override in sorted(overrides, key=lambda entry: _place(entry, order)):
        block = _block(document, override)
        last = override.path[-1]
        before = block.get(last, DEFAULT_PRESET if last == "preset" else None)
        if override.path in _RESET and before != override.value:
            values = {name: block.pop(name) for name in list(block) if name not in _RESET[override.path]}
            values = {key: value for key, value in values.items() if (override.path[0], key) not in written}
            values.pop("preset", None)
            if last == "preset" and values:
                dropped.append(DroppedValues(override, values))
        block[last] = override.value
    return dropped


def origin(mistake: Mistake, overrides: Iterable[Override]) -> str:
    """Find the override (`--set KEY=VALUE`) that caused a mistake in a config.

    An override of KEY caused the mistake in each of these cases:

    1. The mistake is at KEY or inside KEY.
    2. The mistake is at a block that contains KEY, and its sentence either reports an unknown key or names the last
       part of KEY. The last part of `federation.rounds` is `rounds`.
    3. The mistake is that two values do not fit together, and its sentence names the last part of KEY.
    4. The mistake is a missing key in a block that the override has reset, as `method.name=...` does.

    If several overrides could have caused the mistake, the last one counts.

    Args:
        mistake: one wrong value of the config.
        overrides: the overrides that were applied to the config.

    Returns:
        The flag and the text of the override, such as `--set seed=x`; "" if the config file caused the mistake.
    """
    for override in reversed(list(overrides)):
        key, last = override.key, override.path[-1]
        is_below = mistake.key == key or mistake.key.startswith((f"{key}.", f"{key}["))
        is_above = not mistake.key or key.startswith(f"{mistake.key}.")
        is_named = re.search(rf"\b{re.escape(last)}\b", mistake.sentence) is not None
        is_unknown = is_above and mistake.sentence.startswith("unknown key")
        is_reset = override.path in _RESET and mistake.key.startswith(f"{override.path[0]}.") and mistake.is_missing
        if is_below or is_unknown or is_reset or (is_named and (is_above or mistake.is_conflict)):
            return f"{override.flag} {override.text}".strip()
    return ""


def _yaml(value: object) -> str:
    """Return a value in one line of YAML, such as `[0.9, 0.999]`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    """Return `--set key=value` with quotes around its second part if a shell would split or change it."""
    flag, _, pair = text.partition(" ")
    return f"{flag} {shlex.quote(pair)}"


def _place(override: Override, order: Sequence[tuple[str, ...]]) -> int:
    """Return the place of an override in the order of application; those that reset a block come first."""
    return order.index(override.path) if override.path in order else len(order)


def _block(document: dict[str, Any], override: Override) -> dict[str, Any]:
    """Return the block that an override writes to; it is added to the document if it is missing."""
    block = document
    for depth, name in enumerate(override.path[:-1], start=1):
        if block.get(name) is None:
            block[name] = {}
        block = block[name]
        if not isinstance(block, dict):
            key = ".".join(override.path[:depth])
            raise UserError(
                f"{override.flag} {override.text}: {key} is no block of keys and values, but {describe_value(block)}"
            )
    return block
