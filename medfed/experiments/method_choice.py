"""The methods of a comparison: as a user names them, and as changes of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medfed.config.overrides import Override, split
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.mistakes import describe_value
from medfed.experiments.arguments import as_block, as_plain, as_text
from medfed.federation.method import Method
from medfed.outputs.tables.comparison_row import BASELINE, LOCAL, POOLED, SENT

MethodLike = str | Mapping[str, Any] | type[Method] | Method
Part = tuple[str, Mapping[str, object]]
_STEPS = re.compile(r"([\w.]*)@(.*)", re.DOTALL)  # a row with the effort of another one, such as fedavg@steps=ccst:k=2


@dataclass(frozen=True)
class MethodChoice:
    """A row of a comparison: one method, several that are applied together, or training without a federation."""

    label: str  # in the tables, as `--methods` of `medfed.evaluate` takes it, such as `ccst:k=1`
    parts: tuple[Part, ...]  # name and changed settings of each method that is applied
    arrangement: str = "federated"  # or "pooled" (images of all sites in one place) or "local" (each site alone)
    effort_of: MethodChoice | None = None  # the row takes as many optimiser steps and images as this method

    @classmethod
    def parse(cls, text: str) -> MethodChoice:
        """Return the row that a text describes, such as `fedavg`, `ccst:k=1`, `ccst+elcfs`, `pooled` or
        `fedavg@steps=ccst`. Values are YAML; one with a comma or a plus must be in quotes or brackets."""
        effort_of, name = None, text
        if match := _STEPS.fullmatch(text):
            name, setting = match.groups()
            if name not in (BASELINE, *SENT) or not setting.removeprefix("steps=").strip() or setting[:6] != "steps=":
                raise UserError(
                    f"--methods {text}: expected {BASELINE}@steps=METHOD, {POOLED}@steps=METHOD or "
                    f"{LOCAL}@steps=METHOD, such as {BASELINE}@steps=ccst"
                )
            effort_of = cls.parse(setting.removeprefix("steps="))
            if effort_of.arrangement in SENT or effort_of.effort_of:
                raise UserError(
                    f"--methods {text}: '{effort_of.label}' is no federated method; expected one after '@steps=', such "
                    f"as {BASELINE}@steps=ccst"
                )
        if name in SENT:
            return cls(text, ((BASELINE, {}),), name, effort_of)
        parts = tuple(_parse_part(part, text) for part in split(name, "+"))
        return cls(text, parts, effort_of=effort_of)

    @classmethod
    def of(cls, method: MethodLike, base: Config) -> MethodChoice:
        """Return the method that a text, a dictionary with the key "name", a class or an object describes. All settings
        of an object are used. Its label lists those that differ from `base` if `base` has the same method, and
        otherwise from the method's defaults."""
        if isinstance(method, str):
            return cls.parse(method)
        if isinstance(method, Method):
            settings: Any = as_block(base, "method", method)
            start = resolved(changed(base, {"method.name": settings["name"]}))["method"]
            unchanged = {key for key, value in start.items() if key == "preset" or value == settings[key]}
            method = {key: value for key, value in settings.items() if key not in unchanged - {"name"}}
        elif isinstance(method, type) and issubclass(method, Method):
            method = {"name": registry.name_of("methods", method)}
        if not isinstance(method, Mapping) or "name" not in method:
            raise UserError(
                'methods: expected names, classes or objects of methods, or dictionaries such as {"name": '
                f'"fedprox", "mu": 0.3}}, got {describe_value(method)}'
            )
        settings = as_plain(method, "methods")
        name = settings.pop("name")
        if name in SENT and not settings:
            return cls.parse(name)
        written = ",".join(f"{key}={as_text(value)}" for key, value in settings.items())
        return cls(f"{name}:{written}" if written else str(name), ((name, settings),))

    def changes(self, base: Config) -> dict[str, object]:
        """Return the new values, by dotted key, that make a config use this method. A setting that the user did not
        give keeps its value in `base` if `base` uses the same method. Otherwise it has the method's default, or the
        value of the preset that the user gave."""
        if len(self.parts) > 1:
            own = resolved(base)["method"]
            preset = own.pop("preset")
            blocks = []
            for name, new in self.parts:
                starts_from_own = name == base.method_name and new.get("preset", preset) == preset
                blocks.append({**(own if starts_from_own else {}), "name": name, **new})
            return {"method.name": "stack", "method.methods": blocks}
        ((name, settings),) = self.parts
        chosen = {} if name == base.method_name else {"method.name": name}
        return chosen | {f"method.{key}": value for key, value in settings.items()}


def _parse_part(part: str, text: str) -> Part:
    """Return the name and the settings of one method in `text`, such as `ccst:k=1`."""
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
