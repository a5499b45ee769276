"""Hospitals that joined a FLARE server of the coordinator's: letters go to them over mutual TLS."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from medfed.core.errors import UserError
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY, write_job
from medfed.engines.flare.kit import Kit
from medfed.federation.engine import OnReply, OnStep
from medfed.federation.message import Message
from medfed.federation.settings import Federation

POLL_S = 1.0
STATUS_S = 10.0
CONNECT_TIMEOUT_S = 60.0


@dataclass
class FlareEngine:
    """The engine of a coordinator: it has no site of its own.

    FLARE fails a job when a process of a site dies, and leaves a site that comes back out of a job that runs. So a job
    is but a pipe (`FlareConnection`): one that ends is started again for the letters that have no answer yet, and one
    that a missing site has come back to is started again before the next letters.

    Args:
        names: the sites that are expected, the validation site (`federation.validation_site`) among them.
        server, admin: the coordinator's startup kits; the server runs on this machine.
        folder: for the job and FLARE's log.
        join_timeout_s: how long to wait for sites to join before the first letters.
    """

    names: list[str]
    server: Kit
    admin: Path
    folder: Path
    settings: Federation
    join_timeout_s: float = 600.0
    on_reply: OnReply | None = field(default=None, init=False)
    on_step: OnStep | None = field(default=None, init=False)  # never called: the sites train elsewhere
    _flare: FlareConnection = field(init=False)
    _missing: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._flare = FlareConnection(self._submit)
        self._waited = False

    def sites(self) -> list[str]:
        return sorted(set(self.names) - {self.settings.validation_site})

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Answers, `failed` where a site gave none in time or is not there."""
        if self.server.ended():
            raise UserError(f"the FLARE server ended; see {self.folder / 'server.log'}")
        self._wait_for_sites()
        if self._missing and self._missing & self._connected():
            self._flare.close()
        answers = self._flare.exchange(kind, messages, self.settings.reply_timeout_s, self.on_reply)
        # A site that says why it has no answer is there.
        silent = {site for site, answer in answers.items()
                  if answer.kind == "failed" and answer.facts["why"].startswith(NO_REPLY)}  # fmt: skip
        self._missing = (self._missing - set(answers)) | silent
        return answers

    def restore(self, took_part: Mapping[str, int]) -> None:
        """The sites go by what the letters say."""

    def close(self) -> None:
        """End the job; the server is stopped by whoever started it."""
        self._flare.close()

    def _wait_for_sites(self) -> None:
        """Once, before the first letters; who is not there by then may come later."""
        if self._waited:
            return
        until = time.monotonic() + self.join_timeout_s
        while missing := sorted(set(self.names) - self._connected()):
            if self.server.ended():
                raise UserError(f"the FLARE server ended; see {self.folder / 'server.log'}")
            if time.monotonic() > until:
                if len(missing) == len(self.names):
                    raise UserError(f"no site joined within {self.join_timeout_s:g} s; ask the hospitals whether "
                                    "python -m medfed.site runs there, and whether they reach this machine")
                warnings.warn(f"{', '.join(missing)} did not join within {self.join_timeout_s:g} s; going on without",
                              stacklevel=2)
                break
            time.sleep(POLL_S)
        self._waited = True

    def _connected(self) -> set[str]:
        session = self._session()
        try:
            return {client.name for client in session.get_system_info().client_info}
        finally:
            session.close()

    def _session(self) -> Session:
        """A fresh one each time: FLARE closes those that idle."""
        until = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                with redirect_stdout(io.StringIO()):  # it says that it connects
                    return new_secure_session(self.admin.name, str(self.admin), timeout=5.0)
            except Exception as error:  # FLARE raises many kinds while its server starts
                if time.monotonic() > until or self.server.ended():
                    log = self.folder / "server.log"
                    raise UserError(f"no answer from the FLARE server ({error}); see {log}") from error
                time.sleep(POLL_S)

    def _submit(self, line: dict[str, str]) -> _Submitted:
        self.server.write(CONNECTION_FILE, line)
        session = self._session()
        try:
            there = sorted({client.name for client in session.get_system_info().client_info} & set(self.names))
            path = write_job(self.folder / "job", there or self.names)
            return _Submitted(session, session.submit_job(str(path.resolve())), self._session)
        except Exception as error:  # FLARE raises many kinds; the line tries again
            session.close()
            raise ConnectionError(f"FLARE takes no job: {error}") from error


@dataclass
class _Submitted:
    """A job at the server."""

    session: Session
    job_id: str
    another: Callable[[], Session]
    _looked: float = 0.0

    def ended(self) -> str | None:
        if time.monotonic() - self._looked < STATUS_S:
            return None
        self._looked = time.monotonic()
        status = self._status()
        return f"FLARE says {status}" if status.startswith("FINISHED") else None

    def stop(self) -> None:
        """It ends by itself as its line is closed; whatever is left of it is aborted."""
        with suppress(Exception):
            for _ in range(10):
                if self._status().startswith("FINISHED"):
                    break
                time.sleep(POLL_S)
            else:
                self.session.abort_job(self.job_id)
        with suppress(Exception):
            self.session.close()

    def _status(self) -> str:
        try:
            return str(self.session.get_job_meta(self.job_id).get("status"))
        except Exception:  # FLARE closes a session that idles
            with suppress(Exception):
                self.session.close()
            self.session = self.another()
            return str(self.session.get_job_meta(self.job_id).get("status"))
