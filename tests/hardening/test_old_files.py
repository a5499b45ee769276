"""R18: files of earlier versions are read, or refused in a sentence with the version.

`tests/old_files` holds a run of one round and its bundle by each of three earlier versions, as these versions wrote
them (`medfed.train` and `medfed.export`, ELCFS on three sites of a phantom), without figures.
"""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from mutated_messages import MESSAGES, STATE, joined, split

from medfed import export, report
from medfed.core.errors import UserError
from medfed.engines.site_store import _read
from medfed.federation.encoding import InvalidMessage
from medfed.federation.message import Message, State
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.run_folder import RunFolder

pytestmark = [pytest.mark.hardening, pytest.mark.filterwarnings("ignore::UserWarning")]
FOLDER = Path(__file__).parents[1] / "old_files"
BY_VERSION = re.compile(r"version|expected the columns")


def program(main: Callable, *arguments: str) -> None:
    """Run a program of medfed.

    Raises:
        UserError: with what it printed, if it refused something.
    """
    code = main([*arguments, "--quiet"])
    if code:
        raise UserError(f"exit code {code}")


def stored_reply(run: Path) -> None:
    stored = _read(next((run / "sites" / "BMC").glob("*.site")))
    assert Message.from_bytes(stored.reply).kind == "train" and stored.memory


READS: dict[str, Callable[[Path], object]] = {  # what is read of a folder with a run and a bundle
    "the run's files": lambda place: RunFolder(place / "run").check(),
    "its checkpoint": lambda place: RunFolder(place / "run").load_state(1).weights.popitem(),
    "its model": lambda place: RunFolder(place / "run").load_model().popitem(),
    "its history": lambda place: RunFolder(place / "run").history()[0],
    "its ledger": lambda place: next(RunFolder(place / "run").ledger())["bytes"],
    "a reply and the memory of a site": lambda place: stored_reply(place / "run"),
    "its report": lambda place: program(report.main, str(place / "run")),
    "a bundle of its model": lambda place: program(
        export.main, str(place / "run"), "--force", "--out", str(place / "prostate_again_segmentation")
    ),
    "the bundle of its version": lambda place: check_bundle(place / "prostate_segmentation"),
}


def outcome(read: Callable[[Path], object], place: Path, capsys) -> str:
    """Return "read", "refused" (a sentence with the version), or what else happened."""
    capsys.readouterr()
    try:
        read(place)
        return "read"
    except UserError as error:
        sentence = f"{error} {capsys.readouterr().err}"
        return "refused" if BY_VERSION.search(sentence) else sentence.strip()[:300]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


def other_formats() -> list[tuple[type, bytes]]:
    """Return messages and checkpoints whose format is older or newer than any."""
    found: list[tuple[type, bytes]] = []
    for value, kind, key in ((MESSAGES[0], Message, "format"), (STATE, State, "format"), (STATE, State, "checkpoint")):
        header, body = split(value.to_bytes())
        inner = header["__metadata__"]["medfed"]
        for number in ("0", "99"):
            text = re.sub(rf'("{key}": )\d+', rf"\g<1>{number}", inner)
            assert text != inner
            found.append((kind, joined({**header, "__metadata__": {"medfed": text}}, body)))
    return found


def test_r18_files_of_earlier_versions(measurement, tmp_path, capsys):
    archives, outcomes = sorted(FOLDER.glob("*.zip")), {}
    for archive in archives:
        with zipfile.ZipFile(archive) as file:
            file.extractall(tmp_path / archive.stem)
        outcomes |= {
            f"{archive.stem}: {name}": outcome(read, tmp_path / archive.stem, capsys) for name, read in READS.items()
        }
    n_read, n_refused = (sum(what == kind for what in outcomes.values()) for kind in ("read", "refused"))
    wrong = [f"{name}: {what}" for name, what in outcomes.items() if what not in ("read", "refused")]
    formats, n_other = other_formats(), 0
    for kind, data in formats:
        try:
            kind.from_bytes(data)
        except InvalidMessage as error:
            n_other += bool(BY_VERSION.search(str(error)))
    n = len(outcomes)
    measurement.report(
        "R18",
        f"{len(READS)} kinds of files of {len(archives)} earlier versions",
        f"{n} of {n} read or refused by version",
        f"{n_read} read, {n_refused} refused by version" + (f"; {'; '.join(wrong[:2])}" if wrong else ""),
        not wrong,
        f"formats that no version has: {n_other} of {len(formats)} refused by version",
        n_other == len(formats),
    )
