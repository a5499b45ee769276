"""Notes: the warnings of medfed, which programs, runs and worker processes show as one line of text each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def show_notes_by(
    show: Callable[[str], object], others: Callable[..., object] = lambda *warning: None
) -> Callable[..., None]:
    """Return a `warnings.showwarning` that passes the text of each warning of medfed to `show`, and others to `others`.

    A warning of medfed is a UserWarning whose line is in a file of medfed.
    """

    def showwarning(message: Warning | str, category: type[Warning], filename: str, *more: Any) -> None:
        if category is UserWarning and "medfed" in Path(filename).parts:
            show(str(message))
        else:
            others(message, category, filename, *more)

    return showwarning
