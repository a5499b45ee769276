"""Rules for the names of sites, which become names of folders and files and entries of tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_LENGTH = 64
AVERAGE = "average"  # stands for all sites in tables of scores


def check(names: Iterable[str]) -> None:
    """ValueError for a name that is no folder name, or that a file system may treat as equal to another."""
    seen: dict[str, str] = {}
    for name in names:
        if problem := _problem(name):
            raise ValueError(f"a site cannot be called {ascii(name[:MAX_LENGTH])}: {problem}; rename it")
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        if seen.get(folded) == name:
            raise ValueError(f"{ascii(name)} is listed twice; expected every site once; remove one of the two")
        if folded in seen:
            pair = f"{ascii(seen[folded])} and {ascii(name)}"
            raise ValueError(
                f"the site names {pair} differ only in upper and lower case or in Unicode form; rename or remove one"
            )
        seen[folded] = name


def _problem(name: str) -> str:
    """Why a name is not allowed, as a clause; "" if it is allowed."""
    if not 1 <= len(name) <= MAX_LENGTH:
        return f"it has {len(name)} characters, expected 1 to {MAX_LENGTH}"
    if any(character in '/\\:*?"<>|' or not character.isprintable() for character in name):
        return 'it must not contain / \\ : * ? " < > | or control characters'
    if name != name.strip(" .") or name.startswith("-"):
        return "it must not begin or end with a space or a dot, or begin with a hyphen"
    if name == AVERAGE:
        return "tables of scores call the average of all sites so"
    return ""
