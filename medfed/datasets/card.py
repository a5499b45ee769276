"""Description of a dataset for its users."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """Description of a dataset for its users; `python -m medfed.data card NAME` prints it.

    Args:
        title: short title.
        description: what the images show, how many there are, and from which sites.
        licence: licence or terms of use.
        citation: publications to cite.
        how_to_get: how to obtain the files and where to put them.
        layout: names of the folders and files that the dataset expects.
    """

    title: str
    description: str
    licence: str
    citation: str
    how_to_get: str
    layout: str
