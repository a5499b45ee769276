"""Build `summary.json`: the scores of a run, and everything that a reader of the scores should know."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from statistics import median

from medfed.config.schema import Config
from medfed.datasets.base import Case, Dataset
from medfed.datasets.duplicates import file_sha256
from medfed.datasets.splits import Split
from medfed.experiments.setup import Experiment
from medfed.experiments.unseen_batch_norm import unseen_bn_of
from medfed.federation.message import State
from medfed.federation.settings import Federation
from medfed.images import reading
from medfed.outputs.environment import versions
from medfed.results.adaptation import adaptation_of
from medfed.results.run_scores import n_absent, run_scores
from medfed.results.scores import table_of
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Task


def summarise(
    config: Config, experiment: Experiment, final: State, result: EvaluationResult, notices: list[str]
) -> dict[str, object]:
    """Return the content of `summary.json`; `final` is the state after the round whose weights are the result."""
    federation, scoring = config.federation, experiment.task.scoring
    is_matched = config.evaluation.match != "none" and bool(result.unadapted)  # not without shared statistics
    adaptation: list[str] = ["tent"] * config.evaluation.tent + [config.evaluation.match] * is_matched
    unseen_bn, pretrained = unseen_bn_of(experiment.sites), config.network.weights_file()
    transductive = adaptation + [unseen_bn] * (unseen_bn in ("batch_stats", "nearest"))
    table, unadapted = (table_of(rows, scoring.metrics) for rows in (result.rows, result.unadapted))
    of_unseen = table[table.role == "unseen"]
    changes = {"adaptation": adaptation_of(adaptation[0], scoring, of_unseen, unadapted)} if adaptation else {}
    return {
        **scoring.describe(),
        "scores": run_scores(table, scoring),
        "n_absent": n_absent(table),
        "data": "phantom" if experiment.dataset.is_phantom else "real",
        "dataset": experiment.dataset.card.title,
        "method": config.method_name,
        "unseen_site": federation.unseen_site or None,
        **({"validation_site": federation.validation_site} if federation.validation_site else {}),
        "source_sites": sorted(site for site, patients in experiment.splits.items() if patients.train),
        "patients": {
            site: {part: len({case.patient for case in getattr(s, part)}) for part in ("train", "validation", "test")}
            for site, s in experiment.splits.items()
        },
        **({"clients": _describe_clients(federation, experiment.clients)} if experiment.clients else {}),
        "images": describe_images(experiment.task, experiment.dataset, next(iter(experiment.splits.values())).train[0]),
        "selection": federation.selection,
        "selected_round": final.round,
        "rounds": federation.rounds,
        "seed": config.seed,
        "precision": config.training.precision,
        "deterministic": config.deterministic,
        "config_sha256": hashlib.sha256(config.yaml.encode()).hexdigest(),
        "versions": versions(),
        "start_weights": pretrained and {"file": pretrained.name, "sha256": file_sha256(pretrained)},
        "sites_kept_entries": any(site.local_keys for site in experiment.sites),
        "method_facts": config.method.summarise(final),
        "transductive": bool(transductive),
        **({"transductive_by": transductive} if transductive else {}),
        **changes,
        "notices": notices,
    }


def _describe_clients(federation: Federation, clients: Mapping[str, Split]) -> dict[str, object]:
    n, images = len(clients), sorted(len(patients.train) for patients in clients.values())
    return {
        "n": n,
        "per_round": min(federation.clients_per_round or n, n),
        "partition": federation.partition_label(),
        "training_images": {"fewest": images[0], "median": median(images), "most": images[-1]},
    }


def describe_images(task: Task, dataset: Dataset, first: Case) -> dict[str, object]:
    """Return what the export must know about the images; of `first`, any case, only the file name is used."""
    intensity_range = dataset.intensity_range  # what becomes 0 and 1; None: percentiles of each volume, as for MRI
    return {
        "channels": task.channels,
        "structures": list(dataset.structures),
        "classes": list(dataset.classes),
        "intensity_range": intensity_range and list(intensity_range),
        "standardised": task.standardised,
        "pictures": reading.is_2d_image_file(first.image),
    }
