"""Write the report of a dataset check as text for the terminal and as JSON for programs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from medfed.core.errors import Problem
from medfed.datasets.check_groups import WIDTH, format_problems
from medfed.datasets.checking import CaseFacts, DatasetReport, SiteFacts

HEADER = ("site", "cases", "patients", "voxels", "spacing mm", "labels", "intensity", "empty")


def to_json(report: DatasetReport) -> str:
    """Return all fields of the report, with kind, place, found and cure of each problem."""
    content = asdict(report) | {
        "problems": [vars(problem) for problem in report.problems],
        "warnings": [vars(problem) for problem in report.warnings],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def to_text(report: DatasetReport) -> str:
    """Return tables of the sites and of their classes or structures, and the problems and warnings by their kind."""
    lines = _table([HEADER, *(_row(site) for site in report.sites)])
    lines += _class_lines(report) if report.classes else _foreground_lines(report)
    if report.is_phantom:
        lines += ["", "These images are synthetic; there is no patient in them."]
    for title, problems in (("warnings", report.warnings), ("problems", report.problems)):
        if problems:
            lines += ["", f"{title}:", *format_problems(problems, report.root)]
    if any("data." in problem.cure for problem in (*report.problems, *report.warnings)):
        lines += ["", 'Try a setting with --set "data.KEY=VALUE" (with the quotes); in a config, write it under data.']
    return "\n".join([*lines, "", f"{_count(report.problems, 'problem')}, {_count(report.warnings, 'warning')}."])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. If it is wider than 100 characters, further columns follow below."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if len(blocks[-1]) > 1 and sum(widths[c] + 2 for c in blocks[-1]) + widths[column] > WIDTH:
            blocks.append([0])
        blocks[-1].append(column)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += ["  ".join(row[column].ljust(widths[column]) for column in block).rstrip() for row in rows]
    return lines


def _row(site: SiteFacts) -> tuple[str, ...]:
    """Return the cells of one site's row, in the order of HEADER."""
    cases = site.cases
    if not cases:
        return (site.name, str(site.n_cases), *("-" for _ in HEADER[2:]))
    empty = sum(bool(case.missing) for case in cases)
    is_2d = all(case.spacing_mm is None for case in cases)  # only volumes store a voxel size
    return (
        site.name,
        str(site.n_cases),
        str(len({case.patient for case in cases})),
        _ranges([case.shape[:2] if is_2d else case.shape for case in cases]),
        _spacings(cases),
        " ".join(str(value) for value in sorted({value for case in cases for value in case.labels})),
        f"{min(case.lowest for case in cases):g} to {max(case.highest for case in cases):g}",
        str(empty),
    )


def _class_lines(report: DatasetReport) -> Iterator[str]:
    """Yield the lines of the table with the number of images of each class."""
    counts = {site.name: Counter(case.labels[0] for case in site.cases) for site in report.sites}
    rows = [(name, *(str(numbers[label]) for label in range(len(report.classes)))) for name, numbers in counts.items()]
    yield from ("", "images of each class:", *_table([("site", *report.classes), *rows]))


def _foreground_lines(report: DatasetReport) -> Iterator[str]:
    """Yield the lines of the table with the part of the images that each structure covers."""
    rows = []
    for site in report.sites:
        by_structure = [
            [case.foreground[i] for case in site.cases if case.foreground[i] > 0] for i in range(len(report.structures))
        ]
        rows.append((site.name, *(_percentages(values, len(site.cases)) for values in by_structure)))
    if any(site.cases for site in report.sites):
        yield from ("", "structures: median (range) of the part of the image in percent, over the images with it:")
        yield from _table([("site", *report.structures), *rows])


def _percentages(values: Sequence[float], n_images: int) -> str:
    """Return how much of the images a structure covers, such as "6.1 (1.2-22) in 19 of 19"; `values` are in [0, 1]."""
    if not values:
        return f"in 0 of {n_images}" if n_images else "-"
    low, middle, high = (100 * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.2g} ({low:.2g}-{high:.2g}) in {len(values)} of {n_images}"


def _spacings(cases: Sequence[CaseFacts]) -> str:
    """Return the voxel sizes in mm as `_ranges` writes them; "unknown" if no file stores one."""
    spacings = [case.spacing_mm for case in cases if case.spacing_mm is not None]
    return _ranges(spacings) if spacings else "unknown"


def _ranges(sizes: Sequence[tuple[float, ...]]) -> str:
    """Return sizes as text such as `384 x 384 x 15-24`: per axis the common value, or the smallest and the largest."""
    axes = [(min(axis), max(axis)) for axis in zip(*sizes)]
    return " x ".join(f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g}-{high:.4g}" for low, high in axes)


def _count(items: Sequence[Problem], noun: str) -> str:
    """Such as "1 image" or "3 images"."""
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")
