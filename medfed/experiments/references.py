"""The rows of a comparison that are no federated method, and rows with the effort of another method, as configs.

`pooled` trains on the images of all source sites in one place, and `local` at each source site alone. Both are FedAvg
with one participant, whose average is its own weights, so they use the same training loop as every other row.
"""

from __future__ import annotations

from dataclasses import fields

from medfed.config.schema import Config, changed
from medfed.core.errors import UserError
from medfed.federation.method import Effort
from medfed.federation.settings import Federation
from medfed.results.row import LOCAL, POOLED, ComparisonRow

# Settings of a federation that have no meaning for one participant.
_UNUSED = (
    "clients",
    "partition",
    "mixing",
    "concentration",
    "min_images",
    "clients_per_round",
    "quorum",
    "engine",
    "survey",
)


def with_effort(config: Config, row: ComparisonRow, effort: Effort, n_clients: int) -> Config:
    """Return a config of FedAvg that takes as many optimiser steps and images as another method, by its `effort`.

    More local epochs give the images, and larger batches if the other method adds copies to its batches. `pooled` also
    multiplies its batches by the number of clients: it takes the steps of one client, and sees the images of all. Steps
    are equal up to the rounding of an epoch's last batch. UserError if whole epochs and batches cannot give the effort.
    """
    epochs = config.federation.local_epochs * effort.images
    images_per_step = config.training.batch_size * effort.images / effort.steps
    if epochs != int(epochs) or images_per_step != int(images_per_step):
        raise UserError(
            f"--methods {row.method}: the method takes {effort.steps:g} times the steps and {effort.images:g} times "
            f"the images of FedAvg, which needs {epochs:g} local epochs with batches of {images_per_step:g} images; "
            "expected whole numbers; choose another federation.local_epochs or training.batch_size"
        )
    if row.arrangement == POOLED:
        images_per_step *= n_clients
    return changed(config, {"federation.local_epochs": int(epochs), "training.batch_size": int(images_per_step)})


def without_federation(config: Config, arrangement: str, site: str = "") -> Config:
    """Return a config of FedAvg for `pooled`, or for `local` at one site. Nothing leaves a site, so the settings about
    messages have their defaults: no noise, no checks of updates, and no smallest number of patients for the constants
    of `data.standardise: dataset`."""
    federation = config.federation
    defaults = {field.name: field.default for field in fields(Federation)}
    changes: dict[str, object] = {f"federation.{name}": defaults[name] for name in _UNUSED}
    changes |= {"federation.largest_change": None, "privacy": {}, "data.min_patients": 1}
    if arrangement == POOLED:
        changes["federation.clients"] = 1
    if arrangement == LOCAL:
        sites = [site, *filter(None, (federation.unseen_site, federation.validation_site))]
        changes |= {"data.sites": sorted(sites), "federation.participating": None}
    return changed(config, changes)
