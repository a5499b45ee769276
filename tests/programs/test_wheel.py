"""medfed works from its wheel: everything that the programs read is packed, and nothing is read from a checkout."""

import os
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from medfed.core import registry
from medfed.outputs.bundle.write import template_folder

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rules() -> dict:
    """The part of pyproject.toml that says what the wheel contains."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["hatch"]["build"]["targets"]["wheel"]


def packed_as(path: Path, rules: dict) -> str | None:
    """The name of a file of the checkout in the wheel; None if the wheel does not contain it."""
    name = path.relative_to(ROOT).as_posix()
    if any(name.startswith(f"{package}/") for package in rules["packages"]):
        return name
    target = rules["force-include"].get(name.split("/")[0])
    return target and f"{target}/{name.partition('/')[2]}"


def test_configs_and_bundle_templates_are_packed_where_the_package_looks_for_them(rules):
    configs = registry.shipped_configs()
    templates = [template_folder(path.name) for path in (ROOT / "bundles").iterdir() if path.is_dir()]
    assert {"prostate", "fundus", "camelyon17", "folder"} <= set(configs) and len(templates) == 3
    for path in configs.values():
        assert packed_as(path, rules) == f"medfed/configs/{path.name}"
    for folder in templates:
        for path in (path for path in folder.rglob("*") if path.is_file()):
            assert packed_as(path, rules) == f"medfed/bundles/{path.relative_to(folder.parent).as_posix()}"


def test_no_file_of_the_package_is_ignored_by_git(rules):
    """The build leaves out what .gitignore names."""
    patterns = [line for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("/")]
    names = [path for folder in ("medfed", "configs", "bundles") for path in (ROOT / folder).rglob("*")]
    shipped = [path for path in names if path.is_file() and "__pycache__" not in path.parts]
    ignored = [
        path
        for path in shipped
        for pattern in patterns
        if any(fnmatch(part, pattern.strip("/")) for part in path.relative_to(ROOT).parts)
    ]
    assert shipped and not ignored, ignored


def test_the_configs_of_an_installed_package_come_from_the_package_alone(tmp_path, monkeypatch):
    """Beside an installed medfed, a folder `configs` belongs to another package."""
    (tmp_path / "medfed" / "configs").mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    (tmp_path / "medfed" / "configs" / "a.yaml").touch()
    (tmp_path / "configs" / "a.yaml").touch()
    (tmp_path / "configs" / "b.yaml").touch()
    monkeypatch.setattr(registry, "PACKAGE", tmp_path / "medfed")
    assert registry.shipped_configs() == {"a": tmp_path / "medfed" / "configs" / "a.yaml"}


@pytest.mark.slow
def test_the_wheel_trains_and_exports_in_an_empty_folder(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True)
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("the build backend cannot be downloaded")
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("medfed-*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    folder = tmp_path / "empty"
    folder.mkdir()

    def medfed(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "PYTHONUTF8": "1"}
        command = [sys.executable, "-P", "-m", "medfed", *arguments]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    small = ("--set", "federation.rounds=1", "--set", "data.image_size=32", "--set", "method.name=fedavg", "--quiet")
    medfed("train", "prostate", *small, "--out", "run")
    config = (folder / "run" / "config.yaml").read_text()
    (folder / "my.yaml").write_text(config)
    medfed("train", "my.yaml", "--out", "again", "--quiet")
    first, second = ((folder / run / "model.safetensors").read_bytes() for run in ("run", "again"))
    assert first == second
    medfed("export", "run", "--out", "bundle", "--force", "--quiet")
    assert (folder / "bundle" / "configs" / "inference.json").is_file()
    for arguments in ((), ("reproduce",), ("data",), ("data", "card", "pacs"), ("keys",)):
        assert medfed(*arguments)
