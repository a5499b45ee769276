"""Base class of the tasks: preparing images, the loss, evaluation, and how results are described."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from monai.data import MetaTensor
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case
from medfed.functional.standardisation import image_moments, standardise_by, standardise_slices
from medfed.metrics.metric import Metric, check_declarations
from medfed.tasks.bundle_template import BundleTemplate, Constants, colour_scale
from medfed.tasks.evaluation import Evaluation, chosen_metrics
from medfed.tasks.results import EvaluationResult
from medfed.tasks.scoring import Scoring

MAX_CACHE_BYTES = 4 * 2**30  # for the images that one process keeps in memory; the others are read for each use
Notice = Callable[[Case, Sequence[str]], None]  # called for each case that was read, with its notices
Observe = Callable[[Case, MetaTensor, MetaTensor | None], None]  # called with the image and the mask as they were read
Match = Callable[[Tensor], Tensor]  # changes prepared images, see `Task.evaluate`
Advance = Callable[[int], object]  # called with the number of cases that were processed, for a progress bar


class Task(ABC):
    """Base class of `Segmentation` and `Classification`: how images are prepared, learnt, predicted and scored.

    The subclasses are frozen dataclasses.

    Args:
        channels: number of channels of the images that the network receives.
        image_size: side length in pixels of the images that the network receives.
        evaluation: the settings under `evaluation` in the config.
        standardised: the setting `data.standardise`: from which pixels the mean and standard deviation are computed by
            which images are standardised. See `Dataset`.
        constants: with `standardised` "dataset", the means and the standard deviations of all sites' training images,
            one number per channel each. None, which every federation has, leaves images in [0, 1], because the
            network has the constants in its first layer (`medfed.networks.input_scale`). An exported model has a
            network without this layer.
    """

    channels: int
    image_size: int
    evaluation: Evaluation
    standardised: Standardise
    constants: Constants | None

    name: ClassVar[str]
    metric_kind: ClassVar[str]  # kind of its metrics in the registry
    scoring_class: ClassVar[type[Scoring]]
    own_metrics: ClassVar[tuple[Metric, ...]]  # metrics that every run of the task computes
    uses_sigmoid: ClassVar[bool]  # whether each logit is an independent structure instead of one of several classes
    uses_decoder: ClassVar[bool]  # whether its networks have a decoder
    uses_volumes: ClassVar[bool]  # whether a case is a volume of slices, instead of one image

    @property
    def scoring(self) -> Scoring:
        """The object that computes and describes the results of this task.

        Its metrics are those that every run of the task computes, then those of the config key `evaluation.metrics`,
        then those of `evaluation.also_on`.

        Raises:
            UserError: if a metric of the config does not exist, or does not belong to this task.
        """
        try:
            chosen = chosen_metrics(self.metric_kind, self.evaluation.metrics)
            check_declarations(chosen, ())
            own_classes = {type(metric) for metric in self.own_metrics}
            additional = tuple(metric for metric in chosen if type(metric) not in own_classes)
            names = tuple(metric.name for metric in (*chosen, *self.further_metrics))
            return self.scoring_class((*self.own_metrics, *additional, *self.further_metrics), names)
        except ValueError as error:
            raise UserError(f"evaluation.metrics: {error}") from error

    @property
    def further_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the setting `evaluation.also_on` adds; none unless a subclass overrides this property."""
        return ()

    def check_metrics(self, source: str) -> None:
        """Check before training that all metrics under `evaluation.metrics` exist and belong to this task.

        Without this check, a wrong name would stop the run only after training.

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
        """Whether `validate` also returns "boundary_distance"; False unless a subclass overrides this property.

        The boundary distance is the mean cosine distance, in [0, 2], between the features on the boundary of a
        structure and the features in a ring of background around the structure.
        """
        return False

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """Number of logits that the network returns: per image for classification, per pixel for segmentation."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the structures or classes, in the order of the network's outputs."""

    @property
    @abstractmethod
    def has_fixed_range(self) -> bool:
        """Whether the same stored intensities are mapped to 0 and 1 at every site, and not percentiles of a volume."""

    def standardise(self, image: Tensor, moments: Tensor | None = None) -> Tensor:
        """Convert images in [0, 1] to the scale that the network expects, as `data.standardise` says.

        The mean of each channel is subtracted, and the channel is divided by its standard deviation. A constant channel
        becomes 0. The two numbers are

        * those of each image for "slice", as in MONAI's NormalizeIntensity;
        * `moments` for "volume";
        * fixed numbers for "imagenet": ImageNet's for three channels, else 0.449 and 0.226.

        For "none" and "dataset", the values are unchanged; with "dataset", the first layer of the network standardises
        the images. A task with `constants` standardises "dataset" by them.

        Args:
            image: (B, C, H, W) in [0, 1].
            moments: (B, 2, C), as `Batch.moments` or `moments_of` contain them; needed for "volume" and not used
                otherwise.

        Returns:
            (B, C, H, W).

        Raises:
            ValueError: if "volume" has no moments.
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
        """The means and the standard deviations by which every image is standardised, one number per channel each.

        None if the numbers depend on the image, or the task does not standardise images.
        """
        return colour_scale(self.channels) if self.standardised == "imagenet" else self.constants

    def moments_of(self, image: Tensor) -> Tensor | None:
        """Compute the moments by which `data.standardise: volume` scales images; None for the other words.

        Args:
            image: (B, C, H, W) in [0, 1], before any augmentation or restyling. For segmentation, all slices of one
                volume; for classification, any images.

        Returns:
            (B, 2, C), mean and standard deviation of each channel over the volume of each image.
        """
        if self.standardised != "volume":
            return None
        return image_moments(image, as_one_volume=self.uses_volumes)

    @abstractmethod
    def augment(self, batch: Batch, rng: Any) -> Batch:
        """Apply a random rotation, scaling and flip to each image of a batch, and the same transform to its mask.

        Args:
            batch: images (B, C, S, S) with masks (B, K, S, S) of K structures or class numbers (B,), where S is
                `image_size`. Class numbers stay the same.
            rng: torch.Generator of the random numbers, on the CPU.

        Returns:
            A new batch of the same shapes; the given batch stays unchanged.
        """

    @abstractmethod
    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Compute the task's loss, averaged over a batch.

        Args:
            logits: output of the network: (B, K, H, W) for segmentation into K structures, (B, K) for K classes.
            label: masks (B, K, H, W) of 0 and 1 for segmentation, class numbers (B,) for classification.

        Returns:
            A scalar tensor.
        """

    @abstractmethod
    def validate(self, network: nn.Module, samples: Any, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Compute the validation score of a network on prepared samples.

        Args:
            network: the network; it is set to evaluation mode.
            samples: validation samples, as `load` returns them.
            decoder_levels: names of the network's decoder modules, finest first, whose features are measured for
                "boundary_distance". Empty measures no features.

        Returns:
            "score" in [0, 1], where higher is better. For segmentation also "boundary_distance" in [0, 2], if the
            setting `evaluation.boundary_distance` is true and `decoder_levels` is not empty: the mean cosine distance
            between the features on the boundary of a structure and the features in a ring of background around it.
        """

    @abstractmethod
    def trivial_scores(self, training: Any, samples: Any) -> dict[str, float]:
        """Compute the validation scores of predictions that are the same for every image.

        A model that is not better than these predictions has learned nothing from the images. A site computes them from
        its own samples alone, so that no statistic of another site is needed.

        Args:
            training: the site's training samples, as `load` returns them.
            samples: the samples to score.

        Returns:
            By a description of the prediction, such as "every pixel is foreground", the "score" that `validate` would
            return for it, in [0, 1]. The descriptions are the same at all sites.
        """

    @abstractmethod
    def evaluate_trivial(
        self, prediction: str, training: Sequence[Any], dataset: Dataset, cases: Sequence[Case], role: str
    ) -> list[dict]:
        """Score a prediction that is the same for every image on the test cases of one site.

        Args:
            prediction: its description, a key of `trivial_scores`.
            training: the training samples of each site that trains.
            dataset: the dataset of the cases, which reads their files.
            cases: test cases of the site.
            role: what the site is in the run: "unseen" or "validation".

        Returns:
            The rows that `evaluate` would return for it.
        """

    @abstractmethod
    def load(
        self,
        dataset: Dataset,
        cases: Sequence[Case],
        notice: Notice,
        advance: Advance,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        observe: Observe | None = None,
    ) -> Any:
        """Read the samples that a site uses for training or validation.

        Args:
            dataset: the dataset of the cases, which reads their files.
            cases: cases of one site. A case is one image or volume of a patient, with its mask or class.
            notice: called for each case that is read, with the case and short texts about unusual properties of its
                files.
            advance: called with the number of cases that were read since the last call, for a progress bar.
            max_cache_bytes: largest number of bytes of images that stay in memory. Other images are read again for each
                use.
            observe: called for each case that is read, with its image (C, H, W, D) and its mask (None for
                classification) before they are prepared. It may be called again when an image is read again. None
                calls nothing.

        Returns:
            Samples with `len()` (the number of images or slices), `n_patients`, and `batch(indices)`, which returns a
            `Batch`.

        Raises:
            UserError: if a file cannot be read.
        """

    @abstractmethod
    def check_files(self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> None:
        """Read test cases once, to find damaged files before training starts. The images are not kept.

        Args:
            dataset: the dataset of the cases, which reads their files.
            cases: test cases. A case is one image or volume of a patient, with its mask or class.
            notice: called for each case that is read, with the case and short texts about unusual properties of its
                files. A task may leave these calls to `evaluate`.
            advance: called with the number of cases that were read since the last call, for a progress bar.

        Raises:
            UserError: if a file cannot be read.
        """

    @abstractmethod
    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """Yield test images in batches (B, C, S, S) in [0, 1], prepared for the network but not yet standardised.

        C is `channels`, S is `image_size`, and the number B of images or slices may differ between batches.

        Args:
            dataset: the dataset of the cases, which reads their files.
            cases: test cases of one site. A case is one image or volume of a patient.
        """

    @abstractmethod
    def evaluate(
        self,
        network: nn.Module,
        dataset: Dataset,
        cases: Sequence[Case],
        role: str,
        notice: Notice,
        advance: Advance,
        match: Match | None = None,
    ) -> EvaluationResult:
        """Predict and score the test cases of one site.

        Args:
            network: the trained network.
            dataset: the dataset of the cases, which reads their files.
            cases: test cases of one site. A case is one image or volume of a patient, with its mask or class.
            role: what the site is in the run: "seen" (it trained), "unseen" (it did not train), or "validation" (it
                did not train, but may have helped to select the round).
            notice: called for each case that is read, with the case and short texts about unusual properties of its
                files.
            advance: called with the number of cases that were scored since the last call, for a progress bar.
            match: changes the prepared images (B, C, S, S) in [0, 1], on the network's device, before they are
                standardised; None leaves them as they are.

        Returns:
            The scores of each case. For segmentation also the predicted masks, if the role is "unseen".
        """

    @abstractmethod
    def typical_image(self, samples: Any) -> Tensor:
        """Return one image that represents a site in figures of the appearance of the sites' images.

        Args:
            samples: samples of the site, as `load` returns them.

        Returns:
            (C, S, S) in [0, 1], not yet standardised. C is `channels` and S is `image_size`.
        """

    @abstractmethod
    def bundle(self, input_is_2d: bool) -> BundleTemplate:
        """Return the object that fills the MONAI bundle for a trained model of this task.

        Args:
            input_is_2d: whether the images are 2-D image files (PNG, for example) instead of volumes.
        """
