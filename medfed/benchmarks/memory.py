"""Peak memory of a process, and measurements in a process of their own, in which no earlier work counts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 3600  # of one measurement


def measure_in_new_process(module: str, call: str) -> dict[str, float]:
    """Call a function of a module in a new process, and return what it prints with `print_result` (and nothing else).
    `call` is Python code, such as "measure_peak(50)"."""
    command = [sys.executable, "-c", f"import {module} as module; module.{call}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return json.loads(done.stdout)


def print_result(result: dict[str, float]) -> None:
    print(json.dumps(result))


def peak_bytes() -> int:
    """The largest memory that this process has used so far. On Linux it is the process's own peak; `getrusage` also
    counts the memory of the process that started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
