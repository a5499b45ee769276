"""The images that a style codec is trained on: folders of pictures, or synthetic ones that are made on the spot."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.datasets.image_files import SUFFIXES, read_image_file
from medfed.phantoms.synthesis import fundus, fundus_sites, histology, prostate_sites
from medfed.phantoms.synthesis.prostate import simulate_examination
from medfed.phantoms.synthesis.textures import random_texture

Progress = Callable[[Iterable], Iterable]
N_TEXTURES = 480
N_CASES_PER_SITE = 2
RESIZE_FACTOR = 4 / 3  # a picture's shorter side over the side of a crop
# Of the pictures of a pool, which are all in memory: half of this machine's.
MAX_POOL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True)
class ImagePool:
    """Pictures in memory, and random crops of them.

    images: each (3, H, W) uint8, both sides at least the crop's.
    description: for people and result files.
    """

    images: tuple[Tensor, ...]
    description: str

    def digest(self) -> str:
        """SHA-256 of all pixels, so that a resumed training is known to go on with the same images."""
        total = hashlib.sha256()
        for image in self.images:
            total.update(image.numpy().tobytes())
        return total.hexdigest()

    def batch(self, count: int, size: int, rng: torch.Generator) -> Tensor:
        """`count` random crops (count, 3, size, size) in [0, 1], turned and mirrored at random."""
        chosen = torch.randint(len(self.images), (count,), generator=rng).tolist()
        return torch.stack([_random_crop(self.images[index], size, rng) for index in chosen]).float() / 255


def synthetic_pool(
    size: int, seed: int, progress: Progress, n_textures: int = N_TEXTURES, cases: int = N_CASES_PER_SITE
) -> ImagePool:
    """Textures, at most a third as many slices of prostate phantoms, and some fundus and histology phantoms.

    Args:
        cases: prostates of each of six sites, fundi of four, and patients of five hospitals with four patches each.
    """
    side = round(size * RESIZE_FACTOR)
    made: dict[str, list[np.ndarray]] = {}
    made["procedural textures"] = [random_texture(seed, number, side) for number in progress(range(n_textures))]
    prostates = [(name, number) for name, site in prostate_sites.SITES.items() for number in site.numbers[:cases]]
    slices = [
        one for name, number in progress(prostates) for one in _prostate_slices(name, number, max(32, side), seed)
    ]
    made["slices of prostate phantoms"] = slices[:: -(-3 * len(slices) // n_textures)] if n_textures else slices
    fundi = [(name, number) for name, site in fundus_sites.SITES.items() for number in site.numbers[:cases]]
    fundus_images = (
        fundus.simulate_photograph(name, number, max(32, side), seed).image for name, number in progress(fundi)
    )
    made["fundus phantoms"] = [_resize(image / 255, side) for image in fundus_images]
    patches = list(histology.patch_table(4 * cases, cases, seed))
    made["histology phantoms"] = [
        _resize(histology.simulate_patch(row.patient, number, row.tumour, seed)[0] / 255, max(size, histology.SIDE))
        for number, row in enumerate(progress(patches))
    ]
    images = tuple(_to_uint8(picture) for pictures in made.values() for picture in pictures)
    return ImagePool(images, ", ".join(f"{len(pictures)} {what}" for what, pictures in made.items()))


def folder_pool(folders: Sequence[Path], size: int, progress: Progress) -> ImagePool:
    """All pictures in these folders and below, shrunk or enlarged so that the shorter side is 4/3 of a crop's.

    Raises:
        UserError: if a folder is missing or holds no picture, if there are too many for memory, or one is damaged.
    """
    paths = []
    for folder in folders:
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not found:
            raise UserError(f"{folder}: holds no picture; expected a folder of {', '.join(SUFFIXES)} files")
        paths += found
    _check_memory(folders, len(paths), size)
    images = tuple(_to_uint8(read_image(path, round(size * RESIZE_FACTOR))) for path in progress(paths))
    return ImagePool(images, f"{len(images)} pictures from {', '.join(map(str, folders))}")


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """A picture as (3, H, W) in [0, 1], scaled to a shorter side if one is given."""
    pixels = read_image_file(path, None, []) / 255
    pixels = pixels if side is None else _resize(np.moveaxis(pixels, 0, -1), side)
    return np.broadcast_to(pixels, (3, *pixels.shape[1:]))


def crop_rng(seed: int, *purpose: str | int) -> torch.Generator:
    """The stream of a training step; named, so that a resumed training draws what it would have drawn."""
    return stream(seed, "codec", *purpose)


def _check_memory(folders: Sequence[Path], count: int, size: int) -> None:
    """As if all pictures were square; nothing is read for it."""
    bytes_each = 3 * round(size * RESIZE_FACTOR) ** 2
    if count * bytes_each > MAX_POOL_BYTES:
        raise UserError(
            f"{', '.join(map(str, folders))}: {count:,} pictures take {count * bytes_each / 2**30:.3g} GiB of memory "
            f"or more with --size {size}; expected at most half of what is here, {MAX_POOL_BYTES / 2**30:.3g} GiB, so "
            f"give {MAX_POOL_BYTES // bytes_each:,} of them, or choose a smaller --size"
        )


def _resize(picture: np.ndarray, side: int) -> np.ndarray:
    """(H, W, C) to (C, H, W), scaled so that the shorter side is `side`."""
    pixels = torch.from_numpy(np.moveaxis(picture, -1, 0).astype(np.float32))
    factor = side / min(pixels.shape[1:])
    if factor != 1:
        height, width = (max(side, round(length * factor)) for length in pixels.shape[1:])
        pixels = F.interpolate(pixels[None], (height, width), mode="bilinear", antialias=True, align_corners=False)[0]
    return pixels.numpy()


def _prostate_slices(site: str, number: int, side: int, seed: int) -> list[np.ndarray]:
    volume = simulate_examination(site, number, side, seed).image
    low, high = np.percentile(volume, (0.5, 99.5))
    grey = np.clip((volume - low) / max(high - low, 1e-6), 0, 1)
    return [np.broadcast_to(grey[:, :, index].T, (3, side, side)) for index in range(grey.shape[2])]


def _random_crop(image: Tensor, size: int, rng: torch.Generator) -> Tensor:
    top, left = (int(torch.randint(side - size + 1, (), generator=rng)) for side in image.shape[1:])
    turns, mirrored = (int(torch.randint(n, (), generator=rng)) for n in (4, 2))
    crop = torch.rot90(image[:, top : top + size, left : left + size], turns, (1, 2))
    return crop.flip(2) if mirrored else crop


def _to_uint8(picture: np.ndarray) -> Tensor:
    return torch.from_numpy(np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8))
