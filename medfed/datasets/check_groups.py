"""Group problems by their kind, so that a mistake in 700 files is said once."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from medfed.core.errors import Problem, UserError, UserErrors

WIDTH = 100  # characters per line
MAX_EXAMPLES, MAX_CURES = 2, 3  # of each kind
MAX_LISTED = 10  # further places of each kind


def by_kind(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Return different problems in groups of the same kind, in the order of the first problem of each kind."""
    groups: dict[str, list[Problem]] = {}
    for problem in dict.fromkeys(problems):
        groups.setdefault(problem.kind, []).append(problem)
    return list(groups.values())


def join_problems(problems: Iterable[Problem]) -> UserError:
    """Return the only problem, or one error with a sentence for each kind: its first problem, and where others are."""
    groups = by_kind(problems)
    if len(groups) == len(groups[0]) == 1:
        return groups[0][0]
    return UserErrors(
        str(first) + (f" ({len(others)} more of this kind: {_places(others)})" if others else "")
        for first, *others in groups
    )


def format_problems(problems: Iterable[Problem], root: str) -> list[str]:
    """Return a paragraph for each kind of problem: the number, two examples, the other places, and what to do.

    Paths are relative to `root`. The examples have different cures, if possible.
    """
    lines = []
    for group in by_kind(problems):
        if len(group) == 1:
            lines += _wrap(str(group[0]), 2)
            continue
        lines += _wrap(f"{group[0].kind} ({len(group):,}):", 2)
        of_cure = {problem.cure: problem for problem in reversed(group)}
        cures = [cure for cure in dict.fromkeys(problem.cure for problem in group) if cure]
        first = [of_cure[cure] for cure in cures]
        group = list(dict.fromkeys([*first[:MAX_EXAMPLES], *group]))
        for problem in group[:MAX_EXAMPLES]:
            lines += _wrap(_relative(f"{problem.place}: {problem.found}", root), 4)
        if others := group[MAX_EXAMPLES:]:
            lines += _wrap(_relative(f"also: {_places(others)}", root), 4)
        for cure in cures[:MAX_CURES]:
            lines += _wrap(f"-> {cure}", 4)
    return lines


def as_problem(error: UserError, place: Path) -> Problem:
    """Return an error about a file as a problem; one that is not a `Problem` is the only one of its kind."""
    if isinstance(error, Problem):
        return error
    return Problem(str(error), place, str(error).removeprefix(f"{place}: "), "")


def _places(problems: Sequence[Problem]) -> str:
    """Return the places of up to ten problems, and how many more there are."""
    places = list(dict.fromkeys(problem.place for problem in problems))
    n_more = len(places) - MAX_LISTED
    more = f" and {n_more:,} more (`python -m medfed.data check` with `--json` lists all)" if n_more > 0 else ""
    return ", ".join(places[:MAX_LISTED]) + more


def _relative(text: str, root: str) -> str:
    """Return a text whose paths below `root` start there; a longer path that contains `root` stays whole."""
    return re.sub(rf"(?<![\w/.-]){re.escape(root)}/", "", text)


def _wrap(text: str, indent: int) -> list[str]:
    """Return a text in lines of at most 100 characters; a path is never divided."""
    start = " " * indent
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=start + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
