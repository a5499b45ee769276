"""A training step of the papers' configs on a GPU in bf16, against float32"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from medfed.benchmarks.harness import Row, median_ms, noise, noise_sites
from medfed.config.schema import Config, load
from medfed.core.determinism import deterministic
from medfed.core.registry import shipped_configs
from medfed.engines.in_process import InProcess
from medfed.federation.message import Kind, Message
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.ccst import CCST
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Task

# By name of the config, its number of classes, or 0 for masks of one structure in grey images.
CONFIGS: Mapping[str, int] = {"prostate_paper": 0, "camelyon17_paper": 2, "pacs_stablefdg": 7, "pacs_fisc": 7}


@deterministic(threads=1)
def measure(
    configs: Mapping[str, int] = CONFIGS, repeats: int = 3, n_steps: int = 6, device: str = "cuda"
) -> list[Row]:
    """Network, image size, batch size and optimiser are those of the config; three sites have images of noise. FedAvg
    and the config's method are timed. The memory is the largest that PyTorch held on the GPU. No rows without a GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return []
    rows = []
    for name, n_classes in configs.items():
        config = load(shipped_configs()[name])
        methods: dict[str, Method] = {"fedavg": FedAvg()}
        if isinstance(config.method, FISC):  # the paper's codec needs downloaded weights
            methods["fisc"] = replace(config.method, codec="small")
        elif not isinstance(config.method, CCST):  # its step is one of FedAvg with more images
            methods[config.method_name] = config.method
        for method_name, method in methods.items():
            ms, gib = _measure(config, n_classes, method, "bf16", repeats, n_steps, device)
            peer_ms, peer_gib = _measure(config, n_classes, method, "float32", repeats, n_steps, device)
            work = f"{name}, {method_name}, {config.data.image_size} px, batches of {config.training.batch_size}"
            rows += [Row(work, "float32", ms, peer_ms), Row(work, "float32", gib, peer_gib, "GiB")]
    return rows


def _measure(
    config: Config,
    n_classes: int,
    method: Method,
    precision: Literal["float32", "bf16"],
    repeats: int,
    n_steps: int,
    device: str,
) -> tuple[float, float]:
    """Median milliseconds of a training step, and the peak of the GPU's memory in GiB."""
    size, channels, n_images = config.data.image_size, 3 if n_classes else 1, n_steps * config.training.batch_size
    task: Task = Segmentation(("organ",), channels, size, (0.0, 1.0), standardised="none")
    if n_classes:
        task = Classification(tuple(map(str, range(n_classes))), channels, size)
    images = {site: noise(site, n_images, channels, size, n_classes) for site in "abc"}
    network, training = replace(config.network, weights=""), replace(config.training, precision=precision)
    sites, start = noise_sites(images, task, method, network, training, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = next(federate(method, InProcess(sites, None), start, Federation(rounds=2), 0, training)).state
    request = Message(Kind.TRAIN, start.weights, method.broadcast(state, "a"), {"round": 2})
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ms = median_ms([lambda: sites[0].reply(request)], repeats, time.perf_counter)[0]
    ms /= sites[0].reply(request).facts["steps"]
    return ms, torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
