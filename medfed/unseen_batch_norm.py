"""BatchNorm at a site that took no part, where those that did keep theirs: whose it gets, and what results say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from medfed.datasets.base import Case
from medfed.functional.norm_inputs import first_norm_input, gaussian_distance
from medfed.simulation import Simulation
from medfed.tasks.classification import AT_ONCE, Classification


def policy(simulation: Simulation) -> str:
    """One of `medfed.federation.method.UNSEEN_BATCH_NORM`; "" where the sites keep nothing."""
    members = simulation.engine.members
    return members[0].method.unseen_bn if any(site.local_keys for site in members) else ""


def transductive_by(simulation: Simulation) -> list[str]:
    """What made predictions look at test images beside the one that they are of: "tent", "batch_stats", "nearest"."""
    found = policy(simulation)
    return ["tent"] * simulation.task.evaluation.tent + [found] * (found in ("batch_stats", "nearest"))


def nearest(simulation: Simulation, weights: Mapping[str, Tensor], cases: Sequence[Case]) -> dict[str, Tensor]:
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


def _images(simulation: Simulation, cases: Sequence[Case]) -> Iterator[Tensor]:
    """Prepared images (B, C, S, S), a batch a volume, or so many pictures at a time."""
    if isinstance(simulation.task, Classification):
        found = simulation.task.prepare(cases, lambda case: simulation.dataset.read_image(case, []))
        for start in range(0, len(found), AT_ONCE):
            yield found.batch(range(start, min(start + AT_ONCE, len(found)))).image
        return
    preprocessing = simulation.task.preprocessing()
    for case in cases:
        yield preprocessing({"image": simulation.dataset.load(case).image})["image"].as_tensor().movedim(-1, 0)
