"""Format descriptions of datasets (cards), and a dataset as the `data` block of a config."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING

from medfed.config import strict_yaml
from medfed.config.schema import to_plain
from medfed.core import registry
from medfed.core.bounds import written_fields
from medfed.datasets.base import Card, Dataset

WIDTH = 100


def all_cards() -> str:
    """Name, description and licence of every dataset, as text for `python -m medfed.data`."""
    blocks = []
    for name, line in registry.known_names("datasets").items():
        card = _card(name)
        description = format_paragraph("what", card.description)
        blocks.append(f"{name}: {line}\n{description}\n{format_paragraph('licence', card.licence)}")
    return "\n\n".join([*blocks, "`python -m medfed.data card NAME` shows how to get a dataset."])


def format_card(name: str) -> str:
    """The complete description of one dataset: content, licence, download, folder layout and citation."""
    card = _card(name)
    parts = {
        "what": card.description,
        "licence": card.licence,
        "how to get": card.how_to_get,
        "layout": card.layout,
        "cite": card.citation,
    }
    return "\n".join([card.title, *(format_paragraph(title, text) for title, text in parts.items() if text)])


def format_data_block(dataset: Dataset) -> str:
    """The `data` section of a config as YAML: the dataset's name, and all settings that differ from the defaults."""
    written = {"name": registry.name_of("datasets", type(dataset))}
    for entry in written_fields(type(dataset)):
        value = getattr(dataset, entry.name)
        if value != (entry.default_factory() if entry.default_factory is not MISSING else entry.default):
            written[entry.name] = to_plain(value)
    return strict_yaml.dump({"data": written})


def _card(name: str) -> Card:
    dataset = registry.resolve("datasets", name)
    assert issubclass(dataset, Dataset)
    return dataset.card


def format_paragraph(title: str, text: str) -> str:
    """An indented paragraph that begins with a title (at most 11 characters); lines have at most 100 characters."""
    return textwrap.fill(text, WIDTH, initial_indent=f"  {title + ':':<12}", subsequent_indent=" " * 14)
