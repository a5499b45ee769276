"""The options, the fixture and the table of `pytest -m hardening`.

A hardening test measures one figure, and one or more controls: the same measurement on something that is known to be
broken, which shows that the measurement finds the defect. It hands both to `Measurement.report`, which writes a row of
the table and fails the test if the goal is not met or the control was not found.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

ROW = "hardening_row"  # name of the property of a test's report; it travels from pytest-xdist's workers
HEADINGS = {
    "goal": "Goal",
    "what": "What is measured",
    "expected": "Goal's figure",
    "measured": "Measured",
    "control": "Negative control",
    "seconds": "Seconds",
    "result": "Result",
}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        goal: number of the goal, such as "R1".
        what: what is measured.
        expected: the goal's figure.
        measured: the measured figure.
        control: the figure of the negative control, where the defect has to be found.
        seconds: how long the measurement took.
        result: "met", or "not met".
    """

    goal: str
    what: str
    expected: str
    measured: str
    control: str
    seconds: float
    result: str


@dataclass
class Measurement:
    """Hands the scale and random numbers to a hardening test, and takes its figures.

    Attributes:
        scale: factor of all counts, the option `--hardening-scale`.
        seed: the option `--hardening-seed`.
        properties: the properties of the test's report, to which the rows are added.
    """

    scale: float
    seed: int
    properties: list[tuple[str, object]]
    start: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)

    def count(self, full: int, minimum: int = 1) -> int:
        """Return a count of the goals times the scale, but at least `minimum`."""
        return max(minimum, round(full * self.scale))

    def rng(self, *purpose: object) -> random.Random:
        """Return a random generator that depends on the seed and on words for its purpose."""
        return random.Random(repr((self.seed, *purpose)))

    def some(self, values: Iterable, minimum: int = 1, *purpose: object) -> list:
        """Return a part of the values, as large as the scale says, in their order; all of them at scale 1."""
        values = list(values)
        n = min(len(values), self.count(len(values), minimum))
        chosen = sorted(self.rng("some", *purpose).sample(range(len(values)), n))
        return [values[index] for index in chosen]

    def add(
        self, goal: str, what: str, expected: str, measured: str, met: bool, control: str, control_found: bool
    ) -> None:
        """Write a row of the table; `conclude` fails the test if it is not met.

        Args:
            goal: number of the goal.
            what: what is measured.
            expected: the goal's figure.
            measured: the measured figure.
            met: whether the measured figure is the goal's.
            control: the figure of the negative control.
            control_found: whether the measurement found the defect of the control.
        """
        result = "met" if met and control_found else "not met" + (": control" if met else "")
        row = Row(goal, what, expected, measured, control, round(time.monotonic() - self.start, 1), result)
        self.properties.append((ROW, asdict(row)))
        if not met:
            self.failures.append(f"{goal} is not met: {measured}, but the goal is {expected} ({what})")
        elif not control_found:
            self.failures.append(f"{goal}: the control shows no defect, so the figure means nothing: {control}")

    def conclude(self) -> None:
        """Fail the test if a row is not met."""
        assert not self.failures, "; ".join(self.failures)

    def report(self, *row: object) -> None:
        """Write the only row of a test, with the arguments of `add`, and fail the test if it is not met."""
        self.add(*row)
        self.conclude()


def pytest_addoption(parser) -> None:
    group = parser.getgroup("hardening", "pytest -m hardening")
    group.addoption(
        "--hardening-scale",
        type=float,
        default=1.0,
        metavar="F",
        help="factor of all counts of the hardening tests; 1 has the counts of the goals",
    )
    group.addoption("--hardening-seed", type=int, default=0, metavar="N", help="seed of the hardening tests")
    group.addoption(
        "--hardening-folder",
        type=Path,
        metavar="FOLDER",
        help="folder into which the table is written, as hardening.json and hardening.md",
    )


@pytest.fixture
def measurement(request) -> Measurement:
    """The scale and the seed for a hardening test; its rows are attached to the test's report."""
    option = request.config.getoption
    return Measurement(option("--hardening-scale"), option("--hardening-seed"), request.node.user_properties)


def rows_of(reports: Iterable) -> list[dict]:
    """Return the rows of all reports, in the order of the goals; a test that ended without a row gets one."""
    rows = []
    for report in reports:
        own = [value for name, value in report.user_properties if name == ROW]
        if not own and "hardening" in report.keywords:
            name = report.nodeid.rpartition("::")[2]
            why = "skipped" if report.skipped else "ended with an error"
            own = [asdict(Row(name.split("_")[1].upper(), name, "", why, "", round(report.duration, 1), "not met"))]
        rows += own
    return sorted(rows, key=lambda row: (int(row["goal"].strip("R")), row["what"]))


def as_markdown(rows: list[dict], scale: float, seed: int) -> str:
    """Return the rows as a table in Markdown, with the scale and the seed above it."""
    lines = [f"Scale {scale:g}, seed {seed}.", "", f"| {' | '.join(HEADINGS.values())} |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| {' | '.join(str(row[key]).replace('|', '/') for key in HEADINGS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def pytest_terminal_summary(terminalreporter, config) -> None:
    reports = [
        report
        for kind in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(kind, [])
        if hasattr(report, "user_properties")
    ]
    rows = rows_of(reports)
    if not rows:
        return
    scale, seed = config.getoption("--hardening-scale"), config.getoption("--hardening-seed")
    n_met = sum(row["result"] == "met" for row in rows)
    terminalreporter.section(f"hardening: {n_met} of {len(rows)} figures met, scale {scale:g}, seed {seed}")
    for row in rows:
        terminalreporter.write_line(f"{row['goal']:4} {row['result']:8} {row['seconds']:6.1f} s  {row['what']}")
        terminalreporter.write_line(f"      measured: {row['measured']}  [goal: {row['expected']}]")
        terminalreporter.write_line(f"      control:  {row['control']}")
    if folder := config.getoption("--hardening-folder"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hardening.md").write_text(as_markdown(rows, scale, seed), encoding="utf-8")
        content = {"scale": scale, "seed": seed, "rows": rows}
        (folder / "hardening.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        terminalreporter.write_line(f"written to {folder}/hardening.md and {folder}/hardening.json")
