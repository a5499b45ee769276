"""Time of one round of FedAvg with medfed, against plain training loops over the same sites without a federation.

Both do the same optimiser steps on the same images with the same network, and are timed in turn. The difference is what
the federation adds: messages as bytes, the ledger, each site's file, the average, and the checkpoint.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.message import State
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.methods.fedavg import FedAvg
from medfed.networks.unet import UNet
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices

# Network, batch and image size of configs/prostate.yaml, and about as many slices as a site of its phantom has.
NETWORK = UNet(features=(16, 16, 32, 64, 128, 16))
TRAINING = Training(batch_size=4)


def time_round(size: int = 80, n_sites: int = 5, n_images: int = 84, repeats: int = 3) -> dict[str, float | int]:
    """Time one round of FedAvg with medfed, and the same training steps in plain loops without a federation.

    The sites train a small U-Net for segmentation on images of random noise, after one training step at each to warm
    up.

    Returns:
        The arguments, `threads`, the median seconds `bare_s` and `federated_s`, and `federated_over_bare`, their ratio.
    """
    task = Segmentation(("organ",), 1, size, (0.0, 1.0))
    with seeded_layers(0, "initial weights"):
        network = NETWORK.build(1, 1)
    start = State.of(network)
    times: dict[str, list[float]] = {"bare": [], "federated": []}
    _time_variants(task, network, _noise_sites(n_sites, TRAINING.batch_size, size), start)  # warms up
    data = _noise_sites(n_sites, n_images, size)
    for _ in range(repeats):
        for name, seconds in _time_variants(task, network, data, start).items():
            times[name].append(seconds)
    median = {f"{name}_s": statistics.median(seconds) for name, seconds in times.items()}
    return {
        **{"size": size, "n_sites": n_sites, "n_images": n_images, "repeats": repeats},
        "threads": torch.get_num_threads(),
        **median,
        "federated_over_bare": median["federated_s"] / median["bare_s"],
    }


def _time_variants(
    task: Segmentation, network: torch.nn.Module, data: dict[str, Slices], start: State
) -> dict[str, float]:
    """Seconds of one round without and with the federation."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "bare": _time_call(partial(_train_without_federation, task, network, data, start)),
            "federated": _time_call(partial(_train_federated, task, network, data, start, Path(folder))),
        }


def _noise_sites(n_sites: int, n_images: int, size: int) -> dict[str, Slices]:
    return {f"site_{index}": noise_slices(index, n_images, size) for index in range(n_sites)}


def _train_without_federation(
    task: Segmentation, network: torch.nn.Module, data: dict[str, Slices], start: State
) -> None:
    """Train one site after another with a plain loop over its batches."""
    for name, samples in data.items():
        network.load_state_dict(start.weights)
        network.train()
        optimizer = torch.optim.Adam(network.parameters(), TRAINING.learning_rate, TRAINING.betas)
        rng = stream(0, name)
        for indices in torch.randperm(len(samples), generator=rng).split(TRAINING.batch_size):
            batch = task.augment(samples.batch(indices.tolist()), rng)
            optimizer.zero_grad()
            task.loss(network(task.standardise(batch.image, batch.moments)), batch.label).backward()
            optimizer.step()


def _train_federated(
    task: Segmentation, network: torch.nn.Module, data: dict[str, Slices], start: State, folder: Path
) -> None:
    """Do one round as `medfed.train` does it, with all files that it writes."""
    method, run = FedAvg(), RunFolder(folder)
    sites = [
        Site(name, samples, None, task, method, network, NETWORK, TRAINING, frozenset(), local_epochs=1, seed=0)
        for name, samples in data.items()
    ]
    engine = InProcess(sites, run.path / "sites")
    for finished_round in federate(method, engine, start, Federation(rounds=1), seed=0):
        run.save_round(finished_round, best_round=1)


def noise_slices(index: int, n_images: int, size: int) -> Slices:
    """Random images with random masks of one structure, each of another patient; `index` seeds the random numbers."""
    rng = stream(0, "noise", index)
    images = torch.rand(n_images, 1, size, size, generator=rng)
    labels = (torch.rand(n_images, 1, size, size, generator=rng) > 0.5).to(torch.uint8)
    return Slices(images, labels, torch.arange(n_images))


def _time_call(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def round_table(result: dict[str, float | int]) -> str:
    overhead = 100 * (result["federated_over_bare"] - 1)
    return "\n".join(
        [
            f"one round of FedAvg: {result['n_sites']} sites x {result['n_images']} images, {result['size']} x "
            f"{result['size']}, {result['threads']} threads, median of {result['repeats']}",
            f"  {'implementation':<30}{'s':>9}",
            f"  {'bare training loops':<30}{result['bare_s']:>9.3f}",
            f"  {'federated, all files written':<30}{result['federated_s']:>9.3f}",
            f"  the federation adds {overhead:+.1f} %",
        ]
    )
