"""Folders of runs, written as `medfed.train` does it, in milliseconds: nothing is trained."""

from pathlib import Path

import torch
from made_runs import done

from medfed.core import files
from medfed.federation.message import State
from medfed.outputs.run_folder import FIGURES, RunFolder

N_ROUNDS = 2
FILES = (
    "config.yaml",
    "environment.json",
    "notices.json",
    "history.csv",
    "ledger.csv",
    "timings.csv",
    "cases.csv",
    "model.safetensors",
    "figures/boxes.png",
    "summary.json",
    "SHA256SUMS",
)


def start(folder: RunFolder) -> None:
    """Check the folder, and write what a run writes before its rounds."""
    folder.check()
    folder.forget_conclusions()
    folder.write_json("environment.json", {})
    folder.write_json("notices.json", [])
    folder.write_text("config.yaml", "seed: 1\n")
    folder.truncate(last_round(folder))


def last_round(folder: RunFolder) -> int:
    """The round of the newest valid checkpoint; 0 without one."""
    state = folder.newest_state()
    return state.round if state else 0


def train(folder: RunFolder, last: int = N_ROUNDS) -> None:
    if not folder.rounds():
        folder.save_state(State(0, {"w": torch.zeros(2)}))
    for number in range(last_round(folder) + 1, last + 1):
        if number == 2:
            folder.write_json("notices.json", ["seen in round 2"])
        folder.save_round(done(number), best_round=1)


def conclude(folder: RunFolder) -> None:
    folder.write_json("notices.json", ["seen in round 2", "seen at the end"])
    (folder.path / FIGURES).mkdir(exist_ok=True)
    for name in ("cases.csv", "figures/boxes.png"):
        files.write_atomically(folder.path / name, name)
    folder.save_model({"w": torch.ones(2)})
    folder.finish({"seed": 1})


def work(path: Path, last: int = N_ROUNDS) -> RunFolder:
    """Do, or go on with, a run up to a round."""
    folder = RunFolder(path)
    start(folder)
    train(folder, last)
    if last == N_ROUNDS:
        conclude(folder)
    return folder


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}
