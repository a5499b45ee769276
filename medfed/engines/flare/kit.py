"""FLARE startup kits on disk, as `nvflare provision` makes them: what medfed writes into one, and starting it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.errors import UserError

STOP_TIMEOUT_S = 20


@dataclass
class Kit:
    """One participant's kit: a folder with `startup` and `local`.

    Args:
        path: the folder.
        allowed: names of the classes that a job may use here; no other, whatever FLARE's own list says.
        rights: what others may do here, in the words of FLARE's `authorization.json`; empty leaves what the kit has.
    """

    path: Path
    allowed: tuple[str, ...] = ()
    rights: dict[str, object] = field(default_factory=dict)
    _process: subprocess.Popen | None = field(default=None, init=False)

    def check(self) -> None:
        """UserError unless it is a participant's kit, and its own filters are such that FLARE applies them."""
        if not (self.path / "startup" / "sub_start.sh").is_file():
            raise UserError(f"{self.path}: is no startup kit of NVIDIA FLARE (no startup/sub_start.sh); name the "
                            "folder that the coordinator sent, unpacked")
        if (own := self.path / "local" / "privacy.json").is_file():
            from medfed.engines.flare.filters import check_filters  # late: it needs FLARE, and a dry run does not

            check_filters(own)

    def write(self, name: str, content: object) -> None:
        """A file of the participant's own, for its eyes alone: FLARE never sends the `local` folder anywhere."""
        path = self.path / "local" / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    def start(self, log: Path, lock: int | None = None) -> None:
        """Start the participant; what it prints goes to the log. The rest of its own `resources.json` stays.

        Args:
            lock: a descriptor that all processes of the participant hold too, so that a lock on it ends with the last.
        """
        local = self.path / "local"
        own = local / "resources.json"
        resources = json.loads((own if own.is_file() else local / "resources.json.default").read_text())
        # By default FLARE sends a site's error log, with its paths, to the coordinator.
        ours = {"class_allow_list": list(self.allowed), "class_list_enforcement_mode": "enforce",
                "allow_log_streaming": False}  # fmt: skip
        self.write("resources.json", {**resources, **ours})
        if self.rights:
            self.write("authorization.json", self.rights)
        (self.path / "shutdown.fl").unlink(missing_ok=True)
        python = str(Path(sys.executable).parent)
        environment = {**os.environ, "PATH": python + os.pathsep + os.environ.get("PATH", "")}
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                ["bash", str(self.path / "startup" / "sub_start.sh"), "--once"],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )

    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the participant and whatever it started."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_TIMEOUT_S)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None
