"""Reconstruction attack: recover an image of the site from the shared statistics, next to two controls.

    full    phase retrieval from the complete amplitude spectrum of the image, padded with zeros to twice its size. This
            positive control shows that the attack works and that the score detects a success.
    window  phase retrieval from the shared amplitudes, for methods that share amplitudes.
    fitted  gradient descent on an image that starts as noise, until the method's `share` of it is close to the shared
            statistics.
    mean    mean image of the site's other patients. This negative control needs no shared statistics of the image.

All reconstructions are scored against the original image on the same grid of at most 96 x 96 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.auditing.image_scores import Attempt, align, compare, scored_channel
from medfed.auditing.phase_retrieval import ImageEstimate, retrieve_phase
from medfed.auditing.sharing import ForceGradients, SharedStatistics, evenly_spaced, images_by_patient
from medfed.cli.progress import ProgressBar
from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.method import Tensors
from medfed.functional.fourier import unpack_window
from medfed.methods import elcfs, harmofl

WINDOWS = (elcfs.WINDOWS, harmofl.WINDOW)  # names of the shared tensors that are amplitudes of low frequencies
MAX_SIDE = 96  # height and width in pixels of the grid that reconstructions are scored on, at most
FIT_STEPS, FIT_PIXELS = 300, 128 * 128  # steps of the gradient fit for images of up to this many pixels
STEP = 0.1  # learning rate of the gradient fit
MAX_AVERAGED = 400  # largest number of images in the mean image


def reconstruct(shared: SharedStatistics, n_images: int, n_steps: int = 4000, quiet: bool = True) -> list[Attempt]:
    """Try to reconstruct the middle image of `n_images` patients; images for which nothing is shared are left out."""
    patients, results = images_by_patient(shared.site.training), []
    attacked = evenly_spaced(patients, n_images)
    for own in ProgressBar(attacked, desc="reconstructing images from statistics", disable=quiet, leave=False):
        index, target = _sent_image(shared, own)
        if len(shared.vectors(target)):
            batch = shared.site.training.batch([index])
            others = [other for patient in patients if patient is not own for other in patient]
            results.append(_try_all(shared, batch, target, evenly_spaced(others, MAX_AVERAGED), index, n_steps))
    return results


def _sent_image(shared: SharedStatistics, images: Sequence[int]) -> tuple[int, Tensors]:
    """Return the image of a patient nearest to the middle about which something is sent, and what is sent about it."""
    middle = len(images) // 2
    nearest = [images[place] for place in sorted(range(len(images)), key=lambda place: abs(place - middle))]
    for index in nearest if shared.per_image_entries else ():
        row = shared.row_of(shared.site.training.batch([index]), "reconstructed", index)
        if row is not None:
            return index, {name: shared.sent[name][row : row + 1] for name in shared.per_image_entries}
    batch = shared.site.training.batch([images[middle]])
    is_sent = not shared.per_image_entries and len(shared.vectors(shared.known_statistics_of(batch)))
    return images[middle], shared.sent if is_sent else {}


def _try_all(
    shared: SharedStatistics, batch: Batch, target: Tensors, others: Sequence[int], index: int, n_steps: int
) -> Attempt:
    original = _to_scoring_grid(batch.image)
    estimates = {"full": _from_full_spectrum(original, stream(shared.site.seed, "full", index), n_steps)}
    windows = [entry for name, entry in target.items() if name.rpartition("/")[2] in WINDOWS]
    if windows:
        window = unpack_window(windows[0].reshape(-1, *windows[0].shape[-2:])[0])
        rng = stream(shared.site.seed, "window", index)
        estimates["window"] = reconstruct_from_window(window[scored_channel(batch.image)], original.shape, rng, n_steps)
    if fitted := _fit_by_gradient(shared, batch, target, index):
        estimates["fitted"] = fitted
    images = {kind: align(estimate.image, original) for kind, estimate in estimates.items()}
    if others:
        images_of_others = (shared.site.training.batch([other]).image for other in others)
        total = sum(images_of_others, start=torch.zeros_like(batch.image))
        images["mean"] = _to_scoring_grid(total / len(others))
    scores = {kind: compare(image, original) for kind, image in images.items()}
    for kind, estimate in estimates.items():
        scores[kind]["misfit"] = estimate.residual  # relative error of the image's amplitudes or statistics
    return Attempt(original, images, scores)


def _from_full_spectrum(original: Tensor, rng: torch.Generator, n_steps: int) -> ImageEstimate:
    """Reconstruct an image from its complete amplitude spectrum; the attacker knows only where the padding is."""
    height, width = original.shape
    padded = F.pad(original, (0, width, 0, height))
    amplitude = torch.fft.rfft2(padded).abs()
    support = F.pad(torch.ones_like(original), (0, width, 0, height)) > 0
    estimate = retrieve_phase(amplitude, torch.ones_like(amplitude, dtype=torch.bool), support, rng, n_steps)
    return estimate._replace(image=align(estimate.image, padded)[:height, :width])


def reconstruct_from_window(window: Tensor, shape: Sequence[int], rng: torch.Generator, n_steps: int) -> ImageEstimate:
    """Reconstruct an image of shape (H, W) from one channel (S, S) of `functional.fourier.low_frequency_window`: the
    amplitudes of its lowest frequencies, the zero frequency in the centre, divided by the number of pixels."""
    half = len(window) // 2
    amplitude = window.new_zeros(shape[0], shape[1] // 2 + 1)
    rows = torch.arange(-half, half + 1) % shape[0]
    amplitude[rows[:, None], torch.arange(half + 1)] = window[:, half:] * shape[0] * shape[1]
    known = torch.zeros_like(amplitude, dtype=torch.bool)
    known[rows[:, None], torch.arange(half + 1)] = True
    return retrieve_phase(amplitude, known, torch.ones(shape, dtype=torch.bool), rng, n_steps)


def _fit_by_gradient(shared: SharedStatistics, batch: Batch, target: Tensors, index: int) -> ImageEstimate | None:
    """Fit an image to the shared statistics with Adam, by the mean square of relative errors, so that small numbers
    count too; None if the method's `share` has no gradient or is empty for noise, or the image is blank."""
    wanted = shared.vectors(target).float()[:1]
    if not wanted.any():
        return None
    unit = wanted.abs() + 1e-3 * wanted.abs().max()
    rng = stream(shared.site.seed, "fitted", index)
    raw = torch.randn(batch.image.shape, generator=rng).requires_grad_()
    optimizer = torch.optim.Adam([raw], STEP)
    n_steps = max(50, min(FIT_STEPS, FIT_STEPS * FIT_PIXELS // batch.image[0, 0].numel()))
    network = deepcopy(shared.site.network).requires_grad_(False)  # no weight is trained here
    frozen = replace(shared, site=replace(shared.site, network=network))
    error = torch.zeros(())
    for _ in range(n_steps):
        with ForceGradients():
            vectors = frozen.vectors(frozen.known_statistics_of(replace(batch, image=raw.sigmoid()), "fitted", index))
            if not len(vectors) or not vectors.requires_grad:
                return None
            error = ((vectors[:1].float() - wanted) / unit).square().mean()
        (raw.grad,) = torch.autograd.grad(error, [raw])
        optimizer.step()
    return ImageEstimate(_to_scoring_grid(raw.detach().sigmoid()), float(error.detach().sqrt()))


def _to_scoring_grid(image: Tensor) -> Tensor:
    """Resize one channel of an image (1, C, H, W) to the scoring grid; smaller images keep their size."""
    channel = image[0, scored_channel(image)].float()
    if max(channel.shape) <= MAX_SIDE:
        return channel
    return F.interpolate(channel[None, None], (MAX_SIDE, MAX_SIDE), mode="area")[0, 0]
