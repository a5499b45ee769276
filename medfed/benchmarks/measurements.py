"""Measurements; each returns two numbers for the same work, of medfed and of a peer in the same run."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from monai.metrics import compute_hausdorff_distance
from torch import Tensor

from medfed.config.schema import Config, load, load_text
from medfed.core.determinism import deterministic
from medfed.core.machine import max_processes
from medfed.core.registry import shipped_configs
from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.experiments.grid import Fold
from medfed.experiments.run_folds import run_folds
from medfed.experiments.setup import Experiment, build_experiment
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.functional import fourier
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.metrics.mask_metric import MaskPair
from medfed.metrics.masks.hd95 import HausdorffDistance95
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ComparisonRow
from medfed.results.text_tables import aligned, number
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task

# Network, images and batches of configs/prostate.yaml.
CONFIG = """
data: {{name: prostate_phantom, root: {root}, cases_per_site: {cases}, matrix: {matrix}, image_size: {size}}}
network: {{name: unet, features: [16, 16, 32, 64, 128, 16]}}
method: {{name: fedavg}}
training: {{learning_rate: 0.003, batch_size: 4}}
federation: {{unseen_site: UCL, rounds: 1}}
"""
ALPHA = 0.01  # of the exchange, as in the paper: a 7 x 7 window at 384 x 384 pixels
SPACING_MM = (0.6, 0.6, 3.0)
# Radii, and shift of the prediction, in voxels.
ELLIPSOIDS: Mapping[str, tuple[tuple[float, float, float], tuple[int, int, int]]] = {
    "prostate": ((37, 29, 6.5), (3, -2, 0)),
    "large": ((60, 50, 9), (4, -3, 0)),
    "tiny": ((1.5, 1.5, 1.5), (40, 0, 0)),
}
SITES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
# By name of the config, its number of classes, or 0 for masks of one structure in grey images.
GPU_CONFIGS: Mapping[str, int] = {"prostate_paper": 0, "camelyon17_paper": 2, "pacs_stablefdg": 7, "pacs_fisc": 7}


@dataclass(frozen=True)
class Row:
    work: str
    peer_name: str
    medfed: float
    peer: float
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        return self.peer / self.medfed if self.medfed else float("nan")


def table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{title}\n  not measured, because PyTorch found no CUDA GPU"
    cells = [["work", "medfed", "peer", "ratio", "unit", "peer is"]]
    cells += [[row.work, *map(number, (row.medfed, row.peer, row.ratio)), row.unit, row.peer_name] for row in rows]
    return f"{title}\n{aligned(cells)}"


def exchange(size: int = 384, n_images: int = 5, n_sites: int = 5, repeats: int = 3) -> list[Row]:
    """Frequency exchange of ELCFS in a batch of images, against two full FFTs for each exchange

    RGB images of noise get the amplitudes of an image of every site. ValueError if the results differ.
    """
    rng = torch.Generator().manual_seed(0)
    images, *donors = 255 * torch.rand(n_sites + 1, n_images, 3, size, size, generator=rng)
    ratios = list(torch.rand(n_sites, n_images, generator=rng))
    spectra = [torch.fft.fftshift(torch.fft.fft2(donor).abs(), dim=(-2, -1)) for donor in donors]
    windows = [fourier.low_frequency_window(donor, ALPHA) for donor in donors]

    def medfed() -> list[Tensor]:
        spectrum = fourier.low_frequency_spectrum(images, ALPHA)
        pairs = zip(windows, ratios, strict=True)
        return [fourier.mix_amplitude(images, spectrum, window, ratio) for window, ratio in pairs]

    def peer() -> list[Tensor]:
        return [_exchange_with_ffts(images, *donor) for donor in zip(spectra, ratios, strict=True)]

    if not all(torch.allclose(a, b, rtol=0, atol=1e-5 * float(b.abs().max())) for a, b in zip(medfed(), peer())):
        raise ValueError("the two exchanges differ")
    ms, peer_ms = median_ms([medfed, peer], repeats)
    return [Row(f"{n_images} images x {n_sites} sites, {size} px", "torch.fft", ms, peer_ms)]


def _exchange_with_ffts(images: Tensor, other: Tensor, ratio: Tensor) -> Tensor:
    """Mix the low frequencies of the amplitudes `other`, with the zero frequency in the centre, into images."""
    half = fourier.window_half_width(tuple(images.shape[-2:]), ALPHA)
    rows, columns = (slice(side // 2 - half, side // 2 + half + 1) for side in images.shape[-2:])
    spectrum = torch.fft.fftshift(torch.fft.fft2(images), dim=(-2, -1))
    amplitude, phase = spectrum.abs(), spectrum.angle()
    own, donor = amplitude[..., rows, columns], other[..., rows, columns]
    amplitude[..., rows, columns] = torch.lerp(own, donor, ratio.view(-1, 1, 1, 1))
    return torch.fft.ifft2(torch.fft.ifftshift(torch.polar(amplitude, phase), dim=(-2, -1))).real


def hd95(shape: tuple[int, int, int] = (384, 384, 24), repeats: int = 3) -> list[Row]:
    """95 % Hausdorff distance of two masks, against MONAI, also with masks cropped to their bounding box

    Processor times for pairs of ellipsoids, and for masks that fill the volume. ValueError if the distances differ.
    """
    pairs = {
        name: (_ellipsoid(shape, radii, shift), _ellipsoid(shape, radii, (0, 0, 0)))
        for name, (radii, shift) in ELLIPSOIDS.items()
    }
    pairs["full"] = np.ones(shape, bool), np.ones(shape, bool)
    rows = []
    for name, masks in pairs.items():
        filled = np.nonzero(masks[0] | masks[1])
        box = tuple(slice(int(index.min()), int(index.max()) + 1) for index in filled)
        cropped = [mask[box] for mask in masks]
        functions = [partial(_medfed_hd95, *masks), partial(_monai_hd95, *masks), partial(_monai_hd95, *cropped)]
        if abs(functions[0]() - functions[1]()) > 1e-3:
            raise ValueError(f"{name}: the two distances differ")
        ms, *peers_ms = median_ms(functions, repeats, time.process_time)
        rows += [Row(name, peer, ms, of_peer) for peer, of_peer in zip(("MONAI", "MONAI in the box"), peers_ms)]
    return rows


def _ellipsoid(shape: Sequence[int], radii: Sequence[float], shift: Sequence[int]) -> np.ndarray:
    steps = [
        (index - n // 2 - moved) / radius
        for index, n, moved, radius in zip(np.indices(shape), shape, shift, radii, strict=True)
    ]
    return sum(step**2 for step in steps) < 1


def _medfed_hd95(prediction: np.ndarray, reference: np.ndarray) -> float:
    return HausdorffDistance95().value(MaskPair.from_masks(prediction, reference, SPACING_MM))


def _monai_hd95(prediction: np.ndarray, reference: np.ndarray) -> float:
    first, second = (torch.from_numpy(mask)[None, None] for mask in (prediction, reference))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI warns of an argument that it passes to itself
        return float(compute_hausdorff_distance(first, second, True, percentile=95, spacing=SPACING_MM))


@deterministic(threads=1)
def one_round(size: int = 80, cases: int = 6, repeats: int = 2) -> list[Row]:
    """A round of FedAvg over five sites with all files that it writes, against plain training loops

    Both take the same steps on the same images; the ratio is 1 if the federation costs nothing. A round of ELCFS
    follows, against that of FedAvg.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = CONFIG.format(root=Path(folder) / "data", cases=cases, matrix=max(40, size), size=size)
        config = load_text(text, "benchmark.yaml")
        experiments = [build_experiment(replace(config, method=m), None, True, 1) for m in (FedAvg(), ELCFS())]
        rounds = [partial(_write_round, experiment, Path(folder)) for experiment in experiments]
        ms, elcfs_ms, loops_ms = median_ms([*rounds, partial(_train_in_loops, experiments[0])], repeats)
    return [
        Row("a round of 5 sites", "loops in PyTorch", ms, loops_ms),
        Row("the same with ELCFS", "FedAvg", elcfs_ms, ms),
    ]


