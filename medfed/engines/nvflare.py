"""The engine `nvflare`: NVIDIA FLARE's simulator carries the messages, with all sites on this machine.

It serves to test a federation before it runs between hospitals (`medfed.engines.flare.engine`): messages take the same
way through FLARE's server and clients.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.errors import UserError
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import (
    CONNECTION_FILE,
    CONTROLLER,
    EXECUTOR,
    SITE_FILE,
    allow_only,
    check_names,
    require_flare,
    write_job,
)
from medfed.engines.flare.process import FlareProcess
from medfed.engines.processes import Processes
from medfed.federation.message import Message

MAX_SITES = 100  # limit of FLARE's simulator
STOP_TIMEOUT_S, POLL_S = 20.0, 0.1


@dataclass
class NVFlare(Processes):
    """Engine that runs all sites in NVIDIA FLARE's simulator.

    The arguments are those of `InProcess`; `jobs` is not used, because the simulator lets all sites work at the same
    time. FLARE's log is `flare.log` in the folder of the sites' files.
    """

    _flare: FlareConnection | None = field(default=None, init=False)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """As `Processes.exchange`; the first call starts the simulator.

        UserError if NVIDIA FLARE is missing, there are more than 100 sites, or FLARE cannot use the name of a site.
        """
        self._flare = self._flare or FlareConnection(self._simulator)
        complete, replies = self._complete(messages)
        replies |= self._flare.exchange(kind, complete, self.settings.reply_timeout_s, self.on_reply)
        return dict(sorted(replies.items()))

    def close(self) -> None:
        if self._flare:
            self._flare.close()

    def _simulator(self, connection_settings: dict[str, str]) -> _Simulator:
        """Start FLARE's simulator for all sites."""
        require_flare("federation.engine: nvflare", ", or set federation.engine: in_process")
        names = [*self.sites(), *([self.validation_site.name] if self.validation_site else [])]
        if len(names) > MAX_SITES:
            raise UserError(
                f"federation.engine: NVIDIA FLARE's simulator runs at most {MAX_SITES} sites, but there "
                f"are {len(names)}; set federation.engine to in_process or processes"
            )
        check_names(names)
        process = FlareProcess(Path(tempfile.mkdtemp(prefix="medfed_flare_")), "simulator", ",".join(names))
        write_job(process.workspace / "local" / "job", names)
        process.write("resources.json", {"format_version": 2, **allow_only("nvflare.", CONTROLLER, EXECUTOR)})
        process.write(SITE_FILE, {name: {**self._job(), "sites": [name]} for name in names})
        process.write(CONNECTION_FILE, connection_settings)
        log = Path(self._job()["folder"]) / "flare.log"
        process.start(log)
        return _Simulator(process, log)


@dataclass
class _Simulator:
    """FLARE's simulator in a process of its own; a `Job` of `FlareConnection`."""

    process: FlareProcess
    log: Path

    def check(self) -> tuple[str, ...]:
        """As `Job.check`; a site of the simulator is never lost alone."""
        if self.process.has_ended():
            raise EOFError(f"the simulator's process ended; see {self.log}")
        return ()

    def stop(self) -> None:
        """Wait until the simulator ends, as it does when the connection is closed; kill it if it does not."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not self.process.has_ended() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.process.stop()
        shutil.rmtree(self.process.workspace, ignore_errors=True)
