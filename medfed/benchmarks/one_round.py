"""One round of FedAvg with all files that it writes, against plain training loops over the same sites"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from medfed.benchmarks.harness import Row, median_ms, noise, noise_sites
from medfed.core.determinism import cpu_threads
from medfed.core.seeds import stream
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

# Network and batch size of configs/prostate.yaml, and about as many slices as a site of its phantom has.
NETWORK = UNet(features=(16, 16, 32, 64, 128, 16))
TRAINING = Training(batch_size=4)


@cpu_threads(1)
def measure(sizes: Sequence[tuple[int, int]] = ((5, 80), (2, 128)), n_images: int = 84, repeats: int = 3) -> list[Row]:
    """Both do the same steps on the same images of noise; the ratio is 1 if the federation costs nothing. `sizes` are
    the number of sites and the side of the images."""
    rows = []
    for n_sites, size in sizes:
        task = Segmentation(("organ",), 1, size, (0.0, 1.0))
        images = {f"site_{index}": noise(str(index), n_images, 1, size) for index in range(n_sites)}
        sites, start = noise_sites(images, task, FedAvg(), NETWORK, TRAINING)
        federated = partial(_train_federated, sites, start)
        in_loops = partial(_train_in_loops, task, sites[0].network, images, start)
        ms, peer_ms = median_ms([federated, in_loops], repeats, time.perf_counter)
        rows.append(Row(f"{n_sites} sites x {n_images} images, {size} px", "loops in PyTorch", ms, peer_ms))
    return rows


def _train_federated(sites: list[Site], start: State) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        engine = InProcess(sites, run.path / "sites")
        for finished_round in federate(FedAvg(), engine, start, Federation(rounds=1), seed=0):
            run.save_round(finished_round, best_round=1)


def _train_in_loops(task: Segmentation, network: nn.Module, images: Mapping[str, Slices], start: State) -> None:
    for name, samples in images.items():
        network.load_state_dict(start.weights)
        network.train()
        optimizer = torch.optim.Adam(network.parameters(), TRAINING.learning_rate, TRAINING.betas)
        rng = stream(0, name)
        for indices in torch.randperm(len(samples), generator=rng).split(TRAINING.batch_size):
            batch = task.augment(samples.batch(indices.tolist()), rng)
            optimizer.zero_grad()
            task.loss(network(task.standardise(batch.image, batch.moments)), batch.label).backward()
            optimizer.step()
