"""Classification of whole images, which are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.seeds import stream_seed
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case, numbered_patients
from medfed.datasets.duplicates import MAX_HASHED_CASES
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.bundle_template import Constants
from medfed.tasks.class_bundle import MAX_BATCH, ClassBundle
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.results import EvaluationResult, Rows
from medfed.tasks.scoring import CLASS_METRICS, CLASSIFICATION
from medfed.tasks.task import MAX_CACHE_BYTES, Match, Reading, Task

N_RESERVED = 64  # images for which memory is reserved at once
Read = Callable[[Case], MetaTensor]  # reads an image (C, H, W, 1) in [0, 255]


def even_parts(order: Tensor) -> tuple[Tensor, ...]:
    """Split indices (N,) into batches of about equal size, as batch normalisation needs at least two images."""
    return order.tensor_split(-(-len(order) // MAX_BATCH)) if len(order) else ()


@dataclass(frozen=True)
class ImageSamples:
    """Images of several cases, which are read on demand and kept in memory up to `max_cache_bytes`."""

    cases: tuple[Case, ...]  # with a `label`, each one image of a patient
    read: Read
    size: int  # side length S in pixels, to which images are resized (bilinear, with anti-aliasing)
    max_cache_bytes: int = MAX_CACHE_BYTES
    moments_of: Callable[[Tensor], Tensor | None] | None = None  # `Task.moments_of` of the images of a batch
    _cache: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _free: list[Tensor] = field(default_factory=list, repr=False)  # reserved memory, each for one image

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def n_patients(self) -> int:
        return len(self.patient.unique())

    @property
    def patient(self) -> Tensor:
        return numbered_patients(self.cases)

    @property
    def labels(self) -> Tensor:
        """Class numbers, (N,) int64."""
        return torch.tensor([case.label for case in self.cases])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, S, S) float32 in [0, 1] and class numbers (B,) int64 at the given positions."""
        image = torch.stack([self._image(index) for index in indices]).float() / 255
        labels = torch.tensor([self.cases[index].label for index in indices])
        return Batch(image, labels, moments=self.moments_of(image) if self.moments_of else None)

    def preload(self) -> Iterator[None]:
        """Read images into memory up to the limit, so that damaged files are found before training. It yields once for
        each image, also for one that was not read, so that the caller can show progress."""
        for index in range(len(self)):
            kept = next(iter(self._cache.values()), None)
            if index == 0 or (kept is not None and self._n_left(kept) > 0):
                self._image(index)
            yield

    def _n_left(self, image: Tensor) -> int:
        """How many further images of the same size may be kept in memory."""
        return min(self.max_cache_bytes // image.nbytes, len(self)) - len(self._cache)

    def _keep(self, index: int, image: Tensor) -> None:
        """Keep an image in memory if there is room.

        Memory is reserved for many images at once. Otherwise each image would lie between the temporary tensors of the
        next image that is read; the freed memory around it would be too small for those, and a process would need four
        times the size of the images.
        """
        n_left = self._n_left(image)
        if n_left > 0:
            if not self._free:
                self._free.extend(image.new_empty(min(n_left, N_RESERVED), *image.shape))
            self._cache[index] = self._free.pop().copy_(image)

    def _image(self, index: int) -> Tensor:
        if index in self._cache:
            return self._cache[index]
        image = self._read(index)
        self._keep(index, image)
        return image

    def _read(self, index: int) -> Tensor:
        """Image (C, S, S) uint8, read from disk and resized."""
        pixels = self.read(self.cases[index]).as_tensor()[..., 0]
        if pixels.shape[1:] != (self.size, self.size):
            size = (self.size, self.size)
            pixels = F.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
        return pixels.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Classification(Task):
    """Classification: predict one class per image."""

    classes: tuple[str, ...]  # in the order of the logits
    channels: int
    image_size: int
    evaluation: Evaluation = Evaluation()  # its settings about masks have no effect
    standardised: Standardise = "imagenet"  # fixed: an image's own mean is its stain, the style that sites exchange
    constants: Constants | None = None

    name = CLASSIFICATION
    metric_kind = "class_metrics"
    own_metrics = CLASS_METRICS
    has_masks = False

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classes

    @property
    def has_fixed_range(self) -> bool:
        return True  # 0 to 255 of an image file are mapped to [0, 1] at every site

    def prepare(self, cases: Sequence[Case], read: Read) -> ImageSamples:
        return ImageSamples(tuple(cases), read, self.image_size, moments_of=self.moments_of)

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        theta = draw_affine(len(batch.image), rng)
        # The sampled maps flip the first image axis, which is up-down here; so the axes are swapped for the transform.
        return batch.transform(lambda image: warp(image.mT, theta).mT.contiguous(), batch.label)

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy, averaged over the batch."""
        return F.cross_entropy(logits, label)

    def validate(
        self, network: nn.Module, samples: ImageSamples, decoder_levels: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return "score", the accuracy."""
        is_correct = self.probabilities(network, samples).argmax(dim=1) == samples.labels
        return {"score": float(is_correct.double().mean())}

    def trivial_scores(self, training: ImageSamples, samples: ImageSamples) -> dict[str, float]:
        """The accuracy of predicting the same class for every image, for each class.

        The class is not the site's own most frequent one: one prediction is compared for all sites, so that sites with
        different shares of the classes do not have an easier one.
        """
        counts = torch.bincount(samples.labels, minlength=self.out_channels).double() / len(samples)
        return {_always(name): share for name, share in zip(self.classes, counts.tolist(), strict=True)}

    def evaluate_trivial(
        self, prediction: str, training: Sequence[ImageSamples], dataset: Dataset, cases: Sequence[Case], role: str
    ) -> list[dict]:
        """Rows of scores for predicting always the same class; no image is read."""
        values = [float(_always(name) == prediction) for name in self.classes]
        return [self._row(case, role, values) for case in cases if case.label is not None]

    @torch.no_grad()
    def probabilities(self, network: nn.Module, samples: ImageSamples, match: Match | None = None) -> Tensor:
        """Softmax of the logits of N images, (N, K) float64 on the CPU; the network is set to evaluation mode.

        Batches are formed in a fixed random order that does not depend on the classes. The order matters because some
        methods (Tent, batch statistics) adapt to all images of a batch together. `match` changes images (B, C, S, S) in
        [0, 1] before they are standardised.
        """
        network.eval()
        device = next(network.parameters()).device
        probabilities = torch.zeros(len(samples), self.out_channels, dtype=torch.float64)
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
        for chosen in even_parts(order):
            batch = samples.batch(chosen.tolist())
            image, moments = batch.image.to(device), batch.moments
            if match is not None:
                image = match(image)
                moments = self.moments_of(image)
            image = self.standardise(image, moments)
            probabilities[chosen] = network(image).double().softmax(dim=1).cpu()
        return probabilities

    def load(
        self, dataset: Dataset, cases: Sequence[Case], reading: Reading, max_cache_bytes: int = MAX_CACHE_BYTES
    ) -> ImageSamples:
        """As many images as possible are read into memory, the others from disk each time they are used."""
        samples = replace(self.prepare(cases, _reader(dataset, reading)), max_cache_bytes=max_cache_bytes)
        for _ in samples.preload():
            reading.advance(1)
        return samples

    def check_files(self, dataset: Dataset, cases: Sequence[Case], reading: Reading) -> None:
        """Read the first 20,000 test images, so that a damaged file is found before the training."""
        for case in cases[:MAX_HASHED_CASES]:  # reading all of a very large dataset would take too long
            dataset.read_image(case, [])
            reading.advance(1)

    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """A batch has at most 64 images (MAX_BATCH)."""
        samples = self.prepare(cases, lambda case: dataset.read_image(case, []))
        samples = replace(samples, max_cache_bytes=0)  # each image is needed once
        for start in range(0, len(samples), MAX_BATCH):
            yield samples.batch(range(start, min(start + MAX_BATCH, len(samples)))).image

    def evaluate(
        self,
        network: nn.Module,
        dataset: Dataset,
        cases: Sequence[Case],
        role: str,
        reading: Reading,
        match: Match | None = None,
    ) -> EvaluationResult:
        """The rows are in a random order that is the same in every run."""
        rows: Rows = []
        read = _reader(dataset, reading)
        # Tent and batch statistics use the images of a batch together, so their order must not depend on the class.
        cases = sorted(cases, key=lambda case: stream_seed(0, "order", case.site, case.name))
        for indices in even_parts(torch.arange(len(cases))):
            batch = [cases[index] for index in indices.tolist()]
            probabilities = self.probabilities(network, self.prepare(batch, read), match).tolist()
            for case, values in zip(batch, probabilities, strict=True):
                rows.append(self._row(case, role, values))
            reading.advance(len(batch))
        return EvaluationResult(rows)

    def _row(self, case: Case, role: str, probabilities: Sequence[float]) -> dict[str, object]:
        """The names of an image, its class, and the probability `p_CLASS` of each of the K classes."""
        names = {"site": case.site, "role": role, "patient": case.patient, "image": case.name}
        label = self.classes[case.label or 0]
        return names | {"label": label} | {f"p_{name}": p for name, p in zip(self.classes, probabilities, strict=True)}

    def typical_image(self, samples: ImageSamples) -> Tensor:
        """The first image with the highest class number, such as the first tumour."""
        return samples.batch([int(samples.labels.argmax())]).image[0]

    def bundle(self, input_is_2d: bool) -> ClassBundle:
        return ClassBundle(self.classes, self.channels, self.image_size, self.standardised, self.fixed_constants)


def _reader(dataset: Dataset, reading: Reading) -> Read:
    def read(case: Case) -> MetaTensor:
        notices: list[str] = []
        image = dataset.read_image(case, notices)
        reading.notice(case, notices)
        reading.observe(case, image, None)
        return image

    return read


def _always(name: str) -> str:
    """The description of the prediction that every image belongs to a class."""
    return f"every image is '{name}'"
