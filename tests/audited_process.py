"""A forked process in which every start of a program, connection and write is recorded (`sys.addaudithook`)."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kills

STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "socket.bind")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Recorded:
    """What happened in the process."""

    code: int | None  # what the work returned; None if it raised an error that is no `UserError`
    executed: list[str]  # the programs and the code of the folder that were run
    written: list[str]  # the files outside the allowed folder that were opened for writing


def record(folder: Path, allowed: Path, work: Callable[[], int]) -> Recorded:
    """Do work, which returns an exit code, in a forked process in a folder; return what the work ran and wrote.

    Code from `folder` counts as executed; the work may write into the folder `allowed`.
    """
    result = folder / "recorded.json"
    executed: list[str] = []
    written: list[str] = []
    places = (f"{allowed}/", str(result), os.devnull)

    def hook(event: str, arguments: tuple) -> None:
        if event in STARTS:
            executed.append(f"{event} {arguments[:2]!r}"[:200])
        elif event == "exec" and getattr(arguments[0], "co_filename", "").startswith(str(folder)):
            executed.append(f"code of {arguments[0].co_filename}")
        elif event == "open" and isinstance(arguments[0], str | bytes | Path):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if (arguments[2] or 0) & WRITES and not path.startswith(places):
                written.append(path)
        elif event in ("os.rename", "os.link", "os.symlink") and not os.fsdecode(arguments[1]).startswith(places):
            written.append(f"{event} {arguments[1]!r}")

    def run() -> None:
        os.chdir(folder)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        sys.addaudithook(hook)  # cannot be removed, and so belongs into a process of its own
        code = None
        try:
            code = work()
        except Exception as error:
            code = 2 if type(error).__name__ in ("UserError", "UserErrors", "Problem", "InvalidMessage") else None
        finally:
            result.write_text(json.dumps([code, executed, written]))

    assert kills.in_child(run) == 0
    return Recorded(*json.loads(result.read_text()))
