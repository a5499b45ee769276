"""BatchNorm at sites that did not train, for methods whose sites keep their own BatchNorm entries (FedBN).

The method's `unseen_bn` decides which entries such a site gets: the average of the source sites, the statistics of each
batch of test images, or the entries of the source site whose statistics are nearest.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_layers
from medfed.tasks.task import Task


def unseen_bn_of(source_sites: Sequence[Site]) -> str:
    """Return the method's `unseen_bn`, or "" if the sites keep no entries of the network to themselves."""
    return source_sites[0].method.unseen_bn if any(site.local_keys for site in source_sites) else ""


def transductive_by(task: Task, source_sites: Sequence[Site]) -> list[str]:
    """Return what makes a prediction depend on other test images: some of "tent", "batch_stats" and "nearest"."""
    unseen_bn = unseen_bn_of(source_sites)
    return ["tent"] * task.evaluation.tent + [unseen_bn] * (unseen_bn in ("batch_stats", "nearest"))


def weights_of_nearest_site(
    source_sites: Sequence[Site], network: nn.Module, task: Task, weights: Mapping[str, Tensor], name: str,
    images: Iterable[Tensor],
) -> dict[str, Tensor]:
    """Return the state dict with the local entries of the source site whose BatchNorm statistics are nearest.

    The mean and variance of all features that enter the first BatchNorm are compared with each source site's running
    statistics there (`gaussian_distance`). These features depend on no entry that differs between the sites. Labels
    are not used. A notice names the chosen site; of equally near sites it is the first in alphabetical order.

    Args:
        source_sites: the sites that trained.
        network: a network to compute with; its weights are overwritten.
        task: standardises the images.
        weights: the global state dict.
        name: name of the site that did not train, for the notice.
        images: its prepared images, (B, C, S, S) each.
    """
    sites = {site.name: site.local_entries() for site in source_sites if site.local_entries()}
    any_site = next(iter(sites.values()))
    network.load_state_dict({**weights, **any_site})
    device = next(network.parameters()).device
    batches = (task.standardise(image.to(device)) for image in images)
    path, mean, variance = first_norm_input(network.eval(), batches)
    distance = {
        site: gaussian_distance(
            mean, variance, entries[f"{path}.running_mean"].double(), entries[f"{path}.running_var"].double()
        )
        for site, entries in sites.items()
    }
    nearest = min(sorted(distance), key=distance.__getitem__)
    warnings.warn(
        f"{name}: is tested with the BatchNorm of {nearest}, whose statistics are the nearest to those of its "
        "unlabelled test images",
        stacklevel=2,
    )
    return {**weights, **sites[nearest]}


class _NormReached(Exception):
    """Ends a forward pass at the input of the first BatchNorm."""

    def __init__(self, path: str, features: Tensor) -> None:
        super().__init__()
        self.path, self.features = path, features


@torch.no_grad()
def first_norm_input(network: nn.Module, batches: Iterable[Tensor]) -> tuple[str, Tensor, Tensor]:
    """Return the path of the first BatchNorm, and mean and variance of the features that enter it.

    Sites whose networks differ only in BatchNorm entries compute the same features up to there, and none behind it.

    Args:
        network: a network with a BatchNorm, in evaluation mode.
        batches: one or more batches (B, C, H, W), as the network takes them.

    Returns:
        The dotted path of the layer; mean (C,) and variance (C,) over all images and pixels, float64.

    Raises:
        ValueError: if the network has no BatchNorm or there is no batch.
    """
    path, count = "", 0
    total, squares = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    with ExitStack() as hooks:
        for name, norm in batch_norm_layers(network).items():
            hooks.callback(norm.register_forward_pre_hook(_stop_at(name)).remove)
        for batch in batches:
            try:
                network(batch)
            except _NormReached as reached:
                path, rows = reached.path, reached.features.double().transpose(0, 1).flatten(1).cpu()
                count, total, squares = count + rows.shape[1], total + rows.sum(1), squares + rows.square().sum(1)
    if not path:
        raise ValueError("the network ran no BatchNorm, or there was no batch; expected at least one of each")
    mean = total / count
    return path, mean, (squares / count - mean.square()).clamp(min=0)


def _stop_at(path: str) -> Callable[[nn.Module, tuple], None]:
    def hook(module: nn.Module, inputs: tuple) -> None:
        raise _NormReached(path, inputs[0])

    return hook


def gaussian_distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """Return the mean over channels of the squared 2-Wasserstein distance of two Gaussians, relative to the second.

    For one channel with means m, m' and standard deviations s, s': ((m - m')^2 + (s - s')^2) / s'^2. If s' is 0, the
    channel's distance is 0 for m = m' and s = 0, and infinite otherwise.

    Args:
        mean, variance: (C,), of the first Gaussian.
        other_mean, other_variance: (C,), of the second.
    """
    gap = (mean - other_mean).square() + (variance.sqrt() - other_variance.sqrt()).square()
    return float(torch.where(gap == 0, 0.0, gap / other_variance).mean())


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """Return a copy of the network in which every BatchNorm uses the statistics of the batch, in evaluation mode.

    The copy does not learn. It is transductive: the prediction for an image depends on the other images of the batch
    (as in Tent, without its training step).
    """
    adapted = copy.deepcopy(network).requires_grad_(False).eval()
    for module in batch_norm_layers(adapted).values():
        norm = cast(_BatchNorm, module)
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return adapted
