"""The options, the fixture and the table of `pytest -m hardening`.

A hardening test measures one figure, and one or more controls: the same measurement on something that is known to be
broken, which shows that the measurement finds the defect. It hands both to `Measurement.report`, which writes a row of
the table and fails the test if the goal is not met or the control was not found.
"""

import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROW = "hardening_row"  # name of the property of a test's report; it travels from pytest-xdist's workers
HEADINGS = ("Goal", "What is measured", "Goal's figure", "Measured", "Negative control", "Seconds", "Result")
KEYS = ("goal", "what", "expected", "measured", "control", "seconds", "result")


@dataclass
class Measurement:
    """Hands the scale and random numbers to a hardening test, and takes its figures."""

    goal: str  # number of the goal, such as "R1"
    scale: float  # factor of all counts, the option `--hardening-scale`
    seed: int
    properties: list[tuple[str, object]]  # of the test's report, to which the rows are added
    start: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)

    def count(self, full: int, minimum: int = 1) -> int:
        """Return a count of the goals times the scale, but at least `minimum`."""
        return max(minimum, round(full * self.scale))

    def rng(self, *purpose: object) -> random.Random:
        """Return a random generator that depends on the seed and on words for its purpose."""
        return random.Random(repr((self.seed, *purpose)))

    def some(self, values: Iterable, minimum: int = 1) -> list:
        """Return a part of the values, as large as the scale says, in their order; all of them at scale 1."""
        values = list(values)
        n = min(len(values), self.count(len(values), minimum))
        chosen = sorted(self.rng("some").sample(range(len(values)), n))
        return [values[index] for index in chosen]

    def add(
        self, what: str, figure: tuple[str, str, bool], control: tuple[str, bool], problems: Iterable[str] = ()
    ) -> None:
        """Write a row of the table; `conclude` fails the test if the row is not met.

        Args:
            what: what is measured.
            figure: the goal's figure, the measured one, and whether the goal is met.
            control: the figure of the negative control, and whether the measurement found its defect.
            problems: the cases that do not meet the goal, of which the row lists two.
        """
        (expected, measured, met), (of_control, found) = figure, control
        measured = "; ".join([measured, *list(problems)[:2]])
        result = "met" if met and found else "not met" + (": control" if met else "")
        row = (self.goal, what, expected, measured, of_control, round(time.monotonic() - self.start, 1), result)
        self.properties.append((ROW, dict(zip(KEYS, row, strict=True))))
        if not met:
            self.failures.append(f"{self.goal} is not met: {measured}, but the goal is {expected} ({what})")
        elif not found:
            self.failures.append(f"{self.goal}: the control shows no defect, so the figure means nothing: {of_control}")

    def conclude(self) -> None:
        """Fail the test if a row is not met."""
        assert not self.failures, "; ".join(self.failures)

    def report(self, *row: object) -> None:
        """Write the only row of a test, with the arguments of `add`, and fail the test if it is not met."""
        self.add(*row)
        self.conclude()


def goal_of(test: str) -> str:
    """Return the goal in a test's name: R1 of `test_r1_killed_while_saving`."""
    return test.split("_")[1].upper()


def pytest_addoption(parser) -> None:
    group = parser.getgroup("hardening", "pytest -m hardening")
    help_of_scale = "factor of all counts of the hardening tests; 1 has the counts of the goals"
    group.addoption("--hardening-scale", type=float, default=1.0, metavar="F", help=help_of_scale)
    group.addoption("--hardening-seed", type=int, default=0, metavar="N", help="seed of the hardening tests")
    help_of_folder = "folder into which the table is written, as hardening.json and hardening.md"
    group.addoption("--hardening-folder", type=Path, metavar="FOLDER", help=help_of_folder)


@pytest.fixture
def measurement(request) -> Measurement:
    """The scale and the seed for a hardening test; its rows are attached to the test's report."""
    option, test = request.config.getoption, request.node
    scale, seed = option("--hardening-scale"), option("--hardening-seed")
    return Measurement(goal_of(test.name), scale, seed, test.user_properties)


def rows_of(reports: Iterable) -> list[dict]:
    """Return the rows of all reports, in the order of the goals; a test that ended without a row gets one."""
    rows = []
    for report in reports:
        own = [value for name, value in report.user_properties if name == ROW]
        if not own and "hardening" in report.keywords:
            name = report.nodeid.rpartition("::")[2]
            why = "skipped" if report.skipped else "ended with an error"
            row = (goal_of(name), name, "", why, "", round(report.duration, 1), "not met")
            own = [dict(zip(KEYS, row, strict=True))]
        rows += own
    return sorted(rows, key=lambda row: (int(row["goal"].strip("R")), row["what"]))


def as_markdown(rows: list[dict], scale: float, seed: int) -> str:
    """Return the rows as a table in Markdown, with the scale and the seed above it."""
    lines = [f"Scale {scale:g}, seed {seed}.", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| {' | '.join(str(row[key]).replace('|', '/') for key in KEYS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def pytest_terminal_summary(terminalreporter, config) -> None:
    kinds = (terminalreporter.stats.get(kind, []) for kind in ("passed", "failed", "error", "skipped"))
    rows = rows_of(report for reports in kinds for report in reports if hasattr(report, "user_properties"))
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
