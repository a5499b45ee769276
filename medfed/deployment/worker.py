"""One site in a process of its own, at the other end of a socket that whoever started it holds."""

from __future__ import annotations

import fcntl
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from medfed.config.schema import load_text
from medfed.core.determinism import fix_bits
from medfed.core.errors import UserError
from medfed.core.malloc import keep_freed_memory
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guarded_site import GuardedSite, build_local_site
from medfed.engines.in_process import InProcess
from medfed.engines.site_process import ANSWER, NOTE, READY, SAID, STEP
from medfed.experiments.setup import build_site
from medfed.federation.message import Message

Answer = Callable[[Message], Message]
LOCK, LOCK_SECONDS = "site.lock", 60


def main(argv: list[str] | None = None) -> int:
    """Not for people: `medfed.engines.site_process` starts it with the number of its end of the socket."""
    (number,) = sys.argv[1:] if argv is None else argv
    keep_freed_memory()
    with Connection(int(number)) as line:
        try:
            serve(line)
        except (EOFError, BrokenPipeError, ConnectionResetError):  # whoever asked is gone
            return 0
    return 0


def serve(line: Connection) -> None:
    """Build the site that the first frame describes, then answer letters until the line ends.

    The first frame is JSON: `config` (YAML), `source` (what to call it), `site`, `folder` (where the site keeps what it
    must not lose), `threads` and, of a hospital, `agreement`; `directory` is for whoever starts this process.
    """
    job = json.loads(line.recv_bytes())
    fix_bits(job["threads"])
    warnings.simplefilter("always")
    warnings.showwarning = _teller(line)
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(folder):
            answer = _desk(job, folder, lambda *step: line.send_bytes(STEP + json.dumps(step).encode()))
            line.send_bytes(READY)
            while True:
                line.send_bytes(_answered(answer, line.recv_bytes(), "agreement" in job))
    except UserError as error:
        line.send_bytes(SAID + _said(str(error), "agreement" in job))


def _desk(job: dict, folder: Path, on_step: Callable[[str, int, int], None]) -> Answer:
    config = load_text(job["config"], job["source"])
    if "agreement" in job:
        site = build_local_site(config, job["site"])
        site.progress = on_step
        agreed = {**job["agreement"], "sends": tuple(job["agreement"]["sends"])}
        return GuardedSite(site, folder, Agreement(**agreed)).answer
    site = build_site(config, job["site"])
    site.progress = on_step
    engine = InProcess([site], folder)
    return lambda letter: engine.exchange(letter.kind, {site.name: letter})[site.name]


def _answered(answer: Answer, letter: bytes, of_hospital: bool) -> bytes:
    """A frame: the answer, or why there is none. Our own mistakes end the process, with their traceback in the log."""
    try:
        return ANSWER + answer(Message.from_bytes(letter)).to_bytes()
    except Refused as error:  # speaks of the letter alone
        return SAID + str(error).encode()
    except UserError as error:
        return SAID + _said(str(error), of_hospital)
    except (ValueError, MemoryError, OSError) as error:  # a full disk is an OSError
        return SAID + _said(f"{type(error).__name__}: {error}", of_hospital)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return SAID + _said(f"out of memory: {error}", of_hospital)


def _said(why: str, of_hospital: bool) -> bytes:
    """A sentence that names files, and so people, does not leave a hospital: it goes to the hospital's own log."""
    if of_hospital:
        print(why, file=sys.stderr, flush=True)
        why = "could not do it; the hospital's own log says why"
    return why.encode()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of two processes for one site the later waits: where a job ends and another begins, the first may still train."""
    with open(folder / LOCK, "w") as lock:
        for _ in range(LOCK_SECONDS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(1)
        else:
            raise UserError(f"{folder}: another process works for this site; end it, or choose another folder")
        yield


def _teller(line: Connection) -> Callable[..., None]:
    """medfed's own warnings go to whoever asked."""

    def show(message, category, filename, lineno, file=None, shown=None) -> None:
        if category is UserWarning and "medfed" in Path(filename).parts:
            line.send_bytes(NOTE + str(message).encode())

    return show


if __name__ == "__main__":
    sys.exit(main())
