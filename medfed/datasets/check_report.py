"""Write the report of a dataset check as text for the terminal and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.datasets.checking import CaseFacts, DatasetReport, SiteFacts

HEADER = ("site", "cases", "patients", "voxels", "spacing mm", "labels", "intensity", "empty")


def to_json(report: DatasetReport) -> str:
    """Return the whole report of a dataset check as JSON.

    Args:
        report: from `check_dataset`.

    Returns:
        JSON text with the properties of every case (such as its size, intensity range and SHA-256), the problems and
        the warnings.
    """
    return json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"


def to_text(report: DatasetReport) -> str:
    """Return the report of a dataset check as text for the terminal.

    Args:
        report: from `check_dataset`.

    Returns:
        Lines of text: a table with one row per site, then the warnings, then the problems, and at the end the number of
        problems and the number of warnings.
    """
    rows = [HEADER, *(_row(site) for site in report.sites)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if report.is_phantom:
        lines += ["", "These images are synthetic; there is no patient in them."]
    for title, sentences in (("warnings", report.warnings), ("problems", report.problems)):
        if sentences:
            lines += ["", f"{title}:", *(f"  {sentence}" for sentence in sentences)]
    return "\n".join([*lines, "", f"{_count(report.problems, 'problem')}, {_count(report.warnings, 'warning')}."])


def _row(site: SiteFacts) -> tuple[str, ...]:
    """Return the cells of one site's row, in the order of HEADER."""
    cases = site.cases
    if not cases:
        return (site.name, str(site.n_cases), *("-" for _ in HEADER[2:]))
    empty = sum(bool(case.missing) for case in cases)
    return (
        site.name,
        str(site.n_cases),
        str(len({case.subject for case in cases})),
        _ranges([case.shape for case in cases]),
        _spacings(cases),
        " ".join(str(value) for value in sorted({value for case in cases for value in case.labels})),
        f"{min(case.lowest for case in cases):g} to {max(case.highest for case in cases):g}",
        str(empty),
    )


def _spacings(cases: Sequence[CaseFacts]) -> str:
    """Return the voxel sizes in mm as `_ranges` writes them; "unknown" if no file stores one."""
    spacings = [case.spacing_mm for case in cases if case.spacing_mm is not None]
    return _ranges(spacings) if spacings else "unknown"


def _ranges(sizes: Sequence[tuple[float, ...]]) -> str:
    """Return sizes as text such as `384 x 384 x 15-24`: per axis the common value, or the smallest and the largest."""
    axes = [(min(axis), max(axis)) for axis in zip(*sizes)]
    return " x ".join(f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g}-{high:.4g}" for low, high in axes)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")
