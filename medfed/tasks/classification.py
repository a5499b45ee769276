"""Classification of whole pictures, which are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from monai.data import MetaTensor
from torch import Tensor, nn
from torch.nn import functional

from medfed.core.batch import Batch
from medfed.core.seeds import stream_seed
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.datasets.checking import MAX_HASHED_CASES
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.class_bundle import MAX_BATCH, ClassBundle, colour_scale
from medfed.tasks.class_scoring import CLASS_METRICS, ClassScoring, case_row
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.results import EvaluationResult, Rows
from medfed.tasks.task import KEPT_BYTES, Advance, Notice, Task

Read = Callable[[Case], MetaTensor]  # (C, H, W, 1), from 0 to 255


def even_parts(order: Tensor) -> tuple[Tensor, ...]:
    """Split N indices into near-equal batches of at most MAX_BATCH, so that none has a single image where it can be
    avoided (BatchNorm needs two)."""
    return order.tensor_split(-(-len(order) // MAX_BATCH)) if len(order) else ()


@dataclass(frozen=True)
class ImageSamples:
    """The pictures of some cases: read on demand, kept as bytes while there is room.

    Args:
        cases: each with its `label`.
        read: gives one as the file has it.
        size: side in pixels to which it is brought (bilinear, with anti-aliasing).
        kept_bytes: how much of them may stay in memory.
    """

    cases: tuple[Case, ...]
    read: Read
    size: int
    kept_bytes: int = KEPT_BYTES
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def n_patients(self) -> int:
        return len({case.subject for case in self.cases})

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""
        return torch.tensor([case.label for case in self.cases])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, S, S) in [0, 1] and labels (B,)."""
        pixels = torch.stack([self._picture(index) for index in indices])
        return Batch(pixels.float() / 255, torch.tensor([self.cases[index].label for index in indices]))

    def preload(self) -> Iterator[None]:
        """Read as many as are kept, one a step, so that what is wrong with them shows before training."""
        for index in range(len(self)):
            if self._has_room():
                self._picture(index)
            yield

    def _has_room(self) -> bool:
        one = next(iter(self._kept.values())).numel() if self._kept else 0
        return (len(self._kept) + 1) * one <= self.kept_bytes

    def _picture(self, index: int) -> Tensor:
        if index in self._kept:
            return self._kept[index]
        pixels = self.read(self.cases[index]).as_tensor()[..., 0]
        if pixels.shape[1:] != (self.size, self.size):
            size = (self.size, self.size)
            pixels = functional.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
        pixels = pixels.round().clamp(0, 255).to(torch.uint8)
        if self._has_room():
            self._kept[index] = pixels
        return pixels


@dataclass(frozen=True)
class Classification(Task):
    """One class an image.

    Args:
        classes: their names, in the order of the logits.
        channels: image channels, 1 or 3.
        image_size: side in pixels of what the network sees.
        evaluation: whether predictions adapt to the test images (`tent`); its other fields are for masks.
        standardised: whether the network sees colours on ImageNet's scale, (x - mean) / std with fixed numbers, or as
            they are in [0, 1]. Fixed, because an image's own mean is the stain, which sites exchange.
    """

    classes: tuple[str, ...]
    channels: int
    image_size: int
    evaluation: Evaluation = Evaluation()
    standardised: bool = True

    name = "classification"
    metric_kind = "class_metrics"
    scoring_class = ClassScoring
    own_metrics = CLASS_METRICS
    uses_sigmoid = False
    uses_decoder = False

    @property
    def out_channels(self) -> int:
        return len(self.classes)

    def prepare(self, cases: Sequence[Case], read: Read) -> ImageSamples:
        """Samples for training and validation, in the order of the cases; no file is opened yet."""
        return ImageSamples(tuple(cases), read, self.image_size)

    def standardise(self, image: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] to what the network sees."""
        if not self.standardised:
            return image
        mean, std = colour_scale(self.channels)
        return (image - image.new_tensor(mean)[:, None, None]) / image.new_tensor(std)[:, None, None]

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Random rotation, scaling and left-right flipping."""
        theta = draw_affine(len(batch.image), rng)
        # The maps flip the first image axis, and here that is up-down.
        return batch.transform(lambda image: warp(image.mT, theta).mT.contiguous(), batch.label)

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, K) and labels (B,)."""
        return functional.cross_entropy(logits, label)

    def validate(
        self, network: nn.Module, samples: ImageSamples, decoder_levels: Sequence[str] = ()
    ) -> dict[str, float]:
        """Share of the images that are classified right; there are no decoder levels."""
        right = self.probabilities(network, samples).argmax(dim=1) == samples.labels
        return {"score": float(right.double().mean())}

    @torch.no_grad()
    def probabilities(self, network: nn.Module, samples: ImageSamples) -> Tensor:
        """(N, K) float64, softmax of the logits, in the order of the samples.

        Batches are drawn in another order, fixed but telling no class: Tent and batch statistics see a batch whole.
        """
        network.eval()
        device = next(network.parameters()).device
        found = torch.zeros(len(samples), self.out_channels, dtype=torch.float64)
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
        for chosen in even_parts(order):
            image = samples.batch(chosen.tolist()).image
            found[chosen] = network(self.standardise(image.to(device))).double().softmax(dim=1).cpu()
        return found

    def load(
        self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance, kept_bytes: int = KEPT_BYTES
    ) -> ImageSamples:
        """Samples that are read on demand; as many as stay in memory are read now."""
        samples = replace(self.prepare(cases, _reader(dataset, notice)), kept_bytes=kept_bytes)
        for _ in samples.preload():
            advance(1)
        return samples

    def check_files(self, dataset: Dataset, cases: Sequence[Case], notice: Notice, advance: Advance) -> None:
        for case in cases[:MAX_HASHED_CASES]:  # of very many, some
            dataset.read_image(case, [])
            advance(1)

    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """Batches of at most MAX_BATCH, in the order of the cases."""
        samples = self.prepare(cases, lambda case: dataset.read_image(case, []))
        for start in range(0, len(samples), MAX_BATCH):
            yield samples.batch(range(start, min(start + MAX_BATCH, len(samples)))).image

    def evaluate(
        self, network: nn.Module, dataset: Dataset, cases: Sequence[Case], role: str, notice: Notice, advance: Advance
    ) -> EvaluationResult:
        """A row per image."""
        rows: Rows = []
        read = _reader(dataset, notice)
        # The order is independent of the class, as Tent and batch statistics see a batch as a whole.
        cases = sorted(cases, key=lambda case: stream_seed(0, "order", case.site, case.patient))
        for indices in even_parts(torch.arange(len(cases))):
            part = [cases[index] for index in indices.tolist()]
            for case, found in zip(part, self.probabilities(network, self.prepare(part, read)), strict=True):
                row = case_row(
                    case.site, role, case.patient, case.subject, case.label, found.tolist(), self.classes
                )
                rows.append(row)
            advance(len(part))
        return EvaluationResult(rows)

    def typical_image(self, samples: ImageSamples) -> Tensor:
        """The first image of the last class."""
        return samples.batch([int(samples.labels.argmax())]).image[0]

    def patients_of(self, samples: ImageSamples) -> list[str]:
        return [case.subject for case in samples.cases]

    def bundle(self, input_is_2d: bool) -> ClassBundle:
        """Classified images are always 2-D files."""
        return ClassBundle(self.classes, self.channels, self.image_size, self.standardised)


def _reader(dataset: Dataset, notice: Notice) -> Read:
    def read(case: Case) -> MetaTensor:
        notices: list[str] = []
        image = dataset.read_image(case, notices)
        notice(case, notices)
        return image

    return read
