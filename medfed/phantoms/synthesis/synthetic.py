"""Base class of the phantom datasets, which create their synthetic images on disk before they are read.

A phantom class inherits from `SyntheticDataset` first and from its real dataset second: `class
FundusPhantom(SyntheticDataset, Fundus)`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from medfed.core.errors import UserError
from medfed.datasets.base import PHANTOM_MARK, Dataset, Progress


class SyntheticDataset(ABC):
    """Dataset that generates its images when its folder is missing or was created with other settings.

    It replaces the folder as a whole, and never deletes files that it did not write.
    """

    root: str
    phantom_seed: int

    generator: ClassVar[Mapping[str, object]]  # what is generated, by which generator, in which version
    generator_sizes: ClassVar[tuple[str, ...]]  # fields that decide the images, beside `phantom_seed`
    expected_names: ClassVar[frozenset[str]]  # names of the files and folders directly in the generated folder

    @property
    def generator_settings(self) -> dict[str, object]:
        """The content of `PHANTOM.json`; if it differs from that on the disk, the images are generated again."""
        sizes = {name: getattr(self, name) for name in self.generator_sizes}
        return {**self.generator, "seed": self.phantom_seed, **sizes}

    @abstractmethod
    def write_collection(self, folder: Path, progress: Progress) -> None:
        """Generate all images in an empty folder; `progress` wraps the list of cases."""

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        return None  # the real dataset recognises the folder, and `PHANTOM.json` marks it as synthetic

    @property
    def is_phantom(self) -> bool:
        return True

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """Generate the images, unless they exist with the same settings; UserError if others are there."""
        assert isinstance(self, Dataset), "a phantom inherits from its real dataset too"
        root = Path(self.root)
        if root.is_dir() and any(root.iterdir()):
            if self._is_up_to_date():
                return self
            self._check_replaceable(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as temporary:
            new, old = Path(temporary) / "new", Path(temporary) / "old"
            new.mkdir()
            self.write_collection(new, progress or (lambda cases: cases))
            mark = {"synthetic": True, **self.generator_settings}
            (new / PHANTOM_MARK).write_text(json.dumps(mark, indent=2) + "\n")
            if root.exists():
                root.rename(old)
            new.rename(root)
            shutil.rmtree(old, ignore_errors=True)
        self.__dict__.pop("contents", None)  # cases of an earlier phantom
        return self

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
