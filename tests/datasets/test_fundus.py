"""Reading disc and cup: the published layout, the simpler one, grey values, and what is wrong with files."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels

from medfed.core.errors import UserError
from medfed.datasets.collections.fundus import SITES, Fundus

REAL = Path(os.environ.get("MEDFED_REAL_DATA", "data")) / "fundus_disc_cup"
SIZE = 24


def eye_mask(cup: int = 0, rim: int = 128, outside: int = 255) -> np.ndarray:
    """A disc of 12 x 12 pixels with a cup of 6 rows and 4 columns in it."""
    mask = np.full((SIZE, SIZE), outside, np.uint8)
    mask[6:18, 6:18] = rim
    mask[9:15, 10:14] = cup
    return mask


def write(folder: Path, name: str = "a.png", mask: np.ndarray | None = None, names=("image", "mask"), mask_name=None):
    """An image and its mask in two folders; every image is another one."""
    rng = np.random.default_rng(sum(map(ord, f"{folder}{name}")))
    image = rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    masked = mask_name or f"{Path(name).stem}.png", eye_mask() if mask is None else mask
    for kind, file, pixels in ((names[0], name, image), (names[1], *masked)):
        save_pixels(folder / kind / file, pixels)


@pytest.fixture
def root(tmp_path) -> Path:
    """Four sites, each with two cases for training and one for test, in the layout of DoFE."""
    for domain in ("Domain1", "Domain2", "Domain3", "Domain4"):
        for part, names in (("train", ("n1.png", "n2.png")), ("test", ("n3.png",))):
            for name in names:
                write(tmp_path / domain / part / "ROIs", name)
    return tmp_path


def test_the_domains_are_the_four_sites_and_the_cup_is_also_disc(root):
    data = Fundus(root=str(root))
    assert data.site_names() == ["DRISHTI-GS", "REFUGE-train", "REFUGE-val", "RIM-ONE-r3"]
    assert data.cases("REFUGE-train")[0].image.parts[-5] == "Domain3"
    assert (data.channels, data.structures, data.ratio_structures) == (3, ("disc", "cup"), ("cup", "disc"))
    assert (data.intensity_range, data.is_phantom) == ((0.0, 255.0), False)
    volume = data.load(data.cases("DRISHTI-GS")[0])
    assert volume.image.shape == (3, SIZE, SIZE, 1) and volume.mask.shape == (2, SIZE, SIZE, 1)
    assert [int(channel.sum()) for channel in volume.mask] == [144, 24]
    assert volume.notices == () and volume.spacing_mm is None


def test_site_names_and_plain_folders_are_understood_too(tmp_path):
    write(tmp_path / "rim-one-R3", "x.JPG", names=("Images", "masks"))
    data = Fundus(root=str(tmp_path))
    (case,) = data.cases("RIM-ONE-r3")
    assert (data.site_names(), case.name, case.mask_path.name) == (["RIM-ONE-r3"], "x", "x.png")
    assert int(data.load(case).mask[1].sum()) == 24


def test_the_thresholds_are_the_published_ones_also_for_smoothed_masks(tmp_path):
    """Up to 50 is cup, 51 to 200 rim, above 200 background."""
    mask = eye_mask()
    mask[0, :4] = (50, 51, 200, 201)
    mask[0, 0], mask[0, 1] = 255, 51
    mask[7, 7], mask[12, 12] = 51, 50
    write(tmp_path / "Domain2" / "test" / "ROIs", mask=mask)
    data = Fundus(root=str(tmp_path))
    volume = data.load(data.cases("RIM-ONE-r3")[0])
    disc, cup = (channel[..., 0] for channel in volume.mask)
    assert disc[0, :4].tolist() == [0, 1, 1, 0] and cup[0, :4].tolist() == [0, 0, 0, 0]
    assert (int(disc[7, 7]), int(cup[7, 7]), int(cup[12, 12]), int(cup.sum())) == (1, 0, 1, 24)
    assert "grey values of the mask thresholded at 50 and 200" in volume.notices
    write(tmp_path / "Domain2" / "test" / "ROIs", mask=eye_mask(cup=7, rim=120, outside=250))
    data = Fundus(root=str(tmp_path))
    volume = data.load(data.cases("RIM-ONE-r3")[0])
    assert [int(channel.sum()) for channel in volume.mask] == [144, 24]
    assert volume.mask.meta["label_values"] == [0, 128, 255]
    assert volume.notices == ("grey values of the mask thresholded at 50 and 200",)


@pytest.mark.parametrize("values", [(2, 1, 0), (255, 128, 0)])
def test_masks_with_other_values_are_refused(tmp_path, values):
    """Labels 0, 1, 2 would all be cup; in an inverted mask, the whole background would be cup."""
    write(tmp_path / "Domain1" / "train" / "ROIs", mask=eye_mask(*values))
    data = Fundus(root=str(tmp_path))
    with pytest.raises(UserError, match="a.png: the mask has the grey values .*expected 0 in the cup, 128 in the rim"):
        data.load(data.cases("DRISHTI-GS")[0])


def test_a_mask_without_a_cup_is_a_notice(tmp_path):
    data = Fundus(root=str(tmp_path))
    write(tmp_path / "Domain1" / "train" / "ROIs", mask=eye_mask(cup=128))
    assert data.load(data.cases("DRISHTI-GS")[0]).notices == ("no cup in the mask",)


def test_equal_names_and_a_missing_part_of_the_published_split_are_refused(root):
    write(root / "Domain1" / "test" / "ROIs", "n1.png")
    write(root / "RIM-ONE-r3", names=("images", "masks"))
    shutil.rmtree(root / "Domain2")
    with pytest.raises(UserError, match="DRISHTI-GS: 2 cases have the name 'n1'"):
        Fundus(root=str(root)).cases("DRISHTI-GS")
    with pytest.raises(UserError, match="the folders train and test .* are missing .*data.published_split: false"):
        Fundus(root=str(root), published_split=True).cases("RIM-ONE-r3")


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real photographs in {REAL}; set MEDFED_REAL_DATA")
def test_real_photographs_are_read():
    data = Fundus(root=str(REAL))
    assert data.site_names() == sorted(SITES)
    cases = data.cases_by_site(data.site_names())
    assert {len(site_cases) for site_cases in cases.values()} >= {2, 50}
    for site_cases in cases.values():
        volume = data.load(site_cases[0])
        disc, cup = (int(channel.sum()) for channel in volume.mask)
        assert volume.image.shape[0] == 3 and 0 < cup < disc < 0.5 * volume.mask[0].numel() and volume.notices == ()
