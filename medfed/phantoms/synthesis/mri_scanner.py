"""Simulated T2-weighted MRI scanner: sequence, coils, resolution, noise and the vendor's intensity scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray
from scipy import fft

from medfed.phantoms.synthesis.pelvis_anatomy import Part
from medfed.phantoms.synthesis.shapes import Grid, random_field
from medfed.phantoms.synthesis.tissues import TISSUES, Tissue

SLICE_PROFILE = ((-0.34, 0.3), (0.0, 0.4), (0.34, 0.3))  # (position / slice thickness, weight)


@dataclass(frozen=True)
class Scanner:
    """Parameters of one scanner and protocol."""

    field_tesla: float  # a stronger field lengthens T1 and shortens T2
    te_ms: float  # echo time
    tr_ms: float  # repetition time
    snr: float  # signal of the normal peripheral zone at the gland's centre, divided by the noise of one channel
    sharpness: float  # fraction of k-space along y (phase encoding), in (0, 1]; along x it is (1 + sharpness) / 2
    shading: float  # relative standard deviation of the slow intensity variation by standing waves
    array_gain: float  # additional brightness at the skin below a surface coil; 0 without one
    flare: float  # exponent of the decay with distance from an endorectal coil, 0 without; 1: uncorrected loop
    gain: float  # stored intensity units per unit of signal
    gamma: float  # exponent of the vendor's intensity curve

    def sample_session(self, rng: np.random.Generator) -> Scanner:
        """Return a copy with small random changes, as between sessions with the same protocol."""
        spread = {"te_ms": 0.04, "tr_ms": 0.06, "snr": 0.08, "shading": 0.15, "flare": 0.1, "gain": 0.15, "gamma": 0.03}
        changed = {name: getattr(self, name) * float(np.exp(rng.normal(0, sd))) for name, sd in spread.items()}
        return replace(self, **changed)


def tissue_signal(tissue: Tissue, scanner: Scanner, t2_ratio: float = 1.0) -> tuple[float, float]:
    """Return the spin echo signal PD (1 - exp(-TR / T1)) exp(-TE / T2), in [0, 1], and its slope by T2, TE / T2."""
    t1 = tissue.t1_ms * (scanner.field_tesla / 3.0) ** 0.35
    t2 = tissue.t2_ms * t2_ratio * (3.0 / scanner.field_tesla) ** 0.15
    signal = tissue.proton_density * (1 - np.exp(-scanner.tr_ms / t1)) * np.exp(-scanner.te_ms / t2)
    return float(signal), float(scanner.te_ms / t2)


def magnetisation(parts: Iterable[Part], grid: Grid, scanner: Scanner, t2_ratios: dict[str, float]) -> ndarray:
    """Return the signal (Z, Y, X) without coils and noise, 1 for water; `t2_ratios` are factors by tissue."""
    image = np.zeros(grid.x.shape, np.float32)
    for part in parts:
        tissue = TISSUES[part.tissue]
        signal, slope = tissue_signal(tissue, scanner, t2_ratios.get(part.tissue, 1.0))
        under = image[part.box]
        if tissue.grain:
            grain = np.float32(slope * tissue.variation) * grid.fields[tissue.grain][part.box]
            colour = np.float32(signal) * np.clip(1 + grain, 0.15, 2.5)
        else:
            colour = np.float32(signal)
        under += part.cover * (colour - under)
    return image


def average_slices(image: ndarray) -> ndarray:
    """Average the three sub-slices of every slice, (3Z, Y, X) to (Z, Y, X), with the weights of the slice profile."""
    return sum(np.float32(weight) * image[k :: len(SLICE_PROFILE)] for k, (_, weight) in enumerate(SLICE_PROFILE))


def coil_sensitivity(
    grid: Grid, scanner: Scanner, coil_y_mm: float, skin_y_mm: float, rng: np.random.Generator
) -> ndarray:
    """Return the factor of standing waves, surface coils and an endorectal loop, (Z, Y, X); 1 at the gland's centre."""
    waves = np.exp(np.float32(scanner.shading) * random_field(grid, rng, (80, 75, 75)))
    depth, behind = np.clip(grid.y - skin_y_mm, 0, None), np.clip(115 - grid.y, 0, None)
    array = 1 + scanner.array_gain * (np.exp(-depth / 32) + 0.7 * np.exp(-behind / 32))
    radius2 = np.float32(16.0**2)
    distance2 = grid.x**2 + (grid.y - coil_y_mm) ** 2 + (0.6 * grid.z) ** 2
    loop = ((radius2 + coil_y_mm**2) / (radius2 + distance2)) ** np.float32(1.5 * scanner.flare)
    return waves * array * loop


def acquire(image: ndarray, scanner: Scanner, rng: np.random.Generator) -> ndarray:
    """Add Rician noise to a volume (Z, Y, X) and remove the high frequencies of each slice."""
    reference, _ = tissue_signal(TISSUES["peripheral"], scanner)
    noise = rng.standard_normal((2, *image.shape), dtype=np.float32) * np.float32(reference / scanner.snr)
    noisy = (image + noise[0]) + 1j * noise[1]
    rows, columns = image.shape[1:]
    along_y = _fermi_window(rows, scanner.sharpness)[:, None]
    along_x = _fermi_window(columns, 0.5 * (1 + scanner.sharpness))
    return np.abs(fft.ifft2(fft.fft2(noisy) * along_y * along_x)).astype(np.float32)


def _fermi_window(n: int, kept_fraction: float) -> ndarray:
    """A Fermi window over the frequencies of `n` samples that keeps the lowest `kept_fraction` of them."""
    frequency = np.abs(fft.fftfreq(n)) * 2
    return (1 / (1 + np.exp((frequency - 0.92 * kept_fraction) / 0.06))).astype(np.float32)


def to_stored_units(image: ndarray, scanner: Scanner) -> ndarray:
    """Apply the vendor's intensity curve, which keeps the signal of fat, and the gain: integers from 0 to 4095."""
    fat, _ = tissue_signal(TISSUES["fat"], scanner)
    curved = fat * (image / np.float32(fat)) ** np.float32(scanner.gamma)
    return np.clip(np.rint(curved * np.float32(scanner.gain)), 0, 4095).astype(np.float32)
