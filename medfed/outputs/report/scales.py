"""Axes of the charts: round tick values, and where a value lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report.markup import Markup, tag

WIDTH = 360  # of a chart, in its own units; small, so that its texts can be read on a phone


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `first` to `last`; `logarithmic` is log(1 + value)."""

    low: float
    high: float
    first: float
    last: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        bend = math.log1p if self.logarithmic else float
        low, high = bend(self.low), bend(self.high)
        share = (bend(value) - low) / (high - low) if high > low else 0.5
        return self.first + share * (self.last - self.first)

    def ticks(self, n: int = 5) -> list[float]:
        """At most about n round values within the scale."""
        if self.logarithmic:
            return [value for value in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if self.low <= value <= self.high]
        step = _round_step((self.high - self.low) / max(n, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [step * place for place in range(first, math.floor(self.high / step + 1e-9) + 1)]


def px(value: float) -> str:
    """A coordinate with one digit after the point at most, so that pages are small and equal."""
    return f"{round(value, 1) + 0.0:g}"


def tick_text(value: float) -> str:
    return f"{value:.6g}"


def padded(values: Sequence[float], at_least: tuple[float, float] | None = None) -> tuple[float, float]:
    """The range of values with a margin, or of `at_least` and them."""
    values = [*values, *(at_least or ())]
    low, high = min(values), max(values)
    margin = 0.04 * (high - low) or 0.5
    return (low, high) if at_least else (low - margin, high + margin)


def text(x: float, y: float, words: object, class_: str = "", anchor: str = "start") -> Markup:
    return tag("text", words, x=px(x), y=px(y), class_=class_ or None,
               text_anchor=None if anchor == "start" else anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=px(x1), y1=px(y1), x2=px(x2), y2=px(y2), class_=class_)


def drawing(title: str, width: float, height: float, *content: Markup, natural: bool = False) -> Markup:
    """An SVG with its title for those who cannot see it.

    Args:
        natural: as large as it is, for a frame that scrolls; else it fits its place.
    """
    size = {"width": px(width), "height": px(height)} if natural else {}
    return tag("svg", tag("title", title), *content, viewBox=f"0 0 {px(width)} {px(height)}", role="img",
               aria_label=title, **size)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))
