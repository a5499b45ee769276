"""The network of a bundle with its weights, built from plain values; no code of the bundle runs.

The settings come from `network_def` (`medfed.networks.bundle`) or, if that loads a program, from what `medfed.export`
recorded in `configs/metadata.json`: the settings of the network, and of a method whose layers change the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from medfed.core import registry
from medfed.core.bounds import build_by_name
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import SettingsError, describe_value
from medfed.federation.method import Method
from medfed.networks.bundle import WEIGHT_FILES, Bundle
from medfed.networks.parts import pretrained
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.parts.bundle_config import PROGRAMS
from medfed.networks.parts.memory import SizeLimit

INFERENCE, METADATA = "configs/inference.json", "configs/metadata.json"
PROVENANCE, NETWORK, METHOD, LAYERS = "medfed_provenance", "network", "method_settings", "method_layers"
# A file of weights has at least one byte for each value. A small network may have more values outside of its file, such
# as the draws of FedSR.
MIN_ALLOWED_VALUES = 1 << 20
MAX_METHODS = 10  # of a stack
EXPORT_AGAIN = "export the run again"


def load_network(
    path: Path, inference: Mapping[str, Any], metadata: Mapping[str, Any], n_channels: int, n_outputs: int
) -> tuple[NetworkSettings, nn.Module, str, Path]:
    """Return the settings of a bundle's network, the network with its weights and the layers of methods, its name with
    those of the methods, and the file of weights; UserError names the file and the key that do not fit."""
    weights = next((file for name in WEIGHT_FILES if (file := path / "models" / name).is_file()), None)
    if weights is None:
        files = " or ".join(f"models/{name}" for name in WEIGHT_FILES)
        raise UserError(f"{path}: has no {files}; copy the bundle again")
    definition = inference.get("network_def")
    is_program = isinstance(definition, Mapping) and str(definition.get("_target_")).startswith(PROGRAMS)
    with SizeLimit(_max_values(weights)):
        settings = _own_settings(path, metadata) if is_program else _definition_settings(path)
    description = str(getattr(settings, "architecture", type(settings).__name__))
    translate: Callable[[str], str] = settings.translate_weight_name
    with _sized_for(weights, _place(path, NETWORK) if is_program else f"{path / INFERENCE}: network_def"):
        network = settings.build(n_channels, n_outputs)
    if is_program and (method := _method_with_layers(path, metadata[PROVENANCE])):
        with _sized_for(weights, _place(path, METHOD)):
            network = method.wrap_network(network, settings)
        names = "+".join(registry.name_of("methods", type(each)) for each in getattr(method, "methods", (method,)))
        description = f"{description} with the layers of {names}"
        translate = str  # unchanged, because these weights are stored under the names of medfed
    if notices := pretrained.load_matching_weights(network, weights, (), translate):
        raise UserError(f"{notices[0]}; expected weights of the bundle's own network; copy the bundle again")
    return settings, network, description, weights


def _place(path: Path, key: str) -> str:
    return f"{path / METADATA}: {PROVENANCE}.{key}"


def _max_values(weights: Path) -> int:
    return max(weights.stat().st_size, MIN_ALLOWED_VALUES)


@contextmanager
def _sized_for(weights: Path, place: str) -> Iterator[None]:
    """Limit the size of a network that is built in the block; each error becomes a UserError that names the place."""
    try:
        with SizeLimit(_max_values(weights)):
            yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except Exception as error:  # PyTorch and MONAI raise many types for wrong arguments and sizes
        reason = str(error).strip().partition("\n")[0][:200]
        raise UserError(
            f"{place}: the network cannot be built ({reason}); expected the network whose weights are in "
            f"models/{weights.name}; copy the bundle again"
        ) from error


def _definition_settings(path: Path) -> NetworkSettings:
    """Return the settings of the network of MONAI that `network_def` describes."""
    try:
        return Bundle(path=str(path)).without_weights()
    except ValueError as error:
        raise UserError(str(error)) from None


def _own_settings(path: Path, metadata: Mapping[str, Any]) -> NetworkSettings:
    """Return the settings of medfed's own network that `medfed.export` recorded."""
    provenance = metadata.get(PROVENANCE)
    if not isinstance(provenance, Mapping):
        raise UserError(
            f"{path / INFERENCE}: network_def: loads a program, and medfed runs no code of a bundle; expected a "
            f"network of monai.networks.nets, or the settings of the network in {METADATA}, as medfed.export writes it"
        )
    if NETWORK not in provenance:
        raise UserError(
            f"{_place(path, NETWORK)}: is missing, so that medfed can build the network only from the program in "
            f"models/, which it never runs; {EXPORT_AGAIN}"
        )
    block = provenance[NETWORK]
    if isinstance(block, Mapping):
        block = {key: value for key, value in block.items() if key != "weights"}
    settings: NetworkSettings = _build(path, "networks", block, NETWORK)
    return settings


def _method_with_layers(path: Path, provenance: Mapping[str, Any]) -> Method | None:
    """Return the method whose layers the network has; None for the plain network."""
    has_layers = provenance.get(LAYERS)
    if not isinstance(has_layers, bool):
        raise UserError(
            f"{_place(path, LAYERS)}: expected true or false, got {describe_value(has_layers)}; {EXPORT_AGAIN}"
        )
    return _build(path, "methods", provenance.get(METHOD), METHOD) if has_layers else None


def _build(path: Path, kind: str, block: object, key: str) -> Any:
    """Build the settings in a block of the provenance; UserErrors with one sentence for each mistake."""
    try:
        _check_names(_place(path, key), kind, block)
        return build_by_name(kind, block)
    except RecursionError:
        raise UserError(f"{_place(path, key)}: is nested too deeply; {EXPORT_AGAIN}") from None
    except SettingsError as error:
        mistakes = [mistake.below((PROVENANCE, key)) for mistake in error.mistakes]
        raise UserErrors(f"{path / METADATA}: {mistake}" for mistake in mistakes) from None


def _check_names(place: str, kind: str, block: object) -> None:
    """UserError if a block, or a method of a stack in it, names a class outside of medfed, as a config may do."""
    if not isinstance(block, Mapping | None):
        return  # `build_by_name` refuses it
    name, methods = (block or {}).get("name"), (block or {}).get("methods")
    known = [known for known in registry.known_names(kind) if known != "bundle"]  # which would read another folder
    if name is None:
        raise UserError(f"{place}.name: is missing; {EXPORT_AGAIN}")
    if name not in known:
        sentence = f"got {describe_value(name)}; medfed imports no code of others for a bundle; expected one of medfed"
        raise UserError(f"{place}.name: {sentence}: {', '.join(known)}")
    if isinstance(methods, list) and len(methods) > MAX_METHODS:
        raise UserError(f"{place}.methods: has {len(methods)} methods; expected at most {MAX_METHODS}")
    for number, method in enumerate(methods if isinstance(methods, list) else ()):
        _check_names(f"{place}.methods[{number}]", kind, method)
