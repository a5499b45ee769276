"""Base class of the tasks: preparing images, the loss, evaluation, and how results are described."""

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

KEPT_BYTES = 2 * 2**30  # largest memory for a site's images; the others are read from disk each time they are used
Notice = Callable[[Case, Sequence[str]], None]  # called for each case that was read, with its notices
Advance = Callable[[int], object]  # called with the number of cases that were processed, for a progress bar


class Task(ABC):
    """Base class of `Segmentation` and `Classification`, which are frozen dataclasses.

    Args:
        channels: number of channels of the images that the network receives.
        image_size: side length in pixels of the images that the network receives.
        evaluation: the `evaluation` block of the config.
        standardised: whether `standardise` changes the images.
    """

    channels: int
    image_size: int
    evaluation: Evaluation
    standardised: bool

    name: ClassVar[str]
    metric_kind: ClassVar[str]  # kind of its metrics in the registry
    scoring_class: ClassVar[type[Scoring]]
    own_metrics: ClassVar[tuple[Metric, ...]]  # metrics that every run of the task computes
    uses_sigmoid: ClassVar[bool]  # whether each logit is an independent structure instead of one of several classes
    uses_decoder: ClassVar[bool]  # whether its networks have a decoder

    @property
    def scoring(self) -> Scoring:
        """How results are computed and described: with the task's own metrics and those of `evaluation.metrics`.

        Raises:
            UserError: if a metric of the config does not exist, or does not belong to this task.
        """
        try:
            chosen = chosen_metrics(self.metric_kind, self.evaluation.metrics)
            check_declarations(chosen, ())
            own_classes = {type(metric) for metric in self.own_metrics}
            additional = tuple(metric for metric in chosen if type(metric) not in own_classes)
            return self.scoring_class((*self.own_metrics, *additional), tuple(metric.name for metric in chosen))
        except ValueError as error:
            raise UserError(f"evaluation.metrics: {error}") from error

    def check_metrics(self, source: str) -> None:
        """Check the config's metrics before training, so that a wrong name does not stop the run after it.

        Args:
            source: name of the config file; the error message begins with it.

        Raises:
            UserError: if a metric of the config does not exist, or does not belong to this task.
        """
        try:
            _ = self.scoring
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @property
    def measures_boundary_distance(self) -> bool:
        """Whether `validate` also returns "boundary_distance", the distance of features along outlines."""
        return False

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """Number of logits that the network returns per image or pixel."""

    @abstractmethod
    def standardise(self, image: Tensor) -> Tensor:
        """Convert images in [0, 1] to the scale that the network expects.

        Args:
            image: (B, C, H, W) in [0, 1].

        Returns:
            (B, C, H, W); the same values if `standardised` is False.
        """

    @abstractmethod
    def augment(self, batch: Batch, rng: Any) -> Batch:
        """Apply a random rotation, scaling and flip to each image of a batch, and to its mask.

        Args:
            batch: images (B, C, S, S) with labels.
            rng: torch.Generator of the random numbers, on the CPU.

        Returns:
            A new batch of the same shapes.
        """

    @abstractmethod
    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Compute the task's loss, averaged over a batch.

        Args:
            logits: output of the network: (B, S, H, W) for segmentation, (B, K) for classification.
            label: labels as in `Batch.label`.

        Returns:
            A scalar tensor.
        """

    @abstractmethod
    def validate(self, network: nn.Module, samples: Any, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Compute the validation score of a network on prepared samples.

        Args:
            network: the network; it is set to evaluation mode.
            samples: validation samples from `load`.
            decoder_levels: names of the network's decoder modules, finest first; empty measures no features.

        Returns:
            "score" in [0, 1], higher is better; possibly further quantities.
        """

    @abstractmethod
    def load(
        self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance, kept_bytes: int = KEPT_BYTES
    ) -> Any:
        """Read the samples that a site uses for training or validation.

        Args:
            dataset: the dataset of the cases.
            cases: cases of one site.
            notice: called for each case that is read, with its notices.
            advance: called with the number of processed cases.
            kept_bytes: largest memory for images that are kept instead of being read again.

        Returns:
            Samples with `len()`, `n_patients` and `batch(indices)`.

        Raises:
            UserError: if a file cannot be read.
        """

    @abstractmethod
    def check_files(self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> None:
        """Read test cases once, so that a damaged file is reported before training.

        Args:
            dataset: the dataset of the cases.
            cases: test cases.
            notice: called for each case that is read, with its notices.
            advance: called with the number of processed cases.

        Raises:
            UserError: if a file cannot be read.
        """

    @abstractmethod
    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """Yield batches of prepared test images (B, C, S, S) in [0, 1], before `standardise`.

        Args:
            dataset: the dataset of the cases.
            cases: test cases of one site.
        """

    @abstractmethod
    def evaluate(
        self, network: nn.Module, dataset: Dataset, cases: Sequence[Case], role: str, notice: Notice, advance: Advance
    ) -> EvaluationResult:
        """Predict and score the test cases of one site.

        Args:
            network: the trained network.
            dataset: the dataset of the cases.
            cases: test cases of one site.
            role: "seen", "unseen" or "validation": the role of the site in the run.
            notice: called for each case that is read, with its notices.
            advance: called with the number of processed cases.
        """

    @abstractmethod
    def typical_image(self, samples: Any) -> Tensor:
        """Return one image (C, S, S) in [0, 1] of the samples that represents them in figures of styles."""

    @abstractmethod
    def patients_of(self, samples: Any) -> list[Any]:
        """Return the identifier of the patient of each sample, in the order of the samples."""

    @abstractmethod
    def bundle(self, input_is_2d: bool) -> BundleTemplate:
        """Return the template of the MONAI bundle for a trained model of this task.

        Args:
            input_is_2d: whether the input of the bundle is 2-D image files instead of volumes.
        """
