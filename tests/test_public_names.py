"""The public names of medfed: every one can be imported, alone and quickly, and the examples in docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_imports import run_without

import medfed

PACKAGES = (
    "medfed",
    *(
        f"medfed.{name}"
        for name in "datasets functional losses methods metrics networks phantoms testing transforms".split()
    ),
)
EXAMPLES = (
    "medfed.api",
    "medfed.datasets",
    "medfed.functional",
    "medfed.losses",
    "medfed.methods",
    "medfed.metrics",
    "medfed.networks",
    "medfed.testing.checks",
    "medfed.transforms",
    "medfed.transforms.adain_style",
)


def imported_for_type_checkers(package: str) -> set[str]:
    """Return the names that a package's `if TYPE_CHECKING:` block imports as themselves, which makes them public."""
    tree = ast.parse(Path(importlib.import_module(package).__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))  # TYPE_CHECKING
    return {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported_and_is_known_to_type_checkers(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None and name in dir(module)
    defined = {name for name in module.__all__ if name in ("__version__", "build")}
    assert imported_for_type_checkers(package) - {None} == set(module.__all__) - defined


OF_API = tuple(
    "Comparison Run check_data leave_one_site_out leave_two_sites_out load_config load_run make_plan run"
    " score_bundle write_report".split()
)
APART = [(name,) for name in medfed.__all__ if name not in (*OF_API, "__version__")]


@pytest.mark.parametrize("names", [OF_API, *APART], ids=" ".join)
def test_each_name_can_be_used_after_importing_medfed_alone(names):
    """The names of `medfed.api`, whose first import takes seconds, in one process; each other name in its own.

    A package of medfed also gives each of its own names.
    """
    code = (
        f"import medfed\nfor name in {names}:\n"
        "    value = getattr(medfed, name)\n"
        "    print(value.__name__)\n"
        "    for own in getattr(value, '__all__', ()): getattr(value, own)"
    )
    printed = run_without(("medfed",), code).splitlines()
    assert all(text in (name, f"medfed.{name}") for text, name in zip(printed, names, strict=True))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        importlib.import_module(package).nothing  # noqa: B018


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout


def test_importing_medfed_or_a_package_imports_nothing_heavy():
    packages = ", ".join(package for package in PACKAGES)
    code = f"import sys, {packages}; print([n for n in ('torch', 'monai', 'numpy', 'yaml') if n in sys.modules])"
    assert run_python(code) == "[]\n"


def test_importing_one_name_imports_only_what_it_needs():
    code = (
        "import sys; from medfed.transforms import RandAmplitudeMixd; from medfed.metrics import Dice\n"
        "from medfed.methods import FedProx\n"
        "print(sorted(n for n in sys.modules if n.startswith(('medfed.methods.', 'medfed.tasks', 'medfed.experiments',"
        " 'medfed.transforms.adain', 'medfed.metrics.classes.auroc'))))"
    )
    assert run_without(("medfed",), code) == "['medfed.methods.fedprox']\n"


def test_a_program_does_not_hide_the_function_of_the_same_name():
    """`medfed.export` is a program and a function; whatever is imported first, it can be called."""
    code = "import medfed.export, medfed; assert callable(medfed.export) and medfed.export.main; print(medfed.run)"
    assert run_without(("medfed",), code).startswith("<function run at ")


def test_the_help_of_the_export_function_shows_its_arguments():
    text = pydoc.plain(pydoc.render_doc(importlib.import_module("medfed.export")))
    assert "run: a `Run`, or the folder of one." in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_the_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
