"""Programs that end when the program that started them has ended, even by `kill -9`."""

from __future__ import annotations

import os
import signal
import threading
import time

POLL_S = 0.2


def end_with_parent() -> None:
    """Kill this process, and its group if it leads one, as soon as its parent process has ended."""
    threading.Thread(target=_wait_for_end, args=(os.getppid(),), daemon=True).start()


def _wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
