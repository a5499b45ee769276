"""Files with a fixed name that are links, pipes, or say one thing twice."""

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from medfed.core.errors import UserError
from medfed.datasets import dicom_names
from medfed.datasets.collections.folder import Folder
from medfed.datasets.table import read_table
from medfed.images import dicom_files

TABLE = "site,image,mask,class\nA,A/images/a.nii,A/masks/a.nii,x\nA,A/images/b.nii,A/masks/b.nii,y\n"


@pytest.fixture
def root(tmp_path) -> Path:
    for kind in ("images", "masks"):
        (tmp_path / "root" / "A" / kind).mkdir(parents=True)
        for name in "ab":
            nib.save(nib.Nifti1Image(np.ones((3, 3, 3), np.uint8), np.eye(4)), tmp_path / f"root/A/{kind}/{name}.nii")
    return tmp_path / "root"


@pytest.mark.parametrize("linked", ["A", "A/masks", "A/masks/b.nii"])
@pytest.mark.parametrize("start", ["", "ROOT/"])
def test_a_table_and_its_files_may_be_links(root, linked, start):
    (root / linked).rename(root.parent / "moved")
    (root / linked).symlink_to(root.parent / "moved")
    (root.parent / "table.csv").write_text(TABLE.replace(",A/", f",{start}A/").replace("ROOT", str(root)))
    (root / "table.csv").symlink_to(root.parent / "table.csv")
    assert len(Folder(root=str(root), table="table.csv").cases("A")) == 2


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ("salt", "a.dcm"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="it is a pipe or a device, not a file"):
        dicom_names.read_salt(tmp_path / "salt")
    assert dicom_files.kind_of(tmp_path / "a.dcm") is None


def test_columns_that_are_not_read_may_be_repeated(tmp_path):
    (tmp_path / "a.csv").write_text("site,image,mask,,,note,note\nA,x,y,1,2,3,4\n")
    assert read_table(tmp_path / "a.csv").iloc[0]["image"] == "x"
