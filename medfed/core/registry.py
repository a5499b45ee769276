"""Find the class for a name in a config: the name of a file is the name of its class, and no list is kept.

The method `elcfs` is the class in `medfed/methods/elcfs.py`. An installed package adds names as entry points, such as
`mine = "mypackage.mymodule:MyMethod"` in the group `medfed.methods`. Listing the names imports none of the files.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from medfed.core.errors import UserError

PACKAGE = Path(__file__).parent.parent


class Kind(NamedTuple):
    """What a config can name: the word in messages, the base class, and the folders with one file for each name."""

    word: str
    base: str
    folders: tuple[str, ...]


KINDS = {
    "methods": Kind("method", "medfed.federation.method.Method", ("methods",)),
    "datasets": Kind("dataset", "medfed.datasets.base.Dataset", ("datasets/collections", "phantoms")),
    "networks": Kind("network", "medfed.networks.parts.base.NetworkSettings", ("networks",)),
    "engines": Kind("engine", "medfed.federation.engine.Engine", ("engines",)),
    "mask_metrics": Kind("metric", "medfed.metrics.mask_metric.MaskMetric", ("metrics/masks",)),
    "class_metrics": Kind("metric", "medfed.metrics.class_metric.ClassMetric", ("metrics/classes",)),
    "callbacks": Kind("callback", "medfed.outputs.callback.Callback", ("outputs/trackers",)),
}
BLOCK_KINDS = {"data": "datasets", "network": "networks", "method": "methods"}  # blocks that choose a class by `name`
VALUE_KINDS = {
    "federation.engine": ("engines",),
    "evaluation.metrics": ("mask_metrics", "class_metrics"),
    "tracking": ("callbacks",),
}
_is_code_allowed = False  # whether a config may name code outside of medfed and its plugins; see `code_allowed`


def known_names(kind: str) -> dict[str, str]:
    """The names of a kind, each with the first docstring line of its file or its plugin's package; none is imported."""
    names = {name: first_line(path) for name, path in _files(kind).items()}
    plugins = _plugins(kind).items()
    return names | {name: f"of the package {plugin.module}, whose docstrings explain it" for name, plugin in plugins}


def resolve(kind: str, name: str) -> type[Any]:
    """Import and return the class of a known or dotted name; UserError as `require`, or if it is of another kind."""
    require(name, kind)
    base = _import(KINDS[kind].base)
    if name in _files(kind):
        module = importlib.import_module(_module(_files(kind)[name]))
        public = (
            member
            for name, member in vars(module).items()
            if getattr(member, "__module__", "") == module.__name__ and name[0] != "_"
        )
        return next(member for member in public if isinstance(member, type) and issubclass(member, base))
    plugin = _plugins(kind).get(name)
    found = _import(plugin.value.replace(":", ".") if plugin else name)
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        raise UserError(f"'{name}' is no {KINDS[kind].word}; expected a class derived from {KINDS[kind].base}")
    return found


def require(name: str, *kinds: str) -> None:
    """UserError if a name is unknown in all kinds, or is dotted and may not be imported. Nothing is imported.

    A config is data, and may come from anyone: a module that is not loaded yet would run, which needs `--allow-code`.
    """
    known = sorted({known_name for kind in kinds for known_name in known_names(kind)})
    if name in known:
        return
    if "." not in name:
        raise UserError(f"no {KINDS[kinds[0]].word} '{name}'. {suggestion(name, known)}")
    is_loaded = name.startswith("medfed.") or name.rpartition(".")[0] in sys.modules
    if not (is_loaded or _is_code_allowed):
        raise UserError(
            f"'{name}' would run code from outside of medfed; if you trust this code, add the flag --allow-code, or "
            "import the module before, in a Python program"
        )


@contextmanager
def code_allowed(is_allowed: bool = True) -> Iterator[None]:
    """Let a config name any module that can be imported (`--allow-code`); False changes nothing."""
    global _is_code_allowed
    before, _is_code_allowed = _is_code_allowed, _is_code_allowed or is_allowed
    try:
        yield
    finally:
        _is_code_allowed = before


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


def describe_error(error: BaseException) -> str:
    """Return one line such as "ValueError: mu is negative"."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def suggestion(word: str, words: Iterable[str], unlisted: Iterable[str] = ()) -> str:
    """Return the end of an error message, such as "Did you mean 'elcfs'? Known: elcfs, fedavg"."""
    words = list(words)
    near = nearest(word, [*words, *unlisted])
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
    files = [
        file for folder in KINDS[kind].folders for file in (PACKAGE / folder).glob("*.py") if file.stem != "__init__"
    ]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def _plugins(kind: str) -> dict[str, EntryPoint]:
    """The classes of a kind that installed packages offer, as entry points of the group `medfed.KIND`, by name."""
    plugins = _entry_points().select(group=f"medfed.{kind}")
    return {plugin.name: plugin for plugin in plugins if plugin.name not in _files(kind)}


_entry_points = cache(entry_points)  # reading them takes 30 ms


def _module(file: Path) -> str:
    """The name of the module of a file of medfed, such as "medfed.methods.elcfs"."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def _import(name: str) -> Any:
    """Import the module of a dotted name, and return the object that the last part of the name stands for."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"'{name}' cannot be imported: {error}; it must be installed or in this folder") from error
    except Exception as error:  # code from outside medfed may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({Path(frame.filename).name}, line {frame.lineno})"
        raise UserError(f"'{name}' cannot be imported: {describe_error(error)}{place}; correct the file") from error
