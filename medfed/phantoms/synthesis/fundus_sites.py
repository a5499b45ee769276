"""The four collections of DoFE: published names and numbers, and why their pictures differ.

The papers give the cameras and the counts; dyes, exposures, point spreads and so on are plausible choices, each for a
reason that stands beside it, and only as far apart as real collections are.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.phantoms.synthesis.fundus_camera import Camera


@dataclass(frozen=True)
class Site:
    """One collection.

    Args:
        folder: its folder in the published layout.
        train, test: pictures in the two published parts.
        names: of an eye's file, without ending; {kind} is the letter for glaucoma or normal, {side} L or R.
        kinds: the letters for glaucoma and for normal.
        melanin_shift: a mild mix of people: how much darker (or fairer) the fundus is on average.
    """

    folder: str
    train: int
    test: int
    names: str
    kinds: tuple[str, str]
    camera: Camera
    melanin_shift: float = 0.0

    @property
    def numbers(self) -> range:
        return range(1, self.train + self.test + 1)

    def published_part(self, number: int) -> str:
        """train or test, in the published proportion however few are made; one picture alone is for training."""
        total = self.train + self.test
        return "train" if -(-number * self.train // total) > -(-(number - 1) * self.train // total) else "test"

    def file_stem(self, number: int, has_glaucoma: bool, is_left: bool) -> str:
        kind = self.kinds[0] if has_glaucoma else self.kinds[1]
        return self.names.format(number=number, kind=kind, side="L" if is_left else "R")


# Aravind, India: the disc in the middle of a narrow field, halogen light of a warm colour on a soft film-like curve
DRISHTI = Camera(
    field_mm=3.9, colours=((0.92, 0.08, 0.0), (0.13, 0.84, 0.03), (0.05, 0.22, 0.73)),
    white_balance=(0.98, 0.98, 0.74), exposure=0.78, gamma=0.50, vignetting=0.35, axis_mm=0.0, gradient=0.10,
    glare=0.010, blur_mm=0.020, sharpening=0.0, noise=0.020, jpeg_quality=90)
# Nidek AFC-210 with a Canon 5D body, Spain: a close look, long exposure latitude: dark, red, contrasty, little noise
NIDEK = Camera(
    field_mm=3.5, colours=((1.02, -0.02, 0.0), (0.05, 0.95, 0.0), (0.02, 0.10, 0.88)),
    white_balance=(0.98, 0.74, 0.62), exposure=0.62, gamma=0.56, vignetting=0.60, axis_mm=0.6, gradient=0.16,
    glare=0.002, blur_mm=0.022, sharpening=0.5, noise=0.012, jpeg_quality=92)
# Zeiss Visucam 500, China: strong xenon flash, saturated dyes, crisp optics and sharpening; the axis between disc and
# macula, so that the nasal side is dimmer
ZEISS = Camera(
    field_mm=4.2, colours=((1.10, -0.08, -0.02), (0.04, 1.00, -0.04), (0.0, 0.12, 0.88)),
    white_balance=(1.12, 0.95, 0.78), exposure=0.95, gamma=0.47, vignetting=0.30, axis_mm=2.2, gradient=0.08,
    glare=0.002, blur_mm=0.014, sharpening=0.8, noise=0.022, jpeg_quality=94)
# Canon CR-2, non-mydriatic, China: low flash and high gain: noise; small pupils: glare and blur; fewer pixels and a
# strong compression; dyes that overlap and a daylight balance make it pale and pink
CANON = Camera(
    field_mm=4.5, colours=((0.86, 0.14, 0.0), (0.17, 0.74, 0.09), (0.12, 0.28, 0.60)),
    white_balance=(1.02, 1.10, 1.36), exposure=0.98, gamma=0.46, vignetting=0.28, axis_mm=4.2, gradient=0.13,
    glare=0.035, blur_mm=0.030, sharpening=0.4, noise=0.038, jpeg_quality=78)
REFERENCE = DRISHTI

SITES = {
    "DRISHTI-GS": Site("Domain1", 50, 51, "{kind}drishtiGS_{number:03d}", ("g", "n"), DRISHTI, 0.12),
    "RIM-ONE-r3": Site("Domain2", 99, 60, "{kind}-{number}-{side}", ("G", "N"), NIDEK, -0.08),
    "REFUGE-train": Site("Domain3", 320, 80, "{kind}{number:04d}", ("g", "n"), ZEISS),
    "REFUGE-val": Site("Domain4", 320, 80, "V{number:04d}", ("V", "V"), CANON),
}
