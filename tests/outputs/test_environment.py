"""Versions are recorded also where a package has no installed metadata, as in a source tree on PYTHONPATH."""

from importlib.metadata import PackageNotFoundError

import pytest

import medfed
from medfed.outputs import environment


@pytest.fixture
def without_metadata(monkeypatch):
    """medfed and SimpleITK have no installed metadata; every other package has version 1."""

    def version(package: str) -> str:
        if package in ("medfed", "SimpleITK"):
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(environment, "version", version)
    environment._version.cache_clear()
    yield
    environment._version.cache_clear()


def test_a_source_tree_has_the_version_of_its_code_and_a_missing_package_is_recorded(without_metadata):
    versions = environment.versions()
    assert versions["medfed"] == medfed.__version__ and versions["torch"] == "1"
    assert environment.environment()["versions"]["SimpleITK"] == "not installed"
