"""The methods of a comparison: as a user names them, and as changes of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medfed.config.overrides import Override, split
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError, argument
from medfed.core.mistakes import describe_value
from medfed.experiments.arguments import as_block, as_plain, as_text
from medfed.federation.method import Method

MethodLike = str | Mapping[str, Any] | type[Method] | Method
Part = tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class MethodChoice:
    """A method of a comparison, or several methods that are applied together.

    Args:
        label: name in the tables, in the form of the flag `--methods` of `medfed.evaluate`, such as `ccst:k=1`.
        parts: for each method, a pair: its name, and a dictionary from the dotted key of a setting to its new value.
    """

    label: str
    parts: tuple[Part, ...]

    @classmethod
    def parse(cls, text: str) -> MethodChoice:
        """Return the method that a text describes, such as `fedavg`, `ccst:k=1` or `ccst+elcfs`.

        Args:
            text: `name`, or `name:key=value,...` for a method with changed settings, or several of these joined by `+`.
                The values are written in YAML. A value that contains a comma or a plus must be in quotes or brackets.

        Raises:
            UserError: if the text does not have this form.
        """
        return cls(text, tuple(_parse_part(part, text) for part in split(text, "+")))

    @classmethod
    def of(cls, method: MethodLike, base: Config) -> MethodChoice:
        """Return the method that a user describes in Python by a text, a dictionary, a class or an object.

        Args:
            method: a text such as "ccst:k=1" (see `parse`); a dictionary with the key "name" and the settings to
                change; a class that inherits from `Method`; or an object of such a class, whose settings are all used.
            base: the base config of the comparison. It is used only if `method` is an object, to keep the label in
                tables short: the label lists only the changed settings. If the config uses the same method, changed
                means different from the config. Otherwise it means different from the method's defaults.

        Raises:
            UserError: if `method` has none of these forms.
        """
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
            raise UserError('methods: expected names, classes or objects of methods, or dictionaries such as {"name": '
                            f'"fedprox", "mu": 0.3}}, got {describe_value(method)}')
        settings = as_plain(method, "methods")
        name = settings.pop("name")
        written = ",".join(f"{key}={as_text(value)}" for key, value in settings.items())
        return cls(f"{name}:{written}" if written else str(name), ((name, settings),))

    def changes(self, base: Config) -> dict[str, object]:
        """Return the changes that make a config use this method, as a dictionary from dotted keys to new values.

        The attribute `parts` lists the method, or several methods that are applied together, with the settings that the
        user gave. A setting that the user did not give keeps its value in `base` if `base` uses the same method.
        Otherwise it has the method's default.

        Args:
            base: the base config of the comparison.
        """
        if len(self.parts) > 1:
            own = {key: value for key, value in resolved(base)["method"].items() if key != "preset"}
            blocks = [{**(own if name == base.method_name else {}), "name": name, **new} for name, new in self.parts]
            return {"method.name": "stack", "method.methods": blocks}
        (name, settings), = self.parts
        chosen = {} if name == base.method_name else {"method.name": name}
        return chosen | {f"method.{key}": value for key, value in settings.items()}


def _parse_part(part: str, text: str) -> Part:
    """Return the name and the settings of one method in a text; UserError if it has another form."""
    name, _, written = part.partition(":")
    try:
        overrides = [Override.parse(setting) for setting in split(written, ",") if setting]
    except UserError as error:
        raise UserError(f"{argument('methods', text)}: {str(error).removeprefix('--set ')}") from error
    if any(override.path == ("name",) for override in overrides):
        raise UserError(f"{argument('methods', text)}: a name among the settings; expected it before the colon")
    return name, {override.key: override.value for override in overrides}
