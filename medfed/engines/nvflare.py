"""The engine `nvflare`: NVIDIA FLARE's simulator carries the messages, with all sites on this machine.

It serves to test a federation before it runs between hospitals (`medfed.engines.flare.engine`): messages take the same
way through FLARE's server and clients.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.import_path import child_import_path
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import CONNECTION_FILE, SITE_FILE, allow_list, check_names, write_job
from medfed.engines.processes import Processes
from medfed.federation.message import Message

SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
MAX_SITES = 100  # limit of FLARE's simulator
STOP_TIMEOUT_S = 20


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
        """Create FLARE's simulator for all sites; it is not started yet."""
        if importlib.util.find_spec("nvflare") is None:
            raise UserError(
                "federation.engine: nvflare needs NVIDIA FLARE, which is not installed; run "
                "pip install -e '.[nvflare]' in medfed's folder, or set federation.engine: in_process"
            )
        names = [*self.sites(), *([self.validation_site.name] if self.validation_site else [])]
        if len(names) > MAX_SITES:
            raise UserError(
                f"federation.engine: NVIDIA FLARE's simulator runs at most {MAX_SITES} sites, but there "
                f"are {len(names)}; set federation.engine to in_process or processes"
            )
        check_names(names)
        workspace = Path(tempfile.mkdtemp(prefix="medfed_flare_"))
        local = workspace / "local"
        local.mkdir()
        (local / "resources.json").write_text(json.dumps(allow_list()))
        (local / SITE_FILE).write_text(json.dumps({name: {**self._job(), "sites": [name]} for name in names}))
        (local / CONNECTION_FILE).write_text(json.dumps(connection_settings))
        return _Simulator(workspace, names, Path(self._job()["folder"]) / "flare.log")


class _Simulator:
    """FLARE's simulator in a process of its own; a `Job` of `FlareConnection`."""

    def __init__(self, workspace: Path, names: list[str], log: Path) -> None:
        self._workspace, self._log = workspace, log
        job = write_job(workspace / "local" / "job", names)
        command = [
            sys.executable,
            "-m",
            SIMULATOR,
            str(job),
            "-w",
            str(workspace),
            "-c",
            ",".join(names),
            "-t",
            str(len(names)),
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={
                    **os.environ,
                    "MEDFED_FLARE": str(workspace),
                    "PYTHONSAFEPATH": "1",
                    "PYTHONPATH": child_import_path(),
                },
            )

    def end_reason(self) -> str | None:
        """Return why the simulator ended, as a clause; None while it runs."""
        code = self._process.poll()
        return None if code is None else f"the simulator's process ended with exit code {code}; see {self._log}"

    def stop(self) -> None:
        """Wait until the simulator ends, as it does when the connection is closed; kill it if it does not."""
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        shutil.rmtree(self._workspace, ignore_errors=True)
