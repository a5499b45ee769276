"""Read a config: one YAML file, in which each block becomes a frozen dataclass. Data, never code.

The blocks `data`, `network` and `method` choose their class by `name`; in `method`, the values of the named `preset`
apply first, then the written keys.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from medfed.config import strict_yaml
from medfed.config.overrides import Override, apply, origin
from medfed.core import bounds, registry, site_names
from medfed.core.bounds import DEFAULT_PRESET, chosen_by_name, written_fields
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import SettingsError, describe_value
from medfed.datasets.base import Dataset
from medfed.datasets.recognition import recognise_layout
from medfed.federation.method import Method
from medfed.federation.privacy import Privacy
from medfed.federation.settings import Cache, Federation, Training
from medfed.networks.parts.base import NetworkSettings
from medfed.tasks.evaluation import Evaluation

ONLY_FOR_GPUS = "false is for GPUs, but this run uses the CPU, whose results are always the same; leave it out"
_ABSENT = object()
T = TypeVar("T")
NAMED = {Dataset: "datasets", NetworkSettings: "networks", Method: "methods"}  # classes that a block chooses by name


@dataclass(frozen=True)
class Config:
    """All settings of a run; all but `cache` and `tracking` determine its numbers.

    Args:
        data: the dataset.
        network: the network.
        method: the federated method, with its own settings.
        seed: at least 0. All random numbers of a run follow from it.
        device: "auto" (CUDA if it is available), "cpu" or "cuda".
        deterministic: whether a GPU uses deterministic algorithms only. false is faster on some GPUs, but the weights
            then differ from run to run; tables, reports and model cards say so. It must be true on a CPU.
        training: how a site trains for one round.
        federation: how the sites work together.
        evaluation: how predictions are made and scored.
        privacy: limits and noise on the weights and statistics that leave a site.
        cache: where sites store images that a method computes.
        tracking: callbacks to which the run reports its start, each round and its end: "tensorboard", or the dotted
            name of a class that derives from `medfed.Callback` (`mymodule.MyCallback`).
        preset: name of the preset of the method. A preset is a named set of values for the method's settings; values
            that are written in the config replace those of the preset.
        source: path of the file from which the config was read, for error messages. Configs from different files with
            the same values are equal.
        notices: sentences about values of the file that are not used, because an override changed the preset. Each run
            with this config records them.
    """

    data: Annotated[Dataset, chosen_by_name("datasets")]
    network: Annotated[NetworkSettings, chosen_by_name("networks")]
    method: Annotated[Method, chosen_by_name("methods")]
    seed: Annotated[int, Field(ge=0, lt=10**18)] = 1337
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deterministic: bool = True
    training: Training = Training()
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    cache: Cache = Cache()
    tracking: Annotated[tuple[str, ...], Field(json_schema_extra={"uniqueItems": True})] = ()
    preset: str = field(default=DEFAULT_PRESET, metadata={"derived": True})
    source: str = field(default="", compare=False, metadata={"derived": True})
    notices: tuple[str, ...] = field(default=(), compare=False, metadata={"derived": True})

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    @property
    def method_name(self) -> str:
        """Name of the method as a config writes it, such as "elcfs"."""
        return registry.name_of("methods", type(self.method))

    @cached_property
    def yaml(self) -> str:
        """The config, including all defaults, as YAML text. A run uses it four times, and writing it takes 15 ms."""
        return strict_yaml.dump(resolved(self))

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (dotted key, sentence, other keys ...) for each value that does not fit to another block."""
        if not self.deterministic and self.device == "cpu":
            yield "deterministic", ONLY_FOR_GPUS, "device"
        yield from _tracking_conflicts(self.tracking)
        yield from _site_conflicts(self.federation, self.data)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config file; UserError with one sentence for each mistake.

    `overrides` are texts such as "training.batch_size=8".
    """
    return load_text(strict_yaml.read(path), str(path), overrides)


def load_text(text: str, source: str, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config from YAML text; `source` names the text in error messages.

    An override of the `name` of a block, or of `preset`, resets the block's other keys, which a warning lists.
    """
    document = strict_yaml.parse(text, source)
    if not isinstance(document, dict):
        raise UserError(f"{source}: expected the blocks data, network and method, got {describe_value(document)}")
    return _assemble(document, source, [Override.parse(override) for override in overrides])


def load_dataset(
    root: Path, name: str | None = None, overrides: Sequence[Override] = (), read_channels: bool = True
) -> Dataset:
    """Recognise the dataset in a folder and apply the user's settings of the block `data`; UserError for others.

    `read_channels`: whether a few images decide the number of channels, if no override sets it.
    """
    for override in overrides:
        if override.path[0] != "data" or len(override.path) == 1:
            example = f"{override.flag} data.mask_threshold=128"
            raise UserError(f"{override}: expected a setting of the block data, such as {example}")
    overrides = [entry for override in overrides for entry in override.entries()]
    values = {override.key.removeprefix("data."): override.value for override in overrides}
    document: dict[str, Any] = {"data": data_block(recognise_layout(root, name, values))}
    apply(document, overrides)
    dataset = _build(_Data, document, overrides, str(root)).data
    return dataset.with_stored_channels() if read_channels and "image_channels" not in document["data"] else dataset


