"""The pages of the settings of a config, and of the datasets."""

from __future__ import annotations

from page_text import paragraphs, sentence, settings_table, table

from medfed.config import search
from medfed.core.registry import known_names, resolve

SETTINGS_HEAD = """\
# Settings of a config

Look up a setting of a config file here: its type, range, default and meaning. `medfed keys WORD` prints the same in a
terminal: `medfed keys training`, `medfed keys federation.rounds`, `medfed keys alpha`.

A config is a YAML file with the blocks below; `--set BLOCK.KEY=VALUE` replaces a value. The settings of each method
are on [its card](methods/index.md), those that a single dataset adds on [its card](datasets.md). `medfed keys
--json-schema` prints the JSON Schema with which an editor completes keys and marks mistakes."""
DATASETS_HEAD = """\
# Datasets

Find out here what a dataset contains, what its licence allows, where to get it and in which folders medfed expects it.
`medfed data card NAME` prints the same in a terminal.

A dataset that is not in `data.root` is replaced by its phantom if `data.if_missing` is `phantom`. The settings of the
block `data` that all datasets have are among the [settings](settings.md#data)."""

NAMES = {
    "data": "The dataset: a name of the [list of datasets](datasets.md), or the dotted name of a class.",
    "method": "The method: a name of the [list of methods](methods/index.md), or the dotted name of a class.",
    "network": "The network: a name of the list below, or the dotted name of a class.",
}


def settings_page() -> str:
    """The text of `reference/settings.md`."""
    parts = [SETTINGS_HEAD]
    for block, group in search.blocks().items():
        meanings = {key: schema["description"] for key, schema in group.settings.items()}
        meanings |= {"name": NAMES[block]} if block in NAMES else {}
        parts += [f"## {block or 'Top level'}", sentence(group.title), settings_table(group.settings, meanings)]
        if block == "network":
            parts += [_networks()]
        if block == "federation":
            parts += ["### Engines", _titles("engines")]
        if block == "evaluation":
            parts += ["### Metrics", "For masks:", _titles("mask_metrics"), "For classes:", _titles("class_metrics")]
    return "\n\n".join(parts) + "\n"


def datasets_page() -> str:
    """The text of `reference/datasets.md`: the card of each dataset, and its own settings."""
    parts, common = [DATASETS_HEAD], search.blocks()["data"].settings
    for name in known_names("datasets"):
        cls, [group] = resolve("datasets", name), search.find(name)
        card = cls.card
        texts = {
            "Content": card.description,
            "Licence": card.licence,
            "How to get it": card.how_to_get,
            "Layout": card.layout,
            "Cite": card.citation,
        }
        parts += [f"## {card.title}", f"`data.name: {name}`"]
        parts += [f"**{title}.** {paragraphs(text)}" for title, text in texts.items() if text]
        if own := {key: entry for key, entry in group.settings.items() if key not in common}:
            parts += ["Its own settings, besides those of every dataset:", settings_table(own)]
    return "\n\n".join(parts) + "\n"


def _networks() -> str:
    """Each network with its own settings."""
    parts, common = [], search.blocks()["network"].settings
    for name in known_names("networks"):
        [group] = search.find(name)
        own = {key: entry for key, entry in group.settings.items() if key not in common}
        parts += [f"### network.name: {name}", sentence(group.title)]
        parts += [settings_table(own) if own else "This network has no settings of its own."]
    return "\n\n".join(parts)


def _titles(kind: str) -> str:
    return table(["name", "meaning"], [[f"`{name}`", title] for name, title in known_names(kind).items()])
