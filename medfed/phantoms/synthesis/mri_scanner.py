"""A T2-weighted MRI scanner: what coil, sequence, resolution, noise and vendor make of an anatomy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy import ndarray
from scipy import fft

from medfed.phantoms.synthesis.pelvis_anatomy import Part
from medfed.phantoms.synthesis.shapes import Grid, random_field
from medfed.phantoms.synthesis.tissues import TISSUES, Tissue

SLICE_PROFILE = ((-0.34, 0.3), (0.0, 0.4), (0.34, 0.3))  # (place in the thickness, weight): rounded, as pulses are


@dataclass(frozen=True)
class Scanner:
    """One examination protocol on one machine. All numbers positive, except where 0 is said.

    Args:
        field_tesla: lengthens T1 and shortens T2 as it grows.
        te_ms, tr_ms: echo and repetition time.
        snr: signal of the normal peripheral zone in the middle of the gland over the noise of one channel.
        sharpness: share of k-space acquired along the phase direction (y); along x, halfway from there to 1.
        shading: relative sd of the transmit field's slow variation (standing waves; grows with field strength).
        array_gain: extra brightness at the skin under a surface array, 0 without one.
        flare: how steeply brightness falls off from an endorectal coil, 0 without one. 1 is the uncorrected loop.
        gain: stored units per unit of signal, the vendor's choice.
        gamma: exponent of the vendor's display curve.
    """

    field_tesla: float
    te_ms: float
    tr_ms: float
    snr: float
    sharpness: float
    shading: float
    array_gain: float
    flare: float
    gain: float
    gamma: float

    def interpolate_from(self, reference: Scanner, severity: float) -> Scanner:
        """From the reference (severity 0) to this scanner (1) and beyond: in proportion, linear where 0 is allowed."""

        def blend(name: str) -> float:
            mine, theirs = getattr(self, name), getattr(reference, name)
            if name in ("array_gain", "flare"):
                return max(theirs + severity * (mine - theirs), 0.0)
            return theirs * (mine / theirs) ** severity

        values = {field.name: blend(field.name) for field in fields(self)}
        return Scanner(**(values | {"sharpness": min(values["sharpness"], 1.0)}))

    def sample_session(self, rng: np.random.Generator) -> Scanner:
        """The same protocol on another day: a few per cent of everything, more of the receiver's gain."""
        spread = {"te_ms": 0.04, "tr_ms": 0.06, "snr": 0.08, "shading": 0.15, "flare": 0.1, "gain": 0.15, "gamma": 0.03}
        changed = {name: getattr(self, name) * float(np.exp(rng.normal(0, sd))) for name, sd in spread.items()}
        return replace(self, **changed)


def tissue_signal(tissue: Tissue, scanner: Scanner, t2_ratio: float = 1.0) -> tuple[float, float]:
    """(signal, relative change of the signal for a relative change of T2) of a spin echo.

    signal = PD (1 - exp(-TR/T1)) exp(-TE/T2); its logarithm grows by TE/T2 times the logarithm of T2.
    """
    t1 = tissue.t1_ms * (scanner.field_tesla / 3.0) ** 0.35
    t2 = tissue.t2_ms * t2_ratio * (3.0 / scanner.field_tesla) ** 0.15
    signal = tissue.proton_density * (1 - np.exp(-scanner.tr_ms / t1)) * np.exp(-scanner.te_ms / t2)
    return float(signal), float(scanner.te_ms / t2)


def magnetisation(parts: Iterable[Part], grid: Grid, scanner: Scanner, t2_ratios: dict[str, float]) -> ndarray:
    """(Z, Y, X) signal before the coil: parts laid over one another, each with its grain."""
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
    """Weighted mean of the sub-slices of every slice: (3Z, Y, X) to (Z, Y, X)."""
    return sum(np.float32(weight) * image[k::len(SLICE_PROFILE)] for k, (_, weight) in enumerate(SLICE_PROFILE))


def coil_sensitivity(
    grid: Grid, scanner: Scanner, coil_y_mm: float, skin_y_mm: float, rng: np.random.Generator
) -> ndarray:
    """(Z, Y, X) brightness of the coils: standing waves, surface array in front and behind, endorectal loop.

    On its axis the field of a loop of radius R falls off as (R^2 + d^2)^-3/2; 1 at the middle of the gland.
    """
    waves = np.exp(np.float32(scanner.shading) * random_field(grid, rng, (80, 75, 75)))
    depth, behind = np.clip(grid.y - skin_y_mm, 0, None), np.clip(115 - grid.y, 0, None)
    array = 1 + scanner.array_gain * (np.exp(-depth / 32) + 0.7 * np.exp(-behind / 32))
    radius2 = np.float32(16.0**2)
    distance2 = grid.x**2 + (grid.y - coil_y_mm) ** 2 + (0.6 * grid.z) ** 2
    loop = ((radius2 + coil_y_mm**2) / (radius2 + distance2)) ** np.float32(1.5 * scanner.flare)
    return waves * array * loop


def acquire(image: ndarray, scanner: Scanner, rng: np.random.Generator) -> ndarray:
    """Magnitude of a truncated, noisy k-space: blur, slight ringing and Rician noise of the same grain."""
    reference, _ = tissue_signal(TISSUES["peripheral"], scanner)
    noise = rng.standard_normal((2, *image.shape), dtype=np.float32) * np.float32(reference / scanner.snr)
    noisy = (image + noise[0]) + 1j * noise[1]
    rows, columns = image.shape[1:]
    along_y = _taper(rows, scanner.sharpness)[:, None]
    along_x = _taper(columns, 0.5 * (1 + scanner.sharpness))
    return np.abs(fft.ifft2(fft.fft2(noisy) * along_y * along_x)).astype(np.float32)


def _taper(n: int, kept: float) -> ndarray:
    """Fermi window over the frequencies of `n` samples that keeps the share `kept`."""
    frequency = np.abs(fft.fftfreq(n)) * 2
    return (1 / (1 + np.exp((frequency - 0.92 * kept) / 0.06))).astype(np.float32)


def to_stored_units(image: ndarray, scanner: Scanner) -> ndarray:
    """Whole numbers from 0 to 4095 (12 bits), after the vendor's display curve, which leaves fat's signal in place."""
    fat, _ = tissue_signal(TISSUES["fat"], scanner)
    curved = fat * (image / np.float32(fat)) ** np.float32(scanner.gamma)
    return np.clip(np.rint(curved * np.float32(scanner.gain)), 0, 4095).astype(np.float32)
