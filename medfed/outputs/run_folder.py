"""A run's folder on disk: locked while in use, checkpointed after every round, readable afterwards."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.files import (
    exclusive_lock,
    has_utf8_name,
    printable_path,
    read_with_checksum,
    sha256_digest,
    write_atomically,
)
from medfed.federation.ledger import COLUMNS as LEDGER_COLUMNS
from medfed.federation.message import State
from medfed.federation.rounds import Round

N_KEPT_CHECKPOINTS = 2
FIGURES = "figures"  # the folder of PNGs
TIMING_COLUMNS = ("round", "n_clients", "share", "train", "validate", "aggregate")  # seconds, of all clients together
HISTORY_COLUMNS = ("round", "train_loss", "validation_score")  # a column a site follows


class RunFolderLockedError(UserError):
    """Another process works in the folder."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    `config.yaml`, `environment.json`, `states/` (checkpoints), `sites/` (what each simulated site keeps),
    `history.csv`, `ledger.csv`, `timings.csv` (which alone differs between two runs of one config), `cases.csv`,
    `summary.json`, `model.safetensors`, `figures/`; `clients.json` (which cases each holds) where the sites' people
    were handed out.
    """

    path: Path

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Lock the folder while a run uses it; RunIsBusy if another process has locked it."""
        if not has_utf8_name(self.path):
            raise UserError(
                f"{printable_path(self.path)}: is no UTF-8, and no model can lie there; choose another --out"
            )
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(exclusive_lock(self.path / "run.lock", self._locked_error))
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot write here ({error.strerror}); choose another folder with --out"
                ) from error
            yield self

    def _locked_error(self, holder: str) -> RunFolderLockedError:
        return RunFolderLockedError(
            f"{self.path}: {holder} is running here; wait for it, or choose another folder with --out"
        )

    def rounds(self) -> list[int]:
        """The rounds with a checkpoint, oldest first."""
        return sorted(int(path.stem.removeprefix("round_")) for path in (self.path / "states").glob("round_*.state"))

    def load_state(self, round_number: int) -> State:
        path = self._state_path(round_number)
        try:
            return State.from_bytes(read_with_checksum(path, "delete it to go on from the round before it"))
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(f"{path}: {error}") from error

    def save_round(self, done: Round, best_round: int) -> None:
        """Commit a round: first the rows, then, as the last step, the checkpoint. Older checkpoints go after that.

        A kill before the checkpoint leaves rows of a round that does not count; `truncate` drops them on resume.
        """
        append_rows(self.path / "ledger.csv", LEDGER_COLUMNS, done.ledger)
        timing = {"round": done.state.round, "n_clients": done.n_clients, **done.seconds}
        append_rows(self.path / "timings.csv", TIMING_COLUMNS, [timing])
        self.write_history([*self.history(), done.history])
        self.save_state(done.state)
        for old in self.rounds()[:-N_KEPT_CHECKPOINTS]:
            if old != best_round:
                self._state_path(old).unlink()

    def save_state(self, state: State) -> None:
        path = self._state_path(state.round)
        path.parent.mkdir(exist_ok=True)
        data = state.to_bytes()
        write_atomically(path, sha256_digest(data), data)

    def truncate(self, last_round: int) -> None:
        """Drop the rows of rounds that were never committed."""
        self.write_history([row for row in self.history() if int(row["round"]) <= last_round])
        # Line by line: with many clients a ledger has a million rows.
        ledger = (row for row in self._rows("ledger.csv") if row["bytes"] and int(row["round"]) <= last_round)
        self.write_text("ledger.csv", _as_csv(LEDGER_COLUMNS, ledger))
        self.write_text("timings.csv", _as_csv(TIMING_COLUMNS, (r for r in self.timings() if r["round"] <= last_round)))

    def _state_path(self, round_number: int) -> Path:
        return self.path / "states" / f"round_{round_number:05d}.state"


    def history(self) -> list[dict[str, Any]]:
        """Rows of `history.csv` with numbers as numbers, empty fields as None."""
        return [{key: _number(value) for key, value in row.items()} for row in self._rows("history.csv")]

    def timings(self) -> list[dict[str, Any]]:
        """Rows of `timings.csv`, as `history`; none of runs that are older than it."""
        rows = ({key: _number(value) for key, value in row.items()} for row in self._rows("timings.csv"))
        return [row for row in rows if isinstance(row["round"], int)]

    def ledger(self) -> Iterator[dict[str, str]]:
        """Rows of `ledger.csv`, as text, one at a time."""
        return self._rows("ledger.csv")

    def write_history(self, rows: list[Mapping[str, Any]]) -> None:
        told = [key for row in rows for key, value in row.items() if value is not None]
        columns = list(dict.fromkeys([*HISTORY_COLUMNS, *told]))
        shown = [{key: row.get(key) for key in columns} for row in rows]
        self.write_text("history.csv", _as_csv(columns, shown))

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text)

    def write_json(self, name: str, content: Any) -> None:
        self.write_text(name, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def save_model(self, weights: Mapping[str, Tensor]) -> None:
        """`model.safetensors`: the network's state dict and nothing else, so equal weights are equal bytes."""
        data = safetensors.torch.save({name: entry.detach().cpu().contiguous() for name, entry in weights.items()})
        write_atomically(self.path / "model.safetensors", data)

    def is_finished(self) -> bool:
        """`summary.json` is the last thing that a run writes."""
        return (self.path / "summary.json").is_file()

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        """The whole lines of a table; none where there is no file."""
        path = self.path / name
        if path.is_file():
            with open(path, newline="", encoding="utf-8", errors="replace") as file:
                yield from (row for row in csv.DictReader(file) if None not in row.values() and None not in row)


def append_rows(path: Path, columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a table in CSV, with its header if it is new; on the disk when this returns."""
    text = _as_csv(columns, rows, header=not path.is_file())
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({key: repr(v) if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return text.getvalue()


def _number(text: str) -> Any:
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
