"""Read the configs of a MONAI bundle as data: nothing in them is evaluated, imported or built.

MONAI's `ConfigParser` evaluates each text that begins with `$`, reads the file that a text with `%` names, and builds
an object of each `_target_`. Here such texts become `Expression`, which the parser leaves alone, before it replaces the
references, such as "@spatial_dims", by the values that they name; it builds no object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from monai.bundle.config_item import ConfigItem
from monai.bundle.config_parser import ConfigParser
from monai.networks import nets

from medfed.core.errors import UserError
from medfed.networks.parts.monai_class import ARCHITECTURES, MonaiName, parameters

CONFIG_NAMES = ("inference", "train", "evaluate")
ENDINGS = (".json", ".yaml", ".yml")
MAX_BYTES = 1 << 20
MAX_VALUES = 5000  # of a config, and of its entries with their references; one of the model zoo has a few hundred
NETWORKS = "monai.networks.nets."
KEY = "network_def"
PROGRAMS = ("torch.export.", "torch.jit.")  # where the functions are that load programs


@dataclass(frozen=True)
class Expression:
    """A text of a config that MONAI would evaluate, or replace by another file; here it is only data."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def read_config(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return entries of a bundle's JSON or YAML config, with references replaced by the values that they name.

    Texts that MONAI would evaluate are returned as `Expression`, objects that it would build as dicts with `_target_`.
    `keys` that the config does not have are left out. UserError if the file is damaged, is too large or too deep, or
    has references to nothing or in a circle.
    """
    config = _read(file)
    try:
        parser = ConfigParser(_as_data(config, "$%"), globals=False)
        entries = {
            key: parser.get_parsed_content(key, instantiate=False, eval_expr=False) for key in keys if key in config
        }
        return _as_data(entries, "$%@")
    except RecursionError as error:
        raise UserError(f"{file}: is nested too deeply; write the values themselves") from error
    except Exception as error:  # MONAI raises many types for damaged configs
        raise UserError(f"{file}: {' '.join(str(error).split()).rstrip('.')}; correct the config") from error


def read_network_def(path: Path) -> tuple[str, MonaiName, dict[str, Any]]:
    """Return the network of the first config, in the bundle's folder, that has the key `network_def`.

    The result is the place for error messages, the name of the class or function in `monai.networks.nets`, and its
    arguments, which are plain values and include `spatial_dims`. UserError if it is something else.
    """
    folder = path / "configs"
    if not os.path.isdir(folder):  # unlike Path.is_dir, it accepts a name of more than 255 bytes
        raise UserError(
            f"network.path: {path} is not a MONAI bundle: it has no folder configs; name an unpacked bundle"
        )
    for file in (folder / f"{name}{ending}" for name in CONFIG_NAMES for ending in ENDINGS):
        if file.is_file() and (definition := read_config(file, [KEY]).get(KEY)) is not None:
            return (f"{file}: {KEY}", *_name_and_arguments(f"{file}: {KEY}", definition))
    raise UserError(
        f"{folder}: no config ({', '.join(CONFIG_NAMES)} as JSON or YAML) has the key {KEY}, the network's "
        "definition; add the key"
    )


def _name_and_arguments(place: str, definition: Any) -> tuple[MonaiName, dict[str, Any]]:
    """Check a bundle's `network_def`; UserError if it is not the definition of one of `ARCHITECTURES`."""
    if not isinstance(definition, dict) or not isinstance(target := definition.get("_target_"), str):
        raise UserError(
            f"{place} is {definition!r}; expected _target_, the name of one of MONAI's networks, and its arguments"
        )
    if target.startswith(PROGRAMS):
        raise UserError(
            f"{place}: loads a program, which medfed never runs; training can start only from a network of "
            f"{NETWORKS[:-1]}; name another bundle, or set network.name to a network of medfed"
        )
    arguments = {key: value for key, value in definition.items() if key != "_target_"}
    is_monai = target.startswith(NETWORKS) or "." not in target
    network = getattr(nets, target.rpartition(".")[2], None) if is_monai else None
    name = getattr(network, "__name__", target) if callable(network) else target
    if name not in ARCHITECTURES:
        raise UserError(f"{place} is '{target}'; expected one of {', '.join(ARCHITECTURES)} of {NETWORKS[:-1]}")
    for key, value in arguments.items():
        if is_expression(value) or key.startswith("_"):
            raise UserError(f"{place}.{key} is an expression, which medfed does not run; write its value instead")
    dims = parameters(network).get("spatial_dims") if callable(network) else None
    return name, {"spatial_dims": dims.default if dims else 2, **arguments}


def is_expression(value: Any) -> bool:
    """Return whether MONAI would evaluate a value of a config, look it up, or build an object from it."""
    if isinstance(value, Mapping):
        return any(str(key).startswith("_") for key in value) or any(map(is_expression, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_expression, value))
    return isinstance(value, Expression) or (isinstance(value, str) and value.startswith(("$", "@", "%")))


def _as_data(value: Any, marks: str, counter: Iterator[int] | None = None) -> Any:
    """Copy a config, with an `Expression` for each text that begins with one of the marks."""
    counter = counter or iter(range(MAX_VALUES))
    if next(counter, None) is None:
        raise ValueError(f"has more than {MAX_VALUES:,} values")
    if isinstance(value, ConfigItem):  # which MONAI leaves where it would build an object
        value = value.get_config()
    if isinstance(value, Mapping):
        return {str(key): _as_data(entry, marks, counter) for key, entry in value.items()}
    if isinstance(value, list):
        return [_as_data(entry, marks, counter) for entry in value]
    return Expression(value) if isinstance(value, str) and value.startswith(tuple(marks)) else value


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON or YAML file with an object; UserError if it is too large or damaged."""
    kind = "JSON" if file.suffix == ".json" else "YAML"
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UserError(f"{file}: has more than {MAX_BYTES:,} bytes; expected a few thousand")
    try:
        content = json.loads(data) if kind == "JSON" else yaml.safe_load(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(
            f"{file}: is not a {kind} object ({' '.join(str(error).split())}); copy the bundle again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is not a {kind} object of keys and values; copy the bundle again")
    return content
