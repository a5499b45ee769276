"""Simulated T2-weighted MRI scanner: sequence, coils, resolution, noise and the vendor's intensity scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy import ndarray
from scipy import fft

from medfed.phantoms.synthesis.pelvis_anatomy import Part
from medfed.phantoms.synthesis.shapes import Grid, random_field
from medfed.phantoms.synthesis.tissues import TISSUES, Tissue

SLICE_PROFILE = ((-0.34, 0.3), (0.0, 0.4), (0.34, 0.3))  # (position / slice thickness, weight)


@dataclass(frozen=True)
class Scanner:
    """Parameters of one scanner and protocol. All numbers are positive unless stated otherwise.

    Args:
        field_tesla: magnetic field strength in tesla. A stronger field lengthens T1 and shortens T2.
        te_ms: echo time in ms.
        tr_ms: repetition time in ms.
        snr: signal of the normal peripheral zone in the centre of the gland, divided by the standard deviation of the
            noise of one channel.
        sharpness: fraction of k-space that is acquired along the phase-encoding direction (y), in (0, 1]. Along x, the
            fraction is (1 + sharpness) / 2.
        shading: relative standard deviation of the slow intensity variation that standing waves cause.
        array_gain: additional brightness at the skin below a surface coil; 0 without one.
        flare: exponent of the intensity decay with distance from an endorectal coil; 0 without one, 1 for an
            uncorrected loop coil.
        gain: stored intensity units per unit of signal.
        gamma: exponent of the vendor's intensity curve.
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
        """Return a scanner whose parameters are interpolated between a reference scanner and this scanner.

        `array_gain` and `flare`, which may be 0, are interpolated linearly. The other parameters are interpolated
        geometrically.

        Args:
            reference: the scanner that is returned for severity 0.
            severity: position between the two scanners, at least 0. 0 returns the reference scanner, 1 returns this
                scanner, and larger values extrapolate beyond this scanner.
        """

        def blend(name: str) -> float:
            own, of_reference = getattr(self, name), getattr(reference, name)
            if name in ("array_gain", "flare"):
                return max(of_reference + severity * (own - of_reference), 0.0)
            return of_reference * (own / of_reference) ** severity

        values = {field.name: blend(field.name) for field in fields(self)}
        return Scanner(**(values | {"sharpness": min(values["sharpness"], 1.0)}))

    def sample_session(self, rng: np.random.Generator) -> Scanner:
        """Return a copy of this scanner with small random changes, as between two sessions with the same protocol.

        The echo and repetition times, noise, shading, coil decay, gain and intensity curve change.

        Args:
            rng: NumPy random generator for the changes.
        """
        spread = {"te_ms": 0.04, "tr_ms": 0.06, "snr": 0.08, "shading": 0.15, "flare": 0.1, "gain": 0.15, "gamma": 0.03}
        changed = {name: getattr(self, name) * float(np.exp(rng.normal(0, sd))) for name, sd in spread.items()}
        return replace(self, **changed)


def tissue_signal(tissue: Tissue, scanner: Scanner, t2_ratio: float = 1.0) -> tuple[float, float]:
    """Compute the spin echo signal of a tissue in a scanner.

    The signal is PD (1 - exp(-TR / T1)) exp(-TE / T2), with the tissue's proton density PD and relaxation times T1 and
    T2, and the scanner's repetition time TR and echo time TE.

    Args:
        tissue: tissue properties at 3 tesla; T1 and T2 are converted to the scanner's field strength.
        scanner: parameters of the scanner.
        t2_ratio: factor that is applied to the tissue's T2; 1 leaves it unchanged.

    Returns:
        Two numbers. The first is the signal, in [0, 1], where 1 is the signal of fully relaxed water. The second is
        TE / T2 at the scanner's field strength: a small relative change of T2, times this number, is the relative
        change of the signal.
    """
    t1 = tissue.t1_ms * (scanner.field_tesla / 3.0) ** 0.35
    t2 = tissue.t2_ms * t2_ratio * (3.0 / scanner.field_tesla) ** 0.15
    signal = tissue.proton_density * (1 - np.exp(-scanner.tr_ms / t1)) * np.exp(-scanner.te_ms / t2)
    return float(signal), float(scanner.te_ms / t2)


