"""A federation that is killed at random moments, resumed until it is done, and compared with one that was left alone.

Children are forked with everything imported, so that a kill costs a second.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch._dynamo  # noqa: F401  the first optimiser imports it, which would take a second in each child

from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.federation.settings import Federation
from medfed.methods.elcfs import ELCFS
from medfed.outputs.run_folder import RunFolder
from medfed.testing.toy import ToySegmentation

SETTINGS = Federation(rounds=4, selection="source_validation")


def work(path: Path) -> None:
    """Run, or go on with, a run as `medfed.train` does."""
    method, toy = ELCFS(alpha=0.1, min_patients=1), ToySegmentation(image_side=16, n_images=4)
    with RunFolder(path).locked() as folder:
        folder.check()
        folder.begin_manifest()
        engine = toy.engine(method, folder=path / "sites")
        rounds = folder.rounds()
        state = folder.load_state(rounds[-1]) if rounds else toy.start(method)
        folder.truncate(state.round)
        engine.restore(state.took_part, state.weights)
        for done in federate(method, engine, state, SETTINGS, 0):
            folder.save_round(done, RULES[SETTINGS.selection]([*folder.history(), done.history]))
            state = done.state
        folder.save_model(folder.load_state(RULES[SETTINGS.selection](folder.history())).weights)
        folder.finish({})


def in_child(path: Path, kill_after_s: float | None) -> bool:
    """Whether the child came to its end by itself."""
    child = os.fork()
    if child == 0:
        try:
            work(path)
        except BaseException as error:
            print(f"child failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        sys.exit("a resumed run failed")
    return os.WIFEXITED(status)


def results(path: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "history.csv", "ledger.csv", "manifest.json")
    return {name: (path / name).read_bytes() for name in names}


def main(n_kills: int, seed: int, result: Path) -> None:
    """Kill a run `n_kills` times, and write to a file how many resumed runs gave the same files.

    Raises:
        SystemExit: if a file differs.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        in_child(Path(folder) / "alone", None)
        whole_s = time.monotonic() - began
        expected = results(Path(folder) / "alone")
        assert b"windows" in expected["ledger.csv"], "the sites share something, which a resumed run has to keep"
        kills = runs = 0
        while kills < n_kills:
            path = Path(folder) / f"killed_{runs}"
            while not in_child(path, rng.uniform(0.05, whole_s) if kills < n_kills else None):
                kills += 1
            runs += 1
            for name, data in results(path).items():
                if data != expected[name]:
                    sys.exit(f"{name} differs after {kills} kills")
    result.write_text(f"{kills} kills, {runs} resumed runs, all equal\n")
