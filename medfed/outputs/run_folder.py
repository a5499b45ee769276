"""The folder of a run: it is locked while a process uses it, and holds checkpoints, tables, scores and the model."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from medfed.core.errors import UserError, UserErrors
from medfed.core.files import exclusive_lock, read_with_checksum, sha256_digest, write_atomically
from medfed.federation.ledger import COLUMNS as LEDGER_COLUMNS
from medfed.federation.message import State
from medfed.federation.rounds import Round
from medfed.outputs.run_files import append_rows, damaged_file, format_rows, parse_field, read_rows

FIGURES = "figures"  # name of the folder of figures
CHECKSUMS = "SHA256SUMS"  # in the format of the program sha256sum
UNADAPTED = "cases_without_adaptation.csv"  # scores of the unseen site without Tent, or without matched images
UNSEEN_ROUNDS = "unseen_rounds.json"  # scores of the unseen site by round, measured after training
# Seconds of "share" to "aggregate", and steps and images: sums of all clients.
TIMING_COLUMNS = ("round", "n_clients", "share", "train", "validate", "aggregate", "n_steps", "n_images")
HISTORY_COLUMNS = ("round", "train_loss", "validation_score")  # followed by one column for each site
GROWING = {"ledger.csv": LEDGER_COLUMNS, "timings.csv": TIMING_COLUMNS}  # rows are appended; columns by file
BEGINNINGS = (  # written before round 1
    "clients.json config.yaml data.json environment.json notices.json row.json survey.csv survey.json"
).split()
SUFFIXES = (".csv", ".json", ".safetensors", ".yaml")  # of a run's files
CHECKPOINTS = ("states", "sites")  # folders without which a finished run may be copied
LISTED = ("cases.csv", "config.yaml", "model.safetensors", "summary.json")  # in `SHA256SUMS`, if a run has them
REPAIR = "put back a copy of the file, or repeat the run in another folder"


class RunFolderLockedError(UserError):
    """Another process uses the run folder."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one training run, which docs/reference/run_folder.md lists.

    A checkpoint has the checksums of the history and the ledger after its round. `SHA256SUMS` is written last.
    """

    path: Path

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Create the folder if it is missing, and lock it; a second process gets a RunFolderLockedError."""

        def error(holder: str) -> RunFolderLockedError:
            advice = "wait for it, or choose another folder with --out"
            return RunFolderLockedError(f"{self.path}: {holder} is running here; {advice}")

        self.create()
        with exclusive_lock(self.path / "run.lock", error):
            yield self

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """The rounds whose checkpoint is in the folder, in ascending order."""
        numbers = (path.stem.removeprefix("round_") for path in (self.path / "states").glob("round_*.state"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def newest_state(self) -> State | None:
        """Read the newest valid checkpoint; None without any, UserError if all are damaged."""
        damage: UserError | None = None
        for number in reversed(self.rounds()):
            try:
                state = self.load_state(number)
            except UserError as error:
                damage = damage or error
            else:
                if damage:
                    warnings.warn(f"{damage}; the run continues after round {number}", stacklevel=2)
                return state
        if damage:
            raise damage
        return None

    def load_state(self, round_number: int) -> State:
        """Read the state after a round; UserError if the checkpoint is damaged, FileNotFoundError if missing."""
        return self._read_checkpoint(round_number)[0]

    def _read_checkpoint(self, number: int) -> tuple[State, dict[str, str]]:
        """The state after a round, and the SHA-256 of the history and the ledger after it."""
        path = self._state_path(number)
        data = read_with_checksum(path, REPAIR)
        end = 8 + int.from_bytes(data[:8], "little")
        try:
            state = State.from_bytes(data[end:])
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(f"{path}: {error}") from error
        if state.round != number:
            raise UserError(
                f"{path}: the checkpoint belongs to round {state.round:,}; expected round {number}, as its name says; "
                f"{REPAIR}"
            )
        return state, json.loads(data[8:end])

    def save_round(self, done: Round, best_round: int, keep_every: int = 0) -> None:
        """Append a finished round to the tables, then save its checkpoint, and delete old checkpoints.

        A process that is killed in between leaves rows of a round without a checkpoint, which `truncate` removes.
        """
        effort = {"n_steps": done.n_steps, "n_images": done.n_images}
        timing = {"round": done.state.round, "n_clients": done.n_clients, **done.seconds, **effort}
        append_rows(self.path / "ledger.csv", LEDGER_COLUMNS, done.ledger)
        append_rows(self.path / "timings.csv", TIMING_COLUMNS, [timing])
        write_atomically(self.path / "history.csv", _format_history([*self.history(), done.history]))
        self.save_state(done.state)
        self._keep_states(best_round, keep_every, n_newest=2)

    def _keep_states(self, best_round: int, keep_every: int, n_newest: int) -> None:
        """Delete checkpoints other than the newest ones, that of the best round, and every `keep_every`-th one."""
        for old in self.rounds()[:-n_newest]:
            if old != best_round and not (keep_every and old and old % keep_every == 0):
                self._state_path(old).unlink()

    def save_state(self, state: State) -> None:
        """Write `states/round_NUMBER.state`."""
        path = self._state_path(state.round)
        path.parent.mkdir(exist_ok=True)
        checksums = {name: _sha256(self._bytes(name)) for name in ("history.csv", "ledger.csv")}
        header = json.dumps(checksums).encode()
        parts = len(header).to_bytes(8, "little"), header, state.to_bytes()
        write_atomically(path, sha256_digest(*parts), *parts)

    def truncate(self, last_round: int) -> None:
        """Remove the rows of all rounds after `last_round` from the tables; UserError if the other rows changed."""
        checksums = self._read_checkpoint(last_round)[1] if last_round in self.rounds() else {}
        texts = {"history.csv": _format_history([row for row in self.history() if row["round"] <= last_round])}
        for name, columns in GROWING.items():
            with damaged_file(self.path / name) as path:
                rows = (row for row in read_rows(path, ["round"]) if int(row["round"]) <= last_round)
                texts[name] = format_rows(columns, rows)
        for name, text in texts.items():
            data = text.encode()
            if checksums.get(name, _sha256(data)) != _sha256(data):
                raise UserError(
                    f"{self.path / name}: its rows up to round {last_round} are not those that the run wrote; put "
                    "back a copy of the file, or choose another folder with --out"
                )
            if data != self._bytes(name):
                write_atomically(self.path / name, data)

    def _bytes(self, name: str) -> bytes:
        """The content of a file, empty if it is missing."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else b""

    def _state_path(self, round_number: int) -> Path:
        return self.path / "states" / f"round_{round_number:05d}.state"

    def history(self) -> list[dict[str, Any]]:
        """One dict per round, with int, float or None; empty if the file does not exist."""
        with damaged_file(self.path / "history.csv") as path:
            rows = [{key: parse_field(value) for key, value in row.items()} for row in read_rows(path, ["round"])]
            return [{**row, "round": int(row["round"])} for row in rows]

    def timings(self) -> list[dict[str, Any]]:
        """One dict per round; seconds and counts are sums over the sites, "aggregate" is the coordinator's time."""
        rows = read_rows(self.path / "timings.csv", ["round"])
        return [{key: parse_field(value) for key, value in row.items()} for row in rows]

    def ledger(self) -> Iterator[dict[str, str]]:
        """Yield the rows of `ledger.csv` (`medfed.federation.ledger`); nothing if the file does not exist."""
        yield from read_rows(self.path / "ledger.csv", ["round", "bytes"])

    def write_text(self, name: str, text: str) -> None:
        """Replace a file in one step, so that a killed process leaves its old or new content."""
        write_atomically(self.path / name, text)

    def write_json(self, name: str, content: Any) -> None:
        """Write JSON with sorted keys, replaced in one step; NaN and infinity raise a ValueError."""
        self.write_text(name, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """The values in a JSON file; UserError if it is missing or damaged."""
        with damaged_file(self.path / name) as path:
            return json.loads(path.read_text(encoding="utf-8"))

    def read_summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        summary: dict[str, Any] = self.read_json("summary.json")
        return summary

    def reopen(self) -> None:
        """Make the run an unfinished one until `finish` is called again."""
        (self.path / CHECKSUMS).unlink()

    def forget_conclusions(self) -> None:
        """Make the run an unfinished one: delete its summary, its figures, and what only some configs write."""
        for name in (CHECKSUMS, "summary.json", "ratios.csv", UNADAPTED, UNSEEN_ROUNDS):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / FIGURES, ignore_errors=True)

    def finish(self, summary: Mapping[str, Any], keep_every: int = 0) -> None:
        """Write the summary and then the checksums, which make the run a finished one, and delete old checkpoints."""
        self.write_json("summary.json", summary)
        if self.rounds():
            self._keep_states(summary.get("selected_round", self.rounds()[-1]), keep_every, n_newest=1)
        lines = [f"{_sha256(path.read_bytes())}  {path.relative_to(self.path).as_posix()}\n" for path in self._files()]
        write_atomically(self.path / CHECKSUMS, *lines)

    def _files(self) -> Iterable[Path]:
        """The files of the run, sorted; its folder may also have a bundle or a report."""
        own = (path for path in self.path.iterdir() if path.suffix in SUFFIXES)
        below = (path for name in (FIGURES, *CHECKPOINTS) for path in (self.path / name).rglob("*"))
        return sorted(path for path in [*own, *below] if path.is_file())

    def check(self) -> None:
        """UserErrors for files of a finished run that changed or are missing; a copy may lack the checkpoints."""
        if not self.is_finished():
            return
        lines = [line.partition("  ") for line in self._bytes(CHECKSUMS).decode(errors="replace").splitlines()]
        wrong = [
            f"{self.path / CHECKSUMS}: does not list {name}, so it is cut or belongs to another run; {REPAIR}"
            for name in LISTED
            if (self.path / name).is_file() and name not in [line[2] for line in lines]
        ]
        for sha256, _, name in lines:
            path = self.path / name
            if path.is_file() and _sha256(path.read_bytes()) != sha256:
                wrong.append(f"{path}: its content does not match {CHECKSUMS}, so one of the two is damaged; {REPAIR}")
            elif not path.is_file() and not name.startswith(CHECKPOINTS):
                wrong.append(f"{path}: is missing, but {CHECKSUMS} lists it; {REPAIR}")
        if wrong:
            raise UserErrors(wrong)

    def check_finished(self) -> None:
        """UserError unless the run is finished and its files are as it wrote them."""
        if not (self.path / "config.yaml").is_file():
            raise UserError(f"{self.path}: holds no run; name the folder of a run that medfed.train wrote")
        if not self.is_finished():
            resume = f"python -m medfed.train {self.path / 'config.yaml'} --out {self.path} --resume"
            raise UserError(f"{self.path}: the run is not finished; continue it with {resume}")
        self.check()

    def save_model(self, weights: Mapping[str, Tensor]) -> None:
        """The file contains nothing but the weights, so equal weights give equal bytes."""
        data = safetensors.torch.save({name: entry.detach().cpu().contiguous() for name, entry in weights.items()})
        write_atomically(self.path / "model.safetensors", data)

    def load_model(self, network: nn.Module | None = None) -> dict[str, Tensor]:
        """Read the weights to the CPU, and load them into `network` if given; UserError if they do not fit."""
        with damaged_file(self.path / "model.safetensors") as path:
            weights = safetensors.torch.load_file(path)
            if network is not None:
                network.load_state_dict(weights)
            return weights

    def is_finished(self) -> bool:
        """Whether the summary and the checksums exist."""
        return (self.path / "summary.json").is_file() and (self.path / CHECKSUMS).is_file()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _format_history(rows: Sequence[Mapping[str, Any]]) -> str:
    """The content of `history.csv`; columns without any value are left out."""
    known = [key for row in rows for key, value in row.items() if value is not None]
    columns = list(dict.fromkeys([*HISTORY_COLUMNS, *known]))
    return format_rows(columns, [{key: row.get(key) for key in columns} for row in rows])
