"""The images on which a style codec is trained: from folders, or synthetic ones that are generated at the start."""

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
from medfed.style_codec.recipe import N_TEXTURES

Progress = Callable[[Iterable], Iterable]
N_CASES_PER_SITE = 2
RESIZE_FACTOR = 4 / 3  # shorter side of an image divided by the side of a crop
MAX_POOL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # half of this machine's memory


@dataclass(frozen=True)
class ImagePool:
    """Images in memory from which the training of a style codec draws random crops.

    Args:
        images: tensors (3, H, W) uint8, both sides at least as long as a crop's.
        description: text that says what the images are, for result files.
    """

    images: tuple[Tensor, ...]
    description: str

    def digest(self) -> str:
        """Return the SHA-256 digest of the pixels of all images as hexadecimal text.

        The digest is saved when a training starts. When the training is resumed, an equal digest shows that the images
        have not changed.
        """
        total = hashlib.sha256()
        for image in self.images:
            total.update(image.numpy().tobytes())
        return total.hexdigest()

    def batch(self, count: int, size: int, rng: torch.Generator) -> Tensor:
        """Draw random square crops of random images.

        Each crop is rotated by a random multiple of 90 degrees, and mirrored with probability 0.5.

        Args:
            count: number of crops.
            size: side of a crop in pixels.
            rng: CPU random generator.

        Returns:
            (count, 3, size, size) float32 in [0, 1].
        """
        chosen = torch.randint(len(self.images), (count,), generator=rng).tolist()
        return torch.stack([_random_crop(self.images[index], size, rng) for index in chosen]).float() / 255


