"""What every phantom shares: it is made where it is missing, replaced whole when old, and never replaces anything else.

A phantom is its real dataset with this in front: `class FundusPhantom(SyntheticDataset, Fundus)`.
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

ProgressCount = Callable[[int, int], None]  # called with (cases done, cases in all)


class SyntheticDataset(ABC):
    """Goes before the real dataset among a phantom's bases; the phantom says what it is made of and how."""

    root: str

    @property
    @abstractmethod
    def generator_settings(self) -> Mapping[str, object]:
        """What the mark of a collection says if it was made with these values; another one is replaced."""

    @property
    @abstractmethod
    def expected_names(self) -> frozenset[str]:
        """The files and folders that may lie directly under `root`, beside the mark."""

    @abstractmethod
    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        """Write the collection to a folder that does not exist yet."""

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """None: a phantom's folder is read as its real dataset, which finds the phantom's mark there."""
        return None

    @property
    def is_phantom(self) -> bool:
        return True

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        self.create_if_missing(progress)
        assert isinstance(self, Dataset), "a phantom inherits from its real dataset too"
        return self

    def create_if_missing(self, progress: Progress | None = None) -> None:
        """Make the collection unless it is there already; an older one, made with other values, is replaced.

        Raises:
            UserError: if `root` holds anything else.
        """
        root = Path(self.root)
        if root.is_dir() and any(root.iterdir()):
            if self._is_up_to_date():
                return
            self._check_replaceable(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as workshop:
            made, old = Path(workshop) / "made", Path(workshop) / "old"
            self.write_collection(made, _as_counter(progress))
            if root.exists():
                root.rename(old)
            made.rename(root)
            shutil.rmtree(old, ignore_errors=True)

    def _is_up_to_date(self) -> bool:
        try:
            found = json.loads((Path(self.root) / PHANTOM_MARK).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and self.generator_settings.items() <= found.items()

    def _check_replaceable(self, root: Path) -> None:
        strange = sorted({path.name for path in root.iterdir()} - {PHANTOM_MARK, *self.expected_names})
        if strange or not (root / PHANTOM_MARK).is_file():
            found = f"found {strange[0]}" if strange else f"found no {PHANTOM_MARK}"
            raise UserError(f"{root}: {found}, so this is not a phantom that could be replaced; name another data.root")


def _as_counter(progress: Progress | None) -> ProgressCount | None:
    """From "wrap what you walk through" to "call me with how many are done, of how many"."""
    if progress is None:
        return None
    steps: Iterator | None = None

    def count(done: int, total: int) -> None:
        nonlocal steps
        steps = steps or iter(progress(range(total)))
        next(steps, None)
        if done == total:
            next(steps, None)  # past the end: the bar closes

    return count
