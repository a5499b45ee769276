"""The glossary: one word per concept in names and texts, and full docstrings of the public names."""

import ast
import importlib
import inspect
import re
from itertools import takewhile
from pathlib import Path
from types import FunctionType

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


PACKAGES = ("", "datasets", "functional", "losses", "methods", "metrics", "networks", "testing", "transforms")
PROTOCOL = {"__init__", "__call__"}  # a class says in its own docstring how it is made and called


def public_objects() -> dict[str, object]:
    """What the reference lists: the names in `__all__`, and what the public classes add to their base classes."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(f"medfed.{package}".rstrip("."))
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, type | FunctionType):
                continue
            found[f"{package or 'medfed'}.{name}"] = value
            for member, content in vars(value).items() if isinstance(value, type) else ():
                function = getattr(content, "fget", None) or getattr(content, "__func__", content)
                is_new = not any(hasattr(base, member) for base in value.__mro__[1:])
                if isinstance(function, FunctionType) and not member.startswith("_") and is_new:
                    found[f"{package or 'medfed'}.{name}.{member}"] = function
    return found


def documented_arguments(docstring: str) -> list[str]:
    """The names in the section `Args:` of a docstring."""
    lines = docstring.splitlines()
    entries = takewhile(lambda line: not line or line.startswith(" "), lines[lines.index("Args:") + 1 :])
    found = [re.match(r" {4}(\*{0,2}\w+(?:, \w+)*): ", line) for line in entries]
    return [name.lstrip("*") for entry in found if entry for name in entry[1].split(", ")]


def names(tree: ast.Module) -> set[str]:
    """Every identifier that the module defines or uses."""
    result = set()
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg"):
            if isinstance(value := getattr(node, field, None), str):
                result.add(value)
    return result


def test_every_public_name_has_a_docstring():
    objects = public_objects()
    missing = [name for name, value in objects.items() if not value.__doc__ and name.split(".")[-1] not in PROTOCOL]
    assert len(objects) > 200 and not missing, missing


def test_arguments_in_docstrings_are_those_of_the_signature():
    wrong = []
    for name, value in public_objects().items():
        if "Args:" in (docstring := inspect.cleandoc(value.__doc__ or "")).splitlines():
            expected = [parameter for parameter in inspect.signature(value).parameters if parameter != "self"]
            if (found := documented_arguments(docstring)) != [p for p in expected if p in found]:
                wrong.append(f"{name}: {found} in the docstring, {expected} in the signature")
    assert not wrong, wrong


def test_sections_of_docstrings_are_at_the_margin():
    indented = re.compile(r"^ +(Args|Returns|Raises|Yields):", re.MULTILINE)
    wrong = [name for name, value in public_objects().items() if indented.search(inspect.cleandoc(value.__doc__ or ""))]
    assert not wrong, wrong


def test_names_use_the_words_of_the_glossary(trees):
    wrong = [f"{path}: {name}" for path, tree in trees for name in sorted(names(tree)) if IN_NAMES.search(name)]
    assert not wrong, wrong


def test_texts_use_the_words_of_the_glossary():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if ROOT / "docs" / "results" / "runs" not in path.parents]
    texts = [*MODULES, ROOT / "README.md", *pages, *(ROOT / "configs").glob("*.yaml")]
    texts += [path for kind in ("*.md", "*.jinja", "*.json") for path in (ROOT / "medfed").rglob(kind)]
    wrong = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for file_format in FILE_FORMATS:
                line = line.replace(file_format, "")
            if word := IN_TEXTS.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {word[0]}")
    assert not wrong, wrong
