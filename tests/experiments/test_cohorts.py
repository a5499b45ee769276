import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.collections.folder import Folder
from medfed.experiments.cohorts import assign_patients
from medfed.federation.settings import Federation


def make_sites(root: Path) -> None:
    """Write three sites with four grey images and masks each, of 16 x 16 pixels."""
    rng = np.random.default_rng(0)
    for path in (root / site / kind / f"{k}.png" for site in "ABC" for kind in ("images", "masks") for k in range(4)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 2, (16, 16), dtype=np.uint8) * 255).save(path)


def test_a_mask_of_another_size_at_the_unseen_site_is_found_before_training(tmp_path):
    """Otherwise it would end a run after all its rounds. Pixels are not read: a cut image is accepted."""
    make_sites(tmp_path)
    cut = tmp_path / "C" / "images" / "0.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    dataset, federation = Folder(root=str(tmp_path), structure_names=("organ",)), Federation(unseen_site="C")
    assert list(assign_patients(dataset, federation, 0, "x.yaml")[2]) == ["C"]
    wrong = tmp_path / "C" / "masks" / "3.png"
    Image.new("L", (8, 16)).save(wrong)
    with pytest.raises(UserError, match=f"^{re.escape(str(wrong))}: the mask has 16 x 8 pixels, but its image"):
        assign_patients(dataset, federation, 0, "x.yaml")
