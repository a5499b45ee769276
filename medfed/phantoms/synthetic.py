"""Base class of the phantom datasets, which create their synthetic images on disk before they are read.

A phantom creates its folder if the folder is missing, and replaces the folder as a whole if it was created with other
settings. It never deletes files that it did not write. A phantom class inherits from this class first and from its real
dataset second: `class FundusPhantom(SyntheticDataset, Fundus)`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.base import PHANTOM_MARK, Dataset, Progress

ProgressCount = Callable[[int, int], None]  # called with (number of finished cases, total number of cases)


class SyntheticDataset(ABC):
    """Base class of phantoms: datasets of synthetic images, which are generated on disk when they are needed.

    Subclasses define the settings of the generator, the names of the generated files, and how to write the images.
    """

    root: str

    @property
    @abstractmethod
    def generator_settings(self) -> Mapping[str, object]:
        """Return the settings with which the synthetic images are generated, as plain JSON values by name.

        The generator stores these settings with the images in the file `PHANTOM.json`. If the returned settings differ
        from those in the file, `ensure_available` generates the images again.
        """

    @property
    @abstractmethod
    def expected_names(self) -> frozenset[str]:
        """Return the names of the files and folders that the generator writes directly into the dataset's folder.

        The file `PHANTOM.json`, which contains the generator's settings, is not part of the set. If the dataset's
        folder contains a file or folder of another name, nothing in the dataset's folder is ever deleted.
        """

    @abstractmethod
    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        """Generate all images and write them to a new folder.

        Args:
            folder: path of the folder to create; it must not exist.
            count: function that is called after each case (an image or volume with its mask or label) with (number of
                finished cases, total number of cases); None for no progress.
        """

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return None: the folder of a phantom is recognised by the class of the real dataset, not by this class.

        A phantom has the same folder layout as its real dataset. The class of the real dataset finds `PHANTOM.json` in
        the folder and then reports the images as synthetic.

        Args:
            root: an existing folder; it is not read.
        """
        return None

    @property
    def is_phantom(self) -> bool:
        """Return True: all images of this dataset are synthetic."""
        return True

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """Generate the images in the folder `root` if they are missing or were generated with other settings.

        Args:
            progress: function such as `tqdm.tqdm` that wraps an iterable and shows progress; None for no progress.

        Returns:
            This dataset.

        Raises:
            UserError: if `root` contains files that this phantom's generator did not write.
        """
        self.create_if_missing(progress)
        assert isinstance(self, Dataset), "a phantom inherits from its real dataset too"
        return self

    def create_if_missing(self, progress: Progress | None = None) -> None:
        """Generate the images in the folder `root`, unless the folder already contains images with the same settings.

        Images with other settings are replaced. The new images are first written to a temporary folder, so that the old
        images remain if the generation is interrupted.

        Args:
            progress: function such as `tqdm.tqdm` that wraps an iterable and shows progress; None for no progress.

        Raises:
            UserError: if `root` contains files that this phantom's generator did not write.
        """
        root = Path(self.root)
        if root.is_dir() and any(root.iterdir()):
            if self._is_up_to_date():
                return
            self._check_replaceable(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as temporary:
            new, old = Path(temporary) / "new", Path(temporary) / "old"
            self.write_collection(new, _as_counter(progress))
            if root.exists():
                root.rename(old)
            new.rename(root)
            shutil.rmtree(old, ignore_errors=True)

    def _is_up_to_date(self) -> bool:
        """Return whether `root` holds a collection that was created with the present settings."""
        try:
            stored = json.loads((Path(self.root) / PHANTOM_MARK).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(stored, dict) and self.generator_settings.items() <= stored.items()

    def _check_replaceable(self, root: Path) -> None:
        """Raise UserError unless the generator wrote every file and folder directly under `root`."""
        unexpected = sorted({path.name for path in root.iterdir()} - {PHANTOM_MARK, *self.expected_names})
        if unexpected or not (root / PHANTOM_MARK).is_file():
            reason = f"found {unexpected[0]}" if unexpected else f"found no {PHANTOM_MARK}"
            raise UserError(
                f"{root}: {reason}, so this is not a phantom that can be replaced; set data.root to another folder"
            )


def _as_counter(progress: Progress | None) -> ProgressCount | None:
    """Convert an iterable wrapper such as `tqdm.tqdm` to a callback that receives (finished, total)."""
    if progress is None:
        return None
    steps: Iterator | None = None

    def count(done: int, total: int) -> None:
        nonlocal steps
        steps = steps or iter(progress(range(total)))
        next(steps, None)
        if done == total:
            next(steps, None)  # one step past the end closes the progress bar

    return count