def _write_round(experiment: Experiment, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        run, method = RunFolder(Path(path)), experiment.sites[0].method
        engine = InProcess(experiment.sites, run.path / "sites")
        for finished in federate(method, engine, experiment.start, Federation(rounds=1), seed=0):
            run.save_round(finished, best_round=1)


def _train_in_loops(experiment: Experiment) -> None:
    task, network = experiment.task, experiment.network
    for site in experiment.sites:
        network.load_state_dict(experiment.start.weights)
        network.train()
        optimizer = torch.optim.Adam(network.parameters(), site.settings.learning_rate, site.settings.betas)
        rng = stream(0, site.name)
        for indices in torch.randperm(len(site.training), generator=rng).split(site.settings.batch_size):
            batch = task.augment(site.training.batch(indices.tolist()), rng)
            optimizer.zero_grad()
            task.loss(network(task.standardise(batch.image, batch.moments)), batch.label).backward()
            optimizer.step()


def jobs(n_jobs: int | None = None, cases: int = 6, size: int = 80, repeats: int = 2, n_runs: int = 4) -> list[Row]:
    """A round of several sites and a comparison of runs in several processes, against one process

    `n_jobs` None takes what the cores and the memory allow, but at least 2. The comparison is timed once, with the
    start of the processes; the round without it. Images or runs that cannot be divided equally limit the ratio.
    """
    n_jobs = n_jobs or max(2, max_processes(threads=1))
    with tempfile.TemporaryDirectory() as folder, deterministic(threads=1):
        text = CONFIG.format(root=Path(folder) / "data", cases=cases, matrix=max(40, size), size=size)
        config = load_text(text, "benchmark.yaml")
        experiments = [build_experiment(config, None, quiet=True, jobs=n) for n in (n_jobs, 1)]
        try:
            ms, peer_ms = median_ms([partial(_train_sites, experiment) for experiment in experiments], repeats)
        finally:
            for experiment in experiments:
                experiment.engine.close()
        runs_ms, peer_runs_ms = [_compare_ms(config, Path(folder) / f"runs_{n}", n, n_runs) for n in (n_jobs, 1)]
    return [
        Row(f"a round of 5 sites, {n_jobs} processes", "1 process", ms, peer_ms),
        Row(f"{n_runs} runs, {n_jobs} processes", "1 process", runs_ms, peer_runs_ms),
    ]


@deterministic(threads=1)
def gpu(
    configs: Mapping[str, int] = GPU_CONFIGS, repeats: int = 3, n_steps: int = 6, device: str = "cuda"
) -> list[Row]:
    """A training step of the papers' configs on a GPU in bf16, against float32

    Network, image size, batch size and optimiser are those of the config; three sites have images of noise. FedAvg and
    the config's method are timed. The memory is the largest that PyTorch held on the GPU. No rows without a GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return []
    rows = []
    for name, n_classes in configs.items():
        config = load(shipped_configs()[name])
        methods: dict[str, Method] = {"fedavg": FedAvg()}
        if isinstance(config.method, FISC):  # the paper's codec needs downloaded weights
            methods["fisc"] = replace(config.method, codec="small")
        elif not isinstance(config.method, CCST):  # its step is one of FedAvg with more images
            methods[config.method_name] = config.method
        for method_name, method in methods.items():
            (ms, gib), (peer_ms, peer_gib) = (
                _measure_step(
                    config, n_classes, method, replace(config.training, precision=precision), repeats, n_steps, device
                )
                for precision in ("bf16", "float32")
            )
            work = f"{name}, {method_name}, {config.data.image_size} px, batches of {config.training.batch_size}"
            rows += [Row(work, "float32", ms, peer_ms), Row(work, "float32", gib, peer_gib, "GiB")]
    return rows


def median_ms(
    functions: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median milliseconds of functions that run in turn, so that other load affects all; the first does not count."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, of_function in zip(functions, times, strict=True):
            start = clock()
            function()
            of_function.append(1000 * (clock() - start))
    return [statistics.median(of_function[1:]) for of_function in times]


def _train_sites(experiment: Experiment) -> None:
    request = Message(Kind.TRAIN, experiment.start.weights, {}, {"round": 1, "last": 0})
    experiment.engine.exchange(Kind.TRAIN, dict.fromkeys(experiment.engine.sites(), request))


def _compare_ms(config: Config, folder: Path, n_jobs: int, n_runs: int) -> float:
    """Milliseconds of some runs with different unseen sites."""
    row, federation = ComparisonRow("fedavg"), config.federation
    folds = [
        Fold(row, replace(config, federation=replace(federation, unseen_site=site)), RunFolder(folder / site))
        for site in SITES[:n_runs]
    ]
    start = time.perf_counter()
    run_folds(folds, n_jobs, quiet=True)
    return 1000 * (time.perf_counter() - start)


def _measure_step(
    config: Config, n_classes: int, method: Method, training: Training, repeats: int, n_steps: int, device: str
) -> tuple[float, float]:
    """Median milliseconds of a training step on images of noise, and the peak of the GPU's memory in GiB."""
    size, channels, n_images = config.data.image_size, 3 if n_classes else 1, n_steps * training.batch_size
    task: Task = Segmentation(("organ",), channels, size, (0.0, 1.0), standardised="none")
    if n_classes:
        task = Classification(tuple(map(str, range(n_classes))), channels, size)
    settings = replace(config.network, weights="")
    with seeded_layers(0, "initial weights"):
        network = method.wrap_network(settings.build(task.channels, task.out_channels), settings).to(device)
    sites, numbers = [], torch.arange(n_images)
    for name in "abc":
        rng = stream(0, "noise", name)
        images = torch.rand(n_images, channels, size, size, generator=rng)
        masks = (torch.rand(n_images, 1, size, size, generator=rng) > 0.5).to(torch.uint8)
        samples = Slices(images, numbers % n_classes if n_classes else masks, numbers)
        sites.append(
            Site(name, samples, None, task, method, network, settings, training, frozenset(), local_epochs=1, seed=0)
        )
    start = State.of(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = next(federate(method, InProcess(sites, None), start, Federation(rounds=2), 0, training)).state
    request = Message(Kind.TRAIN, start.weights, method.broadcast(state, "a"), {"round": 2})
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ms = median_ms([lambda: sites[0].reply(request)], repeats)[0] / sites[0].reply(request).facts["steps"]
    return ms, torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
