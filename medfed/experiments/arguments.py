"""Check and convert the arguments of the Python interface, so that every mistake is one sentence with the argument."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from medfed.config import strict_yaml
from medfed.config.overrides import Override
from medfed.config.schema import NAMED, Config, changed, resolved, to_plain
from medfed.core import bounds, registry
from medfed.core.bounds import DEFAULT_PRESET
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import describe_value, mistakes_of
from medfed.federation.method import Method
from medfed.methods.stack import Stack

MethodLike = str | Mapping[str, Any] | type[Method] | Method
BLOCKS = ("data", "network", "method", "training", "federation", "evaluation", "privacy", "cache")


def _path(expected: str) -> AfterValidator:
    def check(value: object) -> object:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


class _Arguments(TypedDict, total=False):
    """The arguments of the functions in `medfed.api`."""

    __pydantic_config__ = bounds.STRICT  # type: ignore[misc]

    config: Annotated[Any, _path("a path, the name of a config, a dictionary or a Config")]
    changes: Mapping[Any, Any] | tuple[str, ...]
    settings: Mapping[Any, Any] | tuple[str, ...]
    folder: Annotated[Any, _path("the path of a folder")]
    bundle: Annotated[Any, _path("the path of a bundle's folder")]
    path: Annotated[Any, _path("the path of a folder, of a table of images or of a config")]
    names: Mapping[str, str] | None
    run: Annotated[Any, _path("a Run or the path of its folder")]
    runs: Annotated[tuple[Annotated[Any, _path("a Run, a Comparison or a folder")], ...], Field(min_length=1)]
    out: Annotated[Any, _path("a path, or None")] | None
    methods: Annotated[tuple[Any, ...], Field(min_length=1)]
    seeds: bounds.PositiveInt
    sites: Annotated[tuple[str, ...], Field(min_length=1)] | None
    pairs: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)] | None
    vary: Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]] | tuple[str, ...]
    resume: bool
    accept_config_change: bool
    progress: bool | None
    jobs: bounds.PositiveInt | None


def check_arguments(**values: object) -> None:
    """Check types and ranges of arguments by name; UserErrors has one sentence for each wrong argument."""
    given = bounds.with_tuples(values)
    try:
        TypeAdapter(_Arguments).validate_python(given)
    except ValidationError as error:
        raise UserErrors(map(str, mistakes_of(error, given))) from None


def as_plain(value: object, key: str) -> Any:
    """Convert a value to the types of YAML, such as paths to text and arrays to lists; `key` is for the UserError."""
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
    """Return a block's settings; `value` is a name or class (data, network, method only), an object or a dict."""
    if isinstance(value, Mapping):
        return value
    current = getattr(config, key)
    base = next((base for base in NAMED if isinstance(current, base)), type(current))
    if isinstance(value, base):
        return {**to_plain(value), **({"preset": DEFAULT_PRESET} if isinstance(value, Method) else {})}
    if base in NAMED and isinstance(value, str):
        return {"name": value}
    if base in NAMED and isinstance(value, type) and issubclass(value, base):
        return {"name": registry.name_of(NAMED[base], value)}
    example = '{"name": "fedprox", "mu": 0.3}' if key == "method" else "{...}"
    raise UserError(f"{key}: expected settings by name, such as {key}={example}, got {describe_value(value)}")


def flatten(config: Config, settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Convert nested settings to dotted keys such as "training.batch_size"; blocks may be names, classes or objects."""
    flat: dict[str, object] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        value = as_block(config, key, value) if key in BLOCKS else value
        flat |= flatten(config, value, f"{key}.") if isinstance(value, Mapping) else {key: as_plain(value, key)}
    return flat


def varied_texts(vary: Mapping[str, Sequence[object]] | Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each varied setting as texts such as "method.alpha=0.1"."""
    if isinstance(vary, Mapping):
        return {key: [f"{key}={as_text(value)}" for value in values] for key, values in vary.items()}
    texts: dict[str, list[str]] = {}
    for override in (each for text in vary for each in Override.parse_each(text, "--vary")):
        texts.setdefault(override.key, []).append(override.text)
    return texts


def as_text(value: object) -> str:
    """Return a value as a user writes it after `=` in `--vary` and `--methods`; it labels a row of a table."""
    if isinstance(value, float):
        return json.dumps(value).replace("e+", "e")  # a plus joins methods
    if isinstance(value, str) and not set(value) & set(",+\"'[]{}"):
        with suppress(UserError):
            if strict_yaml.parse(value, "") == value:  # without quotes, it is this text
                return value
    return json.dumps(value, ensure_ascii=False)


def method_text(method: MethodLike, base: Config) -> str:
    """Return a method as `--methods` takes it; of an object, the settings that differ from `base` or the defaults."""
    if isinstance(method, str):
        return method
    if isinstance(method, Stack):
        return "+".join(method_text(each, base) for each in method.methods)
    try:
        block: Any = as_block(base, "method", method)
    except UserError as error:
        raise UserError(f"methods: {str(error).removeprefix('method: ')}") from None
    if isinstance(method, Method):
        start = resolved(changed(base, {"method.name": block["name"]}))["method"]
        block = {key: value for key, value in block.items() if key == "name" or start.get(key) != value}
        block.pop("preset", None)
    if "name" not in block:
        raise UserError(f"methods: a dictionary needs the key 'name', got {describe_value(method)}")
    settings = as_plain(block, "methods")
    name = settings.pop("name")
    written = ",".join(f"{key}={as_text(value)}" for key, value in settings.items())
    return f"{name}:{written}" if written else str(name)
