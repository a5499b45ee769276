"""The folder of a run: it is locked while a process uses it, and holds checkpoints, tables, scores and the model."""

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

import safetensors
import safetensors.torch
from torch import Tensor, nn

from medfed.core.errors import UserError, argument
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

N_KEPT_CHECKPOINTS = 2  # number of newest checkpoints to keep; that of the best round is kept too
FIGURES = "figures"  # name of the folder of PNG files
UNSEEN_ROUNDS = "unseen_rounds.json"  # scores of the unseen site by round, measured after training
TIMING_COLUMNS = ("round", "n_clients", "share", "train", "validate", "aggregate")  # s, sum of all clients
HISTORY_COLUMNS = ("round", "train_loss", "validation_score")  # followed by one column for each site


class RunFolderLockedError(UserError):
    """Raised if another process uses the run folder."""


@dataclass(frozen=True)
class RunFolder:
    """The folder with the files of one training run: checkpoints, tables, scores and the model.

    The files are `config.yaml`, `environment.json`, `states/` (checkpoints), `sites/` (weights that stay at each
    simulated site), `history.csv` (losses and validation scores of each round), `ledger.csv` (all tensors and values
    that were sent), `timings.csv` (seconds of each round; the only file that differs between two runs of one config),
    `cases.csv` (scores of every case), `summary.json`, `model.safetensors` and `figures/`. A run with simulated clients
    also has `clients.json` (the cases of each client). With the setting `evaluation.unseen_every`, there is also
    `unseen_rounds.json` (scores of the unseen site by round, which must not choose anything).

    Args:
        path: path of the folder.
    """

    path: Path

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Create the run folder if it is missing, and lock it until the `with` block ends.

        Use it as `with folder.locked():`. The context manager yields this object. While the block runs, a second
        process that tries to lock the folder gets a `RunFolderLockedError`.

        Raises:
            RunFolderLockedError: if another process has locked the folder.
            UserError: if the folder cannot be written or its name is not valid UTF-8.
        """
        if not has_utf8_name(self.path):
            raise UserError(
                f"{printable_path(self.path)}: the folder's name is not valid UTF-8; choose another folder with "
                f"{argument('out')}"
            )
        self.create()
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(self.path / "run.lock", self._locked_error))
            except OSError as error:
                raise self._write_error(error) from error
            yield self

    def create(self) -> None:
        """Create the run folder if it is missing.

        Raises:
            UserError: if the folder cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> UserError:
        return UserError(
            f"{self.path}: cannot write here ({error.strerror}); choose another folder with {argument('out')}"
        )

    def _locked_error(self, holder: str) -> RunFolderLockedError:
        """Return the error for a folder that `holder` has locked."""
        return RunFolderLockedError(
            f"{self.path}: {holder} is running here; wait for it, or choose another folder with {argument('out')}"
        )

    def rounds(self) -> list[int]:
        """Return the numbers of the rounds whose checkpoint is in the folder, in ascending order."""
        return sorted(int(path.stem.removeprefix("round_")) for path in (self.path / "states").glob("round_*.state"))

    def load_state(self, round_number: int) -> State:
        """Read the checkpoint of a round: the coordinator's state after that round, with the global weights.

        Args:
            round_number: number of the round, one of those that `rounds` returns.

        Raises:
            UserError: if the checkpoint is damaged.
            FileNotFoundError: if there is no checkpoint of this round.
        """
        path = self._state_path(round_number)
        try:
            return State.from_bytes(read_with_checksum(path, "delete it to continue from the previous round"))
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(f"{path}: {error}") from error

    def save_round(self, done: Round, best_round: int, keep_every: int = 0) -> None:
        """Append a finished round to the tables, then save its checkpoint, and delete old checkpoints.

        The tables are `ledger.csv`, `timings.csv` and `history.csv`. Only the two newest checkpoints, the checkpoint of
        the best round, and those that `keep_every` names are kept. The checkpoint is written after the tables. If the
        process is killed in between, the tables have rows of a round without a checkpoint. `truncate` removes these
        rows when the run is resumed.

        Args:
            done: the finished round: its messages, losses and scores, times, and the coordinator's state after it.
            best_round: number of the best round so far. Its checkpoint is never deleted.
            keep_every: the checkpoint of every n-th round is never deleted; 0 names none.
        """
        append_rows(self.path / "ledger.csv", LEDGER_COLUMNS, done.ledger)
        timing = {"round": done.state.round, "n_clients": done.n_clients, **done.seconds}
        append_rows(self.path / "timings.csv", TIMING_COLUMNS, [timing])
        self.write_history([*self.history(), done.history])
        self.save_state(done.state)
        for old in self.rounds()[:-N_KEPT_CHECKPOINTS]:
            if old != best_round and not (keep_every and old and old % keep_every == 0):
                self._state_path(old).unlink()

    def save_state(self, state: State) -> None:
        """Write the checkpoint of a round to `states/round_NUMBER.state`, with a checksum.

        Args:
            state: the coordinator's state after the round; it contains the number of the round.
        """
        path = self._state_path(state.round)
        path.parent.mkdir(exist_ok=True)
        data = state.to_bytes()
        write_atomically(path, sha256_digest(data), data)

    def truncate(self, last_round: int) -> None:
        """Remove the rows of all rounds after `last_round` from `history.csv`, `ledger.csv` and `timings.csv`.

        Args:
            last_round: number of the last round whose rows are kept; 0 removes all rows.
        """
        self.write_history([row for row in self.history() if int(row["round"]) <= last_round])
        # The ledger is read row by row, because it may have a million rows with many clients.
        ledger = (row for row in self._rows("ledger.csv") if row["bytes"] and int(row["round"]) <= last_round)
        self.write_text("ledger.csv", _as_csv(LEDGER_COLUMNS, ledger))
        self.write_text("timings.csv", _as_csv(TIMING_COLUMNS, (r for r in self.timings() if r["round"] <= last_round)))

    def _state_path(self, round_number: int) -> Path:
        """Return the path of a round's checkpoint."""
        return self.path / "states" / f"round_{round_number:05d}.state"

    def history(self) -> list[dict[str, Any]]:
        """Read `history.csv`: one row per round, with training losses and validation scores.

        Returns:
            One dict per round, in the order of the file. The keys are the names of the columns. Numbers are int or
            float, and an empty field is None. The list is empty if the file does not exist.
        """
        return [{key: _number(value) for key, value in row.items()} for row in self._rows("history.csv")]

    def timings(self) -> list[dict[str, Any]]:
        """Read `timings.csv`: one row per round, with the seconds that each step of the round took.

        Returns:
            One dict per round. "round" is the number of the round, and "n_clients" the number of sites (or simulated
            clients) that were asked to train. "share", "train" and "validate" are the seconds in which the shared
            statistics, the updates and the validation scores were computed, summed over all sites. "aggregate" is the
            seconds of the computation at the coordinator. A time that was not measured is None. The list is empty if
            the file does not exist.
        """
        rows = ({key: _number(value) for key, value in row.items()} for row in self._rows("timings.csv"))
        return [row for row in rows if isinstance(row["round"], int)]

    def ledger(self) -> Iterator[dict[str, str]]:
        """Yield the rows of `ledger.csv`: one row for each tensor or value that was sent to or from a site.

        Yields:
            A dict with the keys "round", "site", "direction" ("up" to the coordinator or "down" to the site), "kind"
            (the purpose of the message, such as "share" or "validate"), "name", "shape" (such as "16x3x3"), "dtype"
            ("fact" for a value that is not a tensor) and "bytes". All values are text. Nothing is yielded if the file
            does not exist.
        """
        return self._rows("ledger.csv")

    def write_history(self, rows: list[Mapping[str, Any]]) -> None:
        """Replace `history.csv` by the given rows.

        Args:
            rows: one dict per round, with the names of the columns as keys. A column that is None in all rows is left
                out, except "round", "train_loss" and "validation_score", which the file always has.
        """
        known = [key for row in rows for key, value in row.items() if value is not None]
        columns = list(dict.fromkeys([*HISTORY_COLUMNS, *known]))
        table = [{key: row.get(key) for key in columns} for row in rows]
        self.write_text("history.csv", _as_csv(columns, table))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run folder. An existing file is replaced.

        The file is replaced in one step: if the process is killed, the file has its complete old content or its
        complete new content.

        Args:
            name: name of the file in the folder.
            text: the new content of the file.
        """
        write_atomically(self.path / name, text)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file of the run folder, with sorted keys. An existing file is replaced in one step.

        Args:
            name: name of the file in the folder.
            content: plain JSON values (dicts, lists, text, numbers, booleans, None). NaN and infinity raise a
                ValueError.
        """
        self.write_text(name, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run folder and return its content.

        Args:
            name: name of the file in the folder, for example "summary.json".

        Raises:
            UserError: if the file is missing or damaged.
        """
        with damaged_file(self.path / name) as path:
            return json.loads(path.read_text(encoding="utf-8"))

    def save_model(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights to `model.safetensors`. The file contains nothing else, so equal weights give equal bytes.

        Args:
            weights: the network's state dict, with tensors on any device.
        """
        data = safetensors.torch.save({name: entry.detach().cpu().contiguous() for name, entry in weights.items()})
        write_atomically(self.path / "model.safetensors", data)

    def load_model(self, network: nn.Module | None = None) -> dict[str, Tensor]:
        """Read the weights from `model.safetensors` and return them as a state dict on the CPU.

        Args:
            network: a network into which the weights are loaded; None only returns them.

        Raises:
            UserError: if the file is missing or damaged, or if the weights do not fit the network.
        """
        with damaged_file(self.path / "model.safetensors") as path:
            weights = safetensors.torch.load_file(path)
            if network is not None:
                network.load_state_dict(weights)
            return weights

    def is_finished(self) -> bool:
        """Return whether the run is finished, which means that its file `summary.json` exists."""
        return (self.path / "summary.json").is_file()

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        """Yield the complete rows of a CSV file, without rows that were cut off; nothing if there is no file."""
        path = self.path / name
        if path.is_file():
            with open(path, newline="", encoding="utf-8", errors="replace") as file:
                yield from (row for row in csv.DictReader(file) if None not in row.values() and None not in row)


@contextmanager
def damaged_file(path: Path) -> Iterator[Path]:
    """Turn the errors of reading a missing or damaged file of a run into a UserError. A context manager.

    Args:
        path: the file that the `with` block reads.

    Yields:
        The path.

    Raises:
        UserError: with the path and the error.
    """
    try:
        yield path
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file is missing; copy the whole folder of the run again") from error
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, safetensors.SafetensorError, csv.Error) as error:
        raise UserError(
            f"{path}: the file cannot be read ({type(error).__name__}: {error}); copy the whole folder of the run again"
        ) from error


def append_rows(path: Path, columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file and wait until they are on the disk.

    Args:
        path: path of the CSV file. If it does not exist, it is created with a header line.
        columns: names of the columns, in their order.
        rows: one dict per row, with the names of the columns as keys. A missing key or None gives an empty field.
    """
    text = _as_csv(columns, rows, header=not path.is_file())
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Format rows as CSV; floats are written without loss."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({key: repr(v) if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return text.getvalue()


def _number(text: str) -> Any:
    """Convert a CSV field to int or float if possible; "" becomes None."""
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
