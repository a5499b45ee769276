"""Public names of a package that are imported when they are first used (PEP 562), so that importing stays fast."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable, Collection
from typing import Any


def lazy_names(
    package: str, own: Collection[str] = (), modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of the package with this `__name__`.

    Its names are those that its source file imports from medfed in the block `if TYPE_CHECKING:`, each as itself, which
    type checkers read as public, and those that it defines, `own`. Those in `modules` are modules of the package, also
    if the block imports a function of this name.
    """
    module = sys.modules[package]
    tree = ast.parse("".join(linecache.getlines(str(module.__file__), vars(module))))  # also from a zip file
    tests = {ast.unparse(node.test): node.body for node in tree.body if isinstance(node, ast.If)}
    imports = [node for node in tests.get("TYPE_CHECKING", []) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).partition(".")[0] == "medfed"]
    module_of = {alias.name: str(node.module) for node in ours for alias in node.names}

    def get_attribute(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = module_of[name]
        if source == package or name in modules:
            value: Any = importlib.import_module(f"{package}.{name}")
        else:
            value = getattr(importlib.import_module(source), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(module), *module_of})

    return get_attribute, list_names, sorted({*module_of, *own})
