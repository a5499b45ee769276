"""Segmentation of slices by a 2-D network; masks are scored per patient on the voxel grid of the image file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from monai.inferers import SliceInferer
from monai.transforms import (
    AsDiscreted,
    Compose,
    Invertd,
    KeepLargestConnectedComponentd,
    MapTransform,
    Orientationd,
)
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case, Volume, numbered_patients
from medfed.functional.hooks import capture_features
from medfed.losses.dice import soft_dice_loss
from medfed.metrics.mask_metric import MaskMetric, compute_mask_metrics
from medfed.metrics.metric import Metric
from medfed.metrics.ratio import ratio_row, vertical_ratio
from medfed.metrics.trivial import ALL_FOREGROUND, NO_FOREGROUND
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.boundary_distance import N_LEVELS, boundary_distance
from medfed.tasks.bundle_template import Constants
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.mask_bundle import AXES, MAX_SLICES, PERCENTILES, MaskBundle
from medfed.tasks.prepared_grid import PREPARED_METRICS, prepared_scores
from medfed.tasks.results import EvaluationResult, PackedMask
from medfed.tasks.scoring import MASK_METRICS, SEGMENTATION
from medfed.tasks.slices import SliceBuffer, Slices
from medfed.tasks.task import MAX_CACHE_BYTES, UNOBSERVED, Match, Reading, Task
from medfed.tasks.trivial_masks import MEAN_MASK, FixedMask, mean_masks
from medfed.transforms.resize_slices import ResizeSlicesd
from medfed.transforms.scale_intensity import ScalePercentilesd, ScaleRanged


@dataclass(frozen=True)
class Segmentation(Task):
    """Segmentation: predict one binary mask per structure; structures may overlap (one sigmoid each)."""

    structures: tuple[str, ...]  # in the order of the mask channels
    channels: int
    image_size: int
    intensity_range: tuple[float, float] | None = None  # mapped to 0 and 1; None maps `PERCENTILES` of each volume
    evaluation: Evaluation = Evaluation()
    standardised: Standardise = "none"
    constants: Constants | None = None

    name = SEGMENTATION
    metric_kind = "mask_metrics"
    own_metrics = MASK_METRICS
    has_masks = True

    @property
    def labels(self) -> tuple[str, ...]:
        return self.structures

    @property
    def has_fixed_range(self) -> bool:
        return self.intensity_range is not None

    @property
    def failure_dice(self) -> float:
        return self.evaluation.failure_dice

    @property
    def further_metrics(self) -> tuple[Metric, ...]:
        """Dice and distances on the grid of the prepared slices, if `evaluation.also_on` is "prepared"."""
        return PREPARED_METRICS if self.evaluation.also_on == "prepared" else ()

    def preprocessing(self) -> Compose:
        """MONAI transforms from {"image": (C, H, W, D)} on the grid of the file to {"image": (C, S, S, D)} for the
        network.

        They orient the axes (right, anterior, superior), scale the intensities to [0, 1], and resize each slice to
        `image_size`. `standardise` is applied later, because methods that exchange frequencies need intensities that
        are not negative.
        """
        return Compose([*self._oriented("image"), self._scale(), *self._resampled("image")])

    def _oriented(self, key: str) -> list[MapTransform]:
        return [Orientationd(key, axcodes="RAS", labels=AXES)]

    def _resampled(self, key: str) -> list[MapTransform]:
        return [ResizeSlicesd(key, self.image_size)]

    def _scale(self) -> MapTransform:
        """The MONAI transform that scales the intensities of a volume to [0, 1]."""
        if self.intensity_range is None:
            return ScalePercentilesd("image", *PERCENTILES)
        return ScaleRanged("image", *self.intensity_range)

    def prepare(self, volumes: Iterable[Volume], n_volumes: int = 0) -> Slices:
        """Prepare volumes and return their slices; volumes that are read on demand are not kept, so it needs little
        more memory.

        Args:
            volumes: at least one, images (C, H, W, D) with masks (K, H, W, D), as loaded from their files.
            n_volumes: the number of volumes, so that memory can be reserved; 0 if it is not known.
        """
        prepare_image = self.preprocessing()
        images, labels, moments = (SliceBuffer() for _ in range(3))
        n_slices: list[int] = []  # of each volume
        for volume in volumes:
            image = prepare_image({"image": volume.image})["image"].as_tensor().movedim(-1, 0)
            n_volumes_left = max(0, n_volumes - len(n_slices) - 1)
            images.append(image, n_volumes_left)
            labels.append(self.prepare_mask(volume).movedim(-1, 0), n_volumes_left)
            n_slices.append(len(image))
            if (moments_of_volume := self.moments_of(image)) is not None:
                moments.append(moments_of_volume, n_volumes_left)
            del volume  # the loop would keep it until the next volume is read
        all_moments = moments.content() if len(moments) else None
        of_volume = torch.arange(len(n_slices)).repeat_interleave(torch.tensor(n_slices))
        return Slices(images.content(), labels.content(), of_volume, all_moments)

    def prepare_mask(self, volume: Volume) -> Tensor:
        """The mask of a volume on the grid of its prepared slices, (K, S, S, D)."""
        oriented = Compose(self._oriented("mask"))({"mask": volume.mask})["mask"]
        size = (self.image_size, self.image_size)
        return F.interpolate(oriented.as_tensor().movedim(-1, 0), size, mode="nearest-exact").movedim(0, -1)

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        theta = draw_affine(len(batch.image), rng)
        return batch.transform(lambda image: warp(image, theta), warp(batch.label, theta, mode="nearest"))

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """The soft Dice loss of ELCFS, averaged over the structures.

        For each structure, the loss is 1 - (2 sum(p y) + s) / (sum(p) + sum(y) + s), with probabilities p =
        sigmoid(logits), labels y and s = 1e-5. The sums are over all pixels of the whole batch.
        """
        return soft_dice_loss(logits, label)

    @torch.no_grad()
    def validate(self, network: nn.Module, samples: Slices, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Return "score", the mean Dice over volumes and structures on the prepared slices; 0 if no structure is left.

        A structure is left out if neither the true nor the predicted mask of a volume contains it; if only one contains
        it, the Dice is 0. The features of the first two decoder levels give "boundary_distance".
        """
        network.eval()
        device = next(network.parameters()).device
        measured_levels = decoder_levels[:N_LEVELS] if self.evaluation.boundary_distance else ()
        distances: list[Tensor] = []
        overlap = torch.zeros(int(samples.volume.max()) + 1, self.out_channels, dtype=torch.float64)
        total = torch.zeros_like(overlap)
        for start in range(0, len(samples), MAX_SLICES):
            part = slice(start, start + MAX_SLICES)
            with capture_features(network, measured_levels) as features:
                moments = None if samples.moments is None else samples.moments[part]
                logits = network(self.standardise(samples.images[part].to(device), moments))
            if measured_levels:
                levels = [features[name] for name in measured_levels]
                distances += boundary_distance(levels, samples.labels[part].to(device)).cpu()
            predicted = (logits.sigmoid() > self.evaluation.threshold).cpu()
            reference = samples.labels[part].bool()
            overlap.index_add_(0, samples.volume[part], (predicted & reference).sum(dim=(-2, -1)).double())
            sizes = predicted.sum((-2, -1)) + reference.sum((-2, -1))
            total.index_add_(0, samples.volume[part], sizes.double())
        present = total > 0
        score = float((2 * overlap[present] / total[present]).mean()) if bool(present.any()) else 0.0
        return {"score": score, **({"boundary_distance": float(torch.stack(distances).mean())} if distances else {})}

    def trivial_scores(self, training: Slices, samples: Slices) -> dict[str, float]:
        """The scores of three masks that are the same for every slice: empty, full, and mean. The mean mask of each
        structure is that of the site's own training slices, so no mask leaves the site."""
        mean = mean_masks(training.labels, training.volume)
        masks = {NO_FOREGROUND: torch.zeros_like(mean), ALL_FOREGROUND: torch.ones_like(mean), MEAN_MASK: mean}
        return {name: self.validate(FixedMask(mask), samples)["score"] for name, mask in masks.items()}

    def evaluate_trivial(
        self, prediction: str, training: Sequence[Slices], dataset: Dataset, cases: Sequence[Case], role: str
    ) -> list[dict]:
        """The mean mask is that of the pixels in which most sites' mean masks are foreground."""
        if prediction == MEAN_MASK:
            mask = (torch.stack([mean_masks(site.labels, site.volume) for site in training]).mean(dim=0) >= 0.5).float()
        else:
            mask = torch.full((self.out_channels, *self.input_size), float(prediction == ALL_FOREGROUND))
        return self.evaluate(FixedMask(mask), dataset, cases, role, UNOBSERVED).rows

    def predict(self, network: nn.Module, volume: Volume) -> Tensor:
        """The masks of one volume, (K, H, W, D) uint8 of 0 and 1, on the grid of its file."""
        return self.predict_on_both_grids(network, volume)[0]

    @torch.no_grad()
    def predict_on_both_grids(
        self, network: nn.Module, volume: Volume, match: Match | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Predict the masks of one volume, as loaded from its file; its own mask has no effect.

        Returns:
            The masks on the grid of the file, (K, H, W, D) uint8 of 0 and 1; the probabilities on the same grid, or
            None if they are not known; and the masks on the prepared slices, (K, S, S, D), or None if no metric needs
            them.
        """
        network.eval()
        preprocessing = self.preprocessing()
        item = preprocessing({"image": volume.image})
        image = item["image"]
        on_prepared = self.probabilities(network, image.as_tensor(), match)
        item["pred"] = MetaTensor(on_prepared, meta=image.meta, applied_operations=image.applied_operations)
        steps: list[MapTransform] = [AsDiscreted("pred", threshold=self.evaluation.threshold)]
        if self.evaluation.largest_component:
            # All channels are listed, because MONAI otherwise treats channel 0 as the background.
            channels = list(range(self.out_channels))
            steps.append(KeepLargestConnectedComponentd("pred", channels, is_onehot=True, independent=True))
        to_masks = Compose(steps)
        prepared = to_masks({"pred": item["pred"].clone()})["pred"].as_tensor() if self.further_metrics else None
        item = Invertd("pred", preprocessing, orig_keys="image", nearest_interp=False, to_tensor=True)(item)
        probabilities = item["pred"].as_tensor()
        return to_masks(item)["pred"].as_tensor().to(torch.uint8), probabilities, prepared

    def probabilities(self, network: nn.Module, image: Tensor, match: Match | None = None) -> Tensor:
        """The probabilities (K, S, S, D) on the CPU of a prepared volume (C, S, S, D) in [0, 1], not standardised."""
        device, slices = next(network.parameters()).device, image.movedim(-1, 0)
        if match is not None:
            slices = match(slices.to(device)).cpu()
        slices = self.standardise(slices, self.moments_of(slices)).movedim(0, -1)
        inferer = SliceInferer(
            roi_size=(self.image_size, self.image_size), spatial_dim=2, sw_batch_size=MAX_SLICES, progress=False
        )
        return inferer(slices[None].to(device), network)[0].sigmoid().cpu()

    def load(
        self, dataset: Dataset, cases: Sequence[Case], reading: Reading, max_cache_bytes: int = MAX_CACHE_BYTES
    ) -> Slices:
        """All volumes are kept in memory, so `max_cache_bytes` has no effect."""
        slices = self.prepare(_volumes(dataset, cases, reading), len(cases))
        return replace(slices, patient_of_volume=numbered_patients(cases))

    def check_files(self, dataset: Dataset, cases: Sequence[Case], reading: Reading) -> None:
        for case in cases:
            _load(dataset, case, reading)
            reading.advance(1)

    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """One batch per volume, its D slices."""
        preprocessing = self.preprocessing()
        for case in cases:
            yield preprocessing({"image": dataset.load(case).image})["image"].as_tensor().movedim(-1, 0)

    def evaluate(
        self,
        network: nn.Module,
        dataset: Dataset,
        cases: Sequence[Case],
        role: str,
        reading: Reading,
        match: Match | None = None,
    ) -> EvaluationResult:
        result = EvaluationResult()
        further = {metric.name for metric in self.further_metrics}
        metrics = [m for m in self.scoring.metrics if isinstance(m, MaskMetric) and m.name not in further]
        for case in cases:
            volume = _load(dataset, case, reading)
            predicted, probabilities, on_slices = self.predict_on_both_grids(network, volume, match)
            reference = volume.mask.as_tensor()
            prepared: list[tuple[Tensor, Tensor]] = []  # prediction and reference of each structure
            if on_slices is not None:
                prepared = list(zip(on_slices, self.prepare_mask(volume), strict=True))
            names = {"site": case.site, "role": role, "patient": case.patient, "image": case.name}
            for index, structure in enumerate(self.structures):
                masks_of_structure = predicted[index], reference[index]
                of_structure = None if probabilities is None else probabilities[index]
                scores = compute_mask_metrics(metrics, *masks_of_structure, volume.spacing_mm, of_structure)
                on_prepared = prepared_scores(*prepared[index], scores) if prepared else {}
                result.rows.append({**names, "structure": structure, **scores, **on_prepared})
            if dataset.ratio_structures:
                inner, outer = map(self.structures.index, dataset.ratio_structures)
                ratios = [vertical_ratio(masks[inner], masks[outer]) for masks in (reference, predicted)]
                result.ratios.append(ratio_row(case.site, role, case.patient, case.name, *ratios))
            if role == "unseen":
                result.masks[case.name] = PackedMask.pack(predicted)
            reading.advance(1)
        return result

    def typical_image(self, samples: Slices) -> Tensor:
        """The slice with the largest sum of the structures' areas."""
        return samples.images[int(samples.labels.flatten(1).sum(dim=1).argmax())]

    def bundle(self, input_is_2d: bool) -> MaskBundle:
        return MaskBundle(
            self.structures,
            self.channels,
            self.image_size,
            self.intensity_range,
            self.standardised,
            self.fixed_constants,
            self.evaluation.threshold,
            self.evaluation.largest_component,
            input_is_2d,
        )


def _volumes(dataset: Dataset, cases: Sequence[Case], reading: Reading) -> Iterator[Volume]:
    """Yield the volume of each case; a case counts as processed when the next volume is requested."""
    for case in cases:
        volume = _load(dataset, case, reading)
        reading.observe(case, volume.image, volume.mask)
        yield volume
        del volume  # the loop would keep it until the next volume is read
        reading.advance(1)


def _load(dataset: Dataset, case: Case, reading: Reading) -> Volume:
    volume = dataset.load(case)
    reading.notice(case, volume.notices)
    return volume
