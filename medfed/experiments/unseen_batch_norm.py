"""BatchNorm at a site that took no part, where those that did keep theirs: whose it gets, and what results say."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from medfed.datasets.base import Case
from medfed.experiments.setup import Experiment
from medfed.functional.weights import batch_norms
from medfed.tasks.classification import AT_ONCE, Classification


def policy(simulation: Experiment) -> str:
    """One of `medfed.federation.method.UnseenBatchNorm`; "" where the sites keep nothing."""
    members = simulation.engine.members
    return members[0].method.unseen_bn if any(site.local_keys for site in members) else ""


def transductive_by(simulation: Experiment) -> list[str]:
    """What made predictions look at test images beside the one that they are of: "tent", "batch_stats", "nearest"."""
    found = policy(simulation)
    return ["tent"] * simulation.task.evaluation.tent + [found] * (found in ("batch_stats", "nearest"))


def nearest(simulation: Experiment, weights: Mapping[str, Tensor], cases: Sequence[Case]) -> dict[str, Tensor]:
    """The model with the entries of the source site whose BatchNorm statistics are nearest to the cases' images.

    Compared where the first BatchNorm begins, as what enters it depends on no entry that sites keep: mean and variance
    of all images there, against each site's running ones (`gaussian_distance`). Labels are not used. A notice says
    which site it was; of equally near sites the first in the alphabet.
    """
    sites = {site.name: site.local_entries() for site in simulation.engine.members if site.local_entries()}
    network = simulation.network
    any_site = next(iter(sites.values()))
    network.load_state_dict({**weights, **any_site})
    device = next(network.parameters()).device
    batches = (simulation.task.standardise(image.to(device)) for image in _images(simulation, cases))
    path, mean, variance = first_norm_input(network.eval(), batches)
    distance = {
        name: gaussian_distance(
            mean, variance, entries[f"{path}.running_mean"].double(), entries[f"{path}.running_var"].double()
        )
        for name, entries in sites.items()
    }
    chosen = min(sorted(distance), key=distance.__getitem__)
    warnings.warn(
        f"{cases[0].site}: is tested with the BatchNorm of {chosen}, whose statistics are the nearest to those of its "
        "unlabelled test images",
        stacklevel=2,
    )
    return {**weights, **sites[chosen]}


def _images(simulation: Experiment, cases: Sequence[Case]) -> Iterator[Tensor]:
    """Prepared images (B, C, S, S), a batch a volume, or so many pictures at a time."""
    if isinstance(simulation.task, Classification):
        found = simulation.task.prepare(cases, lambda case: simulation.dataset.read_image(case, []))
        for start in range(0, len(found), AT_ONCE):
            yield found.batch(range(start, min(start + AT_ONCE, len(found)))).image
        return
    preprocessing = simulation.task.preprocessing()
    for case in cases:
        yield preprocessing({"image": simulation.dataset.load(case).image})["image"].as_tensor().movedim(-1, 0)


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
    path, count, total, squares = "", 0, 0.0, 0.0
    with ExitStack() as hooks:
        for name, norm in batch_norms(network).items():
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


def _leave(path: str):
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
    for norm in batch_norms(found).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return found
