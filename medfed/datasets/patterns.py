"""Patterns of paths with named fields, such as `{site}/images/{case}.png`.

`{word}` is a field: one or more characters, as few as possible, of one folder or file name. `{word:REGEX}` is a field
with a regular expression. `*` and `?` match any characters, or one, without a name. `.*` at the end stands for the
suffix of any image format. The fields `site`, `patient` and `class` have a meaning; a case is identified by all its
fields. Upper and lower case, and the Unicode form of letters, make no difference.

>>> compile_pattern("{site}/images/{case}.*").match("UCL/images/a.nii.gz")
{'site': 'UCL', 'case': 'a'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from medfed.images import dicom_files, reading
from medfed.images.file_names import composed

_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ANY_SUFFIX = f"(?:{'|'.join(map(re.escape, (*reading.SUFFIXES, *dicom_files.SUFFIXES)))})"
ANY = ".*"  # at the end of a pattern


@dataclass(frozen=True)
class Pattern:
    """A pattern of paths relative to the folder of a dataset."""

    text: str  # as a config writes it
    fields: tuple[str, ...]  # in the order of the pattern
    _match: re.Pattern[str] = field(repr=False, compare=False)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the fields in a path, in the form NFC; None if the path does not fit."""
        found = self._match.fullmatch(composed(path))
        return None if found is None else {name: found[name] for name in self.fields}


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    """Return the pattern of a text; ValueError if the text is no pattern of relative paths."""
    if not text or text.startswith(("/", "./")) or "\\" in text.partition("{")[0] or ".." in text.split("/"):
        raise ValueError(f"'{text}' is no pattern of paths below data.root; expected one as {{site}}/images/{{case}}.*")
    expression, names = "", list[str]()
    body = text.removesuffix(ANY)
    for part, regex in _parts(body):
        if regex is None:
            expression += "".join({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)) for sign in part)
        elif part in names:
            expression += f"(?P={part})"
        else:
            names.append(part)
            expression += f"(?P<{part}>{regex})"
    try:
        compiled = re.compile(expression + (_ANY_SUFFIX if body != text else ""), re.IGNORECASE)
    except (re.error, OverflowError) as error:
        raise ValueError(f"'{text}' has an invalid regular expression: {error}") from None
    return Pattern(text, tuple(names), compiled)


def compile_patterns(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of several texts, as `compile_pattern` does."""
    return tuple(map(compile_pattern, texts))


def _parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a pattern: (text, None), or (name of a field, its regular expression)."""
    place = 0
    while (start := text.find("{", place)) >= 0:
        yield composed(text[place:start]), None
        end, depth = start, 0
        while depth or end == start:
            if end == len(text):
                raise ValueError(f"'{text}' has a field without an end; expected {{word}} or {{word:REGEX}}")
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        name, colon, regex = text[start + 1 : end - 1].partition(":")
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"'{text}' has the field '{name}'; expected lower-case letters, such as {{case}}")
        yield name, composed(regex) if colon else "[^/]+?"
        place = end
    if "}" in text[place:]:
        raise ValueError(f"'{text}' has a '}}' without a '{{'; expected {{word}} or {{word:REGEX}}")
    yield composed(text[place:]), None
