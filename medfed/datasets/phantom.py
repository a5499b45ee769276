"""Synthetic prostate MRI of six hospitals, drawn on the spot: to learn the toolkit and for tests, never for results."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from medfed.datasets.base import Card, Dataset, Progress
from medfed.datasets.prostate import SITES, Prostate
from medfed.datasets.synthesis.prostate import MARK, VERSION, make_prostate_phantom
from medfed.errors import UserError


@dataclass(frozen=True)
class Phantom(Prostate):
    """The synthetic twin of `Prostate`; it is made where `root` is missing, or was made with other values.

    Args:
        cases_per_site: at most; a site never has more than were published.
        matrix: rows and columns of a slice, at least 32.
        phantom_seed: which patients are drawn.
    """

    cases_per_site: int = 8
    matrix: int = 128
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Prostate.card,
        title="Prostate phantom, six hospitals",
        what="Drawn anatomy on simulated scanners of six hospitals, in the layout of the real collection. There is no "
        "patient in it, and scores on it say nothing about one.",
        licence="That of medfed; no patient's data.",
        citation="None; for the layout see the dataset prostate.",
        where="`python -m medfed.data fetch phantom` makes it in data/prostate_phantom; training makes it where it is "
        "missing.",
    )
    published_counts = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cases_per_site < 1 or self.matrix < 32:
            raise ValueError(
                f"cases_per_site must be at least 1 and matrix at least 32, got {self.cases_per_site} and {self.matrix}"
            )

    @property
    def is_phantom(self) -> bool:
        return True

    def ready(self, progress: Progress | None = None) -> Dataset:
        self.ensure(progress)
        return self

    def ensure(self, progress: Progress | None = None) -> None:
        """Make the collection unless it is there already; an older one, made with other values, is replaced.

        Raises:
            UserError: if `root` holds anything else.
        """
        root = Path(self.root)
        if root.is_dir() and any(root.iterdir()):
            if self._is_made():
                return
            _check_replaceable(root)
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as workshop:
            made, old = Path(workshop) / "made", Path(workshop) / "old"
            make_prostate_phantom(made, self.cases_per_site, self.matrix, self.phantom_seed, _counter(progress))
            if root.exists():
                root.rename(old)
            made.rename(root)
            shutil.rmtree(old, ignore_errors=True)

    def _is_made(self) -> bool:
        wanted = {
            "version": VERSION, "seed": self.phantom_seed, "matrix": self.matrix, "cases_per_site": self.cases_per_site,
            "severity": 1.0,
        }  # fmt: skip
        try:
            facts = json.loads((Path(self.root) / MARK).read_text())
        except (OSError, ValueError):
            return False
        return wanted.items() <= facts.items()


def _check_replaceable(root: Path) -> None:
    strange = sorted(path.name for path in root.iterdir() if path.name != MARK and path.name not in SITES)
    if strange or not (root / MARK).is_file():
        found = f"found {strange[0]}" if strange else f"found no {MARK}"
        raise UserError(f"{root}: {found}, so this is not a phantom that could be replaced; name another data.root")


def _counter(progress: Progress | None) -> Callable[[int, int], None] | None:
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
