from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from medfed.core.errors import UserError
from medfed.datasets.collections.prostate import Prostate
from medfed.phantoms.prostate_phantom import ProstatePhantom

AFFINE = np.diag([-0.6, -0.6, 3.6, 1])
SHAPE = (8, 8, 3)


def write_case(folder: Path, name: str = "Case00", ending: str = "_segmentation", labels=(0, 1)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(name) + len(ending))
    nib.save(nib.Nifti1Image(rng.integers(0, 900, SHAPE).astype(np.int16), AFFINE), folder / f"{name}.nii.gz")
    mask = np.resize(labels, SHAPE).astype(np.uint8)
    nib.save(nib.Nifti1Image(mask, AFFINE), folder / f"{name}{ending}.nii.gz")


@pytest.fixture
def root(tmp_path) -> Path:
    write_case(tmp_path / "RUNMC", labels=(0, 1, 2))
    write_case(tmp_path / "RUNMC", "Case01")
    write_case(tmp_path / "BMC", ending="_Segmentation")
    return tmp_path


def test_the_published_layout_is_found_and_both_zones_are_the_prostate(root):
    data = Prostate(root=str(root))
    assert data.site_names() == ["BMC", "RUNMC"]
    assert [case.name for case in data.cases("RUNMC")] == ["Case00", "Case01"]
    assert data.cases("BMC")[0].mask_path.name == "Case00_Segmentation.nii.gz"
    assert (data.channels, data.structures, data.intensity_range, data.is_phantom) == (1, ("prostate",), None, False)
    volume = data.load(data.cases("RUNMC")[0])
    assert volume.mask.meta["label_values"] == [0, 1, 2]
    assert volume.mask.shape == (1, *SHAPE) and int(volume.mask.sum()) == 128  # two of every three of 192 voxels
    assert volume.image.shape == (1, *SHAPE) and volume.spacing_mm == (0.6, 0.6, 3.6) and volume.notices == ()


def test_only_the_sites_in_the_config_are_used_and_unknown_or_missing_ones_are_named(root, tmp_path_factory):
    assert Prostate(root=str(root), sites=("RUNMC",)).site_names() == ["RUNMC"]
    with pytest.raises(UserError, match="no site 'RUNCM'.*Did you mean 'RUNMC'"):
        Prostate(root=str(root), sites=("RUNCM",)).site_names()
    with pytest.raises(UserError, match="contains no site; .*RUNMC or ISBI"):
        Prostate(root=str(tmp_path_factory.mktemp("empty"))).site_names()


def test_an_image_and_the_root_may_be_links(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    image = root / "BMC" / "Case00.nii.gz"
    image.rename(elsewhere / "moved.nii.gz")
    image.symlink_to(elsewhere / "moved.nii.gz")
    assert len(Prostate(root=str(root)).cases("BMC")) == 1
    link = tmp_path_factory.mktemp("links") / "prostate"
    link.symlink_to(root)
    assert len(Prostate(root=str(link)).cases("RUNMC")) == 2


def test_an_existing_folder_is_used_and_a_missing_one_is_refused_with_the_way_to_get_the_data(root):
    with pytest.raises(UserError, match="the folder .*nowhere.* does not exist.*python -m medfed.data card prostate"):
        Prostate(root=str(root / "nowhere")).ensure_available()
    data = Prostate(root=str(root), if_missing="phantom")
    assert data.ensure_available() is data


@pytest.mark.parametrize(
    "values", [{"if_missing": "guess"}, {"image_size": 0}, {"validation_ratio": -0.1}, {"test_ratio": 0.95}]
)
def test_impossible_values_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Prostate(root="x", **values)


def test_a_missing_folder_becomes_a_phantom_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ProstatePhantom, "write_collection", lambda self, folder, progress: write_case(folder / "HK"))
    values = {"image_size": 64, "sites": ("HK",), "test_ratio": 0.3, "if_missing": "phantom"}
    wanted = Prostate(root=str(tmp_path / "prostate"), **values)
    data = wanted.ensure_available()
    assert isinstance(data, ProstatePhantom) and data.root == str(tmp_path / "prostate_phantom") and data.is_phantom
    assert (data.image_size, data.site_names(), data.test_ratio) == (64, ["HK"], 0.3)
    assert not (tmp_path / "prostate").exists()
