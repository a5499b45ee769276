"""A row of a comparison table: its label, its baseline, and the folder of its runs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.outputs.run_folder import RunFolder

ROW_FILE = "row.json"  # file in the folder of every run of a comparison
BASELINE = "fedavg"
MAX_NAME_LENGTH = 100  # of a folder name in characters; file systems accept 255 bytes
_SAFE = re.compile(r"\w[\w.,=+-]*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.,=+-]", re.ASCII)


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison table: a method with one value of each varied setting.

    Args:
        method: the method as in `medfed.evaluate --methods`, for example `ccst:style=single`.
        varied: the varied settings as in `medfed.evaluate --vary`, with one value each, for example
            `federation.participating=2`.
    """

    method: str
    varied: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the name of the row in the table, for example `ccst:style=single, federation.participating=2`."""
        return ", ".join([self.method, *self.varied])

    @property
    def baseline(self) -> str:
        """Return the label of the baseline of this row: the row of FedAvg with the same varied settings.

        For example, the baseline of `ccst, federation.participating=2` is `fedavg, federation.participating=2`. Varied
        settings that begin with `method.` are left out, because FedAvg does not have them.
        """
        shared = tuple(setting for setting in self.varied if not setting.startswith("method."))
        return ComparisonRow(BASELINE, shared).label

    @property
    def changes(self) -> tuple[str, ...]:
        """Return the names of the settings in which this row differs from the comparison's config.

        A name is a dotted key such as `method.style` or `federation.participating`. The key `method.name` is left out.
        """
        own = (f"method.{key}" for key in re.findall(r"[:,]([\w.]+)=", self.method))
        return (*own, *(setting.partition("=")[0] for setting in self.varied))

    @property
    def folder(self) -> str:
        """Return the name of the folder that contains the row's runs; it is valid on every file system.

        The name is the row's label (its name in the table) with ":" replaced by "-" and ", " by "--". A name with
        invalid characters or with more than 100 characters is changed: invalid characters become "_", the name is cut
        after 100 characters, and "-" and the first 8 hexadecimal digits of the label's SHA-256 are appended.
        """
        name = self.label.replace(":", "-").replace(", ", "--")
        if _SAFE.fullmatch(name) and len(name) <= MAX_NAME_LENGTH and not name.endswith("."):
            return name
        return f"{_UNSAFE.sub('_', name)[:MAX_NAME_LENGTH]}-{hashlib.sha256(self.label.encode()).hexdigest()[:8]}"

    def write(self, run: RunFolder) -> None:
        """Write this row's method and varied settings as `row.json` into the folder of one of its runs.

        Args:
            run: folder of the run, which must exist.
        """
        run.write_text(ROW_FILE, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read_row(run: Path, method: str) -> ComparisonRow:
    """Return the row of a comparison table that a run belongs to, as the run's `row.json` describes it.

    Args:
        run: folder of the run.
        method: name of the run's method. If the run has no `row.json`, because it is not part of a comparison, the
            result is a row with this method and without varied settings.

    Raises:
        UserError: if `row.json` is damaged.
    """
    path = run / ROW_FILE
    if not path.is_file():
        return ComparisonRow(method)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        row = ComparisonRow(content["method"], tuple(content["varied"]))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is not a row of a comparison ({error!r}); continue with medfed.evaluate --resume, "
                        "which writes the file again") from error
    if not all(isinstance(text, str) for text in (row.method, *row.varied)):
        raise UserError(f"{path}: expected texts; continue with medfed.evaluate --resume, which writes the file again")
    return row


def row_from_folder_name(name: str) -> ComparisonRow:
    """Return the row of a comparison table whose runs are in the folder with the given name.

    Use this function for comparisons that an older version of medfed wrote, because their runs have no `row.json`. The
    result has no varied settings.

    Args:
        name: name of the row's folder, for example `ccst-k=1` for the method `ccst:k=1`.
    """
    return ComparisonRow("+".join(part.replace("-", ":", 1) for part in name.split("+")))
