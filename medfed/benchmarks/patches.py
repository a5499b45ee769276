"""Memory of a site with tens of thousands of images, of which only a part is kept in memory.

The images are patches in the layout of Camelyon17, which has 455,954 patches of 96 x 96 pixels. Each measurement has a
process of its own, in which no earlier work counts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from medfed.benchmarks.memory import measure_in_new_process, peak_bytes, print_result
from medfed.config.schema import load_text
from medfed.core.batch import Batch
from medfed.core.machine import resident_memory_bytes
from medfed.core.malloc import keep_freed_memory
from medfed.core.seeds import stream
from medfed.datasets.camelyon17 import FOLDER, TABLE
from medfed.datasets.splits import Split
from medfed.experiments.cohorts import assign_patients
from medfed.experiments.loading import SiteImages
from medfed.experiments.setup import SiteBuilder, build_network, build_task
from medfed.federation.site import Site
from medfed.tasks.task import MAX_CACHE_BYTES

MIB = 2**20
SIZE = 96  # height and width of a patch in pixels
N_PATIENTS = 200
N_DIFFERENT = 64  # image files; the others are hard links to them, of which a file may have 1,024 on some systems
BATCH_SIZE = 16
N_FIRST = 10  # batches whose memory is reported apart from that of the later batches
CONFIG = """
data: {{name: camelyon17, root: {root}, image_size: 96, allow_duplicates: true}}
network: {{name: resnet, depth: 10, width: 8}}
method: {{name: fedavg}}
training: {{batch_size: 16}}
federation: {{rounds: 1, clients: {n_clients}}}
"""


def measure_patches(
    n_patches: int = 45_593, limit_mib: int = 64, n_clients: int = 100, n_batches: int = 50
) -> dict[str, Any]:
    """Measure the memory of one site with many patches, and of many clients that share the patients of this site.

    A process lists the files, reads images into memory up to a limit, and trains a small network for some batches, for
    which the other images are read from disk. The limit is smaller than that of a run, to keep the measurement short.

    Args:
        n_patches: number of patches of 96 x 96 pixels, of 200 patients.
        limit_mib: largest size of the images that the process keeps in memory, in MiB.
        n_clients: number of simulated clients, at least 2.
        n_batches: number of batches of 16 images, more than 10.

    Returns:
        A dict with the four arguments, with `all_mib` (the size of all training and validation images in MiB) and
        `rows`, a list of one dict for the site and one for the clients:

        - `name`: "one site" or "N clients"; `n_images`: the number of training and validation images;
        - `listed_mib`: by how much the memory of the process grows in MiB when the files are listed, and
          `bytes_per_patch`, the same in bytes, divided by `n_patches`;
        - `kept_mib`: by how much it grows when images are read before the training, and `kept_over_limit`, this number
          divided by `limit_mib`;
        - `first_batches_mib`: by how much it grows in the first ten batches, and `later_batches_mib`, in all later ones
          together, which is 0 if the memory does not depend on the number of batches;
        - `peak_mib`: the peak memory of the process minus its memory at the start, in MiB.
    """
    variants = {"one site": 0, f"{n_clients} clients": n_clients}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        _write_patches(Path(folder), n_patches)
        for name, n in variants.items():
            call = f"measure_growth({folder!r}, {limit_mib}, {n}, {n_batches})"
            rows.append({"name": name, **measure_in_new_process(__name__, call)})
    for row in rows:
        row["bytes_per_patch"] = row["listed_mib"] * MIB / n_patches
        row["kept_over_limit"] = row["kept_mib"] / limit_mib
    return {
        "n_patches": n_patches,
        "limit_mib": limit_mib,
        "n_clients": n_clients,
        "n_batches": n_batches,
        "all_mib": rows[0]["n_images"] * 3 * SIZE**2 / MIB,
        "rows": rows,
    }


def measure_growth(root: str, limit_mib: int, n_clients: int, n_batches: int) -> None:
    """List, read and train on the patches in a folder, and print how the memory of this process grows, as JSON.

    Args:
        root: folder of the dataset, in the layout of Camelyon17.
        limit_mib: largest size of the images that are kept in memory, in MiB.
        n_clients: number of simulated clients that share the patients; 0 for one site.
        n_batches: number of batches of 16 images.
    """
    keep_freed_memory()  # as every program of medfed does
    config = load_text(CONFIG.format(root=root, n_clients=n_clients), "benchmark.yaml")
    task = build_task(config, config.data)
    build = SiteBuilder(config, task, build_network(config.network, config.method, task, config.seed))
    start_mib, used_mib = peak_bytes() / MIB, [_used_mib()]
    splits, clients, _ = assign_patients(config.data, config.federation, config.seed, config.source)
    used_mib.append(_used_mib())
    sites, n_images = _read_sites(build, clients or splits, limit_mib * MIB)
    used_mib.append(_used_mib())
    batches = islice(_batches(sites), n_batches)
    for part in (islice(batches, N_FIRST), batches):
        _train(sites[0], part)
        used_mib.append(_used_mib())
    names = ("listed_mib", "kept_mib", "first_batches_mib", "later_batches_mib")
    grown = dict(zip(names, np.diff(used_mib).tolist(), strict=True))
    print_result({**grown, "peak_mib": peak_bytes() / MIB - start_mib, "n_images": n_images})


def patches_table(result: dict[str, Any]) -> str:
    """Format the result of `measure_patches` as a text table for the terminal.

    Args:
        result: what `measure_patches` returned.
    """
    more = f"{result['n_batches'] - N_FIRST} more"
    return "\n".join(
        [
            f"memory of a site with {result['n_patches']:,} patches of {SIZE} x {SIZE} pixels, in MiB above the start",
            f"  {'':<14}{'listed':>8}{'bytes each':>12}{'images kept':>13}{'/ limit':>9}{f'{N_FIRST} batches':>12}"
            f"{more:>9}{'peak':>8}",
            *(
                f"  {row['name']:<14}{row['listed_mib']:>8.1f}{row['bytes_per_patch']:>12.0f}{row['kept_mib']:>13.1f}"
                f"{row['kept_over_limit']:>8.2f}x{row['first_batches_mib']:>12.1f}{row['later_batches_mib']:>9.1f}"
                f"{row['peak_mib']:>8.1f}"
                for row in result["rows"]
            ),
            f"  limit of the images kept: {result['limit_mib']} MiB here, {MAX_CACHE_BYTES // MIB} MiB in a run; all "
            f"training and validation images need {result['all_mib']:.0f} MiB",
        ]
    )


def _write_patches(folder: Path, n_patches: int) -> None:
    """Write patches of one hospital in the layout of Camelyon17, as hard links to a few different image files."""
    rng = np.random.default_rng(0)
    files = [folder / f"{index}.png" for index in range(min(N_DIFFERENT, n_patches))]
    for file in files:
        coarse = Image.fromarray(rng.integers(0, 256, (SIZE // 8, SIZE // 8, 3), np.uint8))
        smooth = np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC), np.int16)
        noisy = (smooth + rng.integers(-8, 9, smooth.shape)).clip(0, 255)
        Image.fromarray(noisy.astype(np.uint8)).save(file)
    lines = ["patient,node,x_coord,y_coord,tumor,center"]
    for index in range(n_patches):
        patient, x = index * N_PATIENTS // n_patches, SIZE * index
        slide = f"patient_{patient:03d}_node_0"
        slide_folder = folder / FOLDER / "patches" / slide
        slide_folder.mkdir(parents=True, exist_ok=True)
        os.link(files[index % len(files)], slide_folder / f"patch_{slide}_x_{x}_y_0.png")
        lines.append(f"{patient},0,{x},0,{index % 2},0")
    (folder / FOLDER / TABLE).write_text("\n".join(lines) + "\n")


def _read_sites(build: SiteBuilder, patients: Mapping[str, Split], max_cache_bytes: int) -> tuple[list[Site], int]:
    """Return the sites or clients with their images, as a run reads them, and the number of these images."""
    n_images = sum(len(split.train) + len(split.validation) for split in patients.values())
    images = SiteImages(build.config.data, build.task, tqdm(disable=True), n_images, max_cache_bytes)
    return [build.site(name, split, images, share=1.0) for name, split in patients.items()], n_images


def _batches(sites: Sequence[Site]) -> Iterator[Batch]:
    """Yield the first batch of each site, then the second one of each, and so on."""
    orders = [torch.randperm(len(site.training), generator=stream(0, "order", site.name)) for site in sites]
    for chunks in zip(*(order.split(BATCH_SIZE) for order in orders)):
        for site, indices in zip(sites, chunks, strict=True):
            yield site.training.batch(indices.tolist())


def _train(site: Site, batches: Iterable[Batch]) -> None:
    optimizer = torch.optim.SGD(site.network.parameters(), 1e-3)
    for batch in batches:
        optimizer.zero_grad()
        site.task.loss(site.network(site.task.standardise(batch.image)), batch.label).backward()
        optimizer.step()


def _used_mib() -> float:
    return (resident_memory_bytes() or peak_bytes()) / MIB
