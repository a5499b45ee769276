"""A site's process that imports nothing heavy: it does what a file beside it says, so that a start costs 0.1 s."""

from __future__ import annotations

from pathlib import Path

PROGRAM = '''
import json, os, signal, sys, time
from multiprocessing.connection import Connection

line = Connection(int(sys.argv[1]))
job = json.loads(line.recv_bytes())
here = job["site"]
open(here + ".pid", "w").write(str(os.getpid()))
does = lambda: open(here + ".does").read() if os.path.exists(here + ".does") else "echo"
if does() == "no start":
    line.send_bytes(b"e" + b"sites: no images here")
    time.sleep(60)  # it lingers: whoever started it must not wait
line.send_bytes(b"r")
while True:
    letter = line.recv_bytes()
    if does() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if does() == "exit":
        sys.exit(3)
    if does() == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if does() == "sleep":
        time.sleep(60)
    if does() == "no":
        line.send_bytes(b"e" + b"training diverged")
        continue
    line.send_bytes(b"s" + json.dumps([here, 1, 2]).encode())
    line.send_bytes(b"n" + b"few images")
    line.send_bytes(b"a" + letter)
'''


def lay(folder: Path, monkeypatch) -> Path:
    """Sites' processes that start in this folder run the program above."""
    (folder / "fake_worker.py").write_text(PROGRAM)
    monkeypatch.setattr("medfed.engines.site_process.WORKER", "fake_worker")
    monkeypatch.chdir(folder)
    return folder


def pid(folder: Path, site: str) -> int:
    return int((folder / f"{site}.pid").read_text())


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(") ")[2][0] != "Z"
