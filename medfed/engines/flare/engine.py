"""The engine of a real federation: the sites are hospitals that joined the coordinator's FLARE server.

A site that ends and comes back registers with FLARE's server again, but FLARE does not let it rejoin a running job. A
job therefore only carries messages (`FlareConnection`), and is replaced when a site has registered again.
"""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from torch import Tensor

from medfed.cli.progress import ProgressBar
from medfed.core.errors import UserError
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import CONNECTION_FILE, NO_REPLY, write_job
from medfed.engines.flare.process import FlareProcess
from medfed.engines.flare.shared_kit import sites_with_shared_kits
from medfed.federation.engine import Engine, OnReply, OnStep
from medfed.federation.message import Message, failed_reply
from medfed.federation.settings import Federation

POLL_S = 1.0
CHECK_INTERVAL_S = 10.0  # a site that two successive checks do not reach is given up in this exchange
CONNECT_TIMEOUT_S = 60.0
N_STOP_POLLS = 10
UNREACHABLE = "no_reply"  # FLARE's status of a registered site that it cannot reach

Answer = TypeVar("Answer")


@dataclass
class FlareEngine(Engine):
    """Engine of a coordinator whose sites run elsewhere and are reached through NVIDIA FLARE."""

    names: list[str]  # of the expected sites, including the validation site if there is one
    server: FlareProcess  # which runs on this machine
    admin: Path  # the folder of the startup kit of FLARE's admin console
    folder: Path  # for the job's files; FLARE's log is `server.log` in it
    settings: Federation
    join_timeout_s: float = 600.0  # for the sites to join before the first requests, and for one to read its data
    plan: str = ""  # checksum of the plan, which all sites must have
    quiet: bool = True  # whether no bar shows for whom the run waits
    on_reply: OnReply | None = field(default=None, init=False)
    on_step: OnStep | None = field(default=None, init=False)  # never called, because the sites train elsewhere
    work_s: float | None = field(default=None, init=False)  # not known
    _flare: FlareConnection = field(init=False)
    _session: Session | None = field(default=None, init=False)  # with FLARE's admin console
    _has_waited: bool = field(default=False, init=False)
    _asked: set[str] = field(default_factory=set, init=False)  # the sites of the last exchange
    _job_tokens: dict[str, str] = field(default_factory=dict, init=False)  # `reachable` when the job was submitted
    _reported: set[str] = field(default_factory=set, init=False)  # sites whose startup kit is used by two programs

    def __post_init__(self) -> None:
        self._flare = FlareConnection(self._submit, load_timeout_s=self.join_timeout_s, plan=self.plan)
        log = self.folder / "server.log"  # a run that is continued appends to it
        self._log_start = log.stat().st_size if log.is_file() else 0

    def sites(self) -> list[str]:
        return sorted(set(self.names) - {self.settings.validation_site})

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver the requests to the hospitals over the network and return their replies.

        The first call waits for all hospitals to join; a warning names those that have not. If a site cannot be
        reached, reports an error, or exceeds `federation.reply_timeout_s` (0: no limit), its reply is "failed".
        UserError if FLARE's server ended or does not reply, or no hospital joined.
        """
        self._wait_for_sites()
        tokens = self.reachable()
        if self._asked & messages.keys() - tokens.keys():  # FLARE may have missed one answer of a site
            time.sleep(POLL_S)
            tokens = self.reachable()
        if self._flare.is_open() and self.gone(tokens, tokens):  # a site has registered since the job was submitted
            self._flare.close()
        asked = {site: message for site, message in messages.items() if site in tokens}
        self._asked = set(asked)
        missing = failed_reply(f"{NO_REPLY}: it is not connected")
        replies = self._flare.exchange(kind, asked, self.settings.reply_timeout_s, self.on_reply)
        self._report_shared_kits()
        return dict(sorted({**dict.fromkeys(messages, missing), **replies}.items()))

    def restore(self, took_part: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> None:
        """Do nothing: a site reads what it kept from its own files, by the last accepted round in each request."""

    def close(self) -> None:
        """End the FLARE job that carries the messages. FLARE's server keeps running until the caller stops it."""
        self._flare.close()
        self._close_session()

    def reachable(self) -> dict[str, str]:
        """Return the token of each site that FLARE's server reaches; a site that registers again has another one."""

        def ask(session: Session) -> dict[str, str]:
            parts = session.do_command("check_status server")["data"]
            tables = [part["rows"][1:] for part in parts if part["type"] == "table"]  # of the jobs, and of the clients
            tokens = {row[0]: row[4] for row in (tables[1] if len(tables) > 1 else [])}
            try:
                states = session.get_client_job_status() if tokens else []
            except Exception:  # a client hangs, and FLARE waits for it longer than for its console: all are asked
                self._close_session()
                return {name: token for name, token in tokens.items() if name in self.names}
            reached = {state["client_name"] for state in states if state["status"] != UNREACHABLE}
            return {name: token for name, token in tokens.items() if name in reached & set(self.names)}

        return self.ask_server(ask)

    def gone(self, sites: Collection[str], tokens: Mapping[str, str]) -> set[str]:
        """Return the sites that the job does not reach: they are not connected, or have registered since."""
        return {site for site in sites if site not in tokens or tokens[site] != self._job_tokens.get(site)}

    def ask_server(self, ask: Callable[[Session], Answer]) -> Answer:
        """Return the answer of FLARE's server; the session is opened again if it failed, as FLARE closes idle ones."""
        deadline = math.inf
        while True:
            try:
                if self._session is None:
                    with redirect_stdout(io.StringIO()):  # FLARE prints that it connects
                        self._session = new_secure_session(self.admin.name, str(self.admin), timeout=5.0)
                return ask(self._session)
            except Exception as error:  # FLARE raises many types of errors, also while its server starts
                self._close_session()
                deadline = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)  # this program may have been suspended
                log = self.folder / "server.log"
                if self.server.has_ended():
                    raise UserError(f"the FLARE server ended; see {log}") from error
                if time.monotonic() > deadline:
                    raise UserError(f"the FLARE server does not reply ({error}); see {log}") from error
                time.sleep(POLL_S)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        with suppress(Exception):
            if session:
                session.close()

    def _wait_for_sites(self) -> None:
        """Wait, before the first requests only, until all sites have joined; a missing site may join later."""
        if self._has_waited:
            return
        deadline = time.monotonic() + self.join_timeout_s
        with ProgressBar(bar_format="{desc}, {elapsed}", disable=self.quiet, leave=False) as bar:
            while missing := sorted(set(self.names) - self.reachable().keys()):
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
                bar.set_description_str(f"waiting for {', '.join(missing)}")
                self._report_shared_kits()
                time.sleep(POLL_S)
        self._has_waited = True

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

    def _submit(self, connection_settings: dict[str, str]) -> _SubmittedJob:
        """Submit the job that exchanges messages to FLARE's server, for the sites that it reaches."""
        self.server.write(CONNECTION_FILE, connection_settings)
        self._job_tokens = self.reachable()
        path = write_job(self.folder / "job", sorted(self._job_tokens) or self.names)
        session = self.ask_server(lambda session: session)
        try:  # not repeated: a job whose confirmation is late would run twice
            return _SubmittedJob(self, session.submit_job(str(path.resolve())))
        except Exception as error:  # FLARE raises many types of errors; `FlareConnection` tries again
            self._close_session()
            raise ConnectionError(f"FLARE does not accept the job: {error}") from error


@dataclass
class _SubmittedJob:
    """A job at FLARE's server; a `Job` of `FlareConnection`."""

    engine: FlareEngine
    job_id: str
    _checked_at: float = field(default_factory=time.monotonic, init=False)
    _gone: set[str] = field(default_factory=set, init=False)  # at the last check
    _lost: set[str] = field(default_factory=set, init=False)

    def check(self) -> set[str]:
        """As `Job.check`; asks the server every `CHECK_INTERVAL_S` only."""
        if time.monotonic() - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = time.monotonic()
            if (status := self._status()).startswith("FINISHED"):
                raise EOFError(f"FLARE says {status}")
            gone = self.engine.gone(self.engine.names, self.engine.reachable())
            self._lost, self._gone = gone & self._gone, gone
        return self._lost

    def stop(self) -> None:
        """Wait until the job ends, as it does when its connection is closed; abort it if it does not."""
        with suppress(UserError):
            for _ in range(N_STOP_POLLS):
                if self._status().startswith("FINISHED"):
                    return
                time.sleep(POLL_S)
            self.engine.ask_server(lambda session: session.abort_job(self.job_id))

    def _status(self) -> str:
        return str(self.engine.ask_server(lambda session: session.get_job_meta(self.job_id)).get("status"))
