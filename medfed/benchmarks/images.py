"""Time and memory to read and prepare 2-D images, compared with Pillow, which opens and resizes the same files.

Memory is measured in a separate process: the peak memory of this process, minus its memory after all imports and the
preparation of one small image.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from medfed.benchmarks.memory import measure_in_new_process, peak_bytes, print_result
from medfed.benchmarks.timing import time_alternating
from medfed.core.determinism import cpu_threads
from medfed.core.malloc import keep_freed_memory
from medfed.datasets.case import Case, MaskFile
from medfed.datasets.collections.folder import Folder
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices

MIB = 2**20
Set = tuple[str, tuple[int, int, int], int, int]
SETS: tuple[Set, ...] = (  # name, image file (channels, height, width), number of images, side after resizing
    ("5 RGB images of 12 megapixels", (3, 4000, 3000), 5, 384),
    ("1,000 grey images of 512 px", (1, 512, 512), 1000, 128),
)
N_TIMED = 20  # largest number of images that are timed


@cpu_threads(1)
def time_images(sets: Sequence[Set] = SETS, repeats: int = 3) -> dict[str, Any]:
    """Measure time and memory to read and prepare sets of 2-D images with their masks, with one thread, as in a run.

    Returns:
        `rows`, one for each set: `ours_ms` and `pillow_ms`, the median time for one image and its mask with medfed's
        checks and with Pillow alone; `times_pillow`, their ratio; `prepared_mib`, the size of all prepared images and
        masks; `peak_mib`, the additional memory of a process that prepares the set; and `times_prepared`, their ratio.
    """
    rows = []
    for name, shape, n_images, size in sets:
        with tempfile.TemporaryDirectory() as folder:
            cases = _write(Path(folder), shape, n_images)
            timed = cases[:N_TIMED]
            ms = time_alternating(
                {"ours": partial(_ours, timed, shape[0], size), "pillow": partial(_pillow, timed, size)}, repeats
            )
            memory = measure_in_new_process(__name__, f"measure_peak({folder!r}, {shape}, {n_images}, {size})")
        rows.append(
            {
                "name": name,
                **{f"{key}_ms": value / len(timed) for key, value in ms.items()},
                "times_pillow": ms["ours"] / ms["pillow"],
                **memory,
                "times_prepared": memory["peak_mib"] / memory["prepared_mib"],
            }
        )
    return {"rows": rows, "threads": torch.get_num_threads(), "repeats": repeats}


def images_table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"reading and preparing images with masks, {result['threads']} thread, median of {result['repeats']}",
            f"  {'images':<32}{'ms each':>9}{'Pillow ms':>11}{'ratio':>7}{'prepared MiB':>14}"
            f"{'peak MiB':>10}{'ratio':>7}",
            *(
                f"  {row['name']:<32}{row['ours_ms']:>9.1f}{row['pillow_ms']:>11.1f}{row['times_pillow']:>7.2f}"
                f"{row['prepared_mib']:>14.1f}{row['peak_mib']:>10.1f}{row['times_prepared']:>7.2f}"
                for row in result["rows"]
            ),
            "  peak: memory above the start of the process. Limits: 1024 MiB for any number of images of 12 "
            "megapixels, ratio 2 for 1,000 images",
        ]
    )


def _write(folder: Path, shape: tuple[int, int, int], n_images: int) -> list[Case]:
    """Write one image with its mask, and return `n_images` cases that all have these two files."""
    channels, height, width = shape
    coarse = np.random.default_rng(0).integers(0, 256, (height // 20, width // 20, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    (image if channels == 3 else image.convert("L")).save(folder / "image.png", compress_level=1)
    Image.fromarray(np.uint8(coarse[..., 0] > 127)).resize((width, height)).save(folder / "mask.png")
    masks = (MaskFile(folder / "mask.png"),)
    return [Case("site", str(index), folder / "image.png", masks) for index in range(n_images)]


def _prepare(cases: list[Case], channels: int, size: int) -> Slices:
    dataset = Folder(root=str(cases[0].image.parent), image_size=size, image_channels=channels)
    task = Segmentation(dataset.structures, channels, size, (0.0, 255.0))
    return task.load(dataset, cases, lambda case, notices: None, lambda n: None)


def _ours(cases: list[Case], channels: int, size: int) -> Iterator[Tensor]:
    """The images of all cases in one tensor, as medfed reads and resizes them."""
    yield _prepare(cases, channels, size).images


def _pillow(cases: list[Case], size: int) -> Iterator[Tensor]:
    """Yield image and mask of each case in turn, read and resized with Pillow alone."""
    for case in cases:
        image, mask = Image.open(case.image), Image.open(case.mask_path)
        yield torch.from_numpy(np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)) / np.float32(255))
        yield torch.from_numpy(np.array(mask.resize((size, size), Image.Resampling.NEAREST)))


def measure_peak(folder: str, shape: tuple[int, int, int], n_images: int, size: int) -> None:
    """Prepare one image `n_images` times; print the peak memory of this process above its start, in MiB, as JSON."""
    keep_freed_memory()  # as every program of medfed does
    with tempfile.TemporaryDirectory() as small:
        _prepare(_write(Path(small), (shape[0], 40, 40), 1), shape[0], 16)
    start_bytes = peak_bytes()
    masks = (MaskFile(Path(folder, "mask.png")),)
    cases = [Case("site", str(index), Path(folder, "image.png"), masks) for index in range(n_images)]
    slices = _prepare(cases, shape[0], size)
    prepared_bytes = slices.images.nbytes + slices.labels.nbytes
    print_result({"prepared_mib": prepared_bytes / MIB, "peak_mib": (peak_bytes() - start_bytes) / MIB})
