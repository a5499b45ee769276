"""Reconstruction: an image of the site sought from what is sent, beside two controls.

    full    phase retrieval from the whole amplitude spectrum of the image, padded with zeros to twice its side: the
            positive control, which shows that the attack works and that this score can tell it
    window  phase retrieval from the amplitudes that are sent, where the method sends such
    fitted  an image that starts as noise and is changed, by gradient, until the method's own `share` says of it what is
            sent
    mean    the mean of the site's other patients: the negative control, which anybody could bring

All are scored on one grid of at most 96 pixels a side, against what the site's image has there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from medfed.auditing.phase_retrieval import ImageEstimate, align, correlation, detail_correlation, retrieve_phase
from medfed.auditing.sharing import ForceGradients, SharedStatistics, evenly_spaced, images_by_patient
from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.method import Tensors
from medfed.functional.fourier import unpack_window
from medfed.methods import elcfs, harmofl

WINDOWS = (elcfs.WINDOWS, harmofl.WINDOW)
MAX_SIDE, SIGMA = 96, 3 / 128  # pixels; of the blur, a share of the side
FIT_STEPS, FIT_PIXELS, STEP = 300, 128 * 128, 0.1  # fewer steps for larger images, but 50
MAX_AVERAGED = 400  # images in the mean image, at most
KINDS = ("full", "window", "fitted", "mean")


@dataclass(frozen=True)
class Reconstruction:
    """One image of the site and what was made of it.

    original: (S, S), one channel in [0, 1].
    images: by kind, each (S, S), moved onto the original.
    scores: by kind: "correlation" of all that is not empty, "detail_correlation", and "misfit" to what was known.
    """

    original: Tensor
    images: dict[str, Tensor]
    scores: dict[str, dict[str, float]]


def reconstruct(
    sharing: SharedStatistics, n_images: int, n_steps: int = 4000, tick: Callable[[], object] = lambda: None
) -> list[Reconstruction]:
    """Try on the middle images of patients that are spread evenly over the site's training set; those that share.

    Args:
        n_steps: of phase retrieval, for each of its starts.
        tick: called for each image.
    """
    found = []
    for place, others in _choose_images(sharing, n_images):
        batch = sharing.site.training.batch([place])
        statistics = sharing.share_of(batch, "reconstructed", place)
        if len(sharing.vectors(statistics)):
            target = statistics if sharing.per_image_entries else sharing.sent
            found.append(_try_all(sharing, batch, target, others, place, n_steps))
        tick()
    return found


def scored_channel(image: Tensor) -> int:
    """The channel that is looked at: green of colour, else the first."""
    return 1 if image.shape[-3] == 3 else 0


def _choose_images(sharing: SharedStatistics, n_images: int) -> list[tuple[int, list[int]]]:
    """Places of images, each with those of other patients's images."""
    everyone = images_by_patient(sharing.site.training)
    chosen = []
    for own in evenly_spaced(everyone, n_images):
        others = [place for one in everyone if one is not own for place in one]
        chosen.append((own[len(own) // 2], evenly_spaced(others, MAX_AVERAGED)))
    return chosen


def _try_all(
    sharing: SharedStatistics, batch: Batch, target: Tensors, others: list[int], place: int, n_steps: int
) -> Reconstruction:
    original = _to_scoring_grid(batch.image)
    tried = {"full": _from_full_spectrum(original, stream(sharing.site.seed, "full", place), n_steps)}
    windows = [entry for name, entry in target.items() if name.rpartition("/")[2] in WINDOWS]
    if windows:
        window = unpack_window(windows[0].reshape(-1, *windows[0].shape[-2:])[0])
        rng = stream(sharing.site.seed, "window", place)
        tried["window"] = reconstruct_from_window(window[scored_channel(batch.image)], original.shape, rng, n_steps)
    if fitted := _fit_by_gradient(sharing, batch, target, place):
        tried["fitted"] = fitted
    if others:
        images_of_others = (sharing.site.training.batch([other]).image for other in others)
        total = sum(images_of_others, start=torch.zeros_like(batch.image))
        tried["mean"] = ImageEstimate(_to_scoring_grid(total / len(others)), float("nan"))
    images = {kind: one.image if kind == "mean" else align(one.image, original) for kind, one in tried.items()}
    inside = original > 0.05
    scores = {kind: {
        "correlation": correlation(image, original, inside),
        "detail_correlation": detail_correlation(image, original, inside, SIGMA * len(original)),
        **({} if kind == "mean" else {"misfit": tried[kind].residual}),
    } for kind, image in images.items()}  # fmt: skip
    return Reconstruction(original, images, scores)


def _from_full_spectrum(original: Tensor, rng: torch.Generator, n_steps: int) -> ImageEstimate:
    """The attack knows where the padding is, and nothing else."""
    height, width = original.shape
    padded = functional.pad(original, (0, width, 0, height))
    amplitude = torch.fft.rfft2(padded).abs()
    support = functional.pad(torch.ones_like(original), (0, width, 0, height)) > 0
    found = retrieve_phase(amplitude, torch.ones_like(amplitude, dtype=torch.bool), support, rng, n_steps)
    return found._replace(image=align(found.image, padded)[:height, :width])


def reconstruct_from_window(window: Tensor, shape: Sequence[int], rng: torch.Generator, n_steps: int) -> ImageEstimate:
    """Phase retrieval from the amplitudes (S, S) of the lowest frequencies, zero in the middle, of an image of `shape`.

    Amplitudes are divided by the number of pixels, as `medfed.functional.fourier` gives them.
    """
    half = len(window) // 2
    amplitude = window.new_zeros(shape[0], shape[1] // 2 + 1)
    rows = torch.arange(-half, half + 1) % shape[0]
    amplitude[rows[:, None], torch.arange(half + 1)] = window[:, half:] * shape[0] * shape[1]
    known = torch.zeros_like(amplitude, dtype=torch.bool)
    known[rows[:, None], torch.arange(half + 1)] = True
    return retrieve_phase(amplitude, known, torch.ones(shape, dtype=torch.bool), rng, n_steps)


def _fit_by_gradient(sharing: SharedStatistics, batch: Batch, target: Tensors, place: int) -> ImageEstimate | None:
    """Adam on the pixels, through a sigmoid; None where `share` has no gradient, or says nothing of noise.

    The error of each number is in units of itself, so that small ones count; the misfit is its root mean square.
    """
    wanted = sharing.vectors(target).float()[:1]
    unit = wanted.abs() + 1e-3 * wanted.abs().max()
    rng = stream(sharing.site.seed, "fitted", place)
    raw = torch.randn(batch.image.shape, generator=rng).requires_grad_()
    optimizer = torch.optim.Adam([raw], STEP)
    n_steps = max(50, min(FIT_STEPS, FIT_STEPS * FIT_PIXELS // batch.image[0, 0].numel()))
    frozen = _without_gradients(sharing)
    error = torch.zeros(())
    for _ in range(n_steps):
        with ForceGradients():
            said = frozen.vectors(frozen.share_of(Batch(raw.sigmoid(), batch.label), "fitted", place))
            if not len(said) or not said.requires_grad:
                return None
            error = ((said[:1].float() - wanted) / unit).square().mean()
        (raw.grad,) = torch.autograd.grad(error, [raw])
        optimizer.step()
    return ImageEstimate(_to_scoring_grid(raw.detach().sigmoid()), float(error.detach().sqrt()))


def _without_gradients(sharing: SharedStatistics) -> SharedStatistics:
    """The same, with a network whose weights the gradient does not go to; an audit trains nothing."""
    return replace(sharing, site=replace(sharing.site, network=sharing.site.network.requires_grad_(False)))


def _to_scoring_grid(image: Tensor) -> Tensor:
    """One channel of (1, C, H, W) on the grid that is scored on, (S, S)."""
    one = image[0, scored_channel(image)].float()
    if max(one.shape) <= MAX_SIDE:
        return one
    return functional.interpolate(one[None, None], (MAX_SIDE, MAX_SIDE), mode="area")[0, 0]