def synthetic_pool(
    size: int, seed: int, progress: Progress, n_textures: int = N_TEXTURES, cases: int = N_CASES_PER_SITE
) -> ImagePool:
    """Generate synthetic RGB images to train a style codec on: random textures, and images of simulated patients.

    The simulated images are slices of prostate MRI, fundus photographs, and histology patches of lymph nodes.

    Args:
        size: side in pixels of the crops that the training takes from the images. Each image is at least as large.
        seed: seed of all random draws.
        progress: function such as `tqdm.tqdm` that wraps an iterable and shows progress.
        n_textures: number of random textures. It limits the number of prostate slices, so that the slices do not
            outnumber the textures: at most n_textures / 3 slices (rounded up) are kept, at equal distances in the list
            of all slices. With 0 textures there is no limit, and all prostate slices are kept.
        cases: number of simulated patients of each site. There are six sites with prostate MRI, four with fundus
            photographs, and five with histology patches. Each histology patient has four patches.

    Returns:
        The images in memory, with a text that says how many there are of each type.
    """
    side = round(size * RESIZE_FACTOR)
    images: dict[str, list[np.ndarray]] = {}
    images["procedural textures"] = [random_texture(seed, number, side) for number in progress(range(n_textures))]
    prostates = [(name, number) for name, site in prostate_sites.SITES.items() for number in site.numbers[:cases]]
    slices = [
        image for name, number in progress(prostates) for image in _prostate_slices(name, number, max(32, side), seed)
    ]
    images["slices of prostate phantoms"] = slices[:: -(-3 * len(slices) // n_textures)] if n_textures else slices
    fundi = [(name, number) for name, site in fundus_sites.SITES.items() for number in site.numbers[:cases]]
    fundus_images = (
        fundus.simulate_photograph(name, number, max(32, side), seed).image for name, number in progress(fundi)
    )
    images["fundus phantoms"] = [_resize(image / 255, side) for image in fundus_images]
    patches = list(histology.patch_table(4 * cases, cases, seed))
    images["histology phantoms"] = [
        _resize(histology.simulate_patch(row.patient, number, row.tumour, seed)[0] / 255, max(size, histology.SIDE))
        for number, row in enumerate(progress(patches))
    ]
    pool = tuple(_to_uint8(image) for group in images.values() for image in group)
    return ImagePool(pool, ", ".join(f"{len(group)} {name}" for name, group in images.items()))


def folder_pool(folders: Sequence[Path], size: int, progress: Progress) -> ImagePool:
    """Read all images in folders and their subfolders, and resize them for the training of a style codec.

    Args:
        folders: folders with PNG, JPEG, BMP or TIFF files.
        size: side in pixels of the crops that the training takes from the images. The shorter side of each image is
            resized to 4/3 of `size`.
        progress: function such as `tqdm.tqdm` that wraps an iterable and shows progress.

    Returns:
        The images in memory, with a text that says where they come from.

    Raises:
        UserError: if a folder is missing or contains no image, if all images together need more than half of this
            machine's memory, or if an image is damaged.
    """
    paths = []
    for folder in folders:
        in_folder = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not in_folder:
            raise UserError(f"{folder}: contains no image; expected a folder with {', '.join(SUFFIXES)} files")
        paths += in_folder
    _check_memory(folders, len(paths), size)
    images = tuple(_to_uint8(read_image(path, round(size * RESIZE_FACTOR))) for path in progress(paths))
    return ImagePool(images, f"{len(images)} images from {', '.join(map(str, folders))}")


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """Read an image file as RGB, and resize it to a given length of its shorter side.

    Args:
        path: a PNG, JPEG, BMP or TIFF file.
        side: length of the shorter side of the result in pixels; None keeps the size.

    Returns:
        (3, H, W) float32 in [0, 1], read-only. A grey image is repeated to three channels.

    Raises:
        UserError: if the file cannot be read, or is a grey image with more than 8 bits.
    """
    pixels = read_image_file(path, None, []) / 255
    pixels = pixels if side is None else _resize(np.moveaxis(pixels, 0, -1), side)
    return np.broadcast_to(pixels, (3, *pixels.shape[1:]))


def crop_rng(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a new CPU random generator whose seed depends only on the arguments.

    A resumed training therefore draws the same random crops as one that was not interrupted.

    Args:
        seed: seed of the training.
        purpose: words and numbers that describe the use of the generator, such as "step" and the number of the training
            step.
    """
    return stream(seed, "codec", *purpose)


def _check_memory(folders: Sequence[Path], count: int, size: int) -> None:
    """Raise a UserError if `count` square images would not fit into memory; no image is read for it."""
    bytes_each = 3 * round(size * RESIZE_FACTOR) ** 2
    if count * bytes_each > MAX_POOL_BYTES:
        raise UserError(
            f"{', '.join(map(str, folders))}: {count:,} images take {count * bytes_each / 2**30:.3g} GiB of memory "
            f"or more with --size {size}; expected at most half of this machine's memory, {MAX_POOL_BYTES / 2**30:.3g} "
            f"GiB; give at most {MAX_POOL_BYTES // bytes_each:,} images, or choose a smaller --size"
        )


def _resize(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image (H, W, C) so that its shorter side is `side` pixels, and move its channels first: (C, H, W)."""
    pixels = torch.from_numpy(np.moveaxis(image, -1, 0).astype(np.float32))
    factor = side / min(pixels.shape[1:])
    if factor != 1:
        height, width = (max(side, round(length * factor)) for length in pixels.shape[1:])
        pixels = F.interpolate(pixels[None], (height, width), mode="bilinear", antialias=True, align_corners=False)[0]
    return pixels.numpy()


def _prostate_slices(site: str, number: int, side: int, seed: int) -> list[np.ndarray]:
    """Return all slices of a simulated prostate MRI as RGB images (3, side, side) in [0, 1]."""
    volume = simulate_examination(site, number, side, seed).image
    low, high = np.percentile(volume, (0.5, 99.5))
    grey = np.clip((volume - low) / max(high - low, 1e-6), 0, 1)
    return [np.broadcast_to(grey[:, :, index].T, (3, side, side)) for index in range(grey.shape[2])]


def _random_crop(image: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """Return a random crop of an image (3, H, W), rotated by a multiple of 90 degrees and mirrored at random."""
    top, left = (int(torch.randint(side - size + 1, (), generator=rng)) for side in image.shape[1:])
    quarter_turns, mirrored = (int(torch.randint(n, (), generator=rng)) for n in (4, 2))
    crop = torch.rot90(image[:, top : top + size, left : left + size], quarter_turns, (1, 2))
    return crop.flip(2) if mirrored else crop


def _to_uint8(image: np.ndarray) -> Tensor:
    """Convert intensities in [0, 1] to whole numbers from 0 to 255."""
    return torch.from_numpy(np.round(255 * np.clip(image, 0, 1)).astype(np.uint8))
