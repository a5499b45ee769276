"""The six sites of the prostate phantom: case numbers and geometry of the published dataset, and the scanners.

Images differ between sites for these reasons: the field strength changes T1, T2 and noise; an endorectal coil brightens
the rectal side and compresses the gland; a wide field of view shows a small gland; sequences weight T2 differently; and
vendors use different intensity scales. Vendor, field strength, coil and spacing are published; echo times, noise and
all other parameters are plausible choices.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.phantoms.synthesis.mri_scanner import Scanner


@dataclass(frozen=True)
class MriSite:
    numbers: tuple[int, ...]  # published case numbers
    suffix: str  # of the names of the mask files
    fov_mm: tuple[float, float]  # smallest and largest side length of the square field of view
    gap_mm: tuple[float, float]  # smallest and largest distance between the centres of neighbouring slices
    scanners: tuple[Scanner, ...]  # each examination uses one of them at random
    coil: str = "none"  # "surface", "endorectal", or "none" for the scanner's body coil
    zones: bool = False  # whether masks distinguish the peripheral zone (1) from the transition zone (2)
    thickness_ratio: float = 1.0  # slice thickness divided by the distance between slices


REFERENCE = Scanner(
    field_tesla=3.0, te_ms=104, tr_ms=4200, snr=26, sharpness=0.90, shading=0.10, array_gain=0.5, flare=0.0, gain=1300,
    gamma=1.0)  # fmt: skip
# 1.5 T Philips: long echo time, small field of view.
PHILIPS_ENDORECTAL = Scanner(
    field_tesla=1.5, te_ms=132, tr_ms=5200, snr=18, sharpness=0.80, shading=0.06, array_gain=0.2, flare=0.52, gain=2600,
    gamma=0.88)  # fmt: skip
# 3 T Siemens with the body coil: strong noise and standing waves, short echo time.
SIEMENS_BODY_COIL = Scanner(
    field_tesla=3.0, te_ms=88, tr_ms=3400, snr=14, sharpness=0.85, shading=0.20, array_gain=0.0, flare=0.0, gain=700,
    gamma=1.10)  # fmt: skip
# Siemens with older protocols: low resolution.
SOFT_15_TESLA = Scanner(
    field_tesla=1.5, te_ms=96, tr_ms=3800, snr=16, sharpness=0.72, shading=0.08, array_gain=0.0, flare=0.0, gain=800,
    gamma=1.05)  # fmt: skip
SOFT_3_TESLA = Scanner(
    field_tesla=3.0, te_ms=112, tr_ms=4600, snr=22, sharpness=0.80, shading=0.18, array_gain=0.0, flare=0.0, gain=1100,
    gamma=1.05)  # fmt: skip
# 3 T GE: strongest intensity decay from the endorectal coil, flat intensity curve.
GE_ENDORECTAL = Scanner(
    field_tesla=3.0, te_ms=130, tr_ms=5500, snr=24, sharpness=0.82, shading=0.16, array_gain=0.0, flare=0.75, gain=4000,
    gamma=0.72)  # fmt: skip
# 1.5 T Siemens: the intensity decay is partly corrected, which increases the noise.
SIEMENS_ENDORECTAL = Scanner(
    field_tesla=1.5, te_ms=92, tr_ms=4000, snr=15, sharpness=0.76, shading=0.07, array_gain=0.2, flare=0.32, gain=900,
    gamma=1.10)  # fmt: skip

SITES = {
    "RUNMC": MriSite(tuple(range(30)), "_segmentation", (192, 200), (3.6, 4.0), (REFERENCE,), "surface", zones=True),
    "BMC": MriSite(
        tuple(range(30)), "_Segmentation", (150, 158), (3.0, 3.0), (PHILIPS_ENDORECTAL,), "endorectal", zones=True),
    # The published slices are 1.25 mm apart. The phantom has every second slice, with a thickness of 1.25 mm.
    "I2CVB": MriSite(
        tuple(range(19)), "_segmentation", (204, 222), (2.5, 2.5), (SIEMENS_BODY_COIL,), thickness_ratio=0.5),
    "UCL": MriSite((1, *range(26, 38)), "_segmentation", (176, 200), (3.0, 3.6), (SOFT_15_TESLA, SOFT_3_TESLA)),
    "BIDMC": MriSite((0, *range(2, 13)), "_segmentation", (136, 144), (2.6, 3.0), (GE_ENDORECTAL,), "endorectal"),
    "HK": MriSite(tuple(range(38, 50)), "_segmentation", (160, 180), (3.6, 3.6), (SIEMENS_ENDORECTAL,), "endorectal"),
}  # fmt: skip
