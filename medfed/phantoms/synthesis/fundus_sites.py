"""The four sites of the fundus phantom: names and counts of the published dataset, and parameters of the cameras.

The papers give the camera models and the numbers of images. All other parameters are plausible choices; the comment
above each camera gives the reason. The differences between the cameras are about as large as in the real dataset.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.phantoms.synthesis.fundus_camera import Camera


@dataclass(frozen=True)
class FundusSite:
    """Layout, camera and population of one site of the fundus phantom."""

    folder: str
    train: int  # number of images in the published training part
    test: int
    names: str  # file names without suffix; {kind} is the letter for glaucoma or normal, {side} is L or R
    kinds: tuple[str, str]  # the letters for glaucoma and for normal
    camera: Camera
    melanin_shift: float = 0.0  # mean fundus pigmentation relative to the other sites; positive is darker

    @property
    def numbers(self) -> range:
        """Case numbers from 1 to the size of the published dataset."""
        return range(1, self.train + self.test + 1)

    def published_part(self, number: int) -> str:
        """ "train" or "test": they alternate in the published proportion, so that few cases contain both."""
        total = self.train + self.test
        return "train" if -(-number * self.train // total) > -(-(number - 1) * self.train // total) else "test"

    def file_stem(self, number: int, has_glaucoma: bool, is_left: bool) -> str:
        kind = self.kinds[0] if has_glaucoma else self.kinds[1]
        return self.names.format(number=number, kind=kind, side="L" if is_left else "R")


# Aravind, India: narrow field centred on the disc; warm halogen light and a soft, film-like display curve.
DRISHTI = Camera(
    field_mm=3.9, colours=((0.92, 0.08, 0.0), (0.13, 0.84, 0.03), (0.05, 0.22, 0.73)),
    white_balance=(0.98, 0.98, 0.74), exposure=0.78, gamma=0.50, vignetting=0.35, axis_mm=0.0, gradient=0.10,
    glare=0.010, blur_mm=0.020, sharpening=0.0, noise=0.020, jpeg_quality=90)  # fmt: skip
# Nidek AFC-210 with a Canon 5D body, Spain: narrow field; dark, reddish images with high contrast and little noise.
NIDEK = Camera(
    field_mm=3.5, colours=((1.02, -0.02, 0.0), (0.05, 0.95, 0.0), (0.02, 0.10, 0.88)),
    white_balance=(0.98, 0.74, 0.62), exposure=0.62, gamma=0.56, vignetting=0.60, axis_mm=0.6, gradient=0.16,
    glare=0.002, blur_mm=0.022, sharpening=0.5, noise=0.012, jpeg_quality=92)  # fmt: skip
# Zeiss Visucam 500, China: strong xenon flash, saturated colours, sharp optics and sharpening. The optical axis lies
# between disc and macula, so the nasal side is darker.
ZEISS = Camera(
    field_mm=4.2, colours=((1.10, -0.08, -0.02), (0.04, 1.00, -0.04), (0.0, 0.12, 0.88)),
    white_balance=(1.12, 0.95, 0.78), exposure=0.95, gamma=0.47, vignetting=0.30, axis_mm=2.2, gradient=0.08,
    glare=0.002, blur_mm=0.014, sharpening=0.8, noise=0.022, jpeg_quality=94)  # fmt: skip
# Canon CR-2, non-mydriatic, China: low flash and high gain cause noise; small pupils cause glare and blur. Few pixels
# and strong compression. Overlapping colour filters and a daylight white balance make the images pale and pink.
CANON = Camera(
    field_mm=4.5, colours=((0.86, 0.14, 0.0), (0.17, 0.74, 0.09), (0.12, 0.28, 0.60)),
    white_balance=(1.02, 1.10, 1.36), exposure=0.98, gamma=0.46, vignetting=0.28, axis_mm=4.2, gradient=0.13,
    glare=0.035, blur_mm=0.030, sharpening=0.4, noise=0.038, jpeg_quality=78)  # fmt: skip

SITES = {
    "DRISHTI-GS": FundusSite("Domain1", 50, 51, "{kind}drishtiGS_{number:03d}", ("g", "n"), DRISHTI, 0.12),
    "RIM-ONE-r3": FundusSite("Domain2", 99, 60, "{kind}-{number}-{side}", ("G", "N"), NIDEK, -0.08),
    "REFUGE-train": FundusSite("Domain3", 320, 80, "{kind}{number:04d}", ("g", "n"), ZEISS),
    "REFUGE-val": FundusSite("Domain4", 320, 80, "V{number:04d}", ("V", "V"), CANON),
}  # fmt: skip
