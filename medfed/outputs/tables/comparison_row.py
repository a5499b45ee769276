"""A row of a comparison's table: its label, what it is tested against, and the folder that its runs lie in."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import write_atomically

ROW_FILE = "row.json"  # in the folder of each of its runs
BASELINE = "fedavg"
LONGEST = 100  # of a folder's name; file systems take 255 bytes
_SAFE = re.compile(r"\w[\w.,=+-]*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.,=+-]", re.ASCII)


@dataclass(frozen=True)
class ComparisonRow:
    """One method, with one value of each varied setting.

    method: as `--methods` has it: `ccst:style=single`.
    varied: as `--vary` has them, a value each: `federation.participating=2`.
    """

    method: str
    varied: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`ccst:style=single, federation.participating=2`."""
        return ", ".join([self.method, *self.varied])

    @property
    def baseline(self) -> str:
        """The label of what it is tested against: FedAvg with the same values, those of methods left aside."""
        return ComparisonRow(BASELINE, tuple(one for one in self.varied if not one.startswith("method."))).label

    @property
    def changes(self) -> tuple[str, ...]:
        """The dotted keys in which it differs from the comparison's config, beside the name of the method."""
        own = (f"method.{key}" for key in re.findall(r"[:,]([\w.]+)=", self.method))
        return (*own, *(one.partition("=")[0] for one in self.varied))

    @property
    def folder(self) -> str:
        """A name that is safe on every disk; where the label is not, with a part of its SHA-256."""
        name = self.label.replace(":", "-").replace(", ", "--")
        if _SAFE.fullmatch(name) and len(name) <= LONGEST and not name.endswith("."):
            return name
        return f"{_UNSAFE.sub('_', name)[:LONGEST]}-{hashlib.sha256(self.label.encode()).hexdigest()[:8]}"

    def write(self, run: Path) -> None:
        """Into the folder of one of its runs."""
        write_atomically(run / ROW_FILE, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read_row(run: Path, method: str) -> ComparisonRow:
    """What `Row.write` left in the folder of a run.

    Args:
        method: of a run that is part of no comparison.

    Raises:
        UserError: if the file is damaged.
    """
    path = run / ROW_FILE
    if not path.is_file():
        return ComparisonRow(method)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        row = ComparisonRow(found["method"], tuple(found["varied"]))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"{path}: holds no row of a comparison ({error!r}); go on with medfed.evaluate --resume, which "
                        "writes it again") from error
    if not all(isinstance(word, str) for word in (row.method, *row.varied)):
        raise UserError(f"{path}: expected texts; go on with medfed.evaluate --resume, which writes it again")
    return row


def row_from_folder_name(name: str) -> ComparisonRow:
    """Of a comparison whose runs have no file: `ccst-k=1` was `ccst:k=1`."""
    return ComparisonRow("+".join(part.replace("-", ":", 1) for part in name.split("+")))
