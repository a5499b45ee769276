"""What a run says of itself in `summary.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from statistics import median

from medfed.config.schema import Config, to_yaml
from medfed.datasets import reading
from medfed.datasets.base import Case, Dataset
from medfed.datasets.splits import Split
from medfed.experiments.setup import Experiment
from medfed.experiments.unseen_batch_norm import transductive_by
from medfed.federation.message import State
from medfed.federation.settings import Federation
from medfed.networks.base import NetworkSettings
from medfed.outputs.environment import versions
from medfed.tasks.task import Task


def summarise(config: Config, experiment: Experiment, final: State, rows: list, said: list[str]) -> dict[str, object]:
    """`summary.json`: the scores, and all that a reader must know of how they came about.

    Args:
        final: of the round that the rule chose.
        rows: as the evaluator made them.
        said: the notices of the run.
    """
    federation, members = config.federation, experiment.sites
    looked = transductive_by(experiment.task, members)
    return {
        **experiment.task.scoring.summarise(rows, config.seed),
        "data": "phantom" if experiment.dataset.is_phantom else "real",
        "dataset": experiment.dataset.card.title,
        "method": config.method_name,
        "unseen_site": federation.unseen_site or None,
        **({"validation_site": federation.validation_site} if federation.validation_site else {}),
        "source_sites": sorted(site for site, patients in experiment.splits.items() if patients.train),
        "patients": {
            site: {"train": len(s.train), "validation": len(s.validation), "test": len(s.test)}
            for site, s in experiment.splits.items()
        },
        **({"clients": _clients(federation, experiment.clients)} if experiment.clients else {}),
        "images": describe_images(
            experiment.task, experiment.dataset, next(iter(experiment.splits.values())).train[0]
        ),
        "selection": federation.selection,
        "selected_round": final.round,
        "rounds": federation.rounds,
        "seed": config.seed,
        "config_sha256": hashlib.sha256(to_yaml(config).encode()).hexdigest(),
        "versions": versions(),
        "start_weights": _start_weights(config.network),
        "sites_kept_entries": any(site.local_keys for site in members),
        "method_facts": config.method.facts(final),
        "transductive": bool(looked),
        **({"transductive_by": looked} if looked else {}),
        "notices": said,
    }


def _start_weights(network: NetworkSettings) -> dict[str, str] | None:
    """The file of pretrained weights, if training started from one."""
    path = network.weights_file()
    return None if path is None else {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _clients(federation: Federation, clients: Mapping[str, Split]) -> dict[str, object]:
    """How the sites' people were handed out, and how many images a client has."""
    n = len(clients)
    images = sorted(len(patients.train) for patients in clients.values())
    return {
        "n": n,
        "per_round": min(federation.clients_per_round or n, n),
        "partition": federation.partition_label(),
        "training_images": {"fewest": images[0], "median": median(images), "most": images[-1]},
    }


def describe_images(task: Task, dataset: Dataset, first: Case) -> dict[str, object]:
    """What a bundle must know of the images, so that exporting needs none of them.

    Args:
        first: any case, for the kind of its file.
    """
    known = dataset.intensity_range
    return {
        "channels": task.channels,
        "structures": list(dataset.structures),
        "classes": list(dataset.classes),
        "intensity_range": known and list(known),
        "standardised": task.standardised,
        "pictures": reading.is_2d_image_file(first.image),
    }
