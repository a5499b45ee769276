"""A method of a comparison as text, such as `ccst:k=1`, `ccst+elcfs`, `pooled` or `fedavg@steps=ccst`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from medfed.config.overrides import Override, split
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.mistakes import describe_value
from medfed.experiments.arguments import as_block, as_plain, as_text
from medfed.federation.method import Method
from medfed.results.row import BASELINE, LOCAL, POOLED, SENT, is_federated

MethodLike = str | Mapping[str, Any] | type[Method] | Method
Part = tuple[str, dict[str, object]]  # name and changed settings of a method
_STEPS = re.compile(r"([\w.]*)@(.*)", re.DOTALL)


def method_text(method: MethodLike, base: Config) -> str:
    """Return the text of a method that is a text, a dictionary with the key "name", a class or an object. The text of
    an object lists the settings that differ from `base` if `base` has the same method, and otherwise from the method's
    defaults."""
    if isinstance(method, str):
        return method
    if isinstance(method, Method):
        block: Any = as_block(base, "method", method)
        start = resolved(changed(base, {"method.name": block["name"]}))["method"]
        method = {key: value for key, value in block.items() if key == "name" or start.get(key) != value}
        method.pop("preset", None)
    elif isinstance(method, type) and issubclass(method, Method):
        method = {"name": registry.name_of("methods", method)}
    if not isinstance(method, Mapping) or "name" not in method:
        raise UserError(
            'methods: expected names, classes or objects of methods, or dictionaries such as {"name": '
            f'"fedprox", "mu": 0.3}}, got {describe_value(method)}'
        )
    settings = as_plain(method, "methods")
    name = settings.pop("name")
    written = ",".join(f"{key}={as_text(value)}" for key, value in settings.items())
    return f"{name}:{written}" if written else str(name)


def effort_of(text: str) -> str:
    """Return the method that follows `@steps=`, whose number of steps and images a row has; "" for other rows."""
    if not (match := _STEPS.fullmatch(text)):
        return ""
    name, setting = match.groups()
    method = setting.removeprefix("steps=")
    if name not in (BASELINE, *SENT) or not method.strip() or method == setting:
        raise UserError(
            f"--methods {text}: expected {BASELINE}@steps=METHOD, {POOLED}@steps=METHOD or {LOCAL}@steps=METHOD, such "
            f"as {BASELINE}@steps=ccst"
        )
    if not is_federated(method) or effort_of(method):
        raise UserError(
            f"--methods {text}: '{method}' is no federated method; expected one after '@steps=', such as "
            f"{BASELINE}@steps=ccst"
        )
    return method


def parts_of(text: str) -> list[Part]:
    """Return the methods that are applied together. Values are YAML; one with a comma or a plus must be in quotes or
    brackets."""
    name = text.partition("@")[0] if effort_of(text) else text
    return [(BASELINE, {})] if name in SENT else [_part(part, text) for part in split(name, "+")]


def method_changes(parts: Sequence[Part], base: Config) -> dict[str, object]:
    """Return the new values, by dotted key, that make a config use these methods. A setting that the user did not give
    keeps its value in `base` if `base` uses the same method. Otherwise it has the method's default, or the value of the
    preset that the user gave."""
    if len(parts) > 1:
        own = resolved(base)["method"]
        preset = own.pop("preset")
        blocks = []
        for name, new in parts:
            starts_from_own = name == base.method_name and new.get("preset", preset) == preset
            blocks.append({**(own if starts_from_own else {}), "name": name, **new})
        return {"method.name": "stack", "method.methods": blocks}
    ((name, settings),) = parts
    chosen = {} if name == base.method_name else {"method.name": name}
    return chosen | {f"method.{key}": value for key, value in settings.items()}


def _part(part: str, text: str) -> Part:
    name, _, written = part.partition(":")
    if name in SENT:
        raise UserError(
            f"--methods {text}: '{name}' is FedAvg without a federation; it has no settings and cannot be combined "
            f"with a method; expected {name}, or {name}@steps=METHOD"
        )
    near = registry.nearest(name, [*registry.known_names("methods"), *SENT])
    if near in SENT and "." not in name:
        raise UserError(f"--methods {text}: no method or row '{name}'. Did you mean '{near}'?")
    try:
        overrides = [Override.parse(setting) for setting in split(written, ",") if setting]
    except UserError as error:
        raise UserError(f"--methods {text}: {str(error).removeprefix('--set ')}") from error
    if any(override.path == ("name",) for override in overrides):
        raise UserError(f"--methods {text}: a name among the settings; expected it before the colon")
    return name, {override.key: override.value for override in overrides}
