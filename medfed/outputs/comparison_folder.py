"""The file `comparison.json`: the plan of a comparison, which lists the runs that its tables show.

A folder may also hold runs of an earlier command, which the tables, and so the report, leave out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.block_statistics import Key
from medfed.outputs.tables.comparison_row import BASELINE, ComparisonRow

FILE = "comparison.json"
RUNS = "*/unseen_*/seed_*"  # folders of the runs of a comparison


@dataclass(frozen=True)
class PlannedRun:
    """One run of the plan of a comparison; the folder is missing before the run has started."""

    folder: Path
    row: ComparisonRow
    unseen_site: str
    validation_site: str
    seed: int

    def key(self, role: str) -> Key:
        """(row's label, site, seed), which identifies the run in a table of "unseen" or "validation" sites."""
        return self.row.label, self.unseen_site if role == "unseen" else self.validation_site, self.seed


def incomplete_local_runs(planned: Iterable[PlannedRun]) -> set[Key]:
    """Keys of the row `local` of which some site's model is not trained; tables do not show them."""
    return {run.key("unseen") for run in planned if run.row.trained_at and not RunFolder(run.folder).is_finished()}


@dataclass(frozen=True)
class ComparisonFolder:
    """The folders of a comparison's started runs, and of other finished runs, sorted."""

    runs: tuple[Path, ...]
    others: tuple[Path, ...]
    baseline: str = BASELINE
    planned: tuple[PlannedRun, ...] = ()

    @classmethod
    def read(cls, path: Path) -> ComparisonFolder:
        """Find the runs in a folder of `medfed.evaluate`; a folder without `comparison.json` has none."""
        if not (path / FILE).is_file():
            return cls((), ())
        present = sorted(folder for folder in path.glob(RUNS) if (folder / "config.yaml").is_file())
        try:
            content = json.loads((path / FILE).read_text(encoding="utf-8"))
            baseline, planned = str(content["baseline"]), tuple(_planned_run(path, run) for run in content["plan"])
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise UserError(
                f"{path / FILE}: does not list the runs of a comparison ({error!r}); start medfed.evaluate "
                "with --resume, which writes the file again"
            ) from error
        folders = {run.folder for run in planned}
        runs = [folder for folder in present if folder in folders]
        others = [folder for folder in present if folder not in runs and RunFolder(folder).is_finished()]
        return cls(tuple(runs), tuple(others), baseline, planned)

    def note(self) -> str:
        """A sentence about the finished runs that are left out; "" if there are none."""
        if not self.others:
            return ""
        methods = ", ".join(sorted({folder.parts[-3] for folder in self.others}))
        seeds = ", ".join(sorted({folder.name.removeprefix("seed_") for folder in self.others}))
        return (
            f"Left out: {len(self.others)} finished run{'s' * (len(self.others) > 1)} in this folder that the last "
            f"command did not ask for (methods {methods}; seeds {seeds})"
        )


def write_comparison(path: Path, planned: Collection[PlannedRun], baseline: str) -> None:
    """Write `comparison.json` and create its folder, which has the folders of the planned runs inside."""
    RunFolder(path).create()  # says in one sentence why nothing can be written here
    plan = [{**asdict(run), "folder": run.folder.relative_to(path).as_posix()} for run in planned]
    write_atomically(path / FILE, json.dumps({"baseline": baseline, "plan": plan}, indent=2, ensure_ascii=False) + "\n")


def _planned_run(path: Path, content: dict) -> PlannedRun:
    """The run of an entry in the `comparison.json` of the folder `path`."""
    row = ComparisonRow.of(content["row"])
    return PlannedRun(
        path / str(content["folder"]),
        row,
        str(content["unseen_site"]),
        str(content["validation_site"]),
        int(content["seed"]),
    )
