"""The file `comparison.json`: the plan of a comparison, which lists the runs that its tables show.

A folder may also hold runs of an earlier command, which the tables, and so the report, leave out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.files import write_atomically
from medfed.outputs.run_files import damaged_file
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import BASELINE

FILE = "comparison.json"
RUNS = "*/unseen_*/seed_*"  # folders of the runs of a comparison
Key = tuple[str, str, int]  # label, unseen site and seed of a run; the models of `local` share one


@dataclass(frozen=True)
class ComparisonFolder:
    """The planned runs of a comparison, by folder, and the method with which all others are compared."""

    path: Path
    planned: Mapping[Path, Key] = field(default_factory=dict)
    baseline: str = BASELINE

    @classmethod
    def read(cls, path: Path) -> ComparisonFolder:
        """Read the plan in a folder of `medfed.evaluate`; a folder without `comparison.json` has no runs."""
        if not (path / FILE).is_file():
            return cls(path)
        with damaged_file(path / FILE) as file:
            content = json.loads(file.read_text(encoding="utf-8"))
            runs = content["runs"].items()
            planned = {path / folder: (label, site, int(seed)) for folder, (label, site, seed) in runs}
            return cls(path, planned, str(content["baseline"]))

    def write(self) -> None:
        """Write `comparison.json` and create its folder."""
        RunFolder(self.path).create()  # says in one sentence why nothing can be written here
        runs = {folder.relative_to(self.path).as_posix(): key for folder, key in self.planned.items()}
        content = {"baseline": self.baseline, "runs": runs}
        write_atomically(self.path / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def finished(self) -> list[Path]:
        """The finished runs, those of `local` only if all models of the same unseen site and seed are finished."""
        missing = {key for folder, key in self.planned.items() if not RunFolder(folder).is_finished()}
        return sorted(folder for folder, key in self.planned.items() if key not in missing)

    def note(self) -> str:
        """A sentence about finished runs in the folder that are not in the plan; "" if there are none."""
        others = [run for run in self.path.glob(RUNS) if run not in self.planned and RunFolder(run).is_finished()]
        if not others:
            return ""
        methods = ", ".join(sorted({folder.parts[-3] for folder in others}))
        seeds = ", ".join(sorted({folder.name.removeprefix("seed_") for folder in others}))
        return (
            f"Left out: {len(others)} finished run{'s' * (len(others) > 1)} in this folder that the last command did "
            f"not ask for (methods {methods}; seeds {seeds})"
        )
