"""Source files of medfed as syntax trees, which several tests of all files look at."""

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; it must not be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))
