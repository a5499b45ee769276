"""The five hospitals of Camelyon17, and why their slides look different: the laboratory's stain, the scanner's light.

The scanners are those of the challenge (3DHISTECH at three, Hamamatsu, Philips); every number is a plausible choice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

Value = float | tuple[float, ...]


@dataclass(frozen=True)
class HistologySite:
    """A laboratory and its scanner.

    Args:
        haematoxylin_turn, eosin_turn: of the stains' colours, in degrees; above 0 haematoxylin is redder (over-ripe,
            acid rinse) and eosin more orange (another dye lot).
        haematoxylin, eosin: strength of the stains against the reference: time in the bath, thickness of the section.
        stain_spread: how far strengths differ from slide to slide (standard deviation of their logarithm).
        um_per_pixel: of the patches; scanners differ in it, so nuclei differ in pixels.
        blur_um: standard deviation of the point spread, by numerical aperture and sampling.
        focus_um: how much more at the worst-focused patches.
        white: colour of the empty slide, red green blue: lamp, white balance.
        gamma: of the display curve; above 1 darkens the middle.
        saturation: of the colour matrix, 1 leaves it.
        noise: standard deviation at white, of 1.
        jpeg_quality: of the compressed slide.
    """

    haematoxylin_turn: float = 0.0
    eosin_turn: float = 0.0
    haematoxylin: float = 1.0
    eosin: float = 1.0
    stain_spread: float = 0.10
    um_per_pixel: float = 0.97
    blur_um: float = 0.45
    focus_um: float = 0.35
    white: tuple[float, float, float] = (0.95, 0.94, 0.95)
    gamma: float = 1.0
    saturation: float = 1.0
    noise: float = 0.010
    jpeg_quality: float = 88.0

    def at_severity(self, severity: float) -> HistologySite:
        """This far from the reference: 0 is the reference, 1 as stated; every number on a straight line."""
        reference, moved = HistologySite(), dict[str, Any]()
        for field in fields(self):
            moved[field.name] = _between(getattr(reference, field.name), getattr(self, field.name), severity)
        moved["jpeg_quality"] = min(95.0, max(10.0, moved["jpeg_quality"]))
        positive: dict[str, Any] = {name: _kept_positive(name, value) for name, value in moved.items()}
        return replace(self, **positive)


def _between(start: Value, end: Value, severity: float) -> Value:
    if isinstance(start, tuple) and isinstance(end, tuple):
        return tuple(min(1.0, one + severity * (other - one)) for one, other in zip(start, end, strict=True))
    assert not isinstance(start, tuple) and not isinstance(end, tuple), "both have the type of their field"
    return start + severity * (end - start)


def _kept_positive(name: str, value: Value) -> Value:
    return value if name.endswith("_turn") or isinstance(value, tuple) else max(0.02 if name != "noise" else 0.0, value)


SITES = {
    # 3DHISTECH; close to the reference, violet
    "hospital_1": HistologySite(haematoxylin_turn=3.0, haematoxylin=1.05, stain_spread=0.10),
    # the same scanner; short haematoxylin, long eosin: pink, and a soft focus
    "hospital_2": HistologySite(
        haematoxylin_turn=9.0, eosin_turn=5.0, haematoxylin=0.80, eosin=1.22, stain_spread=0.13, focus_um=0.65,
        white=(0.96, 0.92, 0.94)),
    # Hamamatsu: finer pixels, steep curve, bluish light; strong haematoxylin
    "hospital_3": HistologySite(
        haematoxylin_turn=-6.0, eosin_turn=-3.0, haematoxylin=1.12, eosin=1.0, stain_spread=0.12, um_per_pixel=0.90,
        blur_um=0.40, white=(0.92, 0.92, 0.96), gamma=1.15, saturation=0.95, noise=0.016, jpeg_quality=80),
    # 3DHISTECH; faded slides, washed out, a little red
    "hospital_4": HistologySite(
        haematoxylin_turn=12.0, eosin_turn=-6.0, haematoxylin=0.78, eosin=0.72, stain_spread=0.14,
        white=(0.97, 0.95, 0.95), gamma=0.92, noise=0.012, jpeg_quality=80),
    # Philips: coarser pixels, warm light, strong colours, hard compression
    "hospital_5": HistologySite(
        haematoxylin_turn=2.0, eosin_turn=9.0, haematoxylin=1.02, eosin=1.20, stain_spread=0.16, um_per_pixel=1.06,
        blur_um=0.60, white=(0.97, 0.95, 0.88), gamma=0.95, saturation=1.15, noise=0.008, jpeg_quality=70),
}
