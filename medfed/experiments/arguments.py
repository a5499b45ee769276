"""Check and convert the arguments of the Python interface, so that every mistake is one sentence with the argument."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from medfed.config import strict_yaml
from medfed.config.overrides import DEFAULT_PRESET, Override
from medfed.config.schema import NAMED, Config, to_block
from medfed.core import bounds, registry
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import describe_value
from medfed.federation.method import Method

BLOCKS = ("data", "network", "method", "training", "federation", "evaluation", "privacy", "cache")


def _path(expected: str, optional: bool = False) -> AfterValidator:
    """Return a check that a value is a text that can be a path; ValueError with what is expected."""

    def check(value: object) -> object:
        if not (value is None and optional) and not (isinstance(value, str) and value and "\0" not in value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True)
class _Arguments:
    """The types of the arguments of the functions in `medfed.api`, by name."""

    config: Annotated[Any, _path("a path, the name of a config, a dictionary or a Config")]
    changes: Mapping[Any, Any]
    folder: Annotated[Any, _path("the path of a run's folder")]
    run: Annotated[Any, _path("a Run or the path of its folder")]
    out: Annotated[Any, _path("the path of a folder, or None", optional=True)]
    methods: Annotated[tuple[Any, ...], Field(min_length=1)]
    seeds: bounds.PositiveInt
    sites: Annotated[tuple[str, ...], Field(min_length=1)] | None
    pairs: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)] | None
    vary: Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]]
    resume: bool
    accept_config_change: bool
    progress: bool
    jobs: bounds.PositiveInt | None


def check_arguments(**values: object) -> None:
    """Check the types and ranges of arguments of the Python interface.

    Args:
        **values: the arguments by name, each a field of `_Arguments`. Paths may be text or path objects.

    Raises:
        UserError: with one sentence for each wrong argument. The sentence begins with the name of the argument.
    """
    paths = {name: os.fspath(value) for name, value in values.items() if isinstance(value, os.PathLike)}
    _, mistakes = bounds.validate(_Arguments, {**values, **paths})
    if mistakes:
        raise UserErrors(map(str, mistakes))


def as_plain(value: object, key: str) -> Any:
    """Convert a value to the types that YAML has, and return the result.

    Paths become text and tuples become lists. Numbers and arrays of NumPy become numbers and lists of Python. The keys
    of dictionaries become text.

    Args:
        value: the value of a setting, or a dictionary of settings.
        key: dotted key of the setting, for error messages.

    Raises:
        UserError: for a value that a config cannot hold.
    """
    if isinstance(value, Mapping):
        return {str(name): as_plain(entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(entry, key) for entry in value]
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{key}: expected a text without the character NUL, got {value!r}")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UserError(f"{key}: a config holds numbers, texts, lists and dictionaries, got {type(value).__name__}")


def as_block(config: Config, key: str, value: object) -> object:
    """Convert the value of a config's block to a dictionary of settings. The value may be a name, a class or an object.

    Args:
        config: the config whose block changes.
        key: name of the block, such as "method".
        value: the new value of the block. For every block, this can be a dictionary, which is returned unchanged, or an
            object such as `FedProx(mu=0.3)`, whose settings are all returned. For the blocks `data`, `network` and
            `method`, it can also be a name such as "fedprox" or a class such as `FedProx`.

    Raises:
        UserError: if the value is none of these.
    """
    if isinstance(value, Mapping):
        return value
    current = getattr(config, key)
    base = next((base for base in NAMED if isinstance(current, base)), type(current))
    if isinstance(value, base):
        return {**to_block(value), **({"preset": DEFAULT_PRESET} if isinstance(value, Method) else {})}
    if base in NAMED and isinstance(value, str):
        return {"name": value}
    if base in NAMED and isinstance(value, type) and issubclass(value, base):
        return {"name": registry.name_of(NAMED[base], value)}
    example = '{"name": "fedprox", "mu": 0.3}' if key == "method" else "{...}"
    raise UserError(f"{key}: expected settings by name, such as {key}={example}, got {describe_value(value)}")


def flatten(config: Config, settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Convert nested dictionaries of settings to one dictionary with dotted keys, such as "training.batch_size".

    A name, a class or an object that stands for a block is converted, too (`as_block`). An empty dictionary adds no
    key.

    Args:
        config: the config that the settings change.
        settings: values by key. A value can be a dictionary that also holds values by key.
        prefix: the dotted key of `settings` with a dot at its end; "" for a whole config.

    Raises:
        UserError: if a block of the config is given as something else than settings.
    """
    flat: dict[str, object] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        value = as_block(config, key, value) if key in BLOCKS else value
        flat |= flatten(config, value, f"{key}.") if isinstance(value, Mapping) else {key: as_plain(value, key)}
    return flat


def varied_values(vary: Mapping[str, Sequence[object]]) -> list[list[Override]]:
    """Convert the argument `vary` of a comparison to one list of overrides for each varied setting.

    An override is a dotted key of a setting with a new value.

    Args:
        vary: the list of values of each setting, by dotted key, such as {"method.alpha": [0.01, 0.1]}. The values have
            types that YAML has.
    """
    return [
        [Override(tuple(key.split(".")), value, f"{key}={as_text(value)}", "vary") for value in values]
        for key, values in vary.items()
    ]


def as_text(value: object) -> str:
    """Return a value as a user writes it after `=` in `--vary` and `--methods`. The text labels a row of a table.

    Args:
        value: a number, text, boolean, list, dictionary or None.
    """
    if isinstance(value, float):
        return json.dumps(value).replace("e+", "e")  # a plus joins methods
    return value if isinstance(value, str) and _is_plain_text(value) else json.dumps(value, ensure_ascii=False)


def _is_plain_text(text: str) -> bool:
    """Return whether a program reads a text without quotes as this text."""
    try:
        is_text = strict_yaml.parse(text, "") == text
    except UserError:
        return False
    return is_text and not set(text) & set(",+\"'[]{}")
