"""Group the sentences of a dataset check by their cause, so that a cause with 700 files is one paragraph."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfed.images.reading import SUFFIXES

WIDTH = 100  # characters per line
MAX_EXAMPLES = 2  # of each group
MAX_LISTED = 10  # problems, or places of one cause, in an error message
MAX_PATTERNS = 12  # that a group lists in data.ignored_names
_INDENT = "    "
_NAMED = ": not read, "  # each such sentence is shown, so that no folder is left out without a word
_FILE = re.compile(rf"[^\s,;()']*(?:{'|'.join(map(re.escape, SUFFIXES))})(?![\w.])", re.IGNORECASE)
# What differs between the sentences of one cause: examples, names in quotes, hashes, numbers and lists of numbers.
_EXAMPLES = re.compile(r"such as (?!data\.)[^;]*?(?=, but|;|\)|$)|the first (?:is|are|with the rarest values is) [^;]*")
_QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)")
_NUMBER = re.compile(r"(?<![#\w])-?\d[\d.,]*(?: x \d[\d.,]*)*\b")
_IN_SITES = re.compile(r": (in \d+ of \d+) cases, the first (?:is|are) (.*)$")
_LEFT_OUT = re.compile(r"data\.ignored_names: \[([^\]]*)\]")
_WITH_DIGIT = re.compile(r"(?<![#\w])[^\s,;:()\[\]'#]*\d[^\s,;:()\[\]'#]*")  # a name such as p07_left
_LIST = re.compile(r"0(?:, 0)+(?:, \.\.\.)?(?: \(0 values\))?")


@dataclass
class Group:
    """Sentences with the same cause.

    Args:
        sentence: the first sentence without the place at its start.
        places: the start of each sentence: a file, several files or a site; "" if a sentence has no place.
        sentences: all sentences without their places.
    """

    sentence: str
    places: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def group_sentences(sentences: Iterable[str], root: str = "") -> list[Group]:
    """Group sentences of the form "PLACE: what was found; what was expected; what to do" by their cause.

    Sentences have the same cause if they differ only in the place, in numbers, names and examples, and in what
    `data.ignored_names` leaves out. Sentences about files that are not read are a group each.
    """
    groups: dict[str, Group] = {}
    for sentence in sentences:
        place, colon, rest = sentence.partition(": ")
        if not colon or place.startswith(("the ", "data.")):
            place, rest = "", sentence
        is_alone = _NAMED in sentence or "published collection" in rest  # its numbers are what it says
        group = groups.setdefault(sentence if is_alone else _cause(rest, place, root), Group(rest))
        group.places.append(place)
        group.sentences.append(rest)
    return list(groups.values())


def format_groups(sentences: Sequence[str], root: str, sites: Sequence[str]) -> list[str]:
    """Return lines of at most 100 characters (except for longer paths), one paragraph for each cause.

    A sentence that is alone in its group is shown completely. Other paragraphs have the number of files, folders or
    sites, the first sentence, two examples with paths relative to `root`, and on a line of its own what to do.
    """
    lines = []
    for group in group_sentences(sentences, root):
        if len(group.places) == 1:
            place = f"{group.places[0]}: " if group.places[0] else ""
            lines += _wrap(place + group.sentence, "  ", _INDENT)
            continue
        found, _, rest = _IN_SITES.sub("", group.sentence).partition("; ")
        expected, _, cure = rest.rpartition("; ")
        noun = _noun(group.places, root, sites)
        lines += _wrap(f"{len(group.places):,} {noun}: {'; '.join(filter(None, [found, expected]))}", "  ", _INDENT)
        start = "in" if noun == "sites" else "such as"
        lines += _wrap(f"{start}: {_examples(group, root, noun)}", _INDENT, _INDENT * 2)
        cure = _LEFT_OUT.sub(f"data.ignored_names: [{_left_out(group)}]", cure)
        lines += _wrap(f"-> {cure}", _INDENT, _INDENT * 2) if cure else []
    return lines


def join_problems(problems: Sequence[str], root: str) -> str:
    """Return an error message: the first problem, and in brackets the others, each cause once."""
    if len(problems) == 1:
        return problems[0]
    first, *others = group_sentences(problems, root)
    same = ", ".join(filter(None, first.places[1:MAX_LISTED]))
    listed = [f"of the same kind: {same}"] if same else []
    for group in others:
        places = ", ".join(filter(None, group.places[:MAX_LISTED]))
        listed.append(f"{places}: {group.sentence}" if places else group.sentence)
    shortened = ["...", "`medfed data check` shows all, grouped by cause"] if len(problems) > MAX_LISTED else []
    return f"{problems[0]} (and {len(problems) - 1} more: {'; '.join([*listed[:MAX_LISTED], *shortened])})"


def _noun(places: Sequence[str], root: str, sites: Sequence[str]) -> str:
    """Return what the places of a group are: "sites", "folders", "files" or other "places"."""
    if set(places) <= set(sites):
        return "sites"
    if root not in places[0]:
        return "places"
    return "folders" if all(Path(place).is_dir() for place in places) else "files"


def _examples(group: Group, root: str, noun: str) -> str:
    """Return all sites of a group, each with its number of cases if the sentences have one, or two of its files."""
    if noun != "sites":
        return ", ".join(place.replace(f"{root}/", "") for place in group.places[:MAX_EXAMPLES])
    counts = [_IN_SITES.search(sentence) for sentence in group.sentences]
    return ", ".join(
        f"{site} ({count[1].removeprefix('in ')}: {count[2]})" if count else site
        for site, count in zip(group.places, counts)
    )


def _left_out(group: Group) -> str:
    """The names that a group's advice tells the user to add to `data.ignored_names`, joined by commas."""
    names = list(dict.fromkeys(match[1] for text in group.sentences for match in _LEFT_OUT.finditer(text)))
    return ", ".join(names[:MAX_PATTERNS]) + (", ..." if len(names) > MAX_PATTERNS else "")


def _cause(text: str, place: str, root: str) -> str:
    """Return a sentence without the parts that differ between files, such as the name of the file or folder `place`."""
    if name := place.rpartition("/")[2]:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", text)
    text = _LEFT_OUT.sub("data.ignored_names: []", text)
    if root:
        text = re.sub(re.escape(root) + r"[^\s;,:()]*", "FOLDER", text)
    text = _EXAMPLES.sub("such as ...", text)
    text = re.sub(r"\(SHA-256 \w+\)", "", text)
    text = re.sub(r"(?<!the class )'[^']*'(?= has| does| is|;|,|$)", "''", _FILE.sub("FILE", text))
    return _LIST.sub("0", _NUMBER.sub("0", _WITH_DIGIT.sub("0", text)))


def _wrap(text: str, first: str, others: str) -> list[str]:
    """Return a text in lines of at most 100 characters; a path, and a setting in quotes, is never divided."""
    whole = _QUOTED.sub(lambda match: match[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]
