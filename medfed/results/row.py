"""A row of a comparison table: its label, its baseline, and the folder of its runs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from medfed.core.errors import UserError

ROW_FILE = "row.json"  # file in the folder of every run of a comparison
BASELINE = "fedavg"
POOLED, LOCAL = "pooled", "local"  # rows that are no federated methods: nothing is exchanged between sites
SENT = {POOLED: "images moved", LOCAL: "nothing sent"}  # what these rows move, in the tables of costs
# Settings of the federation that such rows do not have, so that they have one row for all values.
ONLY_FEDERATED = (
    "clients partition mixing concentration min_images clients_per_round quorum on_bad_update largest_change "
    "largest_count batch_norm engine reply_timeout_s survey"
).split()
MAX_NAME_LENGTH = 100  # of a folder name in characters; file systems accept 255 bytes
_SAFE = re.compile(r"\w[\w.,=+-]*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.,=+-]", re.ASCII)


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison table: a method with one value of each varied setting."""

    method: str  # as in `medfed.evaluate --methods`, such as `ccst:style=single`
    varied: tuple[str, ...] = ()  # such as `federation.participating=2`
    trained_at: str = ""  # the only site that trains, if the row is `local`, which has a run for each site
    equal_effort: str = ""  # label of the row of FedAvg with equal effort; "" if this row takes no more than FedAvg

    @property
    def label(self) -> str:
        """Name of the row in the table, for example `ccst:style=single, federation.participating=2`."""
        return ", ".join([self.method, *self.varied])

    @property
    def run_label(self) -> str:
        return f"{self.label} at {self.trained_at}" if self.trained_at else self.label

    @property
    def arrangement(self) -> str:
        """Where the row trains: "pooled" (all images in one place), "local" (each site alone) or "federated"."""
        name = self.method.partition("@")[0]
        return name if name in SENT else "federated"

    def is_reference_of(self, other: ComparisonRow) -> bool:
        """Whether this row is pooled or local, with the settings of the federated row `other` apart from the method."""
        shared = tuple(setting for setting in other.varied if is_taken_without_federation(setting))
        return self.arrangement in SENT and other.arrangement not in SENT and self.varied == shared

    def baseline_label(self, method: str = BASELINE) -> str:
        """Label of the row of `method` with the same varied settings, without those that begin with `method.`."""
        shared = tuple(setting for setting in self.varied if not setting.startswith("method."))
        return ComparisonRow(method, shared).label

    @property
    def folder(self) -> str:
        """A name that is valid on every file system; a cut label ends with 8 digits of its SHA-256."""
        own = f"{self.method}@{self.trained_at}" if self.trained_at else self.method
        label = ", ".join([own, *self.varied])
        method, *varied = (
            part.replace(":", "-").replace("@", "-").replace(", ", "--") for part in (self.method, *self.varied)
        )
        name = "--".join([f"{method}-{self.trained_at}" if self.trained_at else method, *varied])
        if _SAFE.fullmatch(name) and len(name) <= MAX_NAME_LENGTH and not name.endswith("."):
            return name
        return f"{_UNSAFE.sub('_', name)[:MAX_NAME_LENGTH]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def is_taken_without_federation(setting: str) -> bool:
    """Whether a setting, such as `training.batch_size=8`, has an effect on rows that exchange nothing."""
    key = setting.partition("=")[0]
    block, _, name = key.partition(".")
    is_of_federation = block == "federation" and name in ONLY_FEDERATED
    return not is_of_federation and block not in ("method", "privacy") and key != "data.min_patients"


def is_federated(label: str) -> bool:
    """Whether the row with this label is a federated method, and not `pooled` or `local`."""
    return ComparisonRow(label.partition(", ")[0]).arrangement not in SENT


def is_compared(label: str) -> bool:
    """Whether a row is compared: not `pooled`, `local` or FedAvg with the effort of another method."""
    return is_federated(label) and "@steps=" not in label


def row_of(content: object) -> ComparisonRow:
    """The row with the fields of a JSON file or message; ValueError if they do not fit."""
    from pydantic import TypeAdapter  # programs import this module before they parse their flags

    return TypeAdapter(ComparisonRow).validate_python(content)


def read_row(run: Path, method: str) -> ComparisonRow:
    """Read the `row.json` of a run; without this file, it is the row of `method` without varied settings."""
    path = run / ROW_FILE
    try:
        return row_of(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ComparisonRow(method)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: is not a row of a comparison; continue with medfed.evaluate --resume, which writes the file again"
        ) from error
