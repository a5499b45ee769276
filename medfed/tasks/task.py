"""What the rest of medfed asks of a task: its images, its scores, and how its results are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.metrics.metric import Metric, check_declarations
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.evaluation import Evaluation, chosen_metrics
from medfed.tasks.results import EvaluationResult
from medfed.tasks.scoring import Scoring

KEPT_BYTES = 2 * 2**30  # of a site's images that stay in memory; the others are read again each time
Notice = Callable[[Case, Sequence[str]], None]  # called with what is odd about a case that was read
Advance = Callable[[int], object]  # called with how many cases were worked through


class Task(ABC):
    """Base class of `Segmentation` and `Classification`, which are frozen dataclasses.

    channels, image_size: of the images that the network sees.
    evaluation: the block of the config.
    standardised: whether `standardise` changes the images.
    """

    channels: int
    image_size: int
    evaluation: Evaluation
    standardised: bool

    name: ClassVar[str]
    metric_kind: ClassVar[str]  # of the registry
    scoring_class: ClassVar[type[Scoring]]
    own_metrics: ClassVar[tuple[Metric, ...]]
    uses_sigmoid: ClassVar[bool]  # whether each logit is a structure by itself, rather than one of several classes
    uses_decoder: ClassVar[bool]  # whether its networks have decoder levels

    @property
    def scoring(self) -> Scoring:
        """The task's own metrics, and those of `evaluation.metrics`.

        Raises:
            UserError: if a metric of the config does not exist, or does not belong to this task.
        """
        try:
            chosen = chosen_metrics(self.metric_kind, self.evaluation.metrics)
            check_declarations(chosen, ())
            own = {type(metric) for metric in self.own_metrics}
            more = tuple(metric for metric in chosen if type(metric) not in own)
            return self.scoring_class((*self.own_metrics, *more), tuple(metric.name for metric in chosen))
        except ValueError as error:
            raise UserError(f"evaluation.metrics: {error}") from error

    def check_metrics(self, source: str) -> None:
        """Raise UserError, beginning with `source`, where `scoring` does: before training rather than after it."""
        try:
            _ = self.scoring
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @property
    def measures_boundary_distance(self) -> bool:
        """Whether `validate` also gives the distance of features along outlines."""
        return False

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """The number of logits."""

    @abstractmethod
    def standardise(self, image: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] to what the network sees."""

    @abstractmethod
    def augment(self, batch: Batch, rng: Any) -> Batch:
        """Random rotation, scaling and flipping."""

    @abstractmethod
    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """The mean over a batch."""

    @abstractmethod
    def validate(self, network: nn.Module, samples: Any, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """`score`, higher is better, and further facts of prepared samples."""

    @abstractmethod
    def load(
        self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance, kept_bytes: int = KEPT_BYTES
    ) -> Any:
        """Read the samples that a site trains or validates on."""

    @abstractmethod
    def check_files(self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> None:
        """Read test cases once, so that what is wrong with a file shows before training."""

    @abstractmethod
    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """Prepared images (B, C, S, S) of test cases, before `standardise`."""

    @abstractmethod
    def evaluate(
        self, network: nn.Module, dataset: Dataset, cases: Sequence[Case], role: str, notice: Notice, advance: Advance
    ) -> EvaluationResult:
        """Predict and score test cases of one site."""

    @abstractmethod
    def typical_image(self, samples: Any) -> Tensor:
        """A training image (C, S, S) to show in figures of styles."""

    @abstractmethod
    def patients_of(self, samples: Any) -> list[Any]:
        """The patient of each sample."""

    @abstractmethod
    def bundle(self, input_is_2d: bool) -> BundleTemplate:
        """The template of the MONAI bundle, and what fills it."""
