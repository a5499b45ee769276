"""Measure the time of one training step of a planned run on this machine, to convert minutes to steps."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from statistics import median

import torch

from medfed.config.schema import Config
from medfed.core import machine
from medfed.engines.in_process import InProcess
from medfed.experiments.setup import build_network, build_task, local_entries, prepare_device
from medfed.federation.message import State
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task

N_ROUNDS = 4  # the first one is not counted: it computes what a method shares
N_STEPS = 2  # steps of a site in a round
# Assumed part of the wished minutes for training steps; the rest is reading, test and figures.
USABLE = 0.75


def measure_step(config: Config) -> float:
    """Measure the seconds that one training step of a config takes on this machine: the median of a few rounds.

    Two sites train on random images with the network, the method, the image size and the batch size of the config, so
    that the time contains what the method adds to a step. No image of the user is read.

    Args:
        config: the config of the planned run.

    Raises:
        UserError: if the network, the method and the images do not fit together.
    """
    task = build_task(config, config.data)
    network = build_network(config.network, config.method, task, config.seed).to(prepare_device(config))
    local_keys = local_entries(config, network)
    n_images = N_STEPS * max(config.training.batch_size, config.data.min_patients)
    training = replace(config.training, batch_size=n_images // N_STEPS)
    sites = [
        Site(
            name,
            _noise(task, n_images, number),
            None,
            task,
            config.method,
            network,
            config.network,
            training,
            local_keys,
            local_epochs=1,
            seed=config.seed,
            rounds=N_ROUNDS,
            cache=config.cache,
        )
        for number, name in enumerate("ab")
    ]
    times_s = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the random images
        rounds = federate(
            config.method, InProcess(sites), State.of(network), Federation(rounds=N_ROUNDS), config.seed, training
        )
        for _ in range(N_ROUNDS):
            began = time.perf_counter()
            next(rounds)
            times_s.append(time.perf_counter() - began)
    return median(times_s[1:]) / (len(sites) * N_STEPS)


def steps_in(minutes: float, step_s: float, n_sites: int) -> int:
    """Return how many training steps of all sites together fit into some minutes on this machine.

    Args:
        minutes: the wished duration of a run, above 0.
        step_s: seconds of one step, from `measure_step`.
        n_sites: number of sites that train. At most this many cores work at the same time.
    """
    return int(minutes * 60 * USABLE * min(machine.n_cores(), n_sites) / step_s)


def describe_machine(step_s: float, n_sites: int) -> str:
    """Return how a measured time was used, as a clause for a comment or the terminal."""
    n_cores = min(machine.n_cores(), n_sites)
    return f"a step takes {step_s:.2g} s on this machine, and {n_cores} site{'s' if n_cores > 1 else ''} work at a time"


def _noise(task: Task, n_images: int, seed: int) -> Slices:
    """Return random images of different patients: with masks with a third of foreground, or with classes in turn."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(n_images, task.channels, task.image_size, task.image_size, generator=rng)
    if task.uses_decoder:
        shape = (n_images, task.out_channels, task.image_size, task.image_size)
        labels = (torch.rand(shape, generator=rng) < 1 / 3).to(torch.uint8)
    else:
        labels = torch.arange(n_images) % task.out_channels
    moments = [task.moments_of(image[None]) for image in images]
    known = [value for value in moments if value is not None]
    return Slices(images, labels, torch.arange(n_images), torch.cat(known) if known else None)
