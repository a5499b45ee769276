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
    """Return the rule for the BatchNorm entries of a site without training (for methods such as FedBN).

    The rule is needed if each site that trains keeps its own BatchNorm entries.

    Args:
        source_sites: the sites that trained; at least one.

    Returns:
        The value of the method's `unseen_bn`; "" if no entries of the network stay at the sites. "average": the mean of
        the entries of the sites that trained. "batch_stats": this mean, but each batch of test images is normalised by
        the statistics of the batch. "nearest": the entries of the most similar site that trained.
    """
    return source_sites[0].method.unseen_bn if any(site.local_keys for site in source_sites) else ""


def weights_of_nearest_site(
    source_sites: Sequence[Site],
    network: nn.Module,
    task: Task,
    weights: Mapping[str, Tensor],
    name: str,
    images: Iterable[Tensor],
) -> dict[str, Tensor]:
    """Return the weights for a site that did not train, with the BatchNorm entries of the most similar source site.

    The images of the site that did not train pass through the network up to the first BatchNorm layer. The mean and
    variance of the features that enter this layer are compared with the layer's running statistics at each source site
    (`gaussian_distance`). The source site with the smallest distance is chosen; among equal distances, the first one in
    alphabetical order. Labels are not used. A warning names the chosen site.

    Args:
        source_sites: the sites that trained; at least one must have entries of the network that it never sends.
        network: a network to compute with; its weights are overwritten.
        task: standardises the images.
        weights: the global weights, as a state dict.
        name: name of the site that did not train, for the warning.
        images: batches of the images of this site, each (B, C, S, S) with the image size S, in [0, 1], not
            standardised.

    Returns:
        A new state dict: `weights`, together with the entries of the network that the chosen site never sends.
    """
    sites = {site.name: site.local_entries() for site in source_sites if site.local_entries()}
    any_site = next(iter(sites.values()))
    network.load_state_dict({**weights, **any_site})
    device = next(network.parameters()).device
    batches = (task.standardise(image.to(device), task.moments_of(image)) for image in images)
    path, mean, variance = first_norm_input(network.eval(), batches)
    distance = {
        site: gaussian_distance(
            mean, variance, entries[f"{path}.running_mean"].double(), entries[f"{path}.running_var"].double()
        )
        for site, entries in sites.items()
    }
    nearest = min(sorted(distance), key=distance.__getitem__)
    is_tie = len(distance) > 1 and len(set(distance.values())) == 1  # BatchNorm that was frozen, for example
    reason = (
        "the first site, because all sites have the same statistics"
        if is_tie
        else "whose statistics are the nearest to those of the unlabelled test images of the tested site"
    )
    warnings.warn(f"{name}: is tested with the BatchNorm of {nearest}, {reason}", stacklevel=2)
    return {**weights, **sites[nearest]}


class _NormReached(Exception):
    """Ends a forward pass at the input of the first BatchNorm."""

    def __init__(self, path: str, features: Tensor) -> None:
        super().__init__()
        self.path, self.features = path, features


@torch.no_grad()
def first_norm_input(network: nn.Module, batches: Iterable[Tensor]) -> tuple[str, Tensor, Tensor]:
    """Compute the mean and variance of the features that enter a network's first BatchNorm layer.

    The first layer is the one that runs first. Networks that differ only in BatchNorm entries compute the same features
    up to this layer.

    Args:
        network: a network with a BatchNorm layer, in evaluation mode.
        batches: one or more batches (B, C, H, W) of images, standardised as the network expects them.

    Returns:
        Three values: the dotted path of the layer, such as `encoder.norm1`; and for each of the D channels that enter
        the layer, the mean (D,) and the variance (D,) over all images and pixels, float64, on the CPU.

    Raises:
        ValueError: if the network has no BatchNorm layer or there is no batch.
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
    """Return the squared 2-Wasserstein distance of two Gaussians, relative to the second one, averaged over channels.

    For a channel in which the Gaussians have the means m and m' and the standard deviations s and s', the distance is
    ((m - m')^2 + (s - s')^2) / s'^2. If s' is 0, the distance is 0 for two equal Gaussians, and infinite otherwise.

    Args:
        mean: (C,), the mean m of the first Gaussian in each channel.
        variance: (C,), the variance s^2 of the first Gaussian, at least 0.
        other_mean: (C,), the mean m' of the second Gaussian.
        other_variance: (C,), the variance s'^2 of the second Gaussian, at least 0.

    Returns:
        The distance, at least 0.
    """
    gap = (mean - other_mean).square() + (variance.sqrt() - other_variance.sqrt()).square()
    return float(torch.where(gap == 0, 0.0, gap / other_variance).mean())


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """Return a copy of a network in which every BatchNorm layer normalises with the statistics of the present batch.

    The copy is in evaluation mode and its parameters require no gradient. The prediction of the copy for an image
    depends on the other images of the batch.

    Args:
        network: the network; it is not changed.
    """
    adapted = copy.deepcopy(network).requires_grad_(False).eval()
    for module in batch_norm_layers(adapted).values():
        norm = cast(_BatchNorm, module)
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return adapted