def magnetisation(parts: Iterable[Part], grid: Grid, scanner: Scanner, t2_ratios: dict[str, float]) -> ndarray:
    """Compute the MRI signal of every voxel of an anatomy, without the effect of the coils and without noise.

    Args:
        parts: anatomical structures in the order of drawing. Later structures cover earlier ones.
        grid: positions of the voxels, with the random fields by which the relaxation time T2 varies inside a tissue.
        scanner: parameters of the scanner.
        t2_ratios: dictionary from the name of a tissue to the factor that is applied to its T2. The T2 of a tissue
            without an entry is unchanged.

    Returns:
        (Z, Y, X) float32, at least 0, where 1 is the signal of fully relaxed water.
    """
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
    """Average the three sub-slices of every slice, with the weights 0.3, 0.4 and 0.3 of the slice profile.

    Args:
        image: (3Z, Y, X), three consecutive sub-slices for each slice.

    Returns:
        (Z, Y, X), in the unit of `image`.
    """
    return sum(np.float32(weight) * image[k :: len(SLICE_PROFILE)] for k, (_, weight) in enumerate(SLICE_PROFILE))


def coil_sensitivity(
    grid: Grid, scanner: Scanner, coil_y_mm: float, skin_y_mm: float, rng: np.random.Generator
) -> ndarray:
    """Compute the factor by which the coils of a scanner change the signal of every voxel.

    The factor is the product of a slow random variation (standing waves), the gain of surface coils in front of and
    behind the patient, and the decay with distance from an endorectal loop coil.

    Args:
        grid: positions of the voxels; the origin is the centre of the prostate.
        scanner: parameters of the scanner, which say how strong each of the three effects is.
        coil_y_mm: y position of the endorectal coil in mm; y points to the patient's back.
        skin_y_mm: y position of the skin on the patient's front in mm, a negative number.
        rng: NumPy random generator for the standing waves.

    Returns:
        (Z, Y, X), factors above 0. The part of the factor that the endorectal coil causes is 1 in the centre of the
        prostate.
    """
    waves = np.exp(np.float32(scanner.shading) * random_field(grid, rng, (80, 75, 75)))
    depth, behind = np.clip(grid.y - skin_y_mm, 0, None), np.clip(115 - grid.y, 0, None)
    array = 1 + scanner.array_gain * (np.exp(-depth / 32) + 0.7 * np.exp(-behind / 32))
    radius2 = np.float32(16.0**2)
    distance2 = grid.x**2 + (grid.y - coil_y_mm) ** 2 + (0.6 * grid.z) ** 2
    loop = ((radius2 + coil_y_mm**2) / (radius2 + distance2)) ** np.float32(1.5 * scanner.flare)
    return waves * array * loop


def acquire(image: ndarray, scanner: Scanner, rng: np.random.Generator) -> ndarray:
    """Simulate the acquisition of an MRI volume, slice by slice: add noise and remove the high frequencies.

    Gaussian noise is added to the real and imaginary parts, so that the magnitude has Rician noise. Then the high
    frequencies of each slice are removed with a smooth window, which blurs the image.

    Args:
        image: (Z, Y, X), noise-free signal of every voxel, where 1 is the signal of fully relaxed water.
        scanner: parameters of the scanner, which determine the strength of the noise and the width of the window.
        rng: NumPy random generator for the noise.

    Returns:
        (Z, Y, X) float32, magnitude of the reconstructed image, in the unit of `image`.
    """
    reference, _ = tissue_signal(TISSUES["peripheral"], scanner)
    noise = rng.standard_normal((2, *image.shape), dtype=np.float32) * np.float32(reference / scanner.snr)
    noisy = (image + noise[0]) + 1j * noise[1]
    rows, columns = image.shape[1:]
    along_y = _fermi_window(rows, scanner.sharpness)[:, None]
    along_x = _fermi_window(columns, 0.5 * (1 + scanner.sharpness))
    return np.abs(fft.ifft2(fft.fft2(noisy) * along_y * along_x)).astype(np.float32)


def _fermi_window(n: int, kept_fraction: float) -> ndarray:
    """Compute a Fermi window over the frequencies of `n` samples that keeps the lowest `kept_fraction` of them."""
    frequency = np.abs(fft.fftfreq(n)) * 2
    return (1 / (1 + np.exp((frequency - 0.92 * kept_fraction) / 0.06))).astype(np.float32)


def to_stored_units(image: ndarray, scanner: Scanner) -> ndarray:
    """Convert MRI signal to the intensities that a scanner stores: apply its intensity curve and gain, round and clip.

    Args:
        image: array of any shape, signal of at least 0, where 1 is the signal of fully relaxed water.
        scanner: parameters of the scanner. The intensity curve divides the signal by the signal of fat, raises the
            quotient to the power `gamma`, and multiplies the result by the signal of fat. The signal of fat itself thus
            stays unchanged.

    Returns:
        Array of the same shape, float32 integers from 0 to 4095 (12 bits).
    """
    fat, _ = tissue_signal(TISSUES["fat"], scanner)
    curved = fat * (image / np.float32(fat)) ** np.float32(scanner.gamma)
    return np.clip(np.rint(curved * np.float32(scanner.gain)), 0, 4095).astype(np.float32)
