"""Time of a training step of ELCFS relative to FedAvg, and where the time of a round of ELCFS goes.

With one restyled copy of each image, a step of ELCFS needs at least 8/3 of the time of a step of FedAvg. FedAvg needs
one forward pass and one backward pass, which takes as long as two forward passes: 3 in total. ELCFS needs two forward
passes, the gradient of the inner step (as long as two), and a backward pass through both (four): 8 in total.
"""

from __future__ import annotations

import cProfile
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfed.benchmarks.federated_round import noise_slices
from medfed.core.determinism import deterministic
from medfed.core.seeds import seeded_layers
from medfed.engines.in_process import InProcess
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.unet import UNet
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.segmentation import Segmentation

MIN_RATIO = 8 / 3
N_SITES = 2


@dataclass(frozen=True)
class Case:
    """Size of the computation, as in a config; `size` is height and width of the images in pixels."""

    size: int
    network: NetworkSettings
    batch_size: int
    n_images: int
    elcfs: ELCFS


# As in configs/prostate.yaml and configs/prostate_paper.yaml, with one restyled copy of each image. The paper's batches
# have five images; two are enough here, because at 384 pixels the time of a step is proportional to their number.
CASES = (
    Case(80, UNet(features=(16, 16, 32, 64, 128, 16)), 4, 20, ELCFS(ring_width=2)),
    Case(384, ElcfsUNet(), 2, 2, ELCFS(min_patients=1)),
)
Function = tuple[str, str, str]  # end of the file, name of the function, end of the file that calls it; "" is any
PARTS: dict[str, tuple[Function, ...]] = {  # no function is called inside another one of this table
    "read batches": (("tasks/slices.py", "batch", "federation/site.py"),),
    "augment": (("tasks/segmentation.py", "augment", "federation/site.py"),),
    "exchange amplitudes": (("functional/fourier.py", "", "methods/elcfs.py"),),
    "forward, inner step, losses": (("methods/elcfs.py", "loss", "federation/site.py"),),
    "backward": (("torch/_tensor.py", "backward", "federation/site.py"),),
    "optimiser": (
        ("torch/optim/optimizer.py", "", "federation/site.py"),
        ("torch/_compile.py", "", "federation/site.py"),
        ("torch/optim/adam.py", "", "federation/site.py"),
    ),
    "validate": (("federation/site.py", "_validate", "federation/site.py"),),
    "messages": (
        ("federation/message.py", "to_bytes", ""),
        ("federation/message.py", "from_bytes", ""),
        ("federation/ledger.py", "message_rows", ""),
        ("federation/reply_checks.py", "validate_replies", ""),
    ),
    "aggregate": (("federation/rounds.py", "aggregate", "federation/rounds.py"),),
    "save": (("outputs/run_folder.py", "save_round", ""),),
}
Request = tuple[Site, Message]  # a site, and a request to train
INSIDE = {"forward, inner step, losses": "exchange amplitudes"}  # the second part is a part of the first one


def time_elcfs(cases: Sequence[Case] = CASES, repeats: int = 3) -> dict[str, Any]:
    """Time training steps of FedAvg and ELCFS in turn, and profile one round of ELCFS, with one thread.

    The images are random noise. All times are processor times, so that other programs disturb the results less.

    Returns:
        `rows`, one for each case: `fedavg_ms` and `elcfs_ms`, the median time of a training step; `over_fedavg`, their
        ratio; `over_limit`, this ratio divided by 8/3; `round_s`, the time of a round of two sites with validation and
        the profiler's own overhead; and `parts_s`, seconds by part of the round.
    """
    with deterministic(threads=1):
        return {"repeats": repeats, "rows": [_measure(case, repeats) for case in cases]}


def _measure(case: Case, repeats: int) -> dict[str, Any]:
    """Times of a training step of FedAvg and of ELCFS in milliseconds, and their ratio."""
    parts, elcfs = _profile_round(case)
    step_ms = _time_steps({"fedavg": _fedavg_request(case), "elcfs": elcfs}, repeats)
    ratio = step_ms["elcfs"] / step_ms["fedavg"]
    return {
        "size": case.size,
        "batch_size": case.batch_size,
        "fedavg_ms": step_ms["fedavg"],
        "elcfs_ms": step_ms["elcfs"],
        "over_fedavg": ratio,
        "over_limit": ratio / MIN_RATIO,
        "round_s": sum(parts.values()),
        "parts_s": parts,
    }


