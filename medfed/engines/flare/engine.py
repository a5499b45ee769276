"""The engine of a real federation: the sites are hospitals that joined the coordinator's FLARE server.

FLARE ends a job when one of its processes at a site crashes, and a site that comes back does not rejoin a running job.
A job therefore only carries messages (`FlareConnection`), and is started again for requests without a reply, or, before
the next requests, if a missing site has come back.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from torch import Tensor

from medfed.core.errors import UserError
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY, write_job
from medfed.engines.flare.process import FlareProcess
from medfed.engines.flare.shared_kit import sites_with_shared_kits
from medfed.federation.engine import Engine, OnReply, OnStep
from medfed.federation.message import FAILED, Message
from medfed.federation.settings import Federation

POLL_S = 1.0
STATUS_INTERVAL_S = 10.0
CONNECT_TIMEOUT_S = 60.0
N_STOP_POLLS = 10


@dataclass
class FlareEngine(Engine):
    """Engine of a coordinator whose sites run elsewhere and are reached through NVIDIA FLARE.

    Args:
        names: the names of the expected sites, including the validation site if there is one.
        server: FLARE's server, which runs on this machine.
        admin: the folder of the startup kit of FLARE's admin console.
        folder: the folder for the job's files; FLARE's log is `server.log` in it.
        join_timeout_s: seconds to wait for the sites to join before the first requests, and for a site that has joined
            to read its data.
    """

    names: list[str]
    server: FlareProcess
    admin: Path
    folder: Path
    settings: Federation
    join_timeout_s: float = 600.0
    on_reply: OnReply | None = field(default=None, init=False)
    on_step: OnStep | None = field(default=None, init=False)  # never called, because the sites train elsewhere
    work_s: float | None = field(default=None, init=False)  # not known
    _flare: FlareConnection = field(init=False)
    _missing: set[str] = field(default_factory=set, init=False)
    _reported: set[str] = field(default_factory=set, init=False)  # sites whose startup kit is used by two programs

    def __post_init__(self) -> None:
        self._flare = FlareConnection(self._submit, load_timeout_s=self.join_timeout_s)
        self._waited = False
        log = self.folder / "server.log"  # a run that is continued appends to it
        self._log_start = log.stat().st_size if log.is_file() else 0

    def sites(self) -> list[str]:
        return sorted(set(self.names) - {self.settings.validation_site})

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver the requests to the hospitals over the network and return their replies.

        The first call waits for all hospitals to join; a warning names those that have not. If a site is not connected,
        reports an error, or exceeds `federation.reply_timeout_s` (0: no limit), its reply is "failed". UserError if
        FLARE's server ended or does not reply, or no hospital joined.
        """
        if self.server.has_ended():
            raise UserError(f"the FLARE server ended; see {self.folder / 'server.log'}")
        self._wait_for_sites()
        if self._missing and self._missing & self._connected():
            self._flare.close()
        replies = self._flare.exchange(kind, messages, self.settings.reply_timeout_s, self.on_reply)
        # A site that gives a reason of its own is connected.
        silent = {
            site for site, reply in replies.items() if reply.kind == FAILED and reply.facts["why"].startswith(NO_REPLY)
        }
        self._missing = (self._missing - set(replies)) | silent
        self._report_shared_kits()
        return replies

    def _report_shared_kits(self) -> None:
        """Warn of each site whose startup kit is used by two programs, once."""
        log = self.folder / "server.log"
        text = log.read_bytes()[self._log_start :] if log.is_file() else b""
        for site in sorted(sites_with_shared_kits(text) - self._reported):
            self._reported.add(site)
            warnings.warn(
                f"{site}: it seems that two programs use its startup kit, of which only one can take part; "
                "ask the hospital to end the program that it does not want and to start the other again, and "
                "if it started only one, make new certificates for all, because the kit was stolen",
                stacklevel=2,
            )

    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Do nothing: a site reads what it kept from its own files, by the last accepted round in each request."""

    def close(self) -> None:
        """End the FLARE job that carries the messages. FLARE's server keeps running until the caller stops it."""
        self._flare.close()

    def _wait_for_sites(self) -> None:
        """Wait, before the first requests only, until all sites have joined; a missing site may join later."""
        if self._waited:
            return
        deadline = time.monotonic() + self.join_timeout_s
        while missing := sorted(set(self.names) - self._connected()):
            if self.server.has_ended():
                raise UserError(f"the FLARE server ended; see {self.folder / 'server.log'}")
            if time.monotonic() > deadline:
                if len(missing) == len(self.names):
                    raise UserError(
                        f"no site joined within {self.join_timeout_s:g} s; ask the hospitals whether "
                        "medfed site is running there, and whether they can reach this machine"
                    )
                warnings.warn(
                    f"{', '.join(missing)} did not join within {self.join_timeout_s:g} s; the run starts without",
                    stacklevel=2,
                )
                break
            self._report_shared_kits()
            time.sleep(POLL_S)
        self._waited = True

    def _connected(self) -> set[str]:
        session = self._session()
        try:
            return {client.name for client in session.get_system_info().client_info}
        finally:
            session.close()

    def _session(self) -> Session:
        """Return a new session with FLARE's server; one for each use, because FLARE closes idle sessions."""
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                with redirect_stdout(io.StringIO()):  # FLARE prints that it connects
                    return new_secure_session(self.admin.name, str(self.admin), timeout=5.0)
            except Exception as error:  # FLARE raises many types of errors while its server starts
                if time.monotonic() > deadline or self.server.has_ended():
                    log = self.folder / "server.log"
                    raise UserError(f"the FLARE server does not reply ({error}); see {log}") from error
                time.sleep(POLL_S)

    def _submit(self, connection_settings: dict[str, str]) -> _SubmittedJob:
        """Submit the job that exchanges messages to FLARE's server, for the connected sites."""
        self.server.write(CONNECTION_FILE, connection_settings)
        session = self._session()
        try:
            connected = sorted({client.name for client in session.get_system_info().client_info} & set(self.names))
            path = write_job(self.folder / "job", connected or self.names)
            return _SubmittedJob(session, session.submit_job(str(path.resolve())), self._session)
        except Exception as error:  # FLARE raises many types of errors; `FlareConnection` tries again
            session.close()
            raise ConnectionError(f"FLARE does not accept the job: {error}") from error


@dataclass
class _SubmittedJob:
    """A job at FLARE's server; a `Job` of `FlareConnection`."""

    session: Session
    job_id: str
    new_session: Callable[[], Session]
    _checked_at: float = 0.0

    def end_reason(self) -> str | None:
        """Return why the job ended, as a clause; None while it runs. Asks the server every `STATUS_INTERVAL_S` only."""
        if time.monotonic() - self._checked_at < STATUS_INTERVAL_S:
            return None
        self._checked_at = time.monotonic()
        status = self._status()
        return f"FLARE says {status}" if status.startswith("FINISHED") else None

    def stop(self) -> None:
        """Wait until the job ends, as it does when its connection is closed; abort it if it does not."""
        with suppress(Exception):
            for _ in range(N_STOP_POLLS):
                if self._status().startswith("FINISHED"):
                    break
                time.sleep(POLL_S)
            else:
                self.session.abort_job(self.job_id)
        with suppress(Exception):
            self.session.close()

    def _status(self) -> str:
        """FLARE's status of the job; the session is opened again if it has failed."""
        try:
            return str(self.session.get_job_meta(self.job_id).get("status"))
        except Exception:  # FLARE closes idle sessions
            with suppress(Exception):
                self.session.close()
            self.session = self.new_session()
            return str(self.session.get_job_meta(self.job_id).get("status"))
