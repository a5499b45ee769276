"""Where Python looks for modules when a program runs in a folder that somebody else has sent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from medfed import __main__
from medfed.core.import_path import child_import_path, import_from_current_folder
from medfed.core.registry import PACKAGE


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with modules that have the names of some that every program imports."""
    for name in ("argparse", "__future__"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the module in the current folder was imported')")
    (tmp_path / "only_here.py").write_text("x = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_a_program_does_not_import_a_module_of_the_current_folder_in_place_of_an_installed_one(folder):
    result = run("-m", "medfed", "--version")
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("medfed ")


def test_a_config_may_name_a_class_in_a_file_of_the_current_folder_if_code_is_allowed(folder):
    code = "from medfed.cli.program import run_program; run_program('p', lambda: __import__('only_here').x, {})"
    assert run("-c", f"import sys; sys.path.remove(''); {code.format(True)}").returncode == 0
    assert run("-c", f"import sys; sys.path.remove(''); {code.format(False)}").returncode == 1


def test_the_command_medfed_imports_no_program_with_the_help_of_the_current_folder(folder, monkeypatch):
    """A library that medfed imports may itself try to import packages that are not installed."""
    monkeypatch.setattr(__main__, "_dispatch", lambda arguments: int(str(folder) in sys.path))
    assert __main__.main(["site"]) == 0


@pytest.mark.parametrize("entry", ["", ".", "absolute", "link"])
def test_a_hospitals_program_finds_no_module_in_the_current_folder(folder, tmp_path_factory, entry):
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(folder)
    sys.path[:0] = [{"absolute": str(folder), "link": str(link)}.get(entry, entry)]
    before = list(sys.path)
    with import_from_current_folder(False):
        assert set(sys.path) == set(before[1:])
    assert sys.path == before
    with import_from_current_folder(True):
        assert sys.path[-1] == str(folder) or entry == "absolute"
    assert sys.path == before


def test_a_child_process_finds_this_medfed_and_the_same_modules(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/a", str(folder), "/usr/lib/b"])
    here = str(folder)
    assert child_import_path().split(os.pathsep) == [str(PACKAGE.parent), here, "/usr/lib/a", "/usr/lib/b"]
    monkeypatch.setattr(sys, "path", ["/usr/lib/a", str(PACKAGE.parent)])
    assert child_import_path().split(os.pathsep) == ["/usr/lib/a", str(PACKAGE.parent)]
