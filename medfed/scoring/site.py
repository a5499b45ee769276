"""A site that scores a bundle on its own images, and replies with aggregates only: numbers of patients, means, sds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from medfed.cli.progress import ProgressBar
from medfed.core.determinism import deterministic
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.federation.message import WEIGHTS_NEEDED, Message
from medfed.federation.settings import Training
from medfed.metrics.summary import Group
from medfed.scoring.arguments import DEFAULT_MIN_PATIENTS
from medfed.scoring.bundle_model import BundleModel
from medfed.scoring.bundle_tasks import BundleSegmentation, BundleTask
from medfed.scoring.score import ROLE, predict_site
from medfed.tasks.scoring import ALL

SCORE = "score"  # the kind of the request and of its reply
PATIENTS, IMAGES, TOO_FEW = "patients", "images", "too_few_patients"
COUNTS = ("n", "n_missed", "n_false_alarm", "n_absent", "n_wrong")
OF_METRIC = ("n", "mean", "sd")


@dataclass
class ScoringSite:
    """A site that scores the weights of a bundle on all its labelled images. Scores of single patients never leave it.

    Args:
        name: the name of the site.
        model: the bundle. Each request loads its weights into the network of the bundle.
        task: the task of the bundle, with the structures of this site.
        assigned: the bundle's name of each structure or class of this site.
        dataset: the site's images.
        cases: the site's cases.
        min_patients: the hospital's minimum group size: with fewer patients than this, the site only says that it has
            too few, and it leaves out a metric of which fewer patients have a value.
    """

    name: str
    model: BundleModel
    task: BundleTask
    assigned: Mapping[str, str]
    dataset: Dataset
    cases: Sequence[Case]
    min_patients: int = DEFAULT_MIN_PATIENTS

    @property
    def network(self) -> nn.Module:
        """The network of the bundle."""
        return self.model.network

    @property
    def fact_names(self) -> frozenset[str]:
        """Names of the facts that a reply may hold."""
        return frozenset(fact_names(self.task))

    def reply(self, request: Message) -> Message:
        """Score the weights of a request on all images of this site.

        Args:
            request: a message of kind "score" with all entries of the network's state dict as `weights`.

        Returns:
            A message of kind "score" whose facts are those of `fact_names`: either `too_few_patients` (1) alone, or the
            numbers of patients and images, and for each output of the bundle its counts of failures and, for each
            metric, the number of values, their mean and their standard deviation over the patients. Exception: if the
            request has only the checksum of the weights, the reply is an empty message of kind "weights_needed".

        Raises:
            ValueError: if the request has another kind.
            UserError: if an image cannot be read, or the bundle's steps do not fit it.
        """
        if request.kind != SCORE:
            raise ValueError(f"{self.name}: only scores a model and replies to '{SCORE}', not to '{request.kind}'")
        if request.weights_digest and not request.weights:
            return Message(WEIGHTS_NEEDED)
        n_patients = len({case.patient for case in self.cases})
        if n_patients < self.min_patients:
            return Message(SCORE, facts={TOO_FEW: 1})
        self.network.load_state_dict(request.weights)
        with deterministic(Training().threads), ProgressBar(disable=True) as bar:
            result, notices = predict_site(self.model, self.task, self.dataset, self.cases, bar)
        for notice, n in notices.items():
            warnings.warn(f"{self.name}: {n} of {len(self.cases)} images: {notice}", stacklevel=2)
        groups = self.task.scoring.summarise(result.rows)[ROLE]["sites"].get(self.name, {})
        facts: dict[str, Any] = {PATIENTS: n_patients, IMAGES: len(self.cases)}
        for name, group in groups.items():
            of_structure = [row for row in result.rows if self.task.scoring.structure_of(row) == name]
            numbers = aggregates(group, self._n_patients(of_structure), self.min_patients)
            facts |= {f"{output_key(self.task, name)}.{key}": number for key, number in numbers.items()}
        return Message(SCORE, facts=facts)

    def _n_patients(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return the number of patients behind each metric; a score of classification is of all patients."""
        is_of_all = not self.task.scoring.has_structures
        return {
            column.key: len({row["patient"] for row in rows if is_of_all or row[column.key] is not None})
            for column in self.task.scoring.columns
        }


def output_key(task: BundleTask, structure: str) -> str:
    """Return the number of the bundle's output that a structure is compared with; "all" for classification.

    Args:
        task: the task of the bundle.
        structure: the site's name of the structure.
    """
    if not isinstance(task, BundleSegmentation):
        return ALL
    predicted = task.predicted_names[task.structures.index(structure)]
    return str(next(number for number, name in task.model.names.items() if name == predicted))


def fact_names(task: BundleTask) -> list[str]:
    """Return the names of all facts that a reply to a request to score may hold.

    Args:
        task: the task of the bundle.
    """
    keys = [str(number) for number in task.model.names] if isinstance(task, BundleSegmentation) else [ALL]
    numbers = [*COUNTS, *(f"{column.key}.{word}" for column in task.scoring.columns for word in OF_METRIC)]
    return [PATIENTS, IMAGES, TOO_FEW, *(f"{key}.{number}" for key in keys for number in numbers)]


def aggregates(group: Group, n_patients: Mapping[str, int], min_patients: int) -> dict[str, float]:
    """Return the numbers of one structure, or of all classes, that may leave a site.

    Args:
        group: the scores of the site, as `Scoring.score_group` returns them.
        n_patients: from how many patients each metric is computed, by its name; the first is the main metric.
        min_patients: a metric of fewer patients is left out. If it is the main metric, the counts are, too.

    Returns:
        The counts, such as "n_missed", and for each metric "dice.n", "dice.mean" and, for segmentation, "dice.sd".
    """
    numbers: dict[str, float] = {}
    if next(iter(n_patients.values())) >= min_patients:
        numbers = {key: group[key] for key in COUNTS if key in group}
    for name, n in n_patients.items():
        if group[name]["mean"] is not None and n >= min_patients:
            numbers |= {f"{name}.{word}": group[name][word] for word in OF_METRIC if group[name].get(word) is not None}
    return numbers
