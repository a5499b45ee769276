"""Reading and preparing 2-D images with their masks, against Pillow"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from medfed.benchmarks.harness import Row, median_ms
from medfed.core.determinism import cpu_threads
from medfed.datasets.case import Case, MaskFile
from medfed.datasets.collections.folder import Folder
from medfed.tasks.segmentation import Segmentation

Set = tuple[str, tuple[int, int, int], int, int]
SETS: tuple[Set, ...] = (  # name, image file (channels, height, width), number of images, side after resizing
    ("RGB images of 12 megapixels", (3, 4000, 3000), 5, 384),
    ("grey images of 512 px", (1, 512, 512), 20, 128),
)


@cpu_threads(1)
def measure(sets: Sequence[Set] = SETS, repeats: int = 3) -> list[Row]:
    """Time for one image and its mask, with medfed's checks and with Pillow alone."""
    rows = []
    for name, (channels, height, width), n_images, size in sets:
        with tempfile.TemporaryDirectory() as folder:
            image, mask = Path(folder, "image.png"), Path(folder, "mask.png")
            coarse = np.random.default_rng(0).integers(0, 256, (height // 20, width // 20, 3), np.uint8)
            pixels = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            (pixels if channels == 3 else pixels.convert("L")).save(image, compress_level=1)
            Image.fromarray(np.uint8(coarse[..., 0] > 127)).resize((width, height)).save(mask)
            dataset = Folder(root=folder, image_size=size, image_channels=channels)
            task = Segmentation(dataset.structures, channels, size, (0.0, 255.0))
            cases = [Case("site", str(index), image, (MaskFile(mask),)) for index in range(n_images)]
            load = partial(task.load, dataset, cases, lambda case, notices: None, lambda n: None)
            peer = partial(_read_with_pillow, image, mask, n_images, size)
            ms, peer_ms = median_ms([load, peer], repeats, time.perf_counter)
        rows.append(Row(name, "Pillow", ms / n_images, peer_ms / n_images))
    return rows


def _read_with_pillow(image: Path, mask: Path, n_images: int, size: int) -> list[Tensor]:
    tensors = []
    for _ in range(n_images):
        pixels = Image.open(image).resize((size, size), Image.Resampling.BILINEAR)
        labels = Image.open(mask).resize((size, size), Image.Resampling.NEAREST)
        tensors += [torch.from_numpy(np.asarray(pixels) / np.float32(255)), torch.from_numpy(np.array(labels))]
    return tensors
