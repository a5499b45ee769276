"""The glossary: one word per concept in names and texts, and a docstring on every public definition."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed_sources import parsed

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "medfed").rglob("*.py"))
IN_NAMES = re.compile(  # parts of names, split at underscores; and the prefixes of limits
    r"(^|_)(letters?|pictures?|people|told|onlookers?|strangers?|rehears\w*|desk|anew|canvas)(_|$)|MOST_|FEWEST_|AT_ONCE"
)
IN_TEXTS = re.compile(
    r"\b(pictures?|people|told|onlookers?|strangers?|rehears\w*|twins?|anew|so many|whose say)\b", re.IGNORECASE
)
# Keys and code in the files of runs and bundles.
FILE_FORMATS = ('"pictures"', "`pictures`", "lambda picture", "(picture)", "[picture.mode]")


@pytest.fixture(scope="module")
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(ROOT), parsed(path)) for path in MODULES]


def public_definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The public classes and functions of a module, and the public functions and properties of its public classes."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child, f"{child.name}.")


def names(tree: ast.Module) -> set[str]:
    """Every identifier that the module defines or uses."""
    result = set()
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg"):
            if isinstance(value := getattr(node, field, None), str):
                result.add(value)
    return result


def test_every_public_definition_has_a_docstring(trees):
    missing = [
        f"{path}: {name}"
        for path, tree in trees
        for name, node in public_definitions(tree)
        if not ast.get_docstring(node)
    ]
    assert not missing, missing


def test_sections_of_docstrings_are_at_the_margin(trees):
    indented = re.compile(r"^ +(Args|Returns|Raises|Yields):", re.MULTILINE)
    wrong = [
        f"{path}: {name}"
        for path, tree in trees
        for name, node in public_definitions(tree)
        if indented.search(ast.get_docstring(node) or "")
    ]
    assert not wrong, wrong


def test_names_use_the_words_of_the_glossary(trees):
    wrong = [f"{path}: {name}" for path, tree in trees for name in sorted(names(tree)) if IN_NAMES.search(name)]
    assert not wrong, wrong


def test_texts_use_the_words_of_the_glossary():
    texts = [*MODULES, ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "configs").glob("*.yaml")]
    texts += [path for kind in ("*.md", "*.jinja", "*.json") for path in (ROOT / "medfed").rglob(kind)]
    wrong = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for file_format in FILE_FORMATS:
                line = line.replace(file_format, "")
            if word := IN_TEXTS.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {word[0]}")
    assert not wrong, wrong
