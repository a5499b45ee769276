"""A run's ledger, summed while it is read: with many clients it has millions of rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import safetensors

from medfed.core.errors import UserError
from medfed.federation.ledger import COLUMNS

WEIGHTS, NORMALISATION = "model weights", "normalisation statistics"
RUNNING = ("running_mean", "running_var", "num_batches_tracked")
MOST_SHAPES = 3  # of a tensor, told; one more is kept, to know that there are more
SITE, ENTRY = "SITE", "ENTRY"  # stand for the name of a site, or of a weight, in the name of a tensor


@dataclass(frozen=True, order=True)
class Key:
    """What is summed together, in one direction: a group ("weights", "tensor", "fact"), and a name in it.

    All weights share a name, and so do those that a method sends under names of its own (`control/ENTRY`).
    """

    direction: str
    group: str
    name: str


@dataclass
class Sum:
    """Bytes over all sites and rounds, the rounds and sites it crossed in, and the first few shapes that it had."""

    n_bytes: int = 0
    rounds: set[int] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    shapes: dict[str, None] = field(default_factory=dict)  # in the order of their first row

    def add(self, round_number: int, site: str, shape: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self.rounds.add(round_number)
        self.sites.add(site)
        if len(self.shapes) <= MOST_SHAPES:
            self.shapes[shape] = None


@dataclass(frozen=True)
class Ledger:
    """sums: by what crossed; by_site: site -> (direction, group) -> bytes; n_rows: entries read."""

    sums: dict[Key, Sum]
    by_site: dict[str, dict[tuple[str, str], int]]
    n_rows: int

    def total(self, direction: str) -> int:
        return sum(found.n_bytes for key, found in self.sums.items() if key.direction == direction)


def read_ledger(run: Path, sites: Iterable[str] = ()) -> Ledger:
    """Sum `ledger.csv`; what is a weight is told by the names in `model.safetensors`.

    Args:
        sites: names that are replaced where they are a part of a tensor's name (`bank/UCL` is `bank/SITE`); those in
            `clients.json` are added.

    Raises:
        UserError: if a file is damaged, or the ledger has another header.
    """
    weights = _weight_names(run / "model.safetensors")
    named = frozenset(sites) | frozenset(_client_names(run / "clients.json"))
    sums: dict[Key, Sum] = {}
    by_site: dict[str, dict[tuple[str, str], int]] = {}
    n_rows = 0

    @lru_cache(maxsize=1 << 16)
    def group_and_name(name: str, is_fact: bool) -> tuple[str, str]:
        if is_fact:
            return "fact", name
        if name in weights:
            return "weights", NORMALISATION if name.rpartition(".")[2] in RUNNING else WEIGHTS
        shown = _without_sites(name, named)
        place = next((i + 1 for i, sign in enumerate(shown) if sign == "/" and shown[i + 1 :] in weights), None)
        return ("tensor", shown) if place is None else ("weights", shown[:place] + ENTRY)

    path = run / "ledger.csv"
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file)
        if tuple(next(rows, ())) != COLUMNS:
            raise UserError(f"{path}: the first line is not {','.join(COLUMNS)}; is this the ledger of a run?")
        for n_rows, row in enumerate(rows, start=1):
            try:
                round_text, site, direction, _, name, shape, dtype, size = row
                round_number, n_bytes = int(round_text), int(size)
            except ValueError as error:
                raise UserError(f"{path}: line {n_rows + 1} is damaged; copy the run again from where it was made") \
                    from error
            group, shown = group_and_name(name, dtype == "fact")
            sums.setdefault(Key(direction, group, shown), Sum()).add(round_number, site, shape, n_bytes)
            of_site = by_site.setdefault(site, {})
            of_site[direction, group] = of_site.get((direction, group), 0) + n_bytes
    return Ledger(sums, by_site, n_rows)


def _without_sites(name: str, sites: frozenset[str]) -> str:
    """`style/north/mean` as `style/SITE/mean`, also where a site's name holds a slash."""
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
        raise UserError(f"{path}: is damaged ({error}); copy it again from where the run was made") from error


def _client_names(path: Path) -> list[str]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}); copy the run again from where it was made") from error
