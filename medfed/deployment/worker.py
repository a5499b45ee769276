"""One site in a process of its own; requests and replies cross a socket that the parent process opened."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

from medfed.config.schema import load_text
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.core.files import exclusive_lock
from medfed.core.malloc import keep_freed_memory
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guarded_site import GuardedSite, build_local_site
from medfed.engines.in_process import InProcess
from medfed.engines.site_process import ANSWER, NOTE, READY, SAID, STEP
from medfed.experiments.setup import build_site
from medfed.federation.engine import OnStep
from medfed.federation.message import Message
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

Reply = Callable[[Message], Message]  # to a request
LOCK, LOCK_TIMEOUT_S = "site.lock", 60


def main(argv: list[str] | None = None) -> int:
    """Started by `medfed.engines.site_process` with the file descriptor of its end of the socket; not by users."""
    (number,) = sys.argv[1:] if argv is None else argv
    keep_freed_memory()
    with Connection(int(number)) as line:
        try:
            serve(line)
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the process that asked has ended
            return 0
    return 0


def serve(line: Connection) -> None:
    """Build the site that the first frame describes, then reply to requests until the socket closes.

    The first frame is JSON: `config` (YAML), `source` (what to call it), `site`, `folder` (where the site keeps what it
    must not lose), `threads` and, of a hospital, `agreement`; `directory` is for whoever starts this process.
    """
    job = json.loads(line.recv_bytes())
    set_deterministic(job["threads"])
    warnings.simplefilter("always")
    warnings.showwarning = _forward_warnings(line)
    folder = Path(job["folder"])

    def on_step(site: str, step: int, n_steps: int) -> None:
        line.send_bytes(STEP + json.dumps((site, step, n_steps)).encode())

    folder.mkdir(parents=True, exist_ok=True)
    try:
        # An earlier job's process may still train for this site.
        with exclusive_lock(folder / LOCK, lambda holder: _busy(folder, holder), LOCK_TIMEOUT_S):
            reply = _reply_function(job, folder, on_step)
            line.send_bytes(READY)
            while True:
                line.send_bytes(_reply_frame(reply, line.recv_bytes(), "agreement" in job))
    except UserError as error:
        line.send_bytes(SAID + _reason(str(error), "agreement" in job))


def _reply_function(job: dict, folder: Path, on_step: OnStep) -> Reply:
    config = load_text(job["config"], job["source"])
    if "agreement" in job:
        site = build_local_site(config, job["site"])
        if isinstance(site, Site):
            site.progress = on_step
        agreed = {**job["agreement"], "sends": tuple(job["agreement"]["sends"])}
        return GuardedSite(site, folder, Agreement(**agreed)).reply
    site = build_site(config, job["site"])
    if isinstance(site, ValidationSite):
        engine = InProcess([], folder, validation_site=site)
    else:
        engine = InProcess([site], folder, on_step=on_step)
    return lambda request: engine.exchange(request.kind, {site.name: request})[site.name]


def _reply_frame(reply: Reply, request: bytes, of_hospital: bool) -> bytes:
    """A frame: the reply, or why there is none. A programming error ends the process, with its traceback in the log."""
    try:
        return ANSWER + reply(Message.from_bytes(request)).to_bytes()
    except Refused as error:  # names no file
        return SAID + str(error).encode()
    except UserError as error:
        return SAID + _reason(str(error), of_hospital)
    except (ValueError, MemoryError, OSError) as error:  # a full disk is an OSError
        return SAID + _reason(f"{type(error).__name__}: {error}", of_hospital)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return SAID + _reason(f"out of memory: {error}", of_hospital)


def _reason(why: str, of_hospital: bool) -> bytes:
    """What to send where a request failed. An error may name files, and so patients: a hospital keeps it in its log."""
    if of_hospital:
        print(why, file=sys.stderr, flush=True)
        why = "could not do it; the hospital's own log says why"
    return why.encode()


def _busy(folder: Path, holder: str) -> UserError:
    return UserError(f"{folder}: {holder} works for this site; end it, or choose another folder")


def _forward_warnings(line: Connection) -> Callable[..., None]:
    """A `warnings.showwarning` that sends medfed's own warnings to the process that started this one."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        text: str | None = None,
    ) -> None:
        if category is UserWarning and "medfed" in Path(filename).parts:
            line.send_bytes(NOTE + str(message).encode())

    return show


if __name__ == "__main__":
    sys.exit(main())
