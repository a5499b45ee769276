"""The version of medfed is that of its code, as in a source tree on PYTHONPATH, which has no installed metadata."""

import medfed
from medfed.outputs import environment


def test_the_version_of_medfed_needs_no_metadata(monkeypatch):
    monkeypatch.setattr(environment, "version", dict.fromkeys(environment.PACKAGES, "1").__getitem__)
    versions = environment.environment()["versions"]
    assert versions["medfed"] == medfed.__version__ and versions["torch"] == versions["SimpleITK"] == "1"
