"""BatchNorm at sites that did not train, for methods whose sites keep their own BatchNorm entries (FedBN).

The method's `unseen_bn` decides which entries such a site gets: the average of the source sites, the statistics of each
batch of test images, or the entries of the source site whose statistics are nearest.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_layers
from medfed.tasks.task import Task


def unseen_bn_of(source_sites: Sequence[Site]) -> str:
    """Return the method's `unseen_bn`, the rule for sites that did not train; "" if no entries stay at the sites."""
    return source_sites[0].method.unseen_bn if any(site.local_keys for site in source_sites) else ""


def weights_of_nearest_site(
    source_sites: Sequence[Site],
    network: nn.Module,
    task: Task,
    weights: Mapping[str, Tensor],
    name: str,
    images: Iterable[Tensor],
) -> dict[str, Tensor]:
    """Return `weights` with the BatchNorm entries of the source site whose running statistics in the first BatchNorm
    layer are nearest to the features of the images (B, C, S, S), in [0, 1], of the site `name` (`gaussian_distance`).
    Among equal distances, the first site in alphabetical order is chosen."""
    sites = {site.name: site.local_entries() for site in source_sites if site.local_entries()}
    network.load_state_dict({**weights, **next(iter(sites.values()))})
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
    reason = "whose statistics are the nearest to those of the unlabelled test images of the tested site"
    if len(distance) > 1 and len(set(distance.values())) == 1:  # BatchNorm that was frozen, for example
        reason = "the first site, because all sites have the same statistics"
    warnings.warn(f"{name}: is tested with the BatchNorm of {nearest}, {reason}", stacklevel=2)
    return {**weights, **sites[nearest]}


@torch.no_grad()
def first_norm_input(network: nn.Module, batches: Iterable[Tensor]) -> tuple[str, Tensor, Tensor]:
    """Return the path of the BatchNorm layer that runs first, and mean and variance (D,) of its D input channels over
    images and pixels, float64. The network is in evaluation mode; the batches (B, C, H, W) are standardised."""
    path, count, reached = "", 0, list[tuple[str, Tensor]]()  # the layer that runs first in this pass, and its input

    def note(name: str, module: nn.Module, inputs: tuple) -> None:
        if not reached:
            reached.append((name, inputs[0]))

    total, squares = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    layers = batch_norm_layers(network).items()
    hooks = [norm.register_forward_pre_hook(partial(note, name)) for name, norm in layers]
    for batch in batches:
        network(batch)
        if reached:
            path, features = reached.pop()
            rows = features.double().transpose(0, 1).flatten(1).cpu()
            count, total, squares = count + rows.shape[1], total + rows.sum(1), squares + rows.square().sum(1)
    for hook in hooks:
        hook.remove()
    if not path:
        raise ValueError("the network ran no BatchNorm, or there was no batch; expected at least one of each")
    mean = total / count
    return path, mean, (squares / count - mean.square()).clamp(min=0)


def gaussian_distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """Return the squared 2-Wasserstein distance of two Gaussians, relative to the second variance, averaged over
    channels. It is ((m - m')^2 + (s - s')^2) / s'^2 for means m, m' and standard deviations s, s', all (C,). If s' is
    0, it is 0 for two equal Gaussians, and infinite otherwise."""
    gap = (mean - other_mean).square() + (variance.sqrt() - other_variance.sqrt()).square()
    return float(torch.where(gap == 0, 0.0, gap / other_variance).mean())


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode in which every BatchNorm layer normalises with the statistics of the present
    batch. The prediction for an image depends on the other images of its batch. The parameters require no gradient."""
    adapted = copy.deepcopy(network).requires_grad_(False).eval()
    for module in batch_norm_layers(adapted).values():
        norm = cast(_BatchNorm, module)
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return adapted
