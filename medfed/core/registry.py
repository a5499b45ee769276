"""Find the class for a name in a config: the name of a file is the name of its class, and no list is kept.

The method `elcfs` is the class in `medfed/methods/elcfs.py`. The names are listed without importing the files, so that
listing takes milliseconds.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from medfed.core.errors import UserError

PACKAGE = Path(__file__).parent.parent
KINDS = {  # folder: the word in messages, and the module and name of the base class
    "methods": ("method", "medfed.federation.method", "Method"),
    "datasets": ("dataset", "medfed.datasets.base", "Dataset"),
    "networks": ("network", "medfed.networks.parts.base", "NetworkSettings"),
    "engines": ("engine", None, "exchange"),  # a protocol: any class with this method is an engine
    "mask_metrics": ("metric", "medfed.metrics.mask_metric", "MaskMetric"),
    "class_metrics": ("metric", "medfed.metrics.class_metric", "ClassMetric"),
}
FOLDERS = {  # folders that hold a kind, if they are not the folder of the same name; they hold no other modules
    "datasets": ("datasets/collections", "phantoms"),
    "mask_metrics": ("metrics/masks",),
    "class_metrics": ("metrics/classes",),
}
_is_code_allowed = False  # whether a config may name code that is in no installed package; see `code_allowed`


def known_names(kind: str) -> dict[str, str]:
    """The names of a kind, each with the first docstring line of its file or its plugin's package; none is imported."""
    names = {name: first_line(path) for name, path in _files(kind).items()}
    return names | {name: f"of the package {plugin.module}" for name, plugin in _plugins(kind).items()}


def resolve(kind: str, name: str) -> type[Any]:
    """Import and return the class of a known name, or of a dotted name that a config may have (`check_code`).

    UserError, with the most similar known name, if there is no such class, or if a config may not name it.
    """
    require(kind, name)
    if name in _files(kind):
        return _only_class(kind, importlib.import_module(_module(_files(kind)[name])))
    plugin = _plugins(kind).get(name)
    target = _resolve(plugin.value.replace(":", ".") if plugin else name)
    found = _only_class(kind, target) if isinstance(target, ModuleType) else target
    if not (isinstance(found, type) and _belongs(kind, found)):
        word, _, base = KINDS[kind]
        raise UserError(f"'{name}' is no {word}; expected a class with {base} as its {_relation(kind)}")
    return found


def require(kind: str, name: str) -> None:
    """Check that a name is known or may be dotted, without importing it; UserError as in `resolve`."""
    names = known_names(kind)
    if name not in names and not is_dotted(name):
        raise UserError(f"no {KINDS[kind][0]} '{name}'. {suggestion(name, names)}")
    if name not in names:
        check_code(name)


def is_dotted(name: str) -> bool:
    """Whether a name has the form `package.module.Class`."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


@contextmanager
def code_allowed(is_allowed: bool = True) -> Iterator[None]:
    """Let a config name code that is in no installed package (`--allow-code`); False changes nothing."""
    global _is_code_allowed
    before, _is_code_allowed = _is_code_allowed, _is_code_allowed or is_allowed
    try:
        yield
    finally:
        _is_code_allowed = before


def check_code(name: str) -> None:
    """UserError if a dotted name needs the flag `--allow-code` and the flag is not set. Nothing is imported.

    A config is data, and may come from anyone. The name may stand for code of medfed or of an installed package, or for
    a module that this process has already imported. Any other file, such as one in the working directory, would run
    when it is imported.
    """
    file = None if _is_code_allowed else _first_file_outside(name)
    if file is not None:
        raise UserError(
            f"'{name}' would run the code in {file}, which belongs to no installed package; expected a class of medfed "
            "or of an installed package; if you trust this file, add the flag --allow-code, or import the module "
            "before, in a Python program"
        )


def file_of(kind: str, name: str) -> str:
    """File of a known name, relative to the folder that holds the package `medfed`; the class of a plugin."""
    files = _files(kind)
    return str(files[name].relative_to(PACKAGE.parent)) if name in files else _plugins(kind)[name].value


def name_of(kind: str, found: type) -> str:
    """Name by which `resolve` finds a class: that of the file or the plugin, else the dotted name."""
    names = {_module(path): name for name, path in _files(kind).items()}
    names |= {plugin.value.replace(":", "."): name for name, plugin in _plugins(kind).items()}
    dotted_name = f"{found.__module__}.{found.__qualname__}"
    return names.get(found.__module__) or names.get(dotted_name, dotted_name)


def shipped_configs() -> dict[str, Path]:
    """The config files that come with medfed, by name without `.yaml`."""
    installed, checkout = PACKAGE / "configs", PACKAGE.parent / "configs"
    folder = installed if installed.is_dir() else checkout  # beside an installed medfed, `configs` is another package's
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


@contextmanager
def code_of(cls: type) -> Iterator[None]:
    """Context for the code of a class that a config chooses: an exception of a foreign class becomes a UserError.

    The author of such a class can correct it. Exceptions of medfed's own classes are bugs of medfed and stay as they
    are.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if cls.__module__.partition(".")[0] == PACKAGE.name:
            raise
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise UserError(f"{name} raised {describe_error(error)}; correct the class or its settings") from error


