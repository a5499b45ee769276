"""A fake worker process for a site. It starts in 0.1 s, as it imports nothing heavy; a file decides what it does."""

from pathlib import Path

PROGRAM = """
import json, os, signal, sys, time
from multiprocessing.connection import Connection

ERRORS = {"no": ["UserError", ["training diverged"]], "bug": ["WorkerBug", ["KeyError: 'w'"]]}
connection = Connection(int(sys.argv[1]))
job = json.loads(connection.recv_bytes())
os.chdir(job["directory"])
site = job["sites"][0]
open(site + ".pid", "w").write(str(os.getpid()))
action = lambda: open(site + ".does").read() if os.path.exists(site + ".does") else "echo"
if action() == "no start":
    connection.send_bytes(b"e" + json.dumps(["UserError", ["sites: no images here"]]).encode())
    time.sleep(60)  # the parent must not wait for this process to end
if action() == "not ready":
    time.sleep(60)
connection.send_bytes(b"r0.5")
while True:
    header = json.loads(connection.recv_bytes())
    bodies = [connection.recv_bytes() for _ in range(header["n_bodies"])]
    if action() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action() == "exit":
        sys.exit(3)
    if action() == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if action() == "sleep":
        time.sleep(60)
    if action() == "suspend":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action() == "half":
        os.write(connection.fileno(), (1000).to_bytes(4, "big") + b"a")  # the rest never comes
        time.sleep(60)
    while action() == "steps":  # shows progress, and never ends
        connection.send_bytes(b"s" + json.dumps([site, 1, 2]).encode())
        time.sleep(0.01)
    if action() in ERRORS:
        connection.send_bytes(b"e" + json.dumps(ERRORS[action()]).encode())
        continue
    for name, index in header["sites"].items():
        connection.send_bytes(b"s" + json.dumps([name, 1, 2]).encode())
        connection.send_bytes(b"n" + b"few images")
        connection.send_bytes(b"a" + bodies[index])
    connection.send_bytes(b"r0.5")
"""


def install_fake_worker(folder: Path, monkeypatch) -> Path:
    """Make every worker process that is started in this folder run the program above; return the folder."""
    (folder / "fake_worker.py").write_text(PROGRAM)
    monkeypatch.setattr("medfed.engines.parts.worker_process.WORKER", "fake_worker")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


def process_id(folder: Path, site: str) -> int:
    """Return the process ID that the fake worker whose first site is `site` wrote into its file."""
    return int((folder / f"{site}.pid").read_text())


def is_alive(pid: int) -> bool:
    """Return whether a process with this ID exists and is not a zombie."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(") ")[2][0] != "Z"
