"""Federations that are killed at random moments, resumed until they are done, and compared with undisturbed ones.

Children are forked with everything imported, so that a kill costs a second.
"""

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch._dynamo  # noqa: F401  the first optimiser imports it, which would take a second in each child

from medfed.cli.program import run_program
from medfed.engines.in_process import InProcess
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.federation.settings import Federation
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.methods.fpl import FPL
from medfed.outputs.run_folder import RunFolder
from medfed.testing.toy import ToyClassification, ToySegmentation

SETTINGS = Federation(rounds=4, selection="source_validation")
METHODS: dict[str, Method] = {  # one method of each family
    "FedAvg": FedAvg(),
    "ELCFS (amplitudes)": ELCFS(alpha=0.1, min_patients=1),
    "FISC (styles)": FISC(transfer="moments", min_patients=1),
    "FPL (prototypes)": FPL(min_images=1, min_patients=1),
}
WAYS = ("exception", "SIGTERM", "SIGKILL")
RESULTS = ("model.safetensors", "history.csv", "ledger.csv")
KILLED, TERMINATED, FAILED = 3, 143, 1  # exit codes of a child
ENDED = (-signal.SIGKILL, TERMINATED, KILLED, -signal.SIGTERM, -signal.SIGUSR1)
WRAPPED = (FAILED, 2)  # the exception was caught, and another error raised; the next start shows whether that did harm
Forget = Callable[[RunFolder, InProcess, State], State]  # removes something after it was restored


class Planned(RuntimeError):
    """The exception that ends a run."""


def work(path: Path, name: str = "ELCFS (amplitudes)", forget: Forget | None = None, stop_after: int = 0) -> None:
    """Run, or go on with, a run as `medfed.train` does, up to the round `stop_after` (0: to the end).

    `forget` removes a part of what was restored, as if it was not stored.
    """
    method = METHODS[name]
    toy = (ToyClassification if name.startswith("FPL") else ToySegmentation)(image_side=16, n_images=4)
    with RunFolder(path).locked() as folder:
        folder.check()
        engine = toy.engine(method, folder=path / "sites")
        rounds = folder.rounds()
        state = folder.newest_state() or toy.start(method)
        folder.truncate(state.round)
        engine.restore(state.took_part, state.weights)
        state = forget(folder, engine, state) if forget and rounds else state
        for done in federate(method, engine, state, SETTINGS, 0):
            folder.save_round(done, RULES[SETTINGS.selection]([*folder.history(), done.history]))
            state = done.state
            if state.round == stop_after:
                raise Planned
        selected = RULES[SETTINGS.selection](folder.history())
        folder.save_model(folder.load_state(selected).weights)
        folder.finish({"selected_round": selected})


def _raise_planned(number, frame) -> None:
    raise Planned


def in_child(run: Callable[[], object], way: str = "SIGKILL", after_s: float | None = None) -> int:
    """Do work in a forked process that may be ended; return its exit code, or minus the signal that ended it.

    The process is ended after `after_s` seconds (None: never) by "SIGKILL"; by "SIGTERM", which a program of medfed
    turns into an exception that its `with` and `finally` blocks see; or by an "exception" in whatever code runs then.
    """
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            signal.signal(signal.SIGUSR1, _raise_planned)
            code = run_program("run", lambda: run() or 0)
        except Planned:
            code = KILLED
        except BaseException as error:
            print(f"child failed: {error!r}", flush=True)
        finally:
            os._exit(code)  # nothing of the tests may run in the child
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGUSR1 if way == "exception" else getattr(signal, way))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def results(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in RESULTS}


@dataclass
class Kills:
    """What happened to the runs of one method."""

    n_kills: int = 0
    n_runs: int = 0  # finished after the kills
    different: list[str] = field(default_factory=list)  # what was wrong with each run with another result or a failure


def kill_runs(name: str, ways: tuple[str, ...], n_kills: int, rng: random.Random) -> Kills:
    """End the runs of a method at random moments, resume each until it is done, and compare all files of results."""
    kills = Kills()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        assert in_child(lambda: work(Path(folder) / "alone", name)) == 0
        whole_s = time.monotonic() - began
        expected = results(Path(folder) / "alone")
        while kills.n_kills < n_kills:
            path = Path(folder) / "killed"
            way, after_s, code = "", None, None
            while (
                code is None
                or kills.n_kills <= n_kills
                and (code in ENDED or (after_s and way == "exception" and code in WRAPPED))
            ):
                kills.n_kills += code is not None
                way = rng.choice(ways)
                after_s = rng.uniform(0.05, whole_s) if kills.n_kills < n_kills else None
                code = in_child(lambda path=path: work(path, name), way, after_s)
            kills.n_runs += 1
            wrong = [f for f, data in results(path).items() if data != expected[f]] if code == 0 else [f"code {code}"]
            if wrong:
                kills.different.append(f"{', '.join(wrong)} after {kills.n_kills} kills, the last by {way}")
            shutil.rmtree(path)
    return kills


def main(name: str, ways: tuple[str, ...], n_kills: int, seed: int, result: Path) -> None:
    """Do `kill_runs` in this process, and write to a file what happened, as JSON."""
    result.write_text(json.dumps(asdict(kill_runs(name, ways, n_kills, random.Random(seed)))))


def _without_sites(folder: RunFolder, engine: InProcess, state: State) -> State:
    shutil.rmtree(folder.path / "sites")
    engine.restore(state.took_part, state.weights)
    return state


def _without_memory_of_sites(folder: RunFolder, engine: InProcess, state: State) -> State:
    for site in engine.local_sites:
        site.memory = {}
    return state


def _with_other_streams(folder: RunFolder, engine: InProcess, state: State) -> State:
    for site in engine.local_sites:
        site.seed += 1
    return state


def _without_tables(folder: RunFolder, engine: InProcess, state: State) -> State:
    folder.truncate(0)
    return state


def _start_weights(folder: RunFolder, engine: InProcess, state: State) -> State:
    return replace(state, weights={name: 0 * entry for name, entry in state.weights.items()})


FORGET: dict[str, Forget] = {  # each part of what a run stores
    "global weights": _start_weights,
    "memory of the method": lambda folder, engine, state: replace(state, memory={}),
    "number of the round": lambda folder, engine, state: replace(state, round=state.round - 1),
    "last rounds of the sites": lambda folder, engine, state: replace(state, took_part={}),
    "names of the parameters": lambda folder, engine, state: replace(state, parameters=frozenset()),
    "optimisers of the sites": _without_memory_of_sites,
    "files of the sites": _without_sites,
    "random streams of the sites": _with_other_streams,
    "rows of the tables": _without_tables,
}


def is_forgotten_silently(path: Path, name: str, forget: Forget | None, stop_after: int, expected: dict) -> bool:
    """Whether a run that is stopped and resumed without a part of its state ends with the same files."""
    with suppress(Planned):
        work(path, name, stop_after=stop_after)
    try:
        work(path, name, forget)
    except (ValueError, KeyError):  # it is refused
        return False
    return results(path) == expected
