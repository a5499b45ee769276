"""Runs in tests draw no figures unless asked: those of a tiny run take longer than its training."""

from collections.abc import Iterator
from contextlib import contextmanager

from medfed.experiments import run

_draw_all, _is_drawing = run.draw_all, False


def _draw_if_asked(experiment, method, state, result, folder) -> None:
    (folder.path / "figures").mkdir(exist_ok=True)
    if _is_drawing:
        _draw_all(experiment, method, state, result, folder)


run.draw_all = _draw_if_asked  # the figures of a tiny run take longer than its training


@contextmanager
def drawn_figures() -> Iterator[None]:
    """Runs inside the block draw their figures; tests have the mark `figures` instead."""
    global _is_drawing
    before, _is_drawing = _is_drawing, True
    try:
        yield
    finally:
        _is_drawing = before
