"""Base class of the phantom datasets, which create their synthetic images on disk before they are read.

A phantom class inherits from `SyntheticDataset` first and from its real dataset second: `class
FundusPhantom(SyntheticDataset, Fundus)`.
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
    """Dataset that generates its images when its folder is missing or was created with other settings.

    It replaces the folder as a whole, and never deletes files that it did not write.
    """

    root: str

    @property
    @abstractmethod
    def generator_settings(self) -> Mapping[str, object]:
        """Plain JSON values; if they differ from those in `PHANTOM.json`, the images are generated again."""

    @property
    @abstractmethod
    def expected_names(self) -> frozenset[str]:
        """Names that the generator writes directly into the folder, without `PHANTOM.json`."""

    @abstractmethod
    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        """Generate all images in a new folder; call `count(finished cases, all cases)` after each case."""

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return None: the real dataset recognises the folder, and `PHANTOM.json` marks it as synthetic."""
        return None

    @property
    def is_phantom(self) -> bool:
        return True

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """Generate the images if needed; UserError if the folder has files of another origin."""
        self.create_if_missing(progress)
        assert isinstance(self, Dataset), "a phantom inherits from its real dataset too"
        return self

    def create_if_missing(self, progress: Progress | None = None) -> None:
        """Generate the images, unless they exist with the same settings; an interruption leaves the old ones."""
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
        """Whether `root` holds a collection that was created with the present settings."""
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
