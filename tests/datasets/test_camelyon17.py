from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.collections.camelyon17 import Camelyon17
from medfed.phantoms.camelyon17_phantom import Camelyon17Phantom

HEADER = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
# patient, node, x, y, tumor, slide, center, split
ROWS = [
    (4, 4, 3328, 21792, 0, 0, 0, 0),
    (4, 4, 3360, 21792, 1, 0, 0, 1),
    (4, 2, 3360, 21792, 1, 1, 0, 0),
    (75, 4, 96, 96, 0, 2, 3, 0),
    (75, 4, 96, 192, 0, 2, 3, 0),
    (75, 4, 96, 288, 1, 2, 3, 1),
    (75, 4, 96, 384, 1, 2, 3, 0),
]


def write_table(root: Path, rows=ROWS, header: str = HEADER) -> None:
    lines = [",".join([str(i), f"{row[0]:03d}", *map(str, row[1:])]) for i, row in enumerate(rows)]
    (root / "metadata.csv").write_text("\n".join([header, *lines]) + "\n")


def patch_file(root: Path, row) -> Path:
    patient, node, x, y = row[:4]
    slide = f"patient_{patient:03d}_node_{node}"
    return root / "patches" / slide / f"patch_{slide}_x_{x}_y_{y}.png"


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "camelyon17_v1.0"
    folder.mkdir()
    write_table(folder)
    rng = np.random.default_rng(0)
    for row in ROWS:
        pixels = np.dstack([rng.integers(0, 256, (96, 96, 3)), np.full((96, 96), 255)])
        save_pixels(patch_file(folder, row), pixels)
    return folder


def test_the_table_alone_decides_sites_patches_and_classes_also_from_the_folder_above(root):
    data = Camelyon17(root=str(root))
    assert data.site_names() == ["hospital_1", "hospital_4"]
    first = next(case for case in data.cases("hospital_1") if case.image == patch_file(root, ROWS[0]))
    assert first.name == "patch_patient_004_node_4_x_3328_y_21792"
    assert (first.site, first.patient, first.label, first.masks, first.part) == ("hospital_1", "004", 0, (), "")
    assert sorted(case.label for case in data.cases("hospital_4")) == [0, 0, 1, 1]
    assert data.classes == ("normal", "tumour") and data.structures == () and data.channels == 3
    assert data.intensity_range == (0.0, 255.0) and not data.is_phantom
    above = Camelyon17(root=str(root.parent))
    assert above.cases("hospital_1")[0].image == Camelyon17(root=str(root)).cases("hospital_1")[0].image


def test_a_patch_is_read_as_rgb_without_a_word_about_its_alpha_and_other_oddities_are_named(root):
    data, notices = Camelyon17(root=str(root)), []
    case = data.cases("hospital_1")[0]
    image = data.read_image(case, notices)
    stored = np.asarray(Image.open(case.image))[..., :3]
    assert notices == [] and np.array_equal(image[..., 0].numpy(), np.moveaxis(stored, -1, 0))
    Image.new("RGBA", (96, 96), "white").save(case.image)
    data.read_image(case, notices)
    assert notices == ["constant image"]
    with pytest.raises(TypeError, match="read_image"):
        data.load(case)  # there is no mask
    case.image.unlink()
    with pytest.raises(UserError, match=f"{case.name}.png: the file does not exist"):
        data.read_image(case, [])


def test_a_smaller_share_is_always_the_same_and_balanced_as_the_whole(root):
    def taken(n: int) -> list:
        return Camelyon17(root=str(root), max_per_site=n).cases("hospital_4")

    assert [case.label for case in taken(2)].count(1) == 1 and taken(2) == taken(2)
    assert set(taken(2)) <= set(taken(3)) <= set(taken(4)) and len(taken(4)) == len(taken(0)) == len(taken(9)) == 4


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([*ROWS, (76, 0, 1, 1, 0, 3, 5, 0)], "the column center has the values .*; expected 0 to 4"),
        ([*ROWS, (76, 0, 1, 1, 2, 3, 3, 0)], "the column tumor has the values .*; expected 0 to 1"),
        ([(*ROWS[0][:-1], 2)], "the column split"),
        ([*ROWS, (75, 4, 96, 192, 1, 2, 3, 0)], "2 cases have the name 'patch_patient_075_node_4_x_96_y_192'"),
        ([ROWS[0], (4, "x", 1, 1, 0, 0, 0, 0)], "'x'.*expected .*whole numbers in the columns patient, node"),
        ([ROWS[0], (4, 1)], "cannot read the table"),
        ([(4, 1, 1.5, 1, 0, 0, 0, 0)], "cannot read the table"),
    ],
)
def test_a_wrong_column_and_a_patch_that_is_listed_twice_are_named(root, rows, sentence):
    write_table(root, rows)
    dataset = Camelyon17(root=str(root), splits="published")
    with pytest.raises(UserError, match=sentence):
        dataset.cases_by_site(dataset.site_names())


def test_a_missing_column_is_named_and_the_split_matters_only_where_it_is_used(root):
    for column, splits in (("tumor", "patient"), ("split", "published")):
        write_table(root, header=HEADER.replace(column, "other"))
        with pytest.raises(UserError, match=f"metadata.csv: cannot read .*'{column}'"):
            Camelyon17(root=str(root), splits=splits).site_names()
    assert Camelyon17(root=str(root)).site_names() == ["hospital_1", "hospital_4"]


def test_a_file_that_is_not_a_table_is_refused_and_a_missing_one_with_the_layout(root):
    for content in (b"", b"\xff\xfe\x00", b"\x00\n"):
        (root / "metadata.csv").write_bytes(content)
        with pytest.raises(UserError, match="metadata.csv: "):
            Camelyon17(root=str(root)).site_names()
    write_table(root, [])
    with pytest.raises(UserError, match="contains no site; expected .*metadata.csv"):
        Camelyon17(root=str(root)).site_names()
    (root / "metadata.csv").unlink()
    with pytest.raises(UserError, match="metadata.csv: cannot read .*No such file.*; expected ROOT/camelyon17_v1.0"):
        Camelyon17(root=str(root)).site_names()


def test_missing_patches_are_counted_by_slide(root):
    patch_file(root, ROWS[4]).unlink()
    data = Camelyon17(root=str(root))
    assert len(data.cases_and_problems("hospital_4")[0]) == 3
    with pytest.raises(UserError, match="patient_075_node_4: 1 of the 4 patches .* are missing, .*x_96_y_192.png"):
        data.cases("hospital_4")
    write_table(root, [row for row in ROWS if row != ROWS[4]])
    assert len(Camelyon17(root=str(root)).cases("hospital_4")) == 3


def test_the_phantom_has_the_same_settings(tmp_path):
    phantom = Camelyon17(root=str(tmp_path / "c17"), splits="slide", max_per_site=9, test_ratio=0.3).phantom()
    assert isinstance(phantom, Camelyon17Phantom) and phantom.root == str(tmp_path / "c17_phantom")
    assert (phantom.splits, phantom.max_per_site, phantom.test_ratio) == ("slide", 9, 0.3)
