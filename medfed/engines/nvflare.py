"""NVIDIA FLARE's simulator carries the messages: every site in FLARE's own processes, on this machine."""

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
from medfed.engines.flare.connection import FlareConnection
from medfed.engines.flare.job import CONNECTION_FILE, SITE_FILE, allow_list, check_names, write_job
from medfed.engines.processes import Processes
from medfed.federation.message import Message

SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
MAX_SITES = 100  # FLARE's simulator takes no more


@dataclass
class NVFlare(Processes):
    """As `processes`, but the letters go through FLARE's server and clients, as they would between hospitals.

    FLARE's log is `flare.log` beside the sites' folders.
    """

    _flare: FlareConnection | None = field(default=None, init=False)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """All sites at once, as fast as FLARE's clients ask for work."""
        self._flare = self._flare or FlareConnection(self._simulator)
        return self._flare.exchange(kind, messages, self.settings.reply_timeout_s, self.on_reply)

    def close(self) -> None:
        """End the simulator, and with it the sites' processes."""
        if self._flare:
            self._flare.close()

    def _simulator(self, line: dict[str, str]) -> _Simulator:
        if importlib.util.find_spec("nvflare") is None:
            raise UserError("federation.engine: nvflare needs NVIDIA FLARE, which is not installed; "
                            "pip install -e '.[nvflare]' in medfed's folder, or take in_process")
        names = [*self.sites(), *([self.validation_site.name] if self.validation_site else [])]
        if len(names) > MAX_SITES:
            raise UserError(f"federation.engine: FLARE's simulator takes {MAX_SITES} sites, got {len(names)}; "
                            "take in_process or processes")
        check_names(names)
        workspace = Path(tempfile.mkdtemp(prefix="medfed_flare_"))
        local = workspace / "local"
        local.mkdir()
        (local / "resources.json").write_text(json.dumps(allow_list()))
        (local / SITE_FILE).write_text(json.dumps({name: self._job(name) for name in names}))
        (local / CONNECTION_FILE).write_text(json.dumps(line))
        return _Simulator(workspace, names, self.place / "flare.log")


class _Simulator:
    """The simulator as a process of its own."""

    def __init__(self, workspace: Path, names: list[str], log: Path) -> None:
        self._workspace, self._log = workspace, log
        job = write_job(workspace / "local" / "job", names)
        command = [sys.executable, "-m", SIMULATOR, str(job), "-w", str(workspace), "-c", ",".join(names),
                   "-t", str(len(names))]  # fmt: skip
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True,
                                             env={**os.environ, "MEDFED_FLARE": str(workspace)})

    def ended(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"the simulator's process ended with exit code {code}; see {self._log}"

    def stop(self) -> None:
        """It ends by itself when the line is closed; not for ever, though."""
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        shutil.rmtree(self._workspace, ignore_errors=True)
