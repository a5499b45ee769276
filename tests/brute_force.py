"""Second implementations: distances of masks over all pairs of edge voxels, and the exchange of full spectra."""

import math
from types import SimpleNamespace

import numpy as np
import torch

from medfed.metrics.mask_metric import compute_mask_metrics as score_row
from medfed.tasks.scoring import MASK_METRICS

DISTANCES = ("hd", "hd95", "assd")
COLUMNS = (
    "dice",
    *(f"{name}_mm" for name in DISTANCES),
    *(f"{name}_percent_of_diagonal" for name in DISTANCES),
    "hd95_pooled_vx",
    "ece",
    "status",
)


def score(prediction, reference, spacing):
    """Return all segmentation metrics of two masks, with the columns as attributes."""
    return SimpleNamespace(**score_row(MASK_METRICS, prediction, reference, spacing))


def row(*values):
    return SimpleNamespace(**dict(zip(COLUMNS, values, strict=True)))


def empty(*shape):
    return np.zeros(shape, dtype=np.uint8)


def filled(shape, *boxes):
    mask = empty(*shape)
    for box in boxes:
        mask[box] = 1
    return mask


def blob(shape, seed, share=0.3):
    """A ragged random mask with holes and islands."""
    return (np.random.default_rng(seed).random(shape) < share).astype(np.uint8)


def edge_voxels(mask):
    """Return the set voxels with a neighbour along an axis that is not set or outside the image."""
    scores = []
    for where in np.argwhere(mask):
        for axis, step in [(a, s) for a in range(mask.ndim) for s in (-1, 1)]:
            neighbour = where.copy()
            neighbour[axis] += step
            if neighbour[axis] < 0 or neighbour[axis] >= mask.shape[axis] or not mask[tuple(neighbour)]:
                scores.append(where)
                break
    return np.array(scores, dtype=float)


def brute_force(prediction, reference, spacing):
    if prediction.shape[2] == 1:
        prediction, reference, spacing = prediction[..., 0], reference[..., 0], spacing[:2]
    a, b = edge_voxels(prediction), edge_voxels(reference)

    def directed(step):
        table = np.sqrt((((a[:, None] - b[None]) * step) ** 2).sum(-1))
        return table.min(1), table.min(0)

    there, back = directed(np.array(spacing))
    pooled = np.concatenate(directed(np.ones(len(spacing))))
    return {
        "hd": max(there.max(), back.max()),
        "hd95": max(np.percentile(there, 95), np.percentile(back, 95)),
        "assd": np.concatenate([there, back]).mean(),
        "hd95_pooled_vx": np.percentile(pooled, 95),
    }


def distances(result, unit):
    return {name: getattr(result, f"{name}_{unit}") for name in DISTANCES}


def pixels(result, shape):
    """Return the distances of a result in pixels; the axes of length 1 are not part of the diagonal."""
    diagonal = math.hypot(*shape[: 2 if shape[2] == 1 else 3])
    return {name: value * diagonal / 100 for name, value in distances(result, "percent_of_diagonal").items()}


def full_fft(images, others, ratio, alpha):
    """Eq. 2-3 as printed with full amplitude spectra, in numpy, using only our half width."""
    axes = tuple(range(2, images.ndim))
    size = images.shape[2:]
    half = math.floor(alpha * min(size))
    window = (..., *(slice(n // 2 - half, n // 2 + half + 1) for n in size))
    spectrum = np.fft.fftshift(np.fft.fftn(images.numpy(), axes=axes), axes=axes)
    other = np.abs(np.fft.fftshift(np.fft.fftn(others.numpy(), axes=axes), axes=axes))
    amplitude, phase = np.abs(spectrum), np.angle(spectrum)
    share = ratio.numpy().reshape(-1, *[1] * (images.ndim - 1))
    amplitude[window] = (1 - share) * amplitude[window] + share * other[window]
    back = np.fft.ifftn(np.fft.ifftshift(amplitude * np.exp(1j * phase), axes=axes), axes=axes)
    assert np.abs(back.imag).max() < 1e-10
    return torch.from_numpy(back.real)