def describe_error(error: Exception) -> str:
    """Return one line such as "ValueError: mu is negative"."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def suggestion(word: str, words: Iterable[str]) -> str:
    """Return the end of an error message, such as "Did you mean 'elcfs'? Known: elcfs, fedavg"."""
    words = list(words)
    near = nearest(word, words)
    question = f"Did you mean '{near}'? " if near else ""
    return f"{question}Known: {', '.join(words) or 'none'}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar known word, regardless of case; None if none is similar."""
    by_lower_case = {known_word.lower(): known_word for known_word in words}
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return by_lower_case[near[0]] if near else None


@cache
def first_line(path: Path) -> str:
    """The first line of the docstring with which a Python file begins, without importing the file."""
    with open(path, encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _files(kind: str) -> dict[str, Path]:
    """The Python files of a kind, by name."""
    folders = [PACKAGE / folder for folder in FOLDERS.get(kind, (kind,))]
    files = [file for folder in folders for file in folder.glob("*.py") if file.stem != "__init__"]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


@cache
def _plugins(kind: str) -> dict[str, EntryPoint]:
    """The classes of a kind that installed packages offer, as entry points of the group `medfed.KIND`, by name."""
    plugins = entry_points(group=f"medfed.{kind}")
    return {plugin.name: plugin for plugin in plugins if plugin.name not in _files(kind)}


def _module(file: Path) -> str:
    """The name of the module of a file of medfed, such as "medfed.methods.elcfs"."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def _resolve(name: str) -> object:
    """Return the module of a dotted name, or the object that its last part names in the module before it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"'{name}' cannot be imported: {error}") from error
    except Exception as error:  # code from outside medfed may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({Path(frame.filename).name}, line {frame.lineno})"
        raise UserError(f"'{name}' cannot be imported: {describe_error(error)}{place}; correct the file") from error
    module_name, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"'{name}' cannot be imported: {error}; it must be installed or in this folder") from error


def find_top_level(name: str) -> ModuleSpec | None:
    """Where a module or package outside of other packages is, without importing it; None if there is none.

    Programs import from the current folder only with `--allow-code`. Here it counts in any case, so that an error can
    name the file and the flag.
    """
    return importlib.util.find_spec(name) or PathFinder.find_spec(name, [os.getcwd()])


def _first_file_outside(name: str) -> Path | None:
    """The first file or folder in no installed package that the import of a dotted name would run, or None."""
    folders = {PACKAGE, Path(site.getusersitepackages()), *map(Path, site.getsitepackages())}
    folders |= {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    parts, inside = name.split("."), None
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if prefix in sys.modules:  # its code has run
            inside = getattr(sys.modules[prefix], "__path__", None)
        else:
            # The search in the folders of a package does not import the package.
            spec = find_top_level(prefix) if end == 1 else PathFinder.find_spec(prefix, inside)
            if spec is None:
                return None  # an attribute of a module, or nothing
            inside = spec.submodule_search_locations
            files = [spec.origin] if spec.has_location and spec.origin else list(inside or ())
            for file in map(Path, files):
                if not any(file.is_relative_to(folder) for folder in folders):
                    return file
        if inside is None:
            return None
    return None


def _only_class(kind: str, module: ModuleType) -> type[Any]:
    """The only public class of a kind that a module defines; UserError if there is none or more than one."""
    members = vars(module).values()
    own = [member for member in members if isinstance(member, type) and member.__module__ == module.__name__]
    found = [member for member in own if _belongs(kind, member) and member.__name__[0] != "_"]
    if len(found) != 1:
        names = ", ".join(member.__name__ for member in found) or "none"
        raise UserError(f"module '{module.__name__}' must define exactly one public {KINDS[kind][0]}, found {names}")
    return found[0]


def _belongs(kind: str, member: type) -> bool:
    """Whether a class is of a kind; the base class itself is not."""
    _, module, base = KINDS[kind]
    if module is None:
        return hasattr(member, base)
    base_class = getattr(importlib.import_module(module), base)
    return issubclass(member, base_class) and member is not base_class


def _relation(kind: str) -> str:
    """What a class must have to be of a kind, for a message."""
    return "method" if KINDS[kind][1] is None else "base class"
