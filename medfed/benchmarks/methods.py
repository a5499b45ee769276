"""Time of a site's training in one round under each method, relative to FedAvg, on the same images and network.

As in Table 6 of StableFDG and Table 8 of FISC, the local training is timed without what a method does only once. The
methods are timed in turn. Rounds differ in their random draws (StableFDG changes styles with probability 0.5), so the
mean over rounds is reported.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import Samples
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER, Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.base import NetworkSettings
from medfed.networks.resnet import Depth, ResidualNetwork
from medfed.tasks.classification import Classification
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task

N_CLASSES, N_SITES = 7, 3
METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "ccst, k = 1": CCST(k=1),
    "ccst, k = 2": CCST(k=2),
    "elcfs": ELCFS(),
    "stable_fdg": StableFDG(),
    "stable_fdg, style only": StableFDG(attention=False),
    "stable_fdg, attention only": StableFDG(style=False),
    "fisc": FISC(),
}
# Published time relative to FedAvg: Table 6 of StableFDG, seconds on its GPU divided by FedAvg's 4.57.
PUBLISHED = {"ccst, k = 2": 9.03 / 4.57, "elcfs": 22.44 / 4.57, "stable_fdg": 7.39 / 4.57}


def time_methods(
    depth: Depth = 18, size: int = 96, n_images: int = 64, repeats: int = 3, batch_size: int = 32, width: int = 64
) -> dict[str, object]:
    """Time one round of local training at one site with several federated methods, on images of random noise.

    Args:
        depth: number of layers of the ResNet that is trained.
        size: side of the images in pixels.
        n_images: number of images of the timed site.
        repeats: how often each method's round is timed, after a first round that is not counted.
        batch_size: number of images per training step.
        width: number of channels of the ResNet's first stage.

    Returns:
        A dictionary with the arguments (without `width`) by name, with `threads`, the number of threads, and with five
        dictionaries by method name. `train_s` is the mean time of the local training in seconds. `over_fedavg` is
        `train_s` divided by the `train_s` of FedAvg. `share_s` is the time in seconds for computing the shared
        statistics at a site; it is 0 for methods without shared statistics. `once_s` is the time of the first round
        minus `train_s`, in seconds, at least 0. `published` has the value of `over_fedavg` that follows from the times
        in Table 6 of the StableFDG paper, for the methods in that table.
    """
    settings, task = ResidualNetwork(depth=depth, width=width), Classification(tuple("abcdefg"), 3, size)
    training = Training(
        optimizer="sgd", learning_rate=1e-3, momentum=0.9, batch_size=batch_size, optimizer_state="reset"
    )

    def samples(index: int, n_images: int) -> Samples:
        return noise_samples("abc"[index], n_images, size)

    sites = {
        name: prepare_round(method, settings, task, samples, n_images, training) for name, method in METHODS.items()
    }
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for number in range(2, repeats + 3):
        for name, (site, message) in sites.items():
            times[name].append(time_reply(site, replace(message, facts={"round": number}))[0])
    train_s = {name: statistics.mean(seconds[1:]) for name, seconds in times.items()}
    return {
        **{"depth": depth, "size": size, "n_images": n_images, "batch_size": batch_size, "repeats": repeats},
        "threads": torch.get_num_threads(),
        "train_s": train_s,
        "over_fedavg": {name: seconds / train_s["fedavg"] for name, seconds in train_s.items()},
        "share_s": {name: _time_sharing(site, message) for name, (site, message) in sites.items()},
        "once_s": {name: max(0.0, seconds[0] - train_s[name]) for name, seconds in times.items()},
        "published": PUBLISHED,
    }


def prepare_round(
    method: Method,
    settings: NetworkSettings,
    task: Task,
    samples: Callable[[int, int], Samples],
    n_images: int,
    training: Training,
    device: str = "cpu",
) -> tuple[Site, Message]:
    """Return a site that has shared its statistics, and the request with which it trains.

    The federation has `N_SITES` sites.

    Args:
        method: the federated method.
        settings: the network, which gets random weights.
        task: segmentation or classification.
        samples: function that returns the images of a site from its number, from 0, and its number of images.
        n_images: number of images of the site that is returned, the first one. The other sites have 4.
        training: the settings of the local training.
        device: PyTorch device of the network.
    """
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
        for index in range(N_SITES)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = next(federate(method, InProcess(sites, None), start, Federation(rounds=1), 0, training)).state
    message = Message("train", start.weights, method.broadcast(state, "a"), {"round": 2})
    return replace(sites[0], training=samples(0, n_images), memory={}, _expanded=None, _on_device=None), message


def _time_sharing(site: Site, message: Message) -> float:
    """Return the median time in seconds in which a site computes what it shares; 0 if the method shares nothing."""
    if site.method.shares == NEVER:
        return 0.0
    return statistics.median(time_reply(site, replace(message, kind="share"))[0] for _ in range(3))


def time_reply(site: Site, message: Message) -> tuple[float, int]:
    """Return how many seconds a site takes to reply to a request, and the number of its training steps."""
    began = time.perf_counter()
    reply = site.reply(message)
    return time.perf_counter() - began, reply.facts.get("steps", 0)


def noise_samples(name: str, n_images: int, size: int, n_classes: int = N_CLASSES) -> Slices:
    """Return RGB images of random pixels for a site. Image i has class i modulo the number of classes.

    Args:
        name: name of the site, which seeds the random numbers.
        n_images: number of images.
        size: height and width of the images in pixels.
        n_classes: number of classes.
    """
    rng = stream(0, "noise", name)
    images, number = torch.rand(n_images, 3, size, size, generator=rng), torch.arange(n_images)
    return Slices(images, number % n_classes, number)


def methods_table(result: dict) -> str:
    """Format the times of the local training with each method as a text table for the terminal.

    Args:
        result: the result of `time_methods`.

    Returns:
        Several lines of text, without a line break at the end.
    """
    rows = [
        f"  {name:<30}{seconds:>9.2f}{result['over_fedavg'][name]:>10.2f}x"
        + (f"{result['published'][name]:>10.2f}x" if name in result["published"] else f"{'':>11}")
        + f"{result['share_s'][name]:>10.2f}{result['once_s'][name]:>10.2f}"
        for name, seconds in result["train_s"].items()
    ]
    return "\n".join(
        [
            f"a site's round: ResNet{result['depth']}, "
            f"{result['n_images']} images of 3 x {result['size']} x {result['size']}, "
            f"batches of {result['batch_size']}, {result['threads']} threads, mean of {result['repeats']}",
            f"  {'method':<30}{'train s':>9}{'/ FedAvg':>11}{'paper':>11}{'share s':>10}{'once s':>10}",
            *rows,
            "  once: by how much the first round takes longer than the others, for example to restyle the images.",
            "  paper: Table 6 of StableFDG, on its GPU. Table 8 of FISC does not contain FedAvg.",
        ]
    )
