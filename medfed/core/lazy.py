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
    """Return a `__getattr__` and a `__dir__` for a package that imports its public names only when they are used.

    The first access to a name imports the module that defines it, and no other module of the package.

    Args:
        package: the package's `__name__`.
        modules: dictionary from the full name of a module to its public names, separated by spaces. If users may also
            access the module itself, its own last name is one of them.
        programs: dictionary from the name of a program of the package to the name of the public function that does the
            same, such as {"train": "run"}. The error about an unknown name mentions this function.

    Returns:
        Two functions, to assign to `__getattr__` and `__dir__` in the package's `__init__.py`.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def hint(name: str) -> str:
        """Return the end of the message about an unknown name: the function of a program, or the most similar name."""
        known = [*module_of, *programs]
        near = next(iter(difflib.get_close_matches(name, known, n=1)), "") if not name.startswith("_") else ""
        if near in programs:
            return f"; the function is {package}.{programs[near]}, and the program is `python -m {package}.{near}`"
        return f". Did you mean {near!r}?" if near else ""

    def get_attribute(name: str) -> Any:
        """Import the module that defines a public name, and return the object. AttributeError for any other name."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint(name)}")
        module = importlib.import_module(module_of[name])
        value = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        """Return all names of the package, sorted: those already defined, and those imported on demand."""
        return sorted({*vars(sys.modules[package]), *module_of})

    return get_attribute, list_names
