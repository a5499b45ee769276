"""Startup kits of NVIDIA FLARE, as `nvflare provision` makes them: check a kit, write files into it, and start it."""

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
    """The startup kit of one participant: the folder with certificates and scripts that `nvflare provision` makes.

    Args:
        path: the folder, with the subfolders `startup` and `local`.
        allowed: names of the classes that a FLARE job may use at this participant; all others are refused, whatever the
            kit's own list allows.
        permissions: the content of FLARE's `authorization.json`, which says what others may do at this participant;
            empty keeps the kit's own file.
    """

    path: Path
    allowed: tuple[str, ...] = ()
    permissions: dict[str, object] = field(default_factory=dict)
    _process: subprocess.Popen | None = field(default=None, init=False)

    def check(self) -> None:
        """Check that the folder of this object is a startup kit, and that FLARE will apply the kit's privacy filters.

        A kit without the file `local/privacy.json` has no filters, which is allowed.

        Raises:
            UserError: if the file `startup/sub_start.sh` is missing, or FLARE would not apply the filters in
                `local/privacy.json` as they are written.
        """
        if not (self.path / "startup" / "sub_start.sh").is_file():
            raise UserError(f"{self.path}: is not a startup kit of NVIDIA FLARE, as startup/sub_start.sh is missing; "
                            "give the folder that the coordinator sent, unpacked")
        if (privacy_file := self.path / "local" / "privacy.json").is_file():
            from medfed.engines.flare.filters import check_filters  # needs FLARE, which a dry run must not need

            check_filters(privacy_file)

    def write(self, name: str, content: object) -> None:
        """Write a JSON file into the kit's subfolder `local`, which FLARE never sends to anyone.

        A new file can be read by its owner only. An existing file is replaced.

        Args:
            name: the name of the file.
            content: the content of the file, any value that JSON can represent.
        """
        path = self.path / "local" / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    def start(self, log: Path, lock: int | None = None) -> None:
        """Start the participant's FLARE processes in the background.

        Before the start, the kit's file `local/resources.json` is changed: the attribute `allowed` replaces the list of
        allowed classes, and the sending of the participant's error log is switched off. Other entries of this file are
        kept. The attribute `permissions`, unless it is empty, is written to `local/authorization.json`.

        Args:
            log: the file to which the output of the processes is appended.
            lock: file descriptor of a lock. All processes of the participant inherit the lock, so that the lock is held
                until the last process ends. None for no lock.
        """
        local = self.path / "local"
        own = local / "resources.json"
        resources = json.loads((own if own.is_file() else local / "resources.json.default").read_text())
        # By default FLARE sends a site's error log, which holds paths of files, to the coordinator.
        enforced = {"class_allow_list": list(self.allowed), "class_list_enforcement_mode": "enforce",
                    "allow_log_streaming": False}  # fmt: skip
        self.write("resources.json", {**resources, **enforced})
        if self.permissions:
            self.write("authorization.json", self.permissions)
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

    def has_ended(self) -> bool:
        """Return whether the participant's FLARE process was started and has ended by itself.

        The result is False before `start` and after `stop`.
        """
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the participant's FLARE processes. A process that does not end within 20 seconds is killed.

        Nothing happens if the processes were not started.
        """
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
