"""Format descriptions of datasets (cards), and a dataset as the `data` block of a config."""

from __future__ import annotations

import textwrap

from medfed.config import strict_yaml
from medfed.config.schema import data_block
from medfed.core import registry
from medfed.datasets.base import Card, Dataset

WIDTH = 100


def all_cards() -> str:
    """Name, description and licence of every dataset, as text for `python -m medfed.data`."""
    blocks = [
        f"{name}: {line}\n{_paragraphs(what=_card(name).description, licence=_card(name).licence)}"
        for name, line in registry.known_names("datasets").items()
    ]
    return "\n\n".join([*blocks, "`python -m medfed.data card NAME` shows how to get a dataset."])


def format_card(name: str) -> str:
    """The complete description of one dataset: content, licence, download, folder layout and citation."""
    card = _card(name)
    more = {"how to get": card.how_to_get, "layout": card.layout, "cite": card.citation}
    return f"{card.title}\n{_paragraphs(what=card.description, licence=card.licence, **more)}"


def format_data_block(dataset: Dataset) -> str:
    """The `data` section of a config as YAML: the dataset's name, and all settings that differ from the defaults."""
    return strict_yaml.dump({"data": data_block(dataset)})


def _card(name: str) -> Card:
    dataset = registry.resolve("datasets", name)
    assert issubclass(dataset, Dataset)
    return dataset.card


def _paragraphs(**texts: str) -> str:
    """Indented paragraphs, each after its title."""
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=f"  {title + ':':<12}", subsequent_indent=" " * 14)
        for title, text in texts.items()
        if text
    )
