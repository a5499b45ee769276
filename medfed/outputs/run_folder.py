"""The folder of a run: it is locked while a process uses it, and holds checkpoints, tables, scores and the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors
import safetensors.torch
from torch import Tensor, nn

from medfed.core.errors import UserError, UserErrors
from medfed.core.files import (
    exclusive_lock,
    has_utf8_name,
    printable_path,
    read_text,
    read_with_checksum,
    sha256_digest,
    write_atomically,
)
from medfed.federation.ledger import COLUMNS as LEDGER_COLUMNS
from medfed.federation.message import State
from medfed.federation.rounds import Round
from medfed.outputs.csv_files import append_text, format_rows, parse_field, read_rows
from medfed.outputs.damaged_file import damaged_file
from medfed.outputs.manifest import (
    ADVICE,
    Entry,
    Manifest,
    entry_of,
    entry_of_appended,
    entry_of_bytes,
    first_sha256,
    read_manifest,
)
from medfed.results.scores import read_scores
from medfed.tasks.scoring import Scoring

N_KEPT_CHECKPOINTS = 2  # number of newest checkpoints to keep; that of the best round is kept too
FIGURES = "figures"  # name of the folder of PNG files
UNADAPTED = "cases_without_adaptation.csv"  # scores of the unseen site without Tent, or without matched images
UNSEEN_ROUNDS = "unseen_rounds.json"  # scores of the unseen site by round, measured after training
# Seconds of "share" to "aggregate", and steps and images: sums of all clients.
TIMING_COLUMNS = ("round", "n_clients", "share", "train", "validate", "aggregate", "n_steps", "n_images")
HISTORY_COLUMNS = ("round", "train_loss", "validation_score")  # followed by one column for each site
MANIFESTS = ("manifest.json", "manifest_timings.json")  # the second lists timings.csv, which differs between two runs
TABLES = ("history.csv", "ledger.csv", "timings.csv")  # each round adds rows
SUMMARY_BLOCKS = (
    "adaptation",
    "images",
    "learning",
    "method_facts",
    "patients",
    "trivial",
    "vertical_ratio",
    "versions",
)
COPY_AGAIN = "copy the folder of the run again"
NEEDED_COLUMNS = {"history.csv": ("round",), "ledger.csv": ("round", "bytes"), "timings.csv": ("round",)}
MAX_JSON_BYTES = 1 << 30
GROWING = ("ledger.csv", "timings.csv")  # the rows are appended; history.csv is replaced, as columns may be added
BEGINNINGS = (
    "clients.json",
    "config.yaml",
    "data.json",
    "environment.json",
    "notices.json",
    "row.json",
    "survey.csv",
    "survey.json",
)
CONCLUSIONS = (
    "cases.csv",
    "model.safetensors",
    "ratios.csv",
    UNADAPTED,
    UNSEEN_ROUNDS,
)  # then summary.json, the last


class RunFolderLockedError(UserError):
    """Another process uses the run folder."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one training run: a lock, checkpoints, tables, scores and the model.

    Always: `config.yaml`, `environment.json`, `states/` (checkpoints), `sites/` (weights that stay at each simulated
    site), `history.csv` (losses and validation scores of each round), `ledger.csv` (all tensors and values that were
    sent), `timings.csv` (seconds, steps and images of each round; the only file that differs between two runs of one
    config), `cases.csv` (scores of every case), `summary.json`, `model.safetensors` and `figures/`.

    Optional: `clients.json` (cases of each simulated client), `survey.csv` and `survey.json` (what the sites report
    about their images), `cases_without_adaptation.csv`, `unseen_rounds.json` (`evaluation.unseen_every`).

    `manifest.json` has the size and SHA-256 of all these files, `manifest_timings.json` those of `timings.csv`.
    """

    path: Path

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Create the folder if it is missing, and lock it; a second process gets a RunFolderLockedError. UserError if
        its name is not valid UTF-8."""
        if not has_utf8_name(self.path):
            raise UserError(
                f"{printable_path(self.path)}: the folder's name is not valid UTF-8; choose another folder with --out"
            )
        self.create()
        with exclusive_lock(self.path / "run.lock", self._locked_error):
            yield self

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def _locked_error(self, holder: str) -> RunFolderLockedError:
        """The error that `holder`, such as another run, is working in this folder."""
        return RunFolderLockedError(
            f"{self.path}: {holder} is running here; wait for it, or choose another folder with --out"
        )

    def rounds(self) -> list[int]:
        """The rounds whose checkpoint is in the folder, in ascending order."""
        return sorted(map(_round_of, (self.path / "states").glob("round_*.state")))

    def load_state(self, round_number: int) -> State:
        """Read the coordinator's state after a round; UserError if the checkpoint is damaged, FileNotFoundError if it
        is missing."""
        path, advice = self._state_path(round_number), "delete it to continue from the previous round"
        try:
            state = State.from_bytes(read_with_checksum(path, advice))
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(f"{path}: {error}") from error
        if state.round != round_number:
            raise UserError(
                f"{path}: the checkpoint belongs to round {state.round:,}; expected round {round_number}, as its name "
                f"says; {advice}"
            )
        return state

    def save_round(self, done: Round, best_round: int, keep_every: int = 0) -> None:
        """Append a finished round to the tables, then save its checkpoint, and delete old checkpoints. The two newest
        checkpoints, that of `best_round`, and every `keep_every`-th one (0 for none) stay. If the process is killed in
        between, the tables may have rows of a round without a checkpoint; `truncate` removes them on resuming."""
        effort = {"n_steps": done.n_steps, "n_images": done.n_images}
        timing = {"round": done.state.round, "n_clients": done.n_clients, **done.seconds, **effort}
        added = {
            "ledger.csv": format_rows(LEDGER_COLUMNS, done.ledger, not (self.path / "ledger.csv").is_file()),
            "timings.csv": format_rows(TIMING_COLUMNS, [timing], not (self.path / "timings.csv").is_file()),
        }
        history = _format_history([*self.history(), done.history])
        entries = {name: entry_of_appended(self.path / name, text.encode()) for name, text in added.items()}
        self._announce({**entries, "history.csv": entry_of_bytes(history.encode())}, done.state.round)
        for name, text in added.items():
            append_text(self.path / name, text)
        write_atomically(self.path / "history.csv", history)
        older = sorted({*self.rounds(), done.state.round})[:-N_KEPT_CHECKPOINTS]
        unneeded = [old for old in older if old != best_round and not (keep_every and old and old % keep_every == 0)]
        self.save_state(done.state, unneeded)
        for old in unneeded:
            self._state_path(old).unlink()

    def save_state(self, state: State, unneeded: Collection[int] = ()) -> None:
        """Write `states/round_NUMBER.state`; a manifest first lists it with the sites' files, and forgets `unneeded`
        rounds."""
        path = self._state_path(state.round)
        path.parent.mkdir(exist_ok=True)
        data = state.to_bytes()
        checksum = sha256_digest(data)
        if manifest := read_manifest(self.path / MANIFESTS[0]):
            listed = self._checkpoints_with(state, checksum.hex(), manifest.checkpoints, unneeded)
            replace(manifest, checkpoints=listed).write()
        write_atomically(path, checksum, data)

    def _checkpoints_with(
        self, state: State, checksum: str, listed: Mapping[str, str], unneeded: Collection[int]
    ) -> dict[str, str]:
        """The listed checksums after a round: those of the needed checkpoints, and two files of each site."""
        new = {self._name(self._state_path(state.round)): checksum}
        dropped = {self._name(self._state_path(number)) for number in unneeded}
        trained = (site for site, number in state.took_part.items() if state.round and number == state.round)
        paths = (self.path / "sites" / site / f"round_{state.round:05d}.site" for site in trained)
        new |= {self._name(path): first_sha256(path) for path in paths if path.is_file()}
        by_site: dict[str, list[str]] = {}
        for name in sorted({**listed, **new}):
            if name.startswith("sites/"):
                by_site.setdefault(name.rpartition("/")[0], []).append(name)
        dropped |= {name for names in by_site.values() for name in names[:-N_KEPT_CHECKPOINTS]}
        return {name: value for name, value in {**listed, **new}.items() if name not in dropped}

    def _name(self, path: Path) -> str:
        """The path of a file within the folder, with slashes."""
        return path.relative_to(self.path).as_posix()

    def truncate(self, last_round: int) -> None:
        """Remove the rows of all rounds after `last_round` from `history.csv`, `ledger.csv` and `timings.csv`."""
        for name in GROWING:
            if manifest := read_manifest(self._manifest_of(name)):
                manifest.cut_partial(name)
        # The ledger is read row by row, because it may have a million rows with many clients.
        ledger = (row for row in self.ledger() if row["bytes"] and int(row["round"]) <= last_round)
        texts = {
            "history.csv": _format_history([row for row in self.history() if int(row["round"]) <= last_round]),
            "ledger.csv": format_rows(LEDGER_COLUMNS, ledger),
            "timings.csv": format_rows(TIMING_COLUMNS, (row for row in self.timings() if row["round"] <= last_round)),
        }
        self._announce({name: entry_of_bytes(text.encode()) for name, text in texts.items()}, last_round)
        if manifest := read_manifest(self.path / MANIFESTS[0]):  # the files of later rounds are written again
            listed = {
                name: checksum for name, checksum in manifest.checkpoints.items() if _round_of(Path(name)) <= last_round
            }
            replace(manifest, checkpoints=listed).write()
        for name, text in texts.items():
            write_atomically(self.path / name, text)

    def _state_path(self, round_number: int) -> Path:
        return self.path / "states" / f"round_{round_number:05d}.state"

    def history(self) -> list[dict[str, Any]]:
        """One dict per round, with int, float or None; empty if the file does not exist."""
        rows = [{key: parse_field(value) for key, value in row.items()} for row in self._rows("history.csv")]
        if wrong := [row["round"] for row in rows if not isinstance(row["round"], int)]:
            raise UserError(
                f"{self.path / 'history.csv'}: the column 'round' has the value {ascii(wrong[0])[:80]}; expected the "
                "number of a round; copy the whole folder of the run again"
            )
        return rows

    def timings(self) -> list[dict[str, Any]]:
        """One dict per round; unknown values are None. "n_clients" were asked to train; the seconds "share", "train"
        and "validate", "n_steps" and "n_images" are summed over sites, and "aggregate" has the seconds of the
        coordinator."""
        rows = ({key: parse_field(value) for key, value in row.items()} for row in self._rows("timings.csv"))
        return [row for row in rows if isinstance(row["round"], int)]

    def ledger(self) -> Iterator[dict[str, str]]:
        """Yield one row for each tensor or value that was sent; nothing if the file does not exist.

        Keys: "round", "site", "direction" ("up" to the coordinator or "down"), "kind" (purpose of the message),
        "content" ("weight", "statistic" or "fact"), "name", "shape" (such as "16x3x3"), "dtype" ("fact" for a value
        that is no tensor) and "bytes".
        """
        yield from self._rows("ledger.csv")

    def write_text(self, name: str, text: str) -> None:
        """Replace a file in one step, so that a killed process leaves its old or new content; the manifest lists it
        first."""
        data = text.encode(errors="backslashreplace")
        self._announce({name: entry_of_bytes(data)})
        write_atomically(self.path / name, data)

    def write_json(self, name: str, content: Any) -> None:
        """Write JSON with sorted keys, replaced in one step; NaN and infinity raise a ValueError."""
        self.write_text(name, _as_json(content))

    def read_json(self, name: str) -> Any:
        """The values in a JSON file; UserError if it is missing or damaged."""
        with damaged_file(self.path / name) as path:
            return json.loads(read_text(path, MAX_JSON_BYTES))

    def read_summary(self) -> dict[str, Any]:
        """The content of `summary.json`; UserError if a block in it is not an object."""
        path, summary = self.path / "summary.json", self.read_json("summary.json")
        if not isinstance(summary, dict):
            raise UserError(f"{path}: expected a JSON object with the summary of a run; {COPY_AGAIN}")
        for key in SUMMARY_BLOCKS:
            if not isinstance(summary.get(key) or {}, dict):
                raise UserError(f"{path}: {key}: found {ascii(summary[key])[:80]}; expected an object; {COPY_AGAIN}")
        return summary

    def begin_manifest(self) -> None:
        """Begin to list the files of the run in its manifests, unless they exist."""
        for path in map(self.path.joinpath, MANIFESTS):
            if not path.is_file():
                names = BEGINNINGS if path.name == MANIFESTS[0] else ()
                Manifest(path, files={name: entry for name in names if (entry := entry_of(self.path / name))}).write()

    def forget_conclusions(self) -> None:
        """Delete the summary, and take what is written after the last round from the manifest; the run is then
        unfinished."""
        (self.path / "summary.json").unlink(missing_ok=True)
        if manifest := read_manifest(self.path / MANIFESTS[0]):
            files = {name: entry for name, entry in manifest.files.items() if not _is_conclusion(name)}
            replace(manifest, files=files).write()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """List all result files in the manifest, and then write `summary.json`, which makes the run a finished one."""
        text = _as_json(summary)
        for path in map(self.path.joinpath, MANIFESTS[::-1]):
            if manifest := read_manifest(path):
                files = {name: entry for name, entry in manifest.files.items() if not _is_conclusion(name)}
                if path.name == MANIFESTS[0]:
                    figures = (f"{FIGURES}/{figure.name}" for figure in (self.path / FIGURES).glob("*.png"))
                    conclusions = {name: entry_of(self.path / name) for name in sorted([*CONCLUSIONS, *figures])}
                    files |= {name: entry for name, entry in conclusions.items() if entry}
                    files["summary.json"] = entry_of_bytes(text.encode())
                replace(manifest, files=files, before={}).write()
        write_atomically(self.path / "summary.json", text)

    def check(self, rewritten: Collection[str] = ()) -> None:
        """UserErrors for result files that were changed, cut or deleted; those in `rewritten` are not checked. Of an
        unfinished run, only files that a resumed run reads are checked."""
        sentences, is_finished, last_round = [], self.is_finished(), max(self.rounds(), default=0)
        for path in map(self.path.joinpath, MANIFESTS):
            if (manifest := read_manifest(path)) is None:
                raise UserError(f"{path}: the file is missing, so damage of other files cannot be found; {ADVICE}")
            names = [
                name for name in manifest.files if name not in rewritten and (is_finished or not _is_conclusion(name))
            ]
            # A finished run may be copied without its checkpoints.
            sentences += manifest.check(names, TABLES, GROWING, manifest.round if is_finished else last_round)
            if path.name == MANIFESTS[0]:
                sentences += manifest.check_checkpoints(self._name(self._state_path(last_round)))
        if sentences:
            raise UserErrors(sentences)

    def _manifest_of(self, name: str) -> Path:
        return self.path / MANIFESTS[name == "timings.csv"]

    def _announce(self, new: Mapping[str, Entry], number: int | None = None) -> None:
        """Write the sizes and checksums that files are about to get into the manifests, before the files change."""
        for path in map(self.path.joinpath, MANIFESTS):
            own = {name: entry for name, entry in new.items() if self._manifest_of(name) == path}
            if own and (manifest := read_manifest(path)):
                manifest.changed(own, TABLES, GROWING, number).write()

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
        """Whether `summary.json` exists."""
        return (self.path / "summary.json").is_file()

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        """Yield the rows of a CSV file by column; UserError if a needed column is missing."""
        return read_rows(self.path / name, NEEDED_COLUMNS[name])


def _round_of(path: Path) -> int:
    """The number of the round in the name of a file in `states/` or `sites/`."""
    return int(path.stem.removeprefix("round_"))


def _is_conclusion(name: str) -> bool:
    """Whether a file is written only after the last round."""
    return name in (*CONCLUSIONS, "summary.json") or name.startswith(f"{FIGURES}/")


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _format_history(rows: Sequence[Mapping[str, Any]]) -> str:
    """The content of `history.csv`; columns without any value are left out."""
    known = [key for row in rows for key, value in row.items() if value is not None]
    columns = list(dict.fromkeys([*HISTORY_COLUMNS, *known]))
    return format_rows(columns, [{key: row.get(key) for key in columns} for row in rows])


def read_unadapted(folder: Path, summary: Mapping[str, Any], scoring: Scoring) -> pd.DataFrame | None:
    """Read the scores of the unseen site without the adaptation; None if the run adapted nothing."""
    if not summary.get("adaptation"):
        return None
    with damaged_file(folder / UNADAPTED) as path:
        return read_scores(path, scoring.metrics)
