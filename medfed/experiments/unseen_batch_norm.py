"""BatchNorm at a site that took no part, where those that did keep theirs: whose it gets, and what results say."""

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


def unseen_bn_of(members: Sequence[Site]) -> str:
    """One of `medfed.federation.method.UnseenBatchNorm`; "" where the sites keep nothing."""
    return members[0].method.unseen_bn if any(site.local_keys for site in members) else ""


def transductive_by(task: Task, members: Sequence[Site]) -> list[str]:
    """What made predictions depend on other test images: "tent", "batch_stats", "nearest"."""
    found = unseen_bn_of(members)
    return ["tent"] * task.evaluation.tent + [found] * (found in ("batch_stats", "nearest"))


def weights_of_nearest_site(
    members: Sequence[Site], network: nn.Module, task: Task, weights: Mapping[str, Tensor], name: str,
    images: Iterable[Tensor],
) -> dict[str, Tensor]:
    """The model with the entries of the source site whose BatchNorm statistics are nearest to a site's images.

    Compared where the first BatchNorm begins, as what enters it depends on no entry that sites keep: mean and variance
    of all images there, against each site's running ones (`gaussian_distance`). Labels are not used. A notice says
    which site it was; of equally near sites the first in the alphabet.

    Args:
        network: scratch space.
        name: of the site that took no part.
        images: prepared images of it, (B, C, S, S).
    """
    sites = {site.name: site.local_entries() for site in members if site.local_entries()}
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
    chosen = min(sorted(distance), key=distance.__getitem__)
    warnings.warn(
        f"{name}: is tested with the BatchNorm of {chosen}, whose statistics are the nearest to those of its "
        "unlabelled test images",
        stacklevel=2,
    )
    return {**weights, **sites[chosen]}


class _Entered(Exception):
    """Leaves a forward pass where the first BatchNorm begins."""

    def __init__(self, path: str, features: Tensor) -> None:
        super().__init__()
        self.path, self.features = path, features


@torch.no_grad()
def first_norm_input(network: nn.Module, batches: Iterable[Tensor]) -> tuple[str, Tensor, Tensor]:
    """The path of the BatchNorm that runs first; mean (C,) and variance (C,), float64, of what enters it.

    Over all images and pixels. Sites that differ in BatchNorm entries alone agree on these, and on nothing behind.

    Args:
        network: in evaluation mode, with a BatchNorm.
        batches: at least one, (B, C, H, W) as the network takes them.
    """
    path, count = "", 0
    total, squares = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    with ExitStack() as hooks:
        for name, norm in batch_norm_layers(network).items():
            hooks.callback(norm.register_forward_pre_hook(_leave(name)).remove)
        for batch in batches:
            try:
                network(batch)
            except _Entered as entered:
                path, rows = entered.path, entered.features.double().transpose(0, 1).flatten(1).cpu()
                count, total, squares = count + rows.shape[1], total + rows.sum(1), squares + rows.square().sum(1)
    if not path:
        raise ValueError("no BatchNorm ran, or there was no batch")
    mean = total / count
    return path, mean, (squares / count - mean.square()).clamp(min=0)


def _leave(path: str) -> Callable[[nn.Module, tuple], None]:
    def hook(module: nn.Module, inputs: tuple) -> None:
        raise _Entered(path, inputs[0])

    return hook


def gaussian_distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """Squared 2-Wasserstein distance of Gaussians, channel by channel, in units of the other's variance; the mean.

    ((m - m')^2 + (s - s')^2) / s'^2. A channel with s' = 0 counts 0 if m = m' and s = 0; else it is infinitely far.
    """
    gap = (mean - other_mean).square() + (variance.sqrt() - other_variance.sqrt()).square()
    return float(torch.where(gap == 0, 0.0, gap / other_variance).mean())


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """A copy in evaluation mode in which every BatchNorm has forgotten its running statistics, and so uses the batch's.

    Nothing learns. Transductive: what it says of an image depends on those beside it (it is Tent without the step).
    """
    found = copy.deepcopy(network).requires_grad_(False).eval()
    for module in batch_norm_layers(found).values():
        norm = cast(_BatchNorm, module)
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return found
