"""The totals of a run's ledger, added up while the file is read: with many clients it has millions of rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import safetensors

from medfed.core.errors import UserError
from medfed.federation.ledger import COLUMNS, CONTENTS, STATISTIC, WEIGHT

WEIGHTS, NORMALISATION = "model weights", "normalisation statistics"
RUNNING = ("running_mean", "running_var", "num_batches_tracked")
MAX_SHAPES = 3  # of a tensor that a report names; one more is stored, to know that there are others
SITE, ENTRY = "SITE", "ENTRY"  # stand for the name of a site, or of a weight, in the name of a tensor


@dataclass(frozen=True, order=True)
class LedgerKey:
    """Rows of `ledger.csv` with the same key are added up. `content` is "weight", "statistic" or "fact". All weights
    share the name WEIGHTS, their normalisation statistics NORMALISATION. In names of statistics, SITE stands for a site
    and ENTRY for a weight: `control/ENTRY` is one name for all control variates."""

    direction: str  # "up" from the sites to the coordinator, or "down"
    content: str  # "weight", "statistic" (any other tensor) or "fact" (a value without a shape, such as a loss)
    name: str


@dataclass
class LedgerTotal:
    """Totals of all sent values with the same key; `shapes` has the first MAX_SHAPES + 1 different shapes."""

    n_bytes: int = 0
    rounds: set[int] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    shapes: dict[str, None] = field(default_factory=dict)

    def add(self, round_number: int, site: str, shape: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self.rounds.add(round_number)
        self.sites.add(site)
        if len(self.shapes) <= MAX_SHAPES:
            self.shapes[shape] = None


@dataclass(frozen=True)
class Ledger:
    """Totals of what was sent in a run, by key, and bytes by site and (direction, content)."""

    totals: dict[LedgerKey, LedgerTotal]
    by_site: dict[str, dict[tuple[str, str], int]]
    n_rows: int

    def total_bytes(self, direction: str) -> int:
        """All bytes that went "up" (left the sites) or "down" (came to them)."""
        return sum(self.bytes_by_content(direction).values())

    def bytes_by_content(self, direction: str) -> dict[str, int]:
        """{"weight": N, "statistic": N, "fact": N} in one direction."""
        sums = dict.fromkeys(CONTENTS, 0)
        for key, total in self.totals.items():
            if key.direction == direction:
                sums[key.content] += total.n_bytes
        return sums


def read_ledger(run: Path, sites: Iterable[str] = ()) -> Ledger:
    """Add up the rows of a run's `ledger.csv`; UserError if a file is damaged or the ledger has another header. Names
    of `sites` and of simulated clients become SITE in the names of statistics, so that `style/UCL/mean` counts as
    `style/SITE/mean`."""
    weights = _weight_names(run / "model.safetensors")
    names = frozenset(sites) | frozenset(_client_names(run / "clients.json"))
    totals: dict[LedgerKey, LedgerTotal] = {}
    by_site: dict[str, dict[tuple[str, str], int]] = {}
    n_rows = 0

    @lru_cache(maxsize=1 << 16)
    def name_in_report(name: str, content: str) -> str:
        """The name under which a tensor is summed: entries of the network become one row; site names are removed."""
        if content == WEIGHT:
            return NORMALISATION if name.rpartition(".")[2] in RUNNING else WEIGHTS
        if content != STATISTIC:
            return name
        shown = _without_sites(name, names)
        slashes = (place for place, character in enumerate(shown) if character == "/")
        place = next((slash + 1 for slash in slashes if shown[slash + 1 :] in weights), None)
        return shown if place is None else shown[:place] + ENTRY

    path = run / "ledger.csv"
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file)
        columns = tuple(next(rows, ()))
        if columns != COLUMNS:
            raise UserError(f"{path}: expected the first line {','.join(COLUMNS)}; copy the ledger of the run again")
        for n_rows, row in enumerate(rows, start=1):
            try:
                round_text, site, direction, _, content, name, shape, _, size = row
                round_number, n_bytes = int(round_text), int(size)
                if content not in CONTENTS:
                    raise ValueError(content)
            except ValueError as error:
                raise UserError(f"{path}: line {n_rows + 1} is damaged; copy the folder of the run again") from error
            key = LedgerKey(direction, content, name_in_report(name, content))
            totals.setdefault(key, LedgerTotal()).add(round_number, site, shape, n_bytes)
            of_site = by_site.setdefault(site, {})
            of_site[direction, content] = of_site.get((direction, content), 0) + n_bytes
    return Ledger(totals, by_site, n_rows)


def _without_sites(name: str, sites: frozenset[str]) -> str:
    """Replace the name of a site, which may contain a slash: `style/north/mean` gives `style/SITE/mean`."""
    parts = name.split("/")
    for first in range(len(parts)):
        for last in range(len(parts), first, -1):
            if "/".join(parts[first:last]) in sites:
                return "/".join([*parts[:first], SITE, *parts[last:]])
    return name


def _weight_names(path: Path) -> frozenset[str]:
    try:
        with safetensors.safe_open(path, framework="numpy") as model:
            return frozenset(model.keys())
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: the file is damaged ({error}); copy the folder of the run again") from error


def _client_names(path: Path) -> list[str]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []
    except ValueError as error:
        raise UserError(f"{path}: the file is not valid JSON ({error}); copy the folder of the run again") from error
