"""Segmentation of slices by a 2-D network, scored on whole patients in the geometry of their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from monai.data import MetaTensor
from monai.inferers import SliceInferer
from monai.transforms import (
    AsDiscreted,
    Compose,
    Invertd,
    KeepLargestConnectedComponentd,
    MapTransform,
    Orientationd,
    Resized,
    ScaleIntensityRanged,
    ScaleIntensityRangePercentilesd,
)
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case, Volume
from medfed.functional.hooks import capture_features
from medfed.losses.dice import soft_dice_loss
from medfed.metrics.mask_metric import MaskMetric, compute_mask_metrics
from medfed.metrics.ratio import ratio_row, vertical_ratio
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.boundary_distance import N_LEVELS, boundary_distance
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.mask_bundle import AXES, MAX_SLICES, PERCENTILES, MaskBundle
from medfed.tasks.mask_scoring import MASK_METRICS, MaskScoring
from medfed.tasks.results import EvaluationResult, PackedMask
from medfed.tasks.task import KEPT_BYTES, Advance, Notice, Task


@dataclass(frozen=True)
class Slices:
    """Prepared slices of a site: images (N, C, S, S) float32 in [0, 1], labels (N, K, S, S) uint8, patient (N,)."""

    images: Tensor
    labels: Tensor
    patient: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_patients(self) -> int:
        return len(self.patient.unique())

    def batch(self, indices: Sequence[int]) -> Batch:
        """The slices at these places."""
        chosen = torch.as_tensor(indices)
        return Batch(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Segmentation(Task):
    """Structures that may overlap (one sigmoid each) in images of `channels` channels.

    Args:
        structures: their names, in the order of mask channels.
        channels: image channels.
        image_size: side in pixels of the square slice that the network sees.
        intensity_range: stored intensities that become 0 and 1; None takes percentiles 0.5 and 99.5 of each volume.
        evaluation: from probabilities to masks.
        standardised: whether the network sees each image with zero mean and unit variance (ELCFS's paper), or as it is
            in [0, 1] (its public code). Standardising takes the mean brightness away, and so whatever an exchange of
            the mean alone (alpha 0) brought in.
    """

    structures: tuple[str, ...]
    channels: int
    image_size: int
    intensity_range: tuple[float, float] | None = None
    evaluation: Evaluation = Evaluation()
    standardised: bool = True

    name = "segmentation"
    metric_kind = "mask_metrics"
    scoring_class = MaskScoring
    own_metrics = MASK_METRICS
    uses_sigmoid = True
    uses_decoder = True

    @property
    def out_channels(self) -> int:
        return len(self.structures)

    @property
    def measures_boundary_distance(self) -> bool:
        return self.evaluation.boundary_distance

    def preprocessing(self) -> Compose:
        """From {"image": (C, H, W, D)} in its file's geometry to (C, S, S, D) in [0, 1], axes to the right and front.

        Intensities stay non-negative here: the frequency exchange needs that. `standardise` comes after it.
        """
        low, high = PERCENTILES
        if self.intensity_range is None:
            scale: MapTransform = ScaleIntensityRangePercentilesd("image", low, high, b_min=0.0, b_max=1.0, clip=True)
        else:
            scale = ScaleIntensityRanged("image", *self.intensity_range, b_min=0.0, b_max=1.0, clip=True)
        size = (self.image_size, self.image_size, -1)
        resize = Resized("image", size, mode="trilinear", align_corners=False, anti_aliasing=True)
        return Compose([Orientationd("image", axcodes="RAS", labels=AXES), scale, resize])

    def prepare(self, volumes: Iterable[Volume]) -> Slices:
        """Slices for training and validation, in the order of the volumes."""
        to_slices = self.preprocessing()
        size = (self.image_size, self.image_size, -1)
        turn = Orientationd("mask", axcodes="RAS", labels=AXES)
        move_mask = Compose([turn, Resized("mask", size, mode="nearest-exact")])
        images, labels, patient = [], [], []
        for index, volume in enumerate(volumes):
            image = to_slices({"image": volume.image})["image"].as_tensor()
            mask = move_mask({"mask": volume.mask})["mask"].as_tensor()
            images.append(image.movedim(-1, 0))
            labels.append(mask.movedim(-1, 0).to(torch.uint8))
            patient.append(torch.full((image.shape[-1],), index))
        return Slices(torch.cat(images).contiguous(), torch.cat(labels).contiguous(), torch.cat(patient))

    def standardise(self, image: Tensor) -> Tensor:
        """Zero mean and unit variance of each image and channel (B, C, H, W), as MONAI's NormalizeIntensity."""
        if not self.standardised:
            return image
        centred = image - image.mean(dim=(-2, -1), keepdim=True)
        spread = image.std(dim=(-2, -1), keepdim=True, unbiased=False)
        return centred / torch.where(spread == 0, 1.0, spread)

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Random rotation, scaling and flipping, the same for image and label."""
        theta = draw_affine(len(batch.image), rng)
        return batch.transform(lambda image: warp(image, theta), warp(batch.label, theta, mode="nearest"))

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Soft Dice of each structure over the batch, 1 - (2 sum py + s) / (sum p + sum y + s), s = 1e-5 (ELCFS)."""
        return soft_dice_loss(logits, label)

    @torch.no_grad()
    def validate(
        self, network: nn.Module, samples: Slices, decoder_levels: Sequence[str] = ()
    ) -> dict[str, float]:
        """Mean Dice over patients and structures on the prepared slices.

        Left out where neither reference nor prediction has the structure; a false alarm counts as 0.

        Args:
            decoder_levels: the network's, finest first; with `evaluation.boundary_distance` they are looked at.
        """
        network.eval()
        device = next(network.parameters()).device
        taps = decoder_levels[:N_LEVELS] if self.evaluation.boundary_distance else ()
        distances: list[Tensor] = []
        hits = torch.zeros(int(samples.patient.max()) + 1, self.out_channels, dtype=torch.float64)
        total = torch.zeros_like(hits)
        for start in range(0, len(samples), MAX_SLICES):
            part = slice(start, start + MAX_SLICES)
            with capture_features(network, taps) as features:
                logits = network(self.standardise(samples.images[part].to(device)))
            if taps:
                distances += boundary_distance([features[name] for name in taps], samples.labels[part].to(device)).cpu()
            found = (logits.sigmoid() > self.evaluation.threshold).cpu()
            truth = samples.labels[part].bool()
            hits.index_add_(0, samples.patient[part], (found & truth).sum(dim=(-2, -1)).double())
            total.index_add_(0, samples.patient[part], (found.sum((-2, -1)) + truth.sum((-2, -1))).double())
        present = total > 0
        score = float((2 * hits[present] / total[present]).mean()) if bool(present.any()) else 0.0
        return {"score": score, **({"boundary_distance": float(torch.stack(distances).mean())} if distances else {})}

    def postprocessing(self, preprocessing: Compose) -> Compose:
        """From {"pred": probabilities on the prepared grid} to masks (S, H, W, D) in the geometry of the file."""
        steps = [
            Invertd("pred", preprocessing, orig_keys="image", nearest_interp=False, to_tensor=True),
            AsDiscreted("pred", threshold=self.evaluation.threshold),
        ]
        if self.evaluation.largest_component:
            # Channels named one by one: MONAI takes channel 0 for the background otherwise.
            channels = list(range(self.out_channels))
            steps.append(KeepLargestConnectedComponentd("pred", channels, is_onehot=True, independent=True))
        return Compose(steps)

    @torch.no_grad()
    def predict(self, network: nn.Module, volume: Volume) -> Tensor:
        """Masks (S, H, W, D) uint8 in the geometry of the volume's file."""
        network.eval()
        device = next(network.parameters()).device
        preprocessing = self.preprocessing()
        item = preprocessing({"image": volume.image})
        image = item["image"]
        slices = self.standardise(image.as_tensor().movedim(-1, 0)).movedim(0, -1)
        inferer = SliceInferer(
            roi_size=(self.image_size, self.image_size), spatial_dim=2, sw_batch_size=MAX_SLICES, progress=False
        )
        probabilities = inferer(slices[None].to(device), network)[0].sigmoid().cpu()
        item["pred"] = MetaTensor(probabilities, meta=image.meta, applied_operations=image.applied_operations)
        return self.postprocessing(preprocessing)(item)["pred"].as_tensor().to(torch.uint8)

    def load(
        self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance, kept_bytes: int = KEPT_BYTES
    ) -> Slices:
        """All slices, in memory: `kept_bytes` bounds images that are read on demand, and these are not."""
        return self.prepare(list(_volumes(dataset, cases, notice, advance)))

    def check_files(self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> None:
        for _ in _volumes(dataset, cases, notice, advance):
            pass

    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """A batch per volume."""
        preprocessing = self.preprocessing()
        for case in cases:
            yield preprocessing({"image": dataset.load(case).image})["image"].as_tensor().movedim(-1, 0)

    def evaluate(
        self, network: nn.Module, dataset: Dataset, cases: Sequence[Case], role: str, notice: Notice, advance: Advance
    ) -> EvaluationResult:
        """A row per patient and structure; masks are kept of the unseen site."""
        result = EvaluationResult()
        metrics = [metric for metric in self.scoring.metrics if isinstance(metric, MaskMetric)]
        for case, volume in zip(cases, _volumes(dataset, cases, notice, advance), strict=True):
            predicted = self.predict(network, volume)
            for index, structure in enumerate(self.structures):
                scores = compute_mask_metrics(
                    metrics, predicted[index], volume.mask.as_tensor()[index], volume.spacing_mm
                )
                named = {"site": case.site, "role": role, "patient": case.patient, "structure": structure}
                result.rows.append({**named, **scores})
            if dataset.ratio_structures:
                inner, outer = map(self.structures.index, dataset.ratio_structures)
                reference, found = (
                    vertical_ratio(masks[inner], masks[outer]) for masks in (volume.mask.as_tensor(), predicted)
                )
                result.ratios.append(ratio_row(case.site, role, case.patient, reference, found))
            if role == "unseen":
                result.masks[case.patient] = PackedMask.pack(predicted)
        return result

    def typical_image(self, samples: Slices) -> Tensor:
        """The slice that shows most of the structures."""
        return samples.images[int(samples.labels.flatten(1).sum(dim=1).argmax())]

    def patients_of(self, samples: Slices) -> list[int]:
        return samples.patient.tolist()

    def bundle(self, input_is_2d: bool) -> MaskBundle:
        return MaskBundle(
            self.structures, self.channels, self.image_size, self.intensity_range, self.standardised,
            self.evaluation.threshold, self.evaluation.largest_component, input_is_2d,
        )  # fmt: skip


def _volumes(dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> Iterator[Volume]:
    """Each volume, which counts as worked through when the next one is asked for."""
    for case in cases:
        volume = dataset.load(case)
        notice(case, volume.notices)
        yield volume
        advance(1)
