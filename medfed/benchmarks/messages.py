"""Bytes that a site receives and sends in a round, against the limit: the model once down and its update once up.

The limit is what FedAvg needs: the site receives the global weights and sends its own weights. The statistics of a
method are additional. The numbers are sums over the ledger of a federation in one process, in which every message is
recorded as it was sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from medfed.benchmarks.methods import N_CLASSES, noise_samples
from medfed.core.seeds import seeded_layers
from medfed.engines.in_process import InProcess
from medfed.federation.message import State, n_bytes
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.resnet import ResidualNetwork
from medfed.tasks.classification import Classification

METHODS: dict[str, Method] = {"fedavg": FedAvg(), "elcfs": ELCFS(), "stable_fdg": StableFDG()}
SITE = "a"  # the site whose bytes are counted


def count_bytes(width: int = 36, size: int = 32, n_images: int = 8) -> dict[str, Any]:
    """Count the bytes of one site's messages under several methods, with validation in every round.

    Args:
        width: number of channels of the first stage of the ResNet18 that is trained.
        size: height and width of the images in pixels.
        n_images: number of images of each of the three sites.

    Returns:
        A dict with the three arguments and five dictionaries, each with one number for each method, by its name:

        - `model_bytes`: the size of the weights, including the layers that the method adds;
        - `once_down`: the size of the request to share statistics, for a method whose sites share once, else 0;
        - `down` and `up`: the bytes that the site receives and sends in round 2;
        - `over_limit`: the sum of `down` and `up`, divided by twice `model_bytes`.
    """
    settings, task = ResidualNetwork(depth=18, width=width), Classification(tuple("abcdefg"), 3, size)
    results: dict[str, dict[str, float]] = {
        name: {} for name in ("model_bytes", "once_down", "down", "up", "over_limit")
    }
    for name, method in METHODS.items():
        with seeded_layers(0, "initial weights"):
            network = method.wrap_network(settings.build(3, N_CLASSES), settings)
        start = State.of(network)
        results["model_bytes"][name] = model_bytes = sum(map(n_bytes, start.weights.values()))
        training = Training(batch_size=n_images, optimizer_state="reset")
        sites = [
            Site(
                site,
                noise_samples(site, n_images, size),
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
            for site in "abc"
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            first, second = federate(method, InProcess(sites), start, Federation(rounds=2), 0, training)
        once = [row for row in first.ledger if row["kind"] == "share" and method.shares == "once"]
        results["once_down"][name] = _sum_bytes(once, "down")
        results["down"][name], results["up"][name] = (_sum_bytes(second.ledger, way) for way in ("down", "up"))
        results["over_limit"][name] = (results["down"][name] + results["up"][name]) / (2 * model_bytes)
    return {"width": width, "size": size, "n_images": n_images, **results}


def _sum_bytes(rows: Iterable[Mapping[str, Any]], direction: str) -> int:
    """Return the bytes of one site's messages in a direction."""
    return sum(row["bytes"] for row in rows if row["direction"] == direction and row["site"] == SITE)


def messages_table(result: Mapping[str, Any]) -> str:
    """Format the bytes of a site's messages as a text table for the terminal.

    Args:
        result: the result of `count_bytes`.

    Returns:
        Several lines of text, without a line break at the end.
    """
    rows = [
        f"  {name:<30}{result['model_bytes'][name] / 1e6:>10.3f}{result['once_down'][name] / 1e6:>14.3f}"
        f"{result['down'][name] / 1e6:>10.3f}{result['up'][name] / 1e6:>10.3f}{ratio:>12.4f}x"
        for name, ratio in result["over_limit"].items()
    ]
    return "\n".join(
        [
            f"messages of a site: ResNet18, {result['n_images']} images of {result['size']} x {result['size']}, round "
            "2 with validation",
            f"  {'method':<30}{'model MB':>10}{'once down MB':>14}{'down MB':>10}{'up MB':>10}{'/ limit':>13}",
            *rows,
            "  limit: the model once down and once up.",
        ]
    )
