"""A check report for a person and for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.datasets.checking import CaseFacts, DatasetReport, SiteFacts

HEADER = ("site", "cases", "people", "voxels", "spacing mm", "labels", "intensity", "empty")


def to_json(report: DatasetReport) -> str:
    """Everything, case by case, with the SHA-256 of every image."""
    return json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"


def to_text(report: DatasetReport) -> str:
    """A line a site, then every warning and every problem, one a line, and the count of both."""
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
    known = [case.spacing_mm for case in cases if case.spacing_mm is not None]
    return _ranges(known) if known else "unknown"


def _ranges(sizes: Sequence[tuple[float, ...]]) -> str:
    """`384 x 384 x 15-24`: along each axis the one size, or the least and the most."""
    axes = [(min(axis), max(axis)) for axis in zip(*sizes)]
    return " x ".join(f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g}-{high:.4g}" for low, high in axes)


def _count(things: Sequence[str], word: str) -> str:
    return f"{len(things)} {word}" + ("" if len(things) == 1 else "s")
