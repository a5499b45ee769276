"""Restyled images: how often they are computed, and that their bits do not depend on where they are stored."""

import pytest
import torch

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.settings import Cache
from medfed.networks.parts.adain import StyleCodec
from medfed.networks.parts.style_transfer import StyleTransfer
from medfed.transforms.image_store import ImageStore
from medfed.transforms.style_expansion import ORIGINAL, StyleExpansion

TRANSFER = StyleTransfer("codec", "small", 1.0, 0)
N, K = 6, 3
ORDERS = [torch.randperm(N * K, generator=stream(seed, "order")).split(4) for seed in (0, 1)]  # two epochs


class Noise:
    """N images of noise."""

    n_patients = N

    def __init__(self, size: int) -> None:
        self.images = torch.rand(N, 3, size, size, generator=stream(0, "noise"))

    def __len__(self) -> int:
        return N

    def batch(self, indices) -> Batch:
        return Batch(self.images[list(indices)], torch.tensor(indices))


def expansion(store: ImageStore, size: int = 12, choices=None) -> StyleExpansion:
    """Each image in three styles; `choices` may replace styles by the original."""
    mean, std = torch.rand(2, K, 128, generator=stream(1, "styles"))

    def restyle(image, styles, n_styles):
        return TRANSFER.restyle(image, mean[styles], std[styles], n_styles)

    return StyleExpansion(Noise(size), torch.arange(K).expand(N, K) if choices is None else choices, restyle, store)


def epochs(samples: StyleExpansion, orders=ORDERS) -> torch.Tensor:
    return torch.cat([samples.batch(part.tolist()).image for order in orders for part in order])


@pytest.fixture
def count(monkeypatch):
    """Numbers of images that are encoded and decoded."""
    numbers = {"encode": 0, "decode": 0}

    def counted(name, original):
        def call(codec, images, *arguments):
            numbers[name] += len(images)
            return original(codec, images, *arguments)

        return call

    for name in numbers:
        monkeypatch.setattr(StyleCodec, name, counted(name, getattr(StyleCodec, name)))
    return numbers


@pytest.mark.parametrize("folder", [None, "disk"])
def test_in_two_epochs_each_image_is_encoded_once_and_decoded_once_in_each_style(count, folder, tmp_path):
    epochs(expansion(ImageStore(Cache(folder and str(tmp_path)))))
    assert count == {"encode": N, "decode": N * K}


def test_an_original_is_neither_encoded_nor_decoded_nor_stored(count):
    choices = torch.arange(K).repeat(N, 1)
    choices[:, 1], choices[0] = ORIGINAL, ORIGINAL
    samples = expansion(ImageStore(Cache(None)), choices=choices)
    epochs(samples)
    assert count == {"encode": N - 1, "decode": (N - 1) * 2}
    assert sorted(samples.store._records) == list(range((N - 1) * 2))
    assert torch.equal(samples.batch([4]).image[0], samples.samples.images[1])


def test_without_room_each_needed_image_is_decoded_in_the_needed_style_only(count):
    """57 x 57 pixels: large enough that PyTorch computes one image as it computes several."""
    samples = expansion(ImageStore(Cache(None, max_gb=0)), size=57)
    for index in range(N * K):
        samples.batch([index])
    assert count == {"encode": N * K, "decode": N * K}
    samples.batch([0, 4, 2])  # two styles of image 0 in one batch
    assert count == {"encode": N * K + 2, "decode": N * K + 3}


def test_with_room_for_half_of_the_images_only_the_others_are_computed_again(count):
    record = 32 + 2 * 3 * 57 * 57
    samples = expansion(ImageStore(Cache(None, max_gb=3 * K * record / 1e9)), size=57)
    for _ in range(2):
        for index in range(N * K):
            samples.batch([index])
    assert count == {"encode": 3 + 2 * 3 * K, "decode": 3 * K + 2 * 3 * K}
    assert len(samples.store._records) == 3 * K


@pytest.mark.parametrize("size", [12, 57])
def test_the_bits_do_not_depend_on_the_store(size, tmp_path):
    """At 12 pixels, PyTorch convolves one image in another way than several."""
    caches = [Cache(None), Cache(str(tmp_path)), Cache(None, max_gb=0), Cache(str(tmp_path), max_gb=1e-6 * size)]
    results = [epochs(expansion(ImageStore(cache), size), ORDERS[:1]) for cache in caches]
    assert all(torch.equal(result, results[0]) for result in results)


def test_choices_must_have_one_row_for_each_sample():
    with pytest.raises(ValueError, match=r"choices must be \(6, K\)"):
        expansion(ImageStore(Cache(None)), choices=torch.zeros(5, 3))
