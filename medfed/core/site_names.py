"""Which names a site may have: they become folders, file names and lines of a table."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_LENGTH = 64
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


def check(names: Iterable[str]) -> None:
    """Accept site names that are safe as folders and different from each other on every disk.

    Letters of any script, digits, spaces and punctuation are fine, at most 64 characters.

    Raises:
        ValueError: naming the first bad name, or both of a pair that differs only in case or in Unicode form.
    """
    seen: dict[str, str] = {}
    for name in names:
        if problem := _problem(name):
            raise ValueError(f"a site cannot be called {ascii(name[:MAX_LENGTH])}: {problem}; rename it")
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        if seen.get(folded) == name:
            raise ValueError(f"{ascii(name)} is there twice; expected every site once, so remove one")
        if folded in seen:
            pair = f"{ascii(seen[folded])} and {ascii(name)}"
            raise ValueError(f"{pair} are the same site name but for case or Unicode form; keep or rename one")
        seen[folded] = name


def _problem(name: str) -> str:
    """What is wrong with a name, or nothing."""
    if not 1 <= len(name) <= MAX_LENGTH:
        return f"it has {len(name)} characters, expected 1 to {MAX_LENGTH}"
    if any(letter in '/\\:*?"<>|' or not letter.isprintable() for letter in name):
        return 'it may not hold / \\ : * ? " < > | or control characters'
    if name != name.strip(" .") or name.startswith("-"):
        return "it may not begin or end with a space or a dot, nor begin with a hyphen"
    if name.partition(".")[0].strip().lower() in _RESERVED:
        return "Windows reserves that name"
    return ""
