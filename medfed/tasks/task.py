"""Base class of the tasks: preparing images, the loss, evaluation, and how results are described."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from monai.data import MetaTensor
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case
from medfed.federation import local_round
from medfed.functional.standardisation import image_moments, standardise_by, standardise_slices
from medfed.metrics.metric import Metric, check_declarations
from medfed.tasks.bundle_template import BundleTemplate, Constants, colour_scale
from medfed.tasks.evaluation import Evaluation, chosen_metrics
from medfed.tasks.results import EvaluationResult
from medfed.tasks.scoring import Scoring

MAX_CACHE_BYTES = 4 * 2**30  # for the images that one process keeps in memory; the others are read for each use
Match = Callable[[Tensor], Tensor]  # changes prepared images, see `Task.evaluate`


def _ignore(*arguments: object) -> None: ...


class Reading(NamedTuple):
    """What is called while cases are read."""

    notice: Callable[[Case, Sequence[str]], None] = _ignore  # for each case, with texts about what is unusual in it
    advance: Callable[[int], object] = _ignore  # with the number of cases that were read since, for a progress bar
    # For each case that is read (again, if it is read again), with its image (C, H, W, D) and its mask (None for
    # classification) before they are prepared.
    observe: Callable[[Case, MetaTensor, MetaTensor | None], None] = _ignore


UNOBSERVED = Reading()


class Task(local_round.Task):
    """How images are prepared, learnt, predicted and scored; base class of the frozen `Segmentation` and
    `Classification`.

    In the shapes, S is `image_size`, K the number of structures or classes, and D the number of slices. A case is one
    image or volume of a patient. `samples` are what `load` returns.
    """

    channels: int  # C, of the images that the network receives
    image_size: int  # their side length in pixels
    evaluation: Evaluation
    standardised: Standardise  # the setting `data.standardise`
    # With `standardised` "dataset", the means and the standard deviations of all sites' training images. None, which
    # every federation has, leaves images in [0, 1], because the network has the constants in its first layer
    # (`medfed.networks.parts.input_scale`). An exported model has a network without this layer.
    constants: Constants | None

    name: ClassVar[str]
    metric_kind: ClassVar[str]  # kind of its metrics in the registry
    own_metrics: ClassVar[tuple[Metric, ...]]  # metrics that every run of the task computes
    has_masks: ClassVar[bool]  # masks: a decoder, a sigmoid for each structure, and a case is a volume of slices

    @property
    def scoring(self) -> Scoring:
        """UserError if a metric of the config does not exist, or does not belong to this task."""
        try:
            chosen = chosen_metrics(self.metric_kind, self.evaluation.metrics)
            check_declarations(chosen, ())
            own_classes = {type(metric) for metric in self.own_metrics}
            additional = tuple(metric for metric in chosen if type(metric) not in own_classes)
            names = tuple(metric.name for metric in (*chosen, *self.further_metrics))
            return Scoring(self.name, (*self.own_metrics, *additional, *self.further_metrics), names, self.failure_dice)
        except (TypeError, ValueError) as error:  # TypeError: the class lacks the method `value`
            raise UserError(f"evaluation.metrics: {error}") from error

    @property
    def failure_dice(self) -> float | None:
        """The Dice below which a structure of a patient counts as a failure; None without masks."""
        return None

    @property
    def further_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the setting `evaluation.also_on` adds."""
        return ()

    def check_metrics(self, source: str) -> None:
        """Raise the UserError of `scoring`, which begins with `source`, before training and not only after it."""
        try:
            _ = self.scoring
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @property
    def out_channels(self) -> int:
        """Number of logits, per image or per pixel."""
        return len(self.labels)

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the structures or classes, in the order of the network's outputs."""

    @property
    @abstractmethod
    def has_fixed_range(self) -> bool:
        """Whether the same stored intensities are mapped to 0 and 1 at every site, and not percentiles of a volume."""

    def standardise(self, image: Tensor, moments: Tensor | None = None) -> Tensor:
        """Convert images (B, C, H, W) in [0, 1] to the scale that the network expects, as `data.standardise` says.

        The mean of each channel is subtracted, and the channel is divided by its standard deviation. A constant channel
        becomes 0. The two numbers are those of each image for "slice", as in MONAI's NormalizeIntensity; `moments`, (B,
        2, C), for "volume" (ValueError without); and fixed for "imagenet": ImageNet's for three channels, else 0.449
        and 0.226. For "none" and "dataset", the values are unchanged; with "dataset", the first layer of the network
        standardises the images, or the task with its `constants`.
        """
        if self.standardised == "slice":
            return standardise_slices(image)
        if self.standardised == "volume":
            if moments is None:
                raise ValueError(
                    "data.standardise: volume needs the moments of the images' volumes; pass "
                    "batch.moments, or task.moments_of(image) for all slices of one volume"
                )
            return standardise_by(image, moments)
        constants = self.fixed_constants
        return image if constants is None else standardise_by(image, image.new_tensor(constants)[None])

    @property
    def fixed_constants(self) -> Constants | None:
        """The constants by which every image is standardised; None if they depend on the image, or without any."""
        return colour_scale(self.channels) if self.standardised == "imagenet" else self.constants

    def moments_of(self, image: Tensor) -> Tensor | None:
        """The moments (B, 2, C) for `data.standardise: volume`; None for the other words.

        They are computed over all given images (B, C, H, W) in [0, 1], before any augmentation: the slices of one
        volume, or, for classification, each image on its own.
        """
        if self.standardised != "volume":
            return None
        return image_moments(image, as_one_volume=self.has_masks)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Size in pixels (H, W) of the images that the network receives, or in voxels (X, Y, Z) of the patches."""
        return self.image_size, self.image_size

    @property
    def slice_ratio(self) -> float:
        return 1.0

    @abstractmethod
    def trivial_scores(self, training: Any, samples: Any) -> dict[str, float]:
        """Compute the validation scores of predictions that are the same for every image.

        A model that is not better than these has learned nothing from the images. A site computes them from its own
        samples alone, so that no statistic of another site is needed. The keys describe the predictions, such as "every
        pixel is foreground", with the same words at all sites.
        """

    @abstractmethod
    def evaluate_trivial(
        self, prediction: str, training: Sequence[Any], dataset: Dataset, cases: Sequence[Case], role: str
    ) -> list[dict]:
        """Score a prediction of `trivial_scores`, given by its description, on the test cases of one site, as
        `evaluate` does. `training` has the training samples of each site that trains."""

    @abstractmethod
    def load(
        self, dataset: Dataset, cases: Sequence[Case], reading: Reading, max_cache_bytes: int = MAX_CACHE_BYTES
    ) -> Any:
        """Read the samples that a site uses for training or validation.

        Of images beyond `max_cache_bytes`, each is read again for each use.

        Returns:
            Samples with `len()` (the number of images or slices), `n_patients`, and `batch(indices)`, which returns a
            `Batch`.

        Raises:
            UserError: if a file cannot be read.
        """

    @abstractmethod
    def check_files(self, dataset: Dataset, cases: Sequence[Case], reading: Reading) -> None:
        """Read test cases once, to find damaged files before training starts; nothing is kept."""

    @abstractmethod
    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """Yield test images in batches (B, C, S, S) in [0, 1] of any size, prepared but not yet standardised."""

    @abstractmethod
    def evaluate(
        self,
        network: nn.Module,
        dataset: Dataset,
        cases: Sequence[Case],
        role: str,
        reading: Reading,
        match: Match | None = None,
    ) -> EvaluationResult:
        """Predict and score the test cases of one site; segmentation of the unseen site also returns the predicted
        masks.

        Args:
            role: "seen" (the site trained), "unseen" (it did not), or "validation" (it did not train, but may have
                helped to select the round).
            match: changes the prepared images (B, C, S, S) in [0, 1], on the network's device, before they are
                standardised.
        """

    @abstractmethod
    def typical_image(self, samples: Any) -> Tensor:
        """One image (C, S, S) in [0, 1], not yet standardised, that represents a site in figures of styles."""

    @abstractmethod
    def bundle(self, input_is_2d: bool) -> BundleTemplate:
        """`input_is_2d`: the images are 2-D image files (PNG, for example) instead of volumes."""