def _time_steps(requests: Mapping[str, Request], repeats: int) -> dict[str, float]:
    """The median time of a training step with each method, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(repeats):
        for name, (site, request) in requests.items():
            began = time.process_time()
            n_steps = site.reply(request).facts["steps"]
            times[name].append(1e3 * (time.process_time() - began) / n_steps)
    return {name: statistics.median(step_ms) for name, step_ms in times.items()}


def _fedavg_request(case: Case) -> Request:
    """A site that has trained once with FedAvg, to warm up, and the request to train again."""
    (site, *_), start = _build(case, FedAvg())
    request = Message(Kind.TRAIN, start.weights, FedAvg().broadcast(start, site.name), {"round": 2})
    site.reply(request)
    return site, request


def _profile_round(case: Case) -> tuple[dict[str, float], Request]:
    """Profile the second round of ELCFS; the first round warms up. Returns the seconds of each part, and one of the two
    sites with the request to train a third time."""
    sites, start = _build(case, case.elcfs)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        engine = InProcess(sites, run.path / "sites")
        rounds = federate(case.elcfs, engine, start, Federation(rounds=2), 0, sites[0].settings)
        run.save_round(next(rounds), best_round=1)
        profile = cProfile.Profile(time.process_time, builtins=False)
        profile.enable()
        second = next(rounds)
        run.save_round(second, best_round=1)
        profile.disable()
    profile.create_stats()
    parts = {name: sum(_seconds(profile, *function) for function in functions) for name, functions in PARTS.items()}
    for outer, inner in INSIDE.items():
        parts[outer] -= parts[inner]
    total = sum(own for _, _, own, _, _ in profile.stats.values())
    tensors = case.elcfs.broadcast(second.state, sites[0].name)
    request = Message(Kind.TRAIN, start.weights, tensors, {"round": 3})
    return {**parts, "other": total - sum(parts.values())}, (sites[0], request)


def _seconds(profile: cProfile.Profile, file: str, name: str, caller_file: str) -> float:
    """The total time of the calls of a function: all calls, or those from one file."""
    seconds = 0.0
    for (path, _, function), (_, _, _, all_calls, callers) in profile.stats.items():
        if path.endswith(file) and name in (function, ""):
            calls = [total for (caller, _, _), (_, _, _, total) in callers.items() if caller.endswith(caller_file)]
            seconds += sum(calls) if caller_file else all_calls
    return seconds


def _build(case: Case, method: Method) -> tuple[list[Site], State]:
    """Two sites with images of noise, and the state before the first round."""
    task = Segmentation(("organ",), 1, case.size, (0.0, 1.0))
    with seeded_layers(0, "initial weights"):
        network = method.wrap_network(case.network.build(1, 1), case.network)
    n_validation = max(1, case.n_images // 5)
    sites = [
        Site(
            f"site_{index}",
            noise_slices(index, case.n_images, case.size),
            noise_slices(N_SITES + index, n_validation, case.size),
            task,
            method,
            network,
            case.network,
            Training(batch_size=case.batch_size),
            frozenset(),
            local_epochs=1,
            seed=0,
        )
        for index in range(N_SITES)
    ]
    return sites, State.of(network)


def elcfs_table(result: dict[str, Any]) -> str:
    rows = result["rows"]
    steps = [
        f"  {row['size']:>4} px, batches of {row['batch_size']:<12}{row['fedavg_ms']:>10.1f}{row['elcfs_ms']:>10.1f}"
        f"{row['over_fedavg']:>10.2f}x{row['over_limit']:>9.2f}x"
        for row in rows
    ]
    cells = {
        name: [f"{row['parts_s'][name]:>10.3f}{row['parts_s'][name] / row['round_s']:>8.1%}" for row in rows]
        for name in rows[0]["parts_s"]
    }
    return "\n".join(
        [
            f"a training step of ELCFS and FedAvg, one thread, processor time, median of {result['repeats']}",
            f"  {'':<32}{'FedAvg ms':>10}{'ELCFS ms':>10}{'ratio':>11}{'/ (8/3)':>10}",
            *steps,
            "where the time of a round of ELCFS goes: two sites with validation, processor time in seconds and its "
            "share",
            f"  {'part':<32}" + "".join(f"{row['size']:>7} px{'':>8}" for row in rows),
            *(f"  {name:<32}" + "".join(shares) for name, shares in cells.items()),
        ]
    )
