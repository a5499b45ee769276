"""A config: one YAML file, each block the frozen dataclass that it names. Data, never code.

The blocks `data`, `network` and `method` choose their class by `name` (a file of `medfed/datasets`, `medfed/networks`,
`medfed/methods`, or a dotted name); their other keys, and those of `training`, `federation` and `evaluation`, are the
fields of the dataclass. In `method`, the values of the named `preset` apply first, then the keys that are written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from medfed.config import strict_yaml, validation
from medfed.config.overrides import DEFAULT_PRESET, Override, apply, origin
from medfed.config.validation import ConfigError
from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.federation.method import Method
from medfed.federation.privacy import Privacy
from medfed.federation.settings import Federation, Training
from medfed.networks.base import NetworkSettings
from medfed.tasks.evaluation import Evaluation

_NAMED = {Dataset: "datasets", NetworkSettings: "networks", Method: "methods"}


@dataclass(frozen=True)
class Config:
    """Everything that decides the numbers of a run.

    Args:
        data, network, method: what is learned from, with what, and how the sites work together.
        training, federation, evaluation, privacy: what all methods of one comparison share.
        seed: at least 0; every random draw follows from it.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        preset: the named settings of the method that its values started from.
        source: the file, for messages; takes no part in comparing configs.
    """

    data: Dataset
    network: NetworkSettings
    method: Method
    seed: int = 1337
    device: Literal["auto", "cpu", "cuda"] = "auto"
    training: Training = Training()
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    preset: str = field(default=DEFAULT_PRESET, metadata={"derived": True})
    source: str = field(default="", compare=False, metadata={"derived": True})

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        _check_federation(self.federation, self.data)

    @property
    def method_name(self) -> str:
        """The method as a config names it."""
        return registry.name_of("methods", type(self.method))


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file; `overrides` are `key.sub=value`, as `load_text` takes them."""
    return load_text(strict_yaml.read(path), str(path), overrides)


def load_text(text: str, source: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config.

    Args:
        text: YAML.
        source: what to call it in a message: its file.
        overrides: `key.sub=value`, the value in YAML. One that changes the `name` of a block, or the `preset` of the
            method, restarts that block from its defaults (`medfed.config.overrides.apply`).

    Raises:
        UserError: one sentence with the file and dotted key, or the override; what was found and what was expected.
    """
    document = strict_yaml.parse(text, source)
    if document is None:
        raise UserError(f"{source}: is empty; expected the blocks data, network and method")
    if not isinstance(document, dict):
        raise UserError(f"{source}: expected a block of keys and values, got {validation.describe_value(document)}")
    return _assemble(document, source, [Override.parse(override) for override in overrides])


def changed(config: Config, changes: Mapping[str, object], more: Sequence[Override] = ()) -> Config:
    """A config with other values at some dotted keys (`{"federation.unseen_site": "BIDMC"}`), checked as a file is.

    Changing a `name` or the `preset` restarts its block, as in `load_text`.

    Args:
        more: changes that a flag of a program asked for, which a message then names.
    """
    overrides = [*(Override.of(key, value) for key, value in changes.items()), *more]
    return _assemble(resolved(config), config.source, overrides)


def resolved(config: Config) -> dict[str, Any]:
    """Every value, defaults included, as plain dictionaries, lists and scalars."""
    document = validation.to_plain(config, _label)
    document["method"] = {"name": config.method_name, "preset": config.preset, **document["method"]}
    return document


def to_yaml(config: Config) -> str:
    """YAML that `load_text` reads back to an equal config."""
    return strict_yaml.dump(resolved(config))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines such as `training.batch_size: 5 -> 8`, one for each value in which two resolved configs differ.

    Settings that have come since `old` was written count with their defaults: an older run can go on.
    """
    before, after = _flat(_completed(old)), _flat(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [
        f"{key}: {before.get(key, '(absent)')} -> {after.get(key, '(absent)')}"
        for key in keys
        if (key in before) != (key in after) or before[key] != after[key]
    ]


def _completed(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """With every setting that this version knows; as it is where this version cannot read it."""
    try:
        return resolved(_assemble(dict(document), "", []))
    except UserError:
        return document


def _assemble(document: dict[str, Any], source: str, overrides: list[Override]) -> Config:
    document = copy.deepcopy(document)
    apply(document, overrides)
    try:
        config = validation.build(Config, document, "", _class_of)
    except ConfigError as wrong:
        raise UserError(f"{origin(wrong, overrides) or source}: {wrong}") from wrong
    return replace(config, source=source, preset=document["method"].get("preset", DEFAULT_PRESET))


def _class_of(cls: type, block: Mapping[str, Any], key: str) -> tuple[type, Mapping[str, Any], tuple[str, ...]]:
    """The class that a block names, and its values: those of the preset, then those that are written."""
    if cls not in _NAMED:
        return cls, block, ()
    kind = _NAMED[cls]
    if "name" not in block:
        raise ConfigError(f"{key}.name", f"missing; expected one of {', '.join(registry.known_names(kind))}", True)
    try:
        found = registry.resolve(kind, validation.convert(str, block["name"], f"{key}.name", _class_of))
    except UserError as error:
        raise ConfigError(f"{key}.name", str(error)) from error
    written = {name: value for name, value in block.items() if name != "name"}
    if cls is not Method:
        return found, written, ("name",)
    preset = validation.convert(str, written.pop("preset", DEFAULT_PRESET), f"{key}.preset", _class_of)
    if preset not in found.presets:
        known = registry.suggestion(preset, found.presets)
        raise ConfigError(f"{key}.preset", f"no preset '{preset}' of {block['name']}. {known}")
    if moved := [name for name in written if name in found.moved]:
        raise ConfigError(f"{key}.{moved[0]}", found.moved[moved[0]])
    return found, {**found.presets[preset], **written}, ("name", "preset")


def _label(value: object) -> dict[str, Any]:
    """The `name` of a block whose class was chosen by it."""
    for base, kind in _NAMED.items():
        if isinstance(value, base):
            return {"name": registry.name_of(kind, type(value))}
    return {}


def _check_federation(federation: Federation, data: Dataset) -> None:
    """What no block can see alone."""
    sites = data.sites
    apart = {key: name for key in ("unseen_site", "validation_site") if (name := getattr(federation, key))}
    for key, names in (("data.sites", sites), *((f"federation.{key}", [name]) for key, name in apart.items())):
        try:
            site_names.check(names)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    for key, name in apart.items() if sites else ():
        if name not in sites:
            raise ValueError(f"federation.{key}: '{name}' is not in data.sites. {registry.suggestion(name, sites)}")
    if sites and set(sites) <= set(apart.values()):
        which = " and ".join(f"'{name}' is the {key.replace('_', ' ')}" for key, name in apart.items())
        raise ValueError(f"data.sites: {which}, and no other site is left to train on; add one")
    if federation.selection == "source_validation" and data.validation_ratio == 0:
        raise ValueError("federation.selection: 'source_validation' needs data.validation_ratio above 0, got 0")
    try:
        registry.require("engines", federation.engine)
    except UserError as error:
        raise ValueError(f"federation.engine: {error}") from None


def _flat(document: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by dotted key."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        here = validation.join_key(key, name)
        flat |= _flat(value, here) if isinstance(value, Mapping) and value else {here: value}
    return flat
