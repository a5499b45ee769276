"""The file `comparison.json`: which runs in the folder of a comparison its tables show.

A folder may also contain runs of an earlier command, for example with more seeds. Without this file, the report would
average over them while the tables do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import BASELINE

FILE = "comparison.json"
RUNS = "*/unseen_*/seed_*"  # folders of the runs of a comparison


@dataclass(frozen=True)
class ComparisonFolder:
    """The runs in the folder of a comparison.

    Args:
        runs: the folders of the runs that belong to the comparison, finished or not, sorted.
        others: the folders of finished runs that do not belong to it, sorted.
        baseline: the method with which the others are compared.
    """

    runs: tuple[Path, ...]
    others: tuple[Path, ...]
    baseline: str = BASELINE

    @classmethod
    def read(cls, path: Path) -> ComparisonFolder:
        """Find the runs in the folder of a comparison.

        Args:
            path: the folder that `medfed.evaluate` wrote. Without `comparison.json`, all its runs belong to the
                comparison.

        Raises:
            UserError: if `comparison.json` is damaged.
        """
        present = sorted(folder for folder in path.glob(RUNS) if (folder / "config.yaml").is_file())
        if not (path / FILE).is_file():
            return cls(tuple(present), ())
        try:
            content = json.loads((path / FILE).read_text(encoding="utf-8"))
            names, baseline = set(map(str, content["runs"])), str(content["baseline"])
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise UserError(f"{path / FILE}: does not list the runs of a comparison ({error!r}); start medfed.evaluate "
                            "with --resume, which writes the file again") from error
        runs = [folder for folder in present if folder.relative_to(path).as_posix() in names]
        others = [folder for folder in present if folder not in runs and RunFolder(folder).is_finished()]
        return cls(tuple(runs), tuple(others), baseline)

    def note(self) -> str:
        """Return a sentence about the finished runs that are left out; "" if there are none."""
        if not self.others:
            return ""
        methods = ", ".join(sorted({folder.parts[-3] for folder in self.others}))
        seeds = ", ".join(sorted({folder.name.removeprefix("seed_") for folder in self.others}))
        return (f"Left out: {len(self.others)} finished run{'s' * (len(self.others) > 1)} in this folder that the last "
                f"command did not ask for (methods {methods}; seeds {seeds})")  # fmt: skip


def write_comparison(path: Path, runs: Iterable[Path], baseline: str) -> None:
    """Write `comparison.json`, which lists the runs of a comparison.

    Args:
        path: the folder of the comparison; it is created.
        runs: the folders of its runs, inside `path`.
        baseline: the method with which the others are compared.

    Raises:
        UserError: if the folder cannot be created.
    """
    RunFolder(path).create()  # says in one sentence why nothing can be written here
    content = {"baseline": baseline, "runs": [run.relative_to(path).as_posix() for run in runs]}
    write_atomically(path / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
