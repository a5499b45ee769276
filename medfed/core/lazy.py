"""Public names of a package that are imported when they are first used (PEP 562), so that importing stays fast."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], programs: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    Args:
        package: the package's `__name__`.
        modules: by full name of a module, its public names, separated by spaces; the module's own last name if users
            may access it.
        programs: by name of a program, the public function that does the same, for the error about an unknown name.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def hint(name: str) -> str:
        """The end of an error's text: the most similar known name, or what a program of this name is."""
        known = [*module_of, *programs]
        near = next(iter(difflib.get_close_matches(name, known, n=1)), "") if not name.startswith("_") else ""
        if near in programs:
            return f"; the function is {package}.{programs[near]}, and the program is `python -m {package}.{near}`"
        return f". Did you mean {near!r}?" if near else ""

    def get_attribute(name: str) -> Any:
        """Import the module of a public name when the name is used first; replaces the package's `__getattr__`."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint(name)}")
        module = importlib.import_module(module_of[name])
        value = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        """The names that `dir` shows, imported or not."""
        return sorted({*vars(sys.modules[package]), *module_of})

    return get_attribute, list_names
