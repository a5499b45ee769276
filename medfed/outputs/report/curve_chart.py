"""Curves by round as SVG, with their legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report.markup import Markup, tag
from medfed.outputs.report.scales import WIDTH, Scale, drawing, line, padded, px, text, tick_text

HEIGHT, LEFT, RIGHT, TOP, FOOT = 220, 44, 10, 10, 36
N_COLOURS, N_DASHES = 6, 3
MOST_NAMED = 12  # curves with a name; more are drawn as the band that they fill


@dataclass(frozen=True)
class Curve:
    """(round, value) by round; class "mean" for the one that stands out."""

    name: str
    points: Sequence[tuple[float, float]]
    class_: str


def coloured(names: Sequence[str]) -> dict[str, str]:
    """A class a name: colours first, then dashes."""
    return {name: f"c{k % N_COLOURS} d{k // N_COLOURS % N_DASHES}" for k, name in enumerate(names)}


def curve_chart(curves: Sequence[Curve], title: str, axis: str, band: Sequence[Curve] = ()) -> Markup | None:
    """The curves, above the band from the lowest to the highest of others; None if there is no point."""
    points = [point for curve in (*curves, *band) for point in curve.points]
    if not points:
        return None
    x = Scale(*_rounds([point[0] for point in points]), LEFT, WIDTH - RIGHT)
    y = Scale(*padded([point[1] for point in points]), HEIGHT - FOOT, TOP)
    grid = [line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid") for tick in y.ticks()]
    texts = [text(LEFT - 5, y(tick) + 4, tick_text(tick), "tick", "end") for tick in y.ticks()]
    first, last = (end(point[0] for point in points) for end in (min, max))
    rounds = sorted({round(tick) for tick in x.ticks(6) if first <= round(tick) <= last})
    texts += [text(x(number), HEIGHT - FOOT + 14, number, "tick", "middle") for number in rounds]
    texts += [text((LEFT + WIDTH) / 2, HEIGHT - 4, f"{axis} by round", "axis", "middle")]
    return drawing(title, WIDTH, HEIGHT, *grid, *_band(band, x, y), *(_drawn(curve, x, y) for curve in curves), *texts)


def swatch(class_: str) -> Markup:
    """A short piece of a curve for a legend."""
    drawn = tag("path", d="M0 5H22", class_=f"curve {class_}")
    return tag("svg", drawn, viewBox="0 0 22 10", class_="swatch", aria_hidden="true")


def _rounds(rounds: Sequence[float]) -> tuple[float, float]:
    low, high = min(rounds), max(rounds)
    return (low, high) if high > low else (low - 1, high + 1)


def _drawn(curve: Curve, x: Scale, y: Scale) -> Markup:
    places = [(px(x(number)), px(y(value))) for number, value in curve.points]
    path = tag("path", d="M" + "L".join(f"{a} {b}" for a, b in places), class_=f"curve {curve.class_}")
    dots = [tag("circle", cx=a, cy=b, r="2" if len(places) > 1 else "3.5") for a, b in places]
    dots = dots if len(places) <= 8 else []
    return tag("g", path, *dots, class_=curve.class_)


def _band(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Markup]:
    by_round: dict[float, list[float]] = {}
    for curve in curves:
        for number, value in curve.points:
            by_round.setdefault(number, []).append(value)
    rounds = sorted(by_round)
    upper = [(number, max(by_round[number])) for number in rounds]
    lower = [(number, min(by_round[number])) for number in reversed(rounds)]
    outline = " ".join(f"{px(x(a))},{px(y(b))}" for a, b in (*upper, *lower))
    return [tag("polygon", points=outline, class_="band")] if rounds else []