def changed(config: Config, changes: Mapping[str, object], more: Sequence[Override] = ()) -> Config:
    """Return a checked copy of a config with other values, by dotted key; `more` are flags of the user."""
    overrides = [*(Override.of(key, value) for key, value in changes.items()), *more]
    document = resolved(config)
    method = type(config.method)
    implied = to_plain({**bounds.defaults(method), **method.presets.get(document["method"]["preset"], {})})
    document["method"] = {key: value for key, value in document["method"].items() if implied.get(key, _ABSENT) != value}
    return _assemble(document, config.source, overrides, config.notices)


def resolved(config: Config) -> dict[str, Any]:
    """Every value of a config, including defaults, as plain data: the content of a YAML file of the same config."""
    document = to_plain(config)
    preset = config.preset if config.preset in type(config.method).presets else DEFAULT_PRESET  # of another method
    document["method"] = {"name": config.method_name, "preset": preset, **document["method"]}
    return document


def to_plain(value: object) -> Any:
    """Settings as plain data, such as those of `FedProx(mu=0.3)`, with the `name` that chooses the class of a block."""
    if dataclasses.is_dataclass(value):
        kind = next((kind for base, kind in NAMED.items() if isinstance(value, base)), "")
        name = {"name": registry.name_of(kind, type(value))} if kind else {}
        return name | {entry.name: to_plain(getattr(value, entry.name)) for entry in written_fields(type(value))}
    if isinstance(value, Mapping):
        return {name: to_plain(entry) for name, entry in value.items()}
    return list(map(to_plain, value)) if isinstance(value, tuple | list) else value


def data_block(dataset: Dataset) -> dict[str, Any]:
    """Return the block `data` of a config: the name of the dataset, and the settings that differ from the defaults."""
    defaults = bounds.defaults(type(dataset))
    plain = to_plain(dataset).items()
    return {key: value for key, value in plain if key not in defaults or getattr(dataset, key) != defaults[key]}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line such as `training.batch_size: 5 -> 8` for each value in which two `resolved` configs differ."""
    before, after = _flat(old), _flat(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [
        f"{key}: {before.get(key, '(absent)')} -> {after.get(key, '(absent)')}"
        for key in keys
        if (key in before) != (key in after) or before[key] != after[key]
    ]


def _assemble(
    document: dict[str, Any], source: str, overrides: list[Override], notices: tuple[str, ...] = ()
) -> Config:
    """Build a config; a warning, also among its notices, names the values that a changed preset replaces."""
    document = copy.deepcopy(document)
    dropped = apply(document, overrides)
    config = _build(Config, document, overrides, source)
    config = replace(config, network=replace(config.network, dimensions=3 if config.data.patch_size else 2))
    preset, method = document["method"].get("preset", DEFAULT_PRESET), to_plain(config.method)
    if replaced := [f"method.{key}" for key, value in dropped.items() if key in method and method[key] != value]:
        change = next(str(override) for override in reversed(overrides) if override.key == "method.preset")
        place = source or "the config"
        notice = f"{change}: the preset replaces {', '.join(replaced)} of {place}; set again what you need"
        warnings.warn(notice, stacklevel=2)
        notices = (*notices, notice)
    return replace(config, source=source, preset=preset, notices=notices)


@dataclass(frozen=True)
class _Data:
    """A config with the block `data` only."""

    data: Annotated[Dataset, chosen_by_name("datasets")]


def _build(cls: type[T], document: dict[str, Any], overrides: Sequence[Override], source: str) -> T:
    """Build settings; UserErrors with a sentence for each mistake, after the override that caused it or the source."""
    try:
        return bounds.build(cls, document)
    except SettingsError as error:
        raise UserErrors(f"{origin(each, overrides) or source}: {each}" for each in error.mistakes) from None


def _tracking_conflicts(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield ("tracking", sentence) for wrong names; a dotted one is resolved by the run that calls it."""
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield "tracking", f"'{name}' comes twice; leave one out"
        try:
            if "." not in name:
                registry.require(name, "callbacks")
        except UserError as error:
            yield "tracking", str(error)


def _site_conflicts(federation: Federation, data: Dataset) -> Iterator[tuple[str, ...]]:
    """Yield (dotted key, sentence, other keys ...) for wrong site names, and settings that do not fit together."""
    held_out = {key: name for key in ("unseen_site", "validation_site") if (name := getattr(federation, key))}
    names_by_key = {"data.sites": data.sites, **{f"federation.{key}": (name,) for key, name in held_out.items()}}
    for key, names in names_by_key.items():
        try:
            site_names.check(names)
        except ValueError as error:
            held_out.pop(key.removeprefix("federation."), None)
            yield key, str(error)
    for key, name in held_out.items() if data.sites else ():
        if name not in data.sites:
            sentence = f"'{name}' is not in data.sites. {registry.suggestion(name, data.sites)}"
            yield f"federation.{key}", sentence, "data.sites"
    if data.sites and set(data.sites) <= set(held_out.values()):
        roles = " and ".join(f"'{name}' is the {key.replace('_', ' ')}" for key, name in held_out.items())
        keys = [f"federation.{key}" for key in held_out]
        yield "data.sites", f"{roles}, and no other site is left to train on; add one", *keys
    if federation.selection == "source_validation" and data.validation_ratio == 0:
        sentence = "'source_validation' needs data.validation_ratio above 0, got 0"
        yield "federation.selection", sentence, "data.validation_ratio"
    try:
        registry.require(federation.engine, "engines")
    except UserError as error:
        yield "federation.engine", str(error)


def _flat(document: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by dotted key."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        here = f"{key}.{name}".removeprefix(".")
        flat |= _flat(value, here) if isinstance(value, Mapping) and value else {here: value}
    return flat
