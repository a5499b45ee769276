"""Find the class for a name in a config: the name of a file is the name of its class, and no list is kept.

The method `elcfs` is the class in `medfed/methods/elcfs.py`. The names are listed without importing the files, so that
listing takes milliseconds.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from medfed.core.errors import UserError

PACKAGE = Path(__file__).parent.parent
KINDS = {  # folder: the word in messages, and the module and name of the base class
    "methods": ("method", "medfed.federation.method", "Method"),
    "datasets": ("dataset", "medfed.datasets.base", "Dataset"),
    "networks": ("network", "medfed.networks.base", "NetworkSettings"),
    "engines": ("engine", None, "exchange"),  # a protocol: any class with this method is an engine
    "mask_metrics": ("metric", "medfed.metrics.mask_metric", "MaskMetric"),
    "class_metrics": ("metric", "medfed.metrics.class_metric", "ClassMetric"),
}
FOLDERS = {  # folders that hold a kind, if they are not the folder of the same name
    "datasets": ("datasets", "phantoms"),
    "mask_metrics": ("metrics",),
    "class_metrics": ("metrics",),
}
_DOCSTRING = re.compile(r'(?:\s*#[^\n]*\n)*\s*[rR]?(?:"""(?:.|\n)*?"""|"[^"\n]*")')
_METHOD = re.compile(r"    (?:async )?def (\w+)\(")
_is_code_allowed = False  # whether a config may name code that is in no installed package; see `code_allowed`


def known_names(kind: str) -> dict[str, str]:
    """Return the first docstring line of each file with a class of the kind, by name, without importing the file.

    An engine is a class that defines `exchange`; other kinds have a base class. UserError if a file is not valid
    Python.
    """
    versions = tuple(sorted((file.path, file.stat().st_mtime_ns) for file in _files(kind)))
    return dict(_names_in(KINDS[kind][2], versions))


@cache
def _names_in(base: str, files: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Names that the files, each with its time of change, define. A run asks for them about forty times."""
    paths = sorted(((Path(path), changed_ns) for path, changed_ns in files), key=lambda version: version[0].stem)
    trees = {path.stem: _parse_version(path, changed_ns) for path, changed_ns in paths}
    classes = {name: [node for node in tree.body if isinstance(node, ast.ClassDef)] for name, tree in trees.items()}
    family = _family([node for nodes in classes.values() for node in nodes], base)
    public = {name: [c for c in nodes if c.name in family and c.name[0] != "_"] for name, nodes in classes.items()}
    return {name: _first_line(tree) for name, tree in trees.items() if public[name]}


def resolve(kind: str, name: str) -> type[Any]:
    """Import and return the class of a known name, or of a dotted name that a config may have (`check_code`).

    UserError, with the most similar known name, if there is no such class, or if a config may not name it.
    """
    require(kind, name)
    if "." not in name:
        folder = next(Path(file.path).parent.name for file in _files(kind) if file.name == f"{name}.py")
        return _only_class(kind, importlib.import_module(f"medfed.{folder}.{name}"))
    target = _resolve(name)
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
    """File of a known name, relative to the folder that holds the package `medfed`."""
    path = next(file.path for file in _files(kind) if file.name == f"{name}.py")
    return str(Path(path).relative_to(PACKAGE.parent))


def name_of(kind: str, found: type) -> str:
    """Name by which `resolve` finds a class: that of the file for a class of medfed, else the dotted name."""
    package, _, file_name = found.__module__.rpartition(".")
    folders = (f"medfed.{folder}" for folder in FOLDERS.get(kind, (kind,)))
    if package in folders and file_name in known_names(kind):
        return file_name
    return f"{found.__module__}.{found.__qualname__}"


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


def first_line(path: Path) -> str:
    """The first line of a Python file's docstring, or "", without importing the file."""
    return _first_line(_parse(path))


def _files(kind: str) -> list[os.DirEntry[str]]:
    """Python files in the folders of a kind. Directory entries are several times as fast as `Path.glob`."""
    files: list[os.DirEntry[str]] = []
    for folder in FOLDERS.get(kind, (kind,)):
        if (PACKAGE / folder).is_dir():
            with os.scandir(PACKAGE / folder) as entries:
                files += [entry for entry in entries if entry.name.endswith(".py")]
    return files


def _first_line(tree: ast.Module) -> str:
    """The first line of a module's docstring; "" without one."""
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _parse(path: Path) -> ast.Module:
    """The syntax tree of a file; UserError if it is not valid Python."""
    return _parse_version(path, path.stat().st_mtime_ns)


@cache
def _parse_version(path: Path, changed_ns: int) -> ast.Module:
    """Parse a file's outline once per version."""
    try:
        return ast.parse(_outline(path.read_text(encoding="utf-8")))
    except SyntaxError as error:
        raise UserError(f"{path}: line {error.lineno}: {error.msg}; expected valid Python") from error


def _outline(source: str) -> str:
    """Return the docstring of a Python file and its top-level classes with empty methods; all other lines are blank.

    Parsing whole files would take most of the time of `python -m medfed`. Line numbers stay the same.
    """
    docstring = _DOCSTRING.match(source)
    n_kept = source.count("\n", 0, docstring.end()) + 1 if docstring else 0
    lines, in_class, in_header, needs_body = source.split("\n"), False, False, False
    for index, line in enumerate(lines[n_kept:], start=n_kept):
        if line.startswith("class ") or in_header:
            in_class, in_header = True, not line.split("#")[0].rstrip().endswith(":") and "):" not in line
            needs_body = not in_header and line.split("#")[0].rstrip().endswith(":")
            continue
        in_class = in_class and (not line or line[0] in " #)")
        method = _METHOD.match(line) if in_class else None
        lines[index] = f"    def {method[1]}(): pass" if method else "    pass" if needs_body else ""
        needs_body = False
    return "\n".join(lines)


def _family(classes: list[ast.ClassDef], base: str) -> set[str]:
    """Names of the classes that inherit from `base`, or that define a method of that name (engines)."""
    family = {node.name for node in classes if any(getattr(part, "name", None) == base for part in node.body)}
    size = -1
    while len(family) > size:
        size = len(family)
        family |= {node.name for node in classes if {_last_name(parent) for parent in node.bases} & (family | {base})}
    return family


def _last_name(expression: ast.expr) -> str:
    """The last part of a dotted name in a syntax tree."""
    return ast.unparse(expression).rpartition(".")[2]


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
