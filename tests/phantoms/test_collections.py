"""What all phantoms do: the same files for a seed, no trace of an interruption, and nothing of others is replaced."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from medfed.core.errors import UserError
from medfed.datasets.base import PHANTOM_MARK
from medfed.phantoms.camelyon17_phantom import Camelyon17Phantom
from medfed.phantoms.fundus_phantom import FundusPhantom
from medfed.phantoms.prostate_phantom import ProstatePhantom

SMALL = {
    Camelyon17Phantom: {"patches_per_site": 2, "patients_per_site": 1},
    FundusPhantom: {"images_per_site": 2, "size": 32},
    ProstatePhantom: {"cases_per_site": 2, "matrix": 32},
}


@pytest.fixture(params=SMALL, ids=lambda phantom: phantom.__name__)
def phantom(request, tmp_path):
    return request.param(root=str(tmp_path / "p"), **SMALL[request.param])


def contents(root: str) -> dict[str, bytes]:
    files = (path for path in Path(root).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_a_phantom_depends_on_its_seed_only_and_is_made_again_only_for_other_settings(phantom, tmp_path):
    seen, notices = [], []
    phantom.ensure_available(lambda cases: (seen.append(case) or case for case in cases))
    first, mark = contents(phantom.root), Path(phantom.root) / PHANTOM_MARK
    cases = phantom.cases_by_site(phantom.site_names())
    assert len(seen) == sum(map(len, cases.values())) == 2 * len(cases) and phantom.is_phantom
    case = cases[phantom.site_names()[0]][0]
    assert phantom.read_image(case, notices).ndim == 4 and notices == []
    assert not phantom.structures or phantom.load(case).mask.flatten(1).any(1).all()
    stored = json.loads(mark.read_text())
    assert stored == {"synthetic": True, **phantom.generator_settings} and "no patient" in stored["what"]
    inode = mark.stat().st_ino
    assert phantom.ensure_available() is phantom and mark.stat().st_ino == inode
    assert contents(replace(phantom, root=str(tmp_path / "again")).ensure_available().root) == first
    other = contents(replace(phantom, phantom_seed=1).ensure_available().root)
    assert json.loads(mark.read_text())["seed"] == 1 and set(first.values()).isdisjoint(other.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "p"], "nothing is left over"


def test_an_interruption_or_a_failure_leaves_what_was_there(phantom, tmp_path, monkeypatch):
    def stop(cases):
        yield cases[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        phantom.ensure_available(stop)
    assert list(tmp_path.iterdir()) == []
    phantom.ensure_available()
    monkeypatch.setattr(type(phantom), "write_collection", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replace(phantom, phantom_seed=1).ensure_available()
    assert phantom.ensure_available().site_names() and [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_folder_with_other_files_is_not_changed(phantom, tmp_path):
    root, site = tmp_path / "p", sorted(phantom.expected_names)[0]
    (root / site).mkdir(parents=True)
    with pytest.raises(UserError, match=f"found no {PHANTOM_MARK}, so this is not a phantom"):
        phantom.ensure_available()
    (root / PHANTOM_MARK).write_text("{}")
    (root / "my patients").mkdir()
    with pytest.raises(UserError, match="found my patients, so this is not a phantom"):
        phantom.ensure_available()
    assert sorted(path.name for path in root.iterdir()) == sorted([PHANTOM_MARK, "my patients", site])


@pytest.mark.parametrize(
    ("phantom", "wrong"),
    [
        (Camelyon17Phantom, {"patients_per_site": 2, "patches_per_site": 1}),
        (Camelyon17Phantom, {"patients_per_site": 21}),
        (FundusPhantom, {"images_per_site": 0}),
        (FundusPhantom, {"size": 31}),
        (ProstatePhantom, {"cases_per_site": 0}),
        (ProstatePhantom, {"matrix": 31}),
    ],
)
def test_invalid_values_are_rejected(phantom, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        phantom(root="x", **wrong)
