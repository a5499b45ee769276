"""The report of a dataset check: what was found, as text for the terminal and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from medfed.core.errors import Problem
from medfed.datasets.case_measures import CaseMeasures
from medfed.datasets.check_groups import WIDTH, format_problems

HOW_TO_SET = 'Try a setting with --set "data.KEY=VALUE" (with the quotes); in a config, write it under data.'


@dataclass(frozen=True)
class CheckedCase:
    """A case whose files can be read."""

    name: str
    patient: str
    measures: CaseMeasures
    labels: tuple[int, ...]  # values in the mask file; for classification, the class number
    notices: tuple[str, ...]  # short descriptions of what was converted or looks unusual


@dataclass(frozen=True)
class CheckedSite:
    """A site: the number of all its cases, and those of its cases that can be read."""

    name: str
    n_cases: int
    cases: tuple[CheckedCase, ...]

    def covers(self, index: int) -> list[float]:
        """Return the share of each image that structure number `index` covers."""
        return [case.measures.structures[index].cover for case in self.cases]


@dataclass(frozen=True, repr=False)
class DatasetReport:
    """Result of a dataset check.

    Args:
        root: folder of the dataset.
        is_phantom: whether the images are synthetic.
        sites: the report of every site.
        problems: what must be corrected before training.
        warnings: what may be a mistake and should be looked at.
        structures: names of the structures; empty for classification.
        classes: names of the classes; empty for segmentation.
        data_block: the settings with which the folder was read, as the block `data` of a config.
    """

    root: str
    is_phantom: bool
    sites: tuple[CheckedSite, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    structures: tuple[str, ...]
    classes: tuple[str, ...]
    data_block: str = ""

    def __str__(self) -> str:
        return f"{self.data_block}\n{to_text(self)}" if self.data_block else to_text(self)

    __repr__ = __str__


def to_json(report: DatasetReport) -> str:
    """Return all fields of the report, with kind, place, found and cure of each problem."""
    content = asdict(report) | {
        "problems": [vars(problem) for problem in report.problems],
        "warnings": [vars(problem) for problem in report.warnings],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def to_text(report: DatasetReport, how: str = HOW_TO_SET) -> str:
    """Return a table of the sites, the problems and warnings by their kind, and how to set what they advise."""
    import pandas as pd

    table = pd.DataFrame({site.name: _columns(site, report) for site in report.sites}).T.rename_axis(columns="site")
    lines = table.loc[:, (table != "-").any()].to_string(line_width=WIDTH).splitlines()
    if report.classes:
        lines.append("The column of a class has its number of images.")
    if report.structures:
        lines.append("The column of a structure has the percentage of an image that it covers: median (range).")
    if report.is_phantom:
        lines += ["", "These images are synthetic; there is no patient in them."]
    titled = {"problem": report.problems, "warning": report.warnings}
    for title, problems in titled.items():
        if problems:
            lines += ["", f"{title}s:", *format_problems(problems, report.root)]
    if any("data." in problem.cure for problem in (*report.problems, *report.warnings)):
        lines += ["", how]
    counts = [f"{len(found)} {word}{'s' * (len(found) != 1)}" for word, found in titled.items()]
    return "\n".join([*lines, "", f"{', '.join(counts)}."])


def _columns(site: CheckedSite, report: DatasetReport) -> dict[str, str]:
    """Return the cells of a site's row by the titles of their columns."""
    read = [case.measures for case in site.cases]
    spacings = [one.spacing_mm for one in read if one.spacing_mm is not None]
    cells = {
        "cases": f"{site.n_cases}" + (f" ({len(read)} read)" if len(read) < site.n_cases else ""),
        "patients": f"{len({case.patient for case in site.cases})}",
        "size": _ranges([one.shape if spacings else one.shape[:2] for one in read]),
        "spacing mm": _ranges(spacings),
        "intensity": f"{min(one.lowest for one in read):g} to {max(one.highest for one in read):g}" if read else "-",
    }
    if report.structures:
        cells["mask values"] = " ".join(map(str, sorted({value for case in site.cases for value in case.labels})))
    for index, name in enumerate(report.structures):
        cells[name] = _percentages(site.covers(index))
    for number, name in enumerate(report.classes):
        cells[name] = f"{sum(case.labels == (number,) for case in site.cases)}"
    return cells


def _percentages(covers: Sequence[float]) -> str:
    """Return how much of the images a structure covers, such as "6.1 (1.2-22), in 7 of 8", from shares in [0, 1]."""
    shown = [100 * cover for cover in covers if cover]
    values = f"{median(shown):.2g} ({min(shown):.2g}-{max(shown):.2g})" if shown else "-"
    return values if len(shown) == len(covers) else f"{values}, in {len(shown)} of {len(covers)}"


def _ranges(sizes: Sequence[tuple[float, ...]]) -> str:
    """Return sizes as text such as `384x384x15-24`: per axis the common value, or the smallest and the largest."""
    axes = [[f"{end:.3g}" if end < 100 else f"{end:.0f}" for end in (min(axis), max(axis))] for axis in zip(*sizes)]
    return "x".join(low if low == high else f"{low}-{high}" for low, high in axes) or "-"
