"""The program that hosts one or more sites, or does the runs of a comparison, in a process of its own.

`medfed.engines.parts.worker_process.WorkerProcess` starts it. Sites work one after another, and so do runs. At a
hospital there is one site, behind its guard (`GuardedSite`).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from medfed.cli.notes import show_notes_by
from medfed.cli.program import machine_sentence
from medfed.config.schema import Config, load_text
from medfed.core.bounds import load_settings
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.core.files import exclusive_lock
from medfed.core.malloc import keep_freed_memory
from medfed.core.parent import end_with_parent
from medfed.core.registry import code_allowed
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guarded_site import HIDDEN_ERROR, GuardedSite, build_local_site
from medfed.engines.in_process import InProcess
from medfed.engines.parts.worker_process import READY, REPLY, STEP, WARNING, error_frame
from medfed.experiments.run_folds import serve_run
from medfed.experiments.setup import build_sites
from medfed.federation.engine import OnStep
from medfed.federation.message import Message
from medfed.federation.site import Site

Serve = Callable[[Mapping[str, Any], Sequence[bytes]], Iterator[bytes]]  # yields the replies to a request
LOCK_TIMEOUT_S = 60


def main(argv: list[str] | None = None) -> int:
    """Serve the socket whose file descriptor is the only argument; return the exit code 0."""
    (descriptor,) = sys.argv[1:] if argv is None else argv
    end_with_parent()
    keep_freed_memory()
    with Connection(int(descriptor)) as connection:
        try:
            serve(connection)
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent process has ended
            return 0
    return 0


def serve(connection: Connection) -> None:
    """Reply to requests until the parent process closes the connection.

    The first message on the connection is JSON that describes the job. Its entry `directory` is the working directory,
    in which relative paths start. If the worker hosts sites, the job also has the entries `config` (the config as YAML
    text), `source` (the name of the config in error messages), `sites` (the names of the sites), `folder` (the folder
    of the sites' files) and, only at a hospital, `agreement`. Without the entry `sites`, the worker does runs of a
    comparison.

    Every request consists of a header, which is JSON, and of messages that follow. For sites, the header has the
    entries `kind`, `sites` (for each site, the index of its request among the messages) and `n_bodies` (the number of
    messages). For runs, the header is that of `serve_run`, and no messages follow.

    Everything that is sent back begins with one byte that says what it is: a reply, an error, a warning, a progress
    report, or the sign that the worker is ready for the next request, with the seconds that the last request took.
    """
    job = json.loads(connection.recv_bytes())
    os.chdir(job["directory"])
    is_hospital = "agreement" in job
    warnings.simplefilter("always")
    warnings.showwarning = show_notes_by(lambda text: connection.send_bytes(WARNING + text.encode()))

    def on_step(name: str, step: int, n_steps: int) -> None:
        connection.send_bytes(STEP + json.dumps((name, step, n_steps)).encode())

    try:
        with ExitStack() as stack:
            stack.enter_context(code_allowed(not is_hospital))  # the parent process has imported the same classes
            if "sites" in job:
                config = load_text(job["config"], job["source"])
                set_deterministic(config.training.threads)
                Path(job["folder"]).mkdir(parents=True, exist_ok=True)
                if is_hospital:  # FLARE may start its process again while that of an earlier job still trains the site
                    stack.enter_context(_locked(Path(job["folder"])))
                replies = (_hospital if is_hospital else _sites)(job, config, on_step)
            else:
                replies = _runs(on_step)
            connection.send_bytes(READY + b"0")
            while True:
                header = json.loads(connection.recv_bytes())
                bodies = [connection.recv_bytes() for _ in range(header["n_bodies"])]
                for frame in _frames(replies, header, bodies, is_hospital):
                    connection.send_bytes(frame)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent process has ended
        raise
    except Exception as error:
        connection.send_bytes(_error_frame(error, is_hospital))


def _locked(folder: Path) -> AbstractContextManager[int]:
    return exclusive_lock(
        folder / "site.lock",
        lambda holder: UserError(f"{folder}: {holder} is working for this site; end it, or choose another folder"),
        LOCK_TIMEOUT_S,
    )


def _runs(on_step: OnStep) -> Serve:
    """Serve whole runs of a comparison: each request is a run, and its reply tells how the run ended."""
    return lambda header, bodies: iter([serve_run(header, partial(on_step, ""))])


def _hospital(job: Mapping[str, Any], config: Config, on_step: OnStep) -> Serve:
    """Serve a hospital's own site, guarded by the hospital's agreement."""
    site = build_local_site(config, job["sites"][0])
    if isinstance(site, Site):
        site.progress = on_step
    agreement = load_settings(Agreement, job["agreement"], job["source"])
    guarded = GuardedSite(site, Path(job["folder"]), agreement)
    return lambda header, bodies: (guarded.reply(Message.from_bytes(body)).to_bytes() for body in bodies)


def _sites(job: Mapping[str, Any], config: Config, on_step: OnStep) -> Serve:
    with warnings.catch_warnings():
        # The parent process has read all images, and has reported what is unusual in them.
        warnings.simplefilter("ignore", UserWarning)
        sites, validation_site = build_sites(config, job["sites"])
    engine = InProcess(sites, Path(job["folder"]), validation_site, config.federation, on_step=on_step)

    def serve_sites(header: Mapping[str, Any], bodies: Sequence[bytes]) -> Iterator[bytes]:
        requests = [Message.from_bytes(body) for body in bodies]
        messages = {site: requests[index] for site, index in header["sites"].items()}
        return (reply for _, reply in engine.replies(header["kind"], messages))

    return serve_sites


def _frames(serve: Serve, header: Mapping[str, Any], bodies: list[bytes], is_hospital: bool) -> Iterator[bytes]:
    """Yield a frame for each reply and a last one, or a frame with the reason why there is no reply."""
    start = time.perf_counter()
    try:
        for reply in serve(header, bodies):
            yield REPLY + reply
        yield READY + str(time.perf_counter() - start).encode()
    except Refused as error:  # its text contains no names of files
        print(error, file=sys.stderr, flush=True)
        yield error_frame(UserError(error.sent))
    except (BrokenPipeError, ConnectionResetError):  # progress or a warning could not be sent: the parent has ended
        raise
    except Exception as error:
        yield _error_frame(error, is_hospital)


def _error_frame(error: Exception, is_hospital: bool) -> bytes:
    """Return the frame that reports an error, after printing the traceback if the error is a bug.

    The text of an error may contain names of files, and thus of patients. A hospital writes it into its own log only.
    """
    if not isinstance(error, UserError) and machine_sentence(error) is None:
        traceback.print_exception(error)
        sys.stderr.flush()
    elif is_hospital:
        print(error, file=sys.stderr, flush=True)
    return error_frame(error, HIDDEN_ERROR if is_hospital else "")


if __name__ == "__main__":
    sys.exit(main())
