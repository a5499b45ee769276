"""The five sites of the histology phantom: staining of the laboratory and properties of the slide scanner.

The scanner vendors are those of the CAMELYON17 challenge (three sites with 3DHISTECH, one with Hamamatsu, one with
Philips). All numbers are plausible choices.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HistologySite:
    """Stain and scanner of one site. The default values are the reference site."""

    haematoxylin_turn: float = 0.0  # rotation of its colour in degrees; positive is redder
    eosin_turn: float = 0.0  # rotation of its colour in degrees; positive is more orange
    haematoxylin: float = 1.0  # strength relative to the reference
    eosin: float = 1.0  # strength relative to the reference
    stain_spread: float = 0.10  # standard deviation of the logarithm of the stain strengths between slides
    um_per_pixel: float = 0.97  # pixel size of the patches
    blur_um: float = 0.45  # standard deviation of the point spread function
    focus_um: float = 0.35  # largest additional blur of a patch that is out of focus
    white: tuple[float, float, float] = (0.95, 0.94, 0.95)  # red, green and blue of the empty slide
    gamma: float = 1.0  # exponent of the display curve; above 1 darkens the mid-tones
    saturation: float = 1.0  # factor of the colour saturation
    noise: float = 0.010  # standard deviation at white, as a fraction of white
    jpeg_quality: int = 88  # 10 to 95


SITES = {
    # 3DHISTECH: close to the default values, violet.
    "hospital_1": HistologySite(haematoxylin_turn=3.0, haematoxylin=1.05, stain_spread=0.10),
    # 3DHISTECH: little haematoxylin and much eosin, so the slides are pink; poor focus.
    "hospital_2": HistologySite(
        haematoxylin_turn=9.0, eosin_turn=5.0, haematoxylin=0.80, eosin=1.22, stain_spread=0.13, focus_um=0.65,
        white=(0.96, 0.92, 0.94)),
    # Hamamatsu: smaller pixels, steep display curve, bluish light; strong haematoxylin.
    "hospital_3": HistologySite(
        haematoxylin_turn=-6.0, eosin_turn=-3.0, haematoxylin=1.12, eosin=1.0, stain_spread=0.12, um_per_pixel=0.90,
        blur_um=0.40, white=(0.92, 0.92, 0.96), gamma=1.15, saturation=0.95, noise=0.016, jpeg_quality=80),
    # 3DHISTECH: faded slides with a reddish tint.
    "hospital_4": HistologySite(
        haematoxylin_turn=12.0, eosin_turn=-6.0, haematoxylin=0.78, eosin=0.72, stain_spread=0.14,
        white=(0.97, 0.95, 0.95), gamma=0.92, noise=0.012, jpeg_quality=80),
    # Philips: larger pixels, warm light, strong colours, strong compression.
    "hospital_5": HistologySite(
        haematoxylin_turn=2.0, eosin_turn=9.0, haematoxylin=1.02, eosin=1.20, stain_spread=0.16, um_per_pixel=1.06,
        blur_um=0.60, white=(0.97, 0.95, 0.88), gamma=0.95, saturation=1.15, noise=0.008, jpeg_quality=70),
}  # fmt: skip
