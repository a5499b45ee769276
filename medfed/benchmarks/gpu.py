"""Time and memory of a training step of the shipped paper configs on a GPU, in float32 and in bf16.

Network, image size, batch size, optimiser and method are those of the config. The images are random noise and the
first weights are random, because neither changes the time.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from medfed.benchmarks.federated_round import noise_slices
from medfed.config.schema import load
from medfed.core.determinism import allow_faster_algorithms, set_deterministic
from medfed.core.registry import shipped_configs
from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import Samples
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.networks.parts.base import NetworkSettings
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task

Cases = Mapping[str, tuple[int, tuple[str, ...]]]
# By name of the config, its number of classes (0 for masks of one structure in grey images). A site's training step in
# CCST is FedAvg's with more images, so FedAvg is timed instead; the codec of the paper's FISC needs downloaded weights.
CASES: Cases = {
    "prostate_paper": (0, ("fedavg", "elcfs")),
    "camelyon17_paper": (2, ("fedavg",)),
    "pacs_stablefdg": (7, ("fedavg", "stable_fdg")),
    "pacs_fisc": (7, ("fedavg", "fisc")),
}
VARIANTS: dict[str, tuple[Literal["float32", "bf16"], bool]] = {  # precision, deterministic
    "float32": ("float32", True),
    "bf16": ("bf16", True),
    "float32, not deterministic": ("float32", False),
    "bf16, not deterministic": ("bf16", False),
}


def time_gpu(cases: Cases = CASES, repeats: int = 3, n_steps: int = 6, device: str = "cuda") -> dict[str, Any]:
    """Time the local training of one site on a GPU under the settings of the shipped paper configs.

    Args:
        cases: name of a shipped config -> the number of its classes (0: masks) and the methods to time: "fedavg" or the
            config's own.
        repeats: how often the training is timed in each variant, after a training that is not counted.
        device: on "cpu" the peaks are 0, and all variants are deterministic.

    Returns:
        `gpu`, its name or "", and `rows`, empty without a GPU, with dicts by name of a variant: `step_ms`, the median
        time of a training step, and `peak_gib`, the largest memory that PyTorch held on the GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return {"gpu": "", "repeats": repeats, "rows": []}
    rows = [
        _measure(name, n_classes, method, repeats, n_steps, device)
        for name, (n_classes, methods) in cases.items()
        for method in methods
    ]
    return {"gpu": torch.cuda.get_device_name() if device == "cuda" else device, "repeats": repeats, "rows": rows}


def _measure(name: str, n_classes: int, method_name: str, repeats: int, n_steps: int, device: str) -> dict[str, Any]:
    """A row of the table: a config with one method, in all variants."""
    config = load(shipped_configs()[name])
    size, batch_size = config.data.image_size, config.training.batch_size
    method = FedAvg() if method_name == "fedavg" else _with_small_codec(config.method)
    task: Task = Segmentation(("organ",), 1, size, (0.0, 1.0), standardised="none")
    if n_classes:
        task = Classification(tuple(map(str, range(n_classes))), 3, size)

    def samples(index: int, n_images: int) -> Samples:
        if n_classes:
            return _noise_samples(str(index), n_images, size, n_classes)
        return noise_slices(index, n_images, size)

    step_ms, peak_gib = {}, {}
    for variant, (precision, is_deterministic) in VARIANTS.items():
        set_deterministic(threads=1)
        if not is_deterministic and device == "cuda":
            allow_faster_algorithms()
        training, network = replace(config.training, precision=precision), replace(config.network, weights="")
        request = _prepare_round(method, network, task, samples, n_steps * batch_size, training, device)
        step_ms[variant], peak_gib[variant] = _time_steps(*request, repeats, device)
    set_deterministic(threads=1)
    return {
        "config": name,
        "method": method_name,
        "size": size,
        "batch_size": batch_size,
        "step_ms": step_ms,
        "peak_gib": peak_gib,
    }


def _noise_samples(name: str, n_images: int, size: int, n_classes: int) -> Slices:
    """RGB images of random pixels for a site; image i has class i modulo the number of classes."""
    rng = stream(0, "noise", name)
    images, number = torch.rand(n_images, 3, size, size, generator=rng), torch.arange(n_images)
    return Slices(images, number % n_classes, number)


def _prepare_round(
    method: Method,
    settings: NetworkSettings,
    task: Task,
    samples: Callable[[int, int], Samples],
    n_images: int,
    training: Training,
    device: str,
) -> tuple[Site, Message]:
    """The first of three sites, with `n_images` images and shared statistics, and the request to train. `samples`
    returns the images of a site from its number and its number of images. The other sites have 4 images."""
    with seeded_layers(0, "initial weights"):
        network = method.wrap_network(settings.build(task.channels, task.out_channels), settings).to(device)
    start = State.of(network)
    sites = [
        Site(
            "abc"[index],
            samples(index, 4),
            None,
            task,
            method,
            network,
            settings,
            training,
            frozenset(),
            local_epochs=1,
            seed=0,
        )
        for index in range(3)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = next(federate(method, InProcess(sites, None), start, Federation(rounds=1), 0, training)).state
    message = Message(Kind.TRAIN, start.weights, method.broadcast(state, "a"), {"round": 2})
    return replace(sites[0], training=samples(0, n_images), memory={}, _expanded=None, _on_device=None), message


def _time_steps(site: Site, message: Message, repeats: int, device: str) -> tuple[float, float]:
    """The median time of a training step in milliseconds, and the peak of the GPU's memory in GiB."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times_ms = []
    for number in range(2, repeats + 3):
        seconds, n_steps = _time_reply(site, replace(message, facts={"round": number}))
        times_ms.append(1e3 * seconds / n_steps)
    peak_bytes = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return statistics.median(times_ms[1:]), peak_bytes / 2**30


def _time_reply(site: Site, message: Message) -> tuple[float, int]:
    """Seconds of a reply to a request, and the number of its training steps."""
    began = time.perf_counter()
    reply = site.reply(message)
    return time.perf_counter() - began, reply.facts.get("steps", 0)


def _with_small_codec(method: Method) -> Method:
    """FISC with the codec that needs no downloaded weights; other methods unchanged."""
    return replace(method, codec="small") if isinstance(method, FISC) else method


def gpu_table(result: dict[str, Any]) -> str:
    if not result["gpu"]:
        return "a training step of the paper configs on a GPU: not measured, because PyTorch found no CUDA GPU"
    rows = [
        f"  {row['config']:<18}{row['method']:<12}{row['size']:>5}{row['batch_size']:>6}"
        + "".join(f"{row['step_ms'][variant]:>10.1f}{row['peak_gib'][variant]:>7.2f}" for variant in VARIANTS)
        for row in result["rows"]
    ]
    return "\n".join(
        [
            f"a training step of the paper configs on {result['gpu']}: milliseconds and peak GiB, median of "
            f"{result['repeats']}",
            f"  {'':<41}{'deterministic':>34}{'not deterministic':>34}",
            f"  {'config':<18}{'method':<12}{'px':>5}{'batch':>6}" + 2 * f"{'float32 ms, GiB':>17}{'bf16 ms, GiB':>17}",
            *rows,
        ]
    )
