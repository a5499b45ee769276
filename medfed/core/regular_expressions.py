"""Check regular expressions that a config contains."""

from __future__ import annotations

import re

_ESCAPE_OR_SET = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # such as \d or [a-z]
_REPEAT = re.compile(r"[*+]|\{\d*,\}")  # without a limit


def check_regular_expression(name: str, expression: str, with_group: bool = False) -> None:
    """Raise ValueError if a regular expression is invalid, lacks a group, or could take hours.

    `name` says where the expression is, such as "patient_pattern".
    """
    shown = expression if len(expression) < 200 else f"{expression[:200]}..."
    try:
        groups = re.compile(expression).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{name} '{shown}' is not a valid regular expression: {error}") from None
    if with_group and groups < 1:
        raise ValueError(f"{name} '{shown}' has no group; put parentheses around the part that identifies the patient")
    if _has_nested_repeat(expression):
        raise ValueError(
            f"{name} '{shown}' has a repeat (* or +) inside a repeat, whose search may take hours; write it with one "
            "repeat, such as [a-z0-9]+"
        )


def _has_nested_repeat(expression: str) -> bool:
    """Return whether a valid regular expression repeats a group without limit that has such a repeat in it."""
    plain = _ESCAPE_OR_SET.sub("x", expression)
    holds_repeat = [False]  # of the whole expression, then of each open group
    for place, character in enumerate(plain):
        if character == "(":
            holds_repeat.append(False)
        elif character == ")":
            inner = holds_repeat.pop()
            if inner and _REPEAT.match(plain, place + 1):
                return True
            holds_repeat[-1] |= inner
        elif _REPEAT.match(plain, place):
            holds_repeat[-1] = True
    return False
