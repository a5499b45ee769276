"""The program that runs one site in a process of its own.

`medfed.engines.site_process.SiteProcess` starts it, sends requests through a socket and receives replies. At a hospital
the site is behind its guard (`GuardedSite`).
"""

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
from medfed.engines.site_process import ERROR, READY, REPLY, STEP, WARNING
from medfed.experiments.setup import build_site
from medfed.federation.engine import OnStep
from medfed.federation.message import Message
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

ReplyFunction = Callable[[Message], Message]  # returns the reply to a request
LOCK, LOCK_TIMEOUT_S = "site.lock", 60


def main(argv: list[str] | None = None) -> int:
    """Run the program that serves one site in a process of its own. `SiteProcess` starts this program, not the user.

    Args:
        argv: one argument, the file descriptor of this process's end of the socket; None reads `sys.argv`.

    Returns:
        The exit code 0.
    """
    (descriptor,) = sys.argv[1:] if argv is None else argv
    keep_freed_memory()
    with Connection(int(descriptor)) as connection:
        try:
            serve(connection)
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent process has ended
            return 0
    return 0


def serve(connection: Connection) -> None:
    """Build a site, then reply to requests until the parent process closes the connection.

    The first message on the connection is JSON that describes the site: `config` (the config as YAML text), `source`
    (the name of the config in error messages), `site` (the name of the site), `folder` (the folder of the site's
    files), `threads` (the number of CPU threads) and, only at a hospital, `agreement` (what may leave). Every later
    message is the bytes of a request. Everything that is sent back begins with one byte that says what it is: a reply,
    an error, a warning or a progress report.

    Args:
        connection: the connection to the parent process.
    """
    job = json.loads(connection.recv_bytes())
    set_deterministic(job["threads"])
    warnings.simplefilter("always")
    warnings.showwarning = _forward_warnings(connection)
    folder = Path(job["folder"])

    def on_step(site: str, step: int, n_steps: int) -> None:
        connection.send_bytes(STEP + json.dumps((site, step, n_steps)).encode())

    folder.mkdir(parents=True, exist_ok=True)
    try:
        # The lock waits for the process of an earlier job that may still train this site.
        with exclusive_lock(folder / LOCK, lambda holder: _locked_error(folder, holder), LOCK_TIMEOUT_S):
            reply = _reply_function(job, folder, on_step)
            connection.send_bytes(READY)
            while True:
                connection.send_bytes(_reply_frame(reply, connection.recv_bytes(), "agreement" in job))
    except UserError as error:
        connection.send_bytes(ERROR + _reason(str(error), "agreement" in job))


def _reply_function(job: dict, folder: Path, on_step: OnStep) -> ReplyFunction:
    config = load_text(job["config"], job["source"])
    if "agreement" in job:
        site = build_local_site(config, job["site"])
        if isinstance(site, Site):
            site.progress = on_step
        agreement = Agreement(**{**job["agreement"], "sends": tuple(job["agreement"]["sends"])})
        return GuardedSite(site, folder, agreement).reply
    site = build_site(config, job["site"])
    if isinstance(site, ValidationSite):
        engine = InProcess([], folder, validation_site=site)
    else:
        engine = InProcess([site], folder, on_step=on_step)
    return lambda request: engine.exchange(request.kind, {site.name: request})[site.name]


def _reply_frame(reply: ReplyFunction, request: bytes, is_hospital: bool) -> bytes:
    """Return the frame with the reply, or with the reason why there is none.

    A programming error is not caught: it ends the process, with its traceback in the log.
    """
    try:
        return REPLY + reply(Message.from_bytes(request)).to_bytes()
    except Refused as error:  # its text contains no names of files
        return ERROR + str(error).encode()
    except UserError as error:
        return ERROR + _reason(str(error), is_hospital)
    except (ValueError, MemoryError, OSError) as error:  # a full disk is an OSError
        return ERROR + _reason(f"{type(error).__name__}: {error}", is_hospital)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return ERROR + _reason(f"out of memory: {error}", is_hospital)


def _reason(why: str, is_hospital: bool) -> bytes:
    """Return the reason that is sent after an error.

    The text of an error may contain names of files, and thus of patients. A hospital writes it into its own log only.
    """
    if is_hospital:
        print(why, file=sys.stderr, flush=True)
        why = "could not reply; the hospital's own log has the reason"
    return why.encode()


def _locked_error(folder: Path, holder: str) -> UserError:
    return UserError(f"{folder}: {holder} is working for this site; end it, or choose another folder")


def _forward_warnings(connection: Connection) -> Callable[..., None]:
    """Return a `warnings.showwarning` that sends medfed's own warnings to the parent process."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        text: str | None = None,
    ) -> None:
        if category is UserWarning and "medfed" in Path(filename).parts:
            connection.send_bytes(WARNING + str(message).encode())

    return show


if __name__ == "__main__":
    sys.exit(main())
