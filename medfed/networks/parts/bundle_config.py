"""Read the network of a MONAI bundle from its configs, as data: nothing is evaluated, imported or built.

MONAI's `ConfigParser` evaluates every text that begins with `$` and builds an object of every `_target_`. This module
reads the JSON or YAML itself. It replaces plain references, such as "@spatial_dims", by the values that they name, and
refuses everything else that MONAI would evaluate.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from monai.networks import nets

from medfed.core.errors import UserError
from medfed.networks.monai_network import DOWNLOADS, is_expression

CONFIG_NAMES = ("inference", "train", "evaluate")
ENDINGS = (".json", ".yaml", ".yml")
MAX_BYTES = 1 << 20
MAX_VALUES = 1000  # of a definition with its references; one of a bundle has about twenty
NETWORKS = "monai.networks.nets."
KEY = "network_def"
PROGRAMS = ("torch.export.", "torch.jit.")  # where the functions are that load programs
NOT_3D = "is a 3-D network; 3-D networks are not supported yet, only 2-D ones are"


@dataclass(frozen=True)
class NetworkDefinition:
    """The network that a MONAI bundle's config describes.

    Args:
        file: the config.
        target: what the config writes as `_target_`.
        name: name of the class in `monai.networks.nets`, such as "DenseNet121"; "" if MONAI has no such network.
        arguments: arguments of the class, plain values only.
    """

    file: Path
    target: str
    name: str
    arguments: dict[str, Any]


def read_network_def(path: Path) -> NetworkDefinition:
    """Return the entry `network_def` of the first config, in the bundle's folder, that has one."""
    folder = path / "configs"
    if not _is_folder(folder):
        raise UserError(
            f"network.path: {path} is not a MONAI bundle: it has no folder configs; name an unpacked bundle"
        )
    for file in (folder / f"{name}{ending}" for name in CONFIG_NAMES for ending in ENDINGS):
        if file.is_file() and (definition := (config := _read(file)).get(KEY)) is not None:
            try:
                return _parse(file, _Resolver(file, config).resolve(definition, KEY))
            except RecursionError as error:
                raise UserError(f"{file}: {KEY} is nested too deeply; write the values themselves") from error
    raise UserError(
        f"{folder}: no config ({', '.join(CONFIG_NAMES)} as JSON or YAML) has the key {KEY}, the network's "
        "definition; add the key"
    )


def _parse(file: Path, definition: Any) -> NetworkDefinition:
    """Check a bundle's `network_def`; UserError if it is not the definition of one of MONAI's networks."""
    if not isinstance(definition, dict) or not isinstance(target := definition.get("_target_"), str):
        raise UserError(
            f"{file}: {KEY} is {definition!r}; expected _target_, the name of one of MONAI's networks, and "
            "its arguments"
        )
    if target.startswith(PROGRAMS):
        raise UserError(
            f"{file}: {KEY}: loads a program, which medfed never runs; training can start only from a network of "
            f"{NETWORKS[:-1]}; name another bundle, or set network.name to a network of medfed"
        )
    arguments = {key: value for key, value in definition.items() if key != "_target_"}
    cls = None
    if target.startswith(NETWORKS) or "." not in target:
        cls = getattr(nets, target.rpartition(".")[2], None)
    name = cls.__name__ if inspect.isclass(cls) else ""
    default = inspect.signature(cls).parameters.get("spatial_dims") if inspect.isclass(cls) else None
    if arguments.get("spatial_dims", default.default if default else None) == 3:
        raise UserError(f"{file}: {KEY}: this {name or target} {NOT_3D}")
    for key, value in arguments.items():
        if is_expression(value) or key.startswith("_"):
            raise UserError(f"{file}: {KEY}.{key} is an expression, which medfed does not run; write its value instead")
    return NetworkDefinition(file, target, name, arguments)


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON or YAML file with an object; UserError if it is too large or damaged."""
    kind = "JSON" if file.suffix == ".json" else "YAML"
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UserError(f"{file}: has more than {MAX_BYTES:,} bytes; expected a few thousand")
        content = json.loads(data) if kind == "JSON" else yaml.safe_load(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file}: is not a {kind} object ({_one_line(error)}); copy the bundle again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is not a {kind} object of keys and values; copy the bundle again")
    return content


class _Resolver:
    """Replaces references in a config by the values that they name.

    A reference is a text "@KEY" or "@KEY::KEY" (older bundles: "@KEY#KEY"). It names a value of the same config, by the
    keys from the top and the positions in lists.
    """

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self.file, self.config, self.n_values = file, config, 0

    def resolve(self, value: Any, key: str) -> Any:
        """Return a value in which every reference is replaced; `key` is for error messages."""
        self.n_values += 1
        if self.n_values > MAX_VALUES:
            raise UserError(f"{self.file}: {KEY} has more than {MAX_VALUES:,} values; expected about twenty")
        if isinstance(value, dict):
            return {name: self.resolve(entry, f"{key}.{name}") for name, entry in value.items()}
        if isinstance(value, list):
            return [self.resolve(entry, key) for entry in value]
        if isinstance(value, str) and value.startswith("@"):
            return self.resolve(self._look_up(value, key), key)
        return value

    def _look_up(self, reference: str, key: str) -> Any:
        """The value to which a reference such as "@network_def#channels" refers; `key` is for the error."""
        value: Any = self.config
        for part in reference[1:].replace("::", "#").split("#"):
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                raise UserError(
                    f"{self.file}: {key} is '{reference}', which names no value of this config; write the value instead"
                )
        return value


def plain_arguments(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one of MONAI's networks with its defaults, without those that download weights.

    Raises:
        TypeError: if an argument is missing or unknown.
    """
    values = dict(arguments)
    for constructor in _constructors(cls):
        bound = inspect.signature(constructor).bind(**values)
        bound.apply_defaults()
        values = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        values = {name: value for name, value in values.items() if name not in ("kwargs", *DOWNLOADS)}
    return values


def _constructors(cls: type) -> Iterator[type]:
    """Yield a class, and its base class if it takes further arguments for that, as DenseNet121 does."""
    yield cls
    if any(entry.kind is entry.VAR_KEYWORD for entry in inspect.signature(cls).parameters.values()):
        yield cls.__bases__[0]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # such as a name of more than 255 bytes
        return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
