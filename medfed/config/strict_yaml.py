"""Read and write YAML strictly: plain data only, numbers as in YAML 1.2, no key twice, one line for a mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from medfed.core.errors import UserError
from medfed.core.files import read_text
from medfed.core.mistakes import MAX_DIGITS
from medfed.core.registry import shipped_configs, suggestion

Aliases = Literal["refused", "text", "allowed"]
_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(rf"[-+]?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})$")
_NUMBER = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)
MAX_BYTES = 1 << 20  # of a YAML file; a config with every key has 6,000
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

    def __init__(self, text: str, aliases: Aliases) -> None:
        self._aliases = aliases
        super().__init__(text)

    def fetch_alias(self) -> None:
        """Read an alias, or a text that begins with `*`."""
        if self._aliases == "text":
            self.fetch_plain()
        else:
            super().fetch_alias()

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """The next node; ComposerError if it is a refused alias or has a tag."""
        event: Any = self.peek_event()
        problem = ""
        if isinstance(event, yaml.AliasEvent) and self._aliases == "refused":
            problem = f"the alias *{event.anchor} is not allowed; write the value itself, or put a text in quotes"
        elif tag := getattr(event, "tag", None):
            problem = f"the tag '{tag.replace(_TAG, '!!')}' is not allowed; a config holds plain values only"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

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


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes each text that `_Loader` or YAML 1.1 would not read as text.

    A list is on one line.
    """


for _reader in (_Loader, _Dumper):
    _reader.add_implicit_resolver(_TAG + "int", _WHOLE_NUMBER, list("-+0123456789"))
    _reader.add_implicit_resolver(_TAG + "float", _NUMBER, list("-+.0123456789"))
_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence(_TAG + "seq", data, flow_style=True))


def parse(text: str, source: str, aliases: Aliases = "refused") -> Any:
    """Read plain data from YAML; None for an empty text. UserError for broken YAML, a tag, or a key that occurs twice.

    `aliases` says what `*name` is: an error; a text, because a shell removes the quotes of '*_seg'; or, in medfed's own
    files, the value that is marked with `&name`.
    """
    try:
        return _Loader(text, aliases).get_single_data()
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


def read(path: str | Path) -> str:
    """Read a YAML file as UTF-8 text; if it does not exist, the UserError names a similar file or shipped config."""
    try:
        return read_text(Path(path), MAX_BYTES)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from None
    except OSError as error:
        if shipped := shipped_configs().get(str(path)):
            hint = f"The config of this name that comes with medfed is {shipped}"
        elif Path(path).stem in shipped_configs():
            hint = f"For the config that comes with medfed, write '{Path(path).stem}' without folder and ending"
        else:
            others = sorted(map(str, Path(path).parent.glob("*.y*ml")))
            folder = Path(path).absolute().parent
            hint = suggestion(str(path), others) if others else f"The folder {folder} has no YAML file"
        raise UserError(f"{path}: {error.strerror or error}; expected a YAML file. {hint}") from None


def dump(document: Mapping[str, Any]) -> str:
    """Write a document that `parse` reads back; keys keep their order, a list is on one line."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)
