"""Read and write YAML strictly: plain data only, numbers as in YAML 1.2, no key twice, one line for a mistake."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from medfed.core.errors import UserError
from medfed.core.files import read_text
from medfed.core.mistakes import MAX_DIGITS
from medfed.core.registry import shipped_configs, suggestion

_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(rf"[-+]?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})$")
_NUMBER = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)
MAX_BYTES = 1 << 20  # of a YAML file; a config with every key has 6,000
MAX_REPEATED_VALUES = 10_000  # of a YAML file with aliases, which can repeat values without end
_REPLACED_TAGS = {_TAG + name for name in ("int", "float", "timestamp", "merge")}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers of YAML 1.2.

    PyYAML reads YAML 1.1, where 1e-3 is text, 1:30 is ninety, 010 is eight and 2024-01-01 is a date. This loader reads
    a number and three texts. It keeps the booleans of YAML 1.1 (yes, no, on, off): `medfed.core.mistakes` asks for
    quotes around them. Keys of blocks are always text, as they are written.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_anchors: list[Any] = []  # of the blocks and lists that contain the next node
        self._n_values: dict[yaml.Node, int] = {}  # in each node, with the values that aliases repeat
        self._has_alias = False

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """The next node; ComposerError if it has a tag, or is an alias of a block that contains it."""
        event: Any = self.peek_event()
        anchor = getattr(event, "anchor", None)
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and anchor in self._open_anchors:
            problem = f"the alias *{anchor} is inside the block or list &{anchor} itself; write the value instead"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        if tag := getattr(event, "tag", None):
            problem = f"the tag '{tag.replace(_TAG, '!!')}' is not allowed; a config holds plain values only"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self._open_anchors.pop()
        self._has_alias |= is_alias
        if node is not None and not is_alias:
            self._n_values[node] = 1 + sum(map(self._n_values.__getitem__, _children(node)))
            if self._has_alias and self._n_values[node] > MAX_REPEATED_VALUES:
                problem = (
                    f"the aliases repeat more than {MAX_REPEATED_VALUES:,} values here; expected a few; write "
                    "the values instead"
                )
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A block as a dictionary; ConstructorError if a key is there twice."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in lines:
                problem = f"the key '{key.value}' already stands in line {lines[key.value]}; keep one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                lines[key.value] = key.start_mark.line + 1
                key.tag = _TAG + "str"
        return super().construct_mapping(node, deep)


def _children(node: yaml.Node) -> list[yaml.Node]:
    """The nodes directly in a list or block."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


class _ArgumentLoader(_Loader):
    """The same loader for a value of the command line, where a text may begin with `*`.

    In YAML, `*name` repeats a value that `&name` has marked, which is of no use within a single value. A shell removes
    the quotes of '*_seg', so that the program cannot know about them.
    """

    def fetch_alias(self) -> None:
        """Read a text without quotes where YAML has an alias."""
        self.fetch_plain()


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes each text that `_Loader` or YAML 1.1 would not read as text.

    A list is on one line.
    """


for _reader in (_Loader, _Dumper):
    _reader.add_implicit_resolver(_TAG + "int", _WHOLE_NUMBER, list("-+0123456789"))
    _reader.add_implicit_resolver(_TAG + "float", _NUMBER, list("-+.0123456789"))
_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence(_TAG + "seq", data, flow_style=True))


def parse(text: str, source: str, is_argument: bool = False) -> Any:
    """Read plain data from YAML, strictly; None for an empty text. `is_argument`: `*_seg` is a text and no alias.

    UserError, with line and column, for broken YAML, a tag, a key that occurs twice, a block that contains itself, or
    aliases that repeat very many values.
    """
    try:
        return copy.deepcopy(_load(text, _ArgumentLoader if is_argument else _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        hint = "; put a text that begins with { in quotes" if re.search(r"(?::|-|\[|^)\s*\{[a-z]", line) else ""
        raise UserError(f"{source}: {place}{error.problem}{hint}") from None
    except yaml.reader.ReaderError as error:
        place = f"character {error.character:#x} at position {error.position}"
        raise UserError(f"{source}: {place} is not allowed in YAML; expected plain UTF-8 text") from None
    except RecursionError:
        raise UserError(
            f"{source}: the blocks or lists are nested too deeply to be read; expected two or three levels of keys"
        ) from None


@lru_cache(maxsize=32)
def _load(text: str, loader: type[_Loader]) -> Any:
    """Parse a text once: a run reads its config, which takes 20 ms, about ten times."""
    return yaml.load(text, loader)  # a SafeLoader, and stricter


def read(path: str | Path) -> str:
    """Read a YAML file as UTF-8 text; if it does not exist, the UserError names a similar file or shipped config."""
    try:
        return read_text(Path(path), MAX_BYTES)
    except FileNotFoundError:
        if shipped := shipped_configs().get(str(path)):
            hint = f"The config of this name that comes with medfed is {shipped}"
            raise UserError(f"{path}: no such file; expected a YAML file. {hint}") from None
        if Path(path).stem in shipped_configs():
            hint = f"For the config that comes with medfed, write '{Path(path).stem}' without folder and ending"
            raise UserError(f"{path}: no such file; expected a YAML file. {hint}") from None
        others = sorted(str(other) for other in Path(path).parent.glob("*.y*ml"))
        hint = suggestion(str(path), others) if others else _no_yaml_in(Path(path).absolute().parent)
        raise UserError(f"{path}: no such file; expected a YAML file. {hint}") from None
    except IsADirectoryError:
        own = shipped_configs().get(str(path))
        hint = f"; the config of this name that comes with medfed is {own}" if own else ""
        example = Path(path) / "config.yaml"
        raise UserError(f"{path}: is a folder; expected a YAML file, such as {example}{hint}") from None
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise UserError(f"{path}: not UTF-8 text ({byte}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; expected a YAML file") from None


def _no_yaml_in(folder: Path) -> str:
    """The end of the message about a missing file in a folder without other YAML files, or that does not exist."""
    if not folder.is_dir():
        return f"The folder {folder} does not exist; correct the path"
    return f"The folder {folder} has no YAML file; go to the folder of the file, or write the path of the file"


def dump(document: Mapping[str, Any]) -> str:
    """Write a document that `parse` reads back; keys keep their order, a list is on one line."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)
