"""A process of FLARE: a server, a client or a simulator that runs as long as the program that started it.

The process is started from Python, never by a script of a startup kit. This module is also the program of the process:
it runs FLARE's module, and ends when the program that started it has ended, even by `kill -9`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from medfed.core.errors import UserError
from medfed.core.import_path import child_import_path
from medfed.core.parent import end_with_parent

STOP_TIMEOUT_S = 20
POLL_S = 0.2
OTHERS_VARIABLES = ("PYTHON", "NVFL", "FL_", "LD_PRELOAD")  # environment variables that would change what is run


@dataclass
class FlareProcess:
    """A process of NVIDIA FLARE; FLARE also writes files of its own into the `workspace`."""

    workspace: Path  # the folder with the subfolders `startup` and `local`
    role: Literal["server", "client", "simulator"]
    name: str = ""  # of the client's site, or those of the simulator's sites, separated by commas
    audit: Path | None = None  # for FLARE's logs of what was requested and which filters ran; None is the workspace
    _process: subprocess.Popen | None = field(default=None, init=False)

    def write(self, name: str, content: object) -> None:
        """Write or replace a JSON file, readable by its owner only, in `local`, which FLARE never sends to anyone."""
        path = self.workspace / "local" / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    def start(self, log: Path) -> None:
        """Start the process, and append its output to `log`; UserError if FLARE cannot use the workspace's path."""
        if not re.fullmatch(r"[\w@%+=:,./-]+", str(self.workspace.resolve()), re.ASCII):  # FLARE splits it at a space
            raise UserError(
                f"{self.workspace.resolve()}: NVIDIA FLARE cannot use a folder with a space or a special "
                "character in its path; use another folder"
            )
        self.end_left_processes()
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                self._command(),
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Return whether the process has ended by itself; False before `start` and after `stop`."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the process, if it was started, and its jobs; kill it if it does not end within 20 seconds."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self.end_left_processes()
        self._process.poll()
        self._process = None

    def end_left_processes(self) -> None:
        """Kill all FLARE processes of this workspace, such as those that a killed program left behind."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (left := self._running()) and time.monotonic() < deadline:
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(POLL_S)

    def _running(self) -> list[int]:
        """Return the numbers of this user's processes whose command names a module of FLARE and this workspace."""
        workspace, numbers = str(self.workspace.resolve()), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                is_flare = any(word.startswith("nvflare.") for word in words)
                if is_flare and workspace in words and folder.stat().st_uid == os.getuid():
                    numbers.append(int(folder.name))
        return numbers

    def _command(self) -> list[str]:
        """Return the command that FLARE's own scripts would run, inside this module."""
        workspace, module = str(self.workspace.resolve()), f"nvflare.private.fed.app.{self.role}.{self.role}"
        if self.role == "simulator":
            arguments = [
                module,
                f"{workspace}/local/job",
                "-w",
                workspace,
                "-c",
                self.name,
                "-t",
                str(len(self.name.split(","))),
            ]
        else:
            uid = [f"uid={self.name}"] if self.name else []
            settings = ["secure_train=true", *uid, "org=medfed", "config_folder=config"]
            arguments = [f"{module}_train", "-m", workspace, "-s", f"fed_{self.role}.json", "--set", *settings]
        return [sys.executable, "-u", "-m", __name__, *arguments]

    def _environment(self) -> dict[str, str]:
        """Return this process's environment without variables that would change what FLARE runs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS_VARIABLES)}
        audit = {"NVFL_AUDIT_ROOT": str(self.audit.resolve())} if self.audit else {}
        return {"MALLOC_ARENA_MAX": "4", **kept, **audit, "PYTHONPATH": child_import_path(), "PYTHONSAFEPATH": "1"}


def check_ports_free(ports: list[int]) -> None:
    """Raise UserError if a process listens on a port; two processes of FLARE could otherwise share one port."""
    for port in ports:
        with socket.socket(socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection may still be waiting
            try:
                listener.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"port {port} is used by another program ({error.strerror}); end that program, or "
                    "prepare the federation with another --port"
                ) from error


def main(arguments: list[str]) -> None:
    """Run a module of FLARE with its arguments."""
    end_with_parent()
    sys.argv[:] = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
