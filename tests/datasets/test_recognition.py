"""A dataset recognises its own folders: no other file knows of it."""

import sys
from pathlib import Path

import pytest
from folder_layouts import make

from medfed.config.overrides import Override
from medfed.config.schema import load_dataset
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets.collections.folder import Folder
from medfed.datasets.collections.prostate import Prostate
from medfed.datasets.recognition import recognise

NEW_DATASET = '''
"""Spleens on CT, of any sites, with a table scanners.csv beside them."""
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from medfed.datasets.base import Card, Dataset, Contents

@dataclass(frozen=True)
class Spleens(Dataset):
    window: str = "soft"
    card: ClassVar[Card] = Card("Spleens", "CT", "ours", "ours", "ask us", "ROOT/scanners.csv")

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        return cls(root=str(root), window="wide") if (root / "scanners.csv").is_file() else None

    @property
    def channels(self) -> int:
        return 1

    def scan(self) -> Contents:
        return Contents({"north": []})
'''


@pytest.fixture
def scans(tmp_path) -> Path:
    """A folder that only the new dataset recognises; to the others it is any folder of sites."""
    make(tmp_path / "scans", "{north,south}/{images,masks}/{a,b}.png scanners.csv")
    return tmp_path / "scans"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package that offers the dataset `spleens`."""
    make(tmp_path, "installed/our_plugin-1.dist-info/METADATA")
    (tmp_path / "installed" / "our_plugin.py").write_text(NEW_DATASET)
    entry = "[medfed.datasets]\nspleens = our_plugin:Spleens\n"
    (tmp_path / "installed" / "our_plugin-1.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
    sys.modules.pop("our_plugin", None)


def test_the_dataset_of_an_installed_package_is_known_and_recognised(scans, request):
    usual = Folder(root=str(scans), image="{site}/images/{case}.*", mask="{site}/masks/{case}.*")
    assert recognise(scans) == usual, "without the package, it is any folder"
    request.getfixturevalue("plugin")
    assert registry.known_names("datasets")["spleens"] == "of the package our_plugin, whose docstrings explain it"
    dataset = recognise(scans)
    assert type(dataset).__name__ == "Spleens" and dataset.window == "wide"
    assert registry.name_of("datasets", type(dataset)) == "spleens"


def test_a_dataset_is_checked_by_its_name_also_from_outside(scans, tmp_path, monkeypatch, capsys):
    (tmp_path / "our_lab.py").write_text(NEW_DATASET)
    monkeypatch.syspath_prepend(tmp_path)
    main(["check", str(scans), "--dataset", "our_lab.Spleens", "--allow-code", "--quiet"])
    sys.modules.pop("our_lab")
    assert capsys.readouterr().out.startswith(f"data:\n  name: our_lab.Spleens\n  root: {scans}\n  window: wide\n")
    assert main(["check", str(scans), "--dataset", "prostat"]) == 2
    assert "no dataset 'prostat'. Did you mean 'prostate'?" in capsys.readouterr().err
    assert recognise(scans, "prostate") == Prostate(root=str(scans)), "whatever the folder holds"


def test_two_published_layouts_in_one_folder_are_refused(tmp_path, scans, plugin):
    make(scans, "UCL/Case00{,_segmentation}.nii.gz")
    with pytest.raises(UserError, match="several datasets: prostate and spleens; .*--dataset NAME"):
        recognise(scans)
    assert type(recognise(scans, "spleens")).__name__ == "Spleens"


@pytest.mark.parametrize("name", sorted(registry.known_names("datasets")))
def test_no_dataset_is_recognised_in_an_empty_folder(name, tmp_path):
    assert registry.resolve("datasets", name).recognise(tmp_path) is None


def test_a_setting_of_a_site_is_added_to_the_patterns_that_were_found_for_it(tmp_path):
    make(tmp_path, "n/{images,masks}/{a,b}.png s/{img,label}/{a,b}.png")
    for setting in ("data.by_site={s: {mask_threshold: 8}}", "data.by_site.s.mask_threshold=8"):
        dataset = load_dataset(tmp_path, overrides=[Override.parse(setting)], read_channels=False)
        own = {"image": "{site}/img/{case}.*", "mask": "{site}/label/{case}.*"}
        assert dataset.by_site == {"s": {**own, "mask_threshold": 8}}, setting
        assert [len(dataset.cases(site)) for site in "ns"] == [2, 2]
    reset = load_dataset(tmp_path, overrides=[Override.parse("data.by_site.s.image=x")], read_channels=False)
    assert reset.by_site == {"s": {"image": "x"}}
