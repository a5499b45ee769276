"""The examples of patterns in docs/how_to/own_images.md find the files that stand beside them."""

import re
from pathlib import Path

import pytest
from folder_layouts import Layout

import medfed
from medfed.config.overrides import Override

TEXT = (Path(medfed.__file__).parents[1] / "docs" / "how_to" / "own_images.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("| files of the site A |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()[2:]]
PATHS = [re.findall("`(A[^`]*)`", row[0]) for row in ROWS]


@pytest.mark.parametrize(("paths", "image", "mask"), [(path, *row[1:]) for path, row in zip(PATHS, ROWS)])
def test_the_patterns_of_an_example_find_its_image_and_all_its_masks(paths, image, mask, tmp_path):
    files = [site + path[1:].replace("*", "1") for site in "AB" for path in paths]
    files += [path.replace("/dog/", "/cat/") for path in files if "/dog/" in path]
    for path in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(128) + b"DICM" if path.endswith(".dcm") else b"not opened")
    texts = {key: value.strip("`") for key, value in (("image", image), ("mask", mask)) if value != "none"}
    settings = {key: Override.parse(f"data.{key}={text}").value for key, text in texts.items()}
    dataset = Layout("", "", settings).dataset(tmp_path)
    n_images = 1 + ("{class}" in image)
    n_masks = len(paths) - 1 - any("_t1." in path for path in paths)  # a second image of the case is not read
    for site in "AB":
        assert [len(case.masks) for case in dataset.cases(site)] == [n_masks] * n_images
