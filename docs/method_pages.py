"""The pages of the methods: one card per method, and the table of all methods."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from page_text import as_json, body_of, code, linked, paragraphs, sentence, settings_table, table

from medfed import methods
from medfed.config import search
from medfed.config.json_schema import meanings_of
from medfed.config.schema import to_plain
from medfed.core import bounds
from medfed.core.registry import known_names, resolve
from medfed.federation.ledger import FACT, STATISTIC, WEIGHT
from medfed.federation.method import Method
from medfed.federation.sent import describe, sent_in_stack

FACTS = Path(__file__).with_name("reference") / "method_facts.json"
IMAGES = Path(__file__).with_name("images") / "methods"
# Arguments of `medfed train` besides `--set method.name=NAME`.
EXAMPLES = {
    "fedbn": ("prostate", " --set network.norm=batch"),
    "fedsr": ("camelyon17", ""),
    "fisc": ("camelyon17", ""),
    "harmofl": ("prostate", " --set data.standardise=none"),
    "stable_fdg": ("camelyon17", ""),
    "stack": ("prostate", " --set 'method.methods=[{name: ccst}, {name: elcfs}]'"),
}
TASKS = {"segmentation": "masks, U-Net", "classification": "classes, ResNet18"}  # the networks of method_facts.py
FACTS_CONDITION = (
    "`docs/method_facts.py` measured the bytes in a federation of three sites, each with six images of three patients: "
    "the U-Net of `configs/prostate.yaml`, which has no BatchNorm, on images with one channel and one structure, "
    "and a ResNet18 with `width: 16` on colour images of two classes. "
    "Every round was validated, the default of `federation.validate_every`. A round that is not validated ends without "
    "the transfer for the validation; the next round then begins with this transfer of the weights."
)
# What a reader could not guess from the table of a method's messages.
NOTES = {
    methods.FPL: "The site has fewer than `min_images` images of one of the two classes, so it sends the prototype of "
    "the other class alone. Another site sends both.",
}
ONLY_WEIGHTS = "This method changes the training or the average, and no image."
FEATURES_SHOWN = (
    "The features are those of medfed's style codec, which decodes them; in training, the method changes feature maps "
    "of the network"
)
CAPTIONS = {
    "bigaug": "An image, and the same image after the nine random transforms, drawn three times.",
    "ccst": "An image, and the same image redrawn by the codec in the styles of three other sites.",
    "dsu": "An image, and three copies with random means and standard deviations of their features, which vary as much "
    f"as over images of four sites. {FEATURES_SHOWN}, and the batch is of one site.",
    "efdmix": "An image, and three copies whose feature histograms are mixed with those of images of other sites "
    f"(weight 0.7). {FEATURES_SHOWN}, and the other image is of the same site.",
    "elcfs": "An image, and the same image with the mean low-frequency amplitudes of three other sites "
    "(mixing ratio 1).",
    "fisc": "Images of four sites, and below each one the same image halfway to the style common to all sites "
    "(`alpha` 0.5).",
    "gin": "An image, and the same image after three random networks.",
    "harmofl": "Images of four sites, and below each one the same image with the common low-frequency amplitudes.",
    "jigen": "An image, and three of the puzzles that the second head solves.",
    "mixstyle": "An image, and three copies whose feature means and standard deviations are mixed with those of "
    f"images of other sites (weight 0.7). {FEATURES_SHOWN}, and the other image is of the same site.",
    "stable_fdg": "An image, a copy in the style of another site (step 2, without its noise), and copies whose style "
    f"is moved away from the mean style of four sites' images (step 4; the default level is 3). {FEATURES_SHOWN}.",
}


def method_pages() -> dict[str, str]:
    """The text of each page by its path in the folder `reference`."""
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    cards = {f"methods/{name}.md": card(name, facts[name]) for name in known_names("methods")}
    return {"methods/index.md": index(facts), **cards}


def card(name: str, facts: Mapping[str, Any]) -> str:
    """The page of one method: paper, idea, figure, equations and departures, settings, presets, messages."""
    cls, [group] = resolve("methods", name), search.find(name)
    title, _, what = group.title.partition(": ")
    summary = f"`method.name: {name}`. {sentence(what if ' (' in title else group.title)}"
    parts = [f"# {_title(name)}", summary]
    parts += [f"**Source.** {linked(group.source)}", f"**Works on** {_works_on(cls, facts)}."]
    module = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")
    if idea := re.search(r"^Idea: (.*?)(?:\n\n|\Z)", module, re.DOTALL | re.MULTILINE):
        parts += ["## Idea", sentence(" ".join(idea[1].split()))]
    if (IMAGES / f"{name}.png").exists():
        parts.append(f"```{{figure}} ../../images/methods/{name}.png\n{CAPTIONS[name]} Synthetic images.\n```")
    elif name != "stack":
        parts.append(ONLY_WEIGHTS)
    parts += ["## Definition and departures", paragraphs(body_of(cls.__doc__ or ""))]
    parts += ["## Settings", _settings(cls, group)]
    parts += ["## What a site sends and receives", _messages(cls, facts), FACTS_CONDITION]
    parts += ["## Run it", f"```\n{command(name)}\n```"]
    return "\n\n".join(parts) + "\n"


def _title(name: str) -> str:
    """The heading of a card: the name of the method in its paper, or that of its class."""
    [group] = search.find(name)
    heading, bracket, _ = group.title.partition(": ")[0].partition(" (")
    return heading if bracket else resolve("methods", name).__name__


def command(name: str) -> str:
    """The command that trains the method on a phantom."""
    config, more = EXAMPLES.get(name, ("prostate", ""))
    return f"medfed train {config} --set method.name={name}{more}"


def index(facts: Mapping[str, Any]) -> str:
    """The page of all methods, in the groups of the docstring of `medfed.methods`."""
    parts = [
        "# Methods",
        "Compare the methods here, and open the card of one: its equations, its departures from the paper, its "
        "settings, and what leaves a site.",
        "`method.name` selects a method, and `method.preset` a named set of values for its settings, by default "
        "`medfed`. `paper` follows the paper, with the values of the authors' code where the paper has none (the card "
        "says which); `released` is the authors' public code. A preset that `--set` changes replaces the settings of "
        "the method in the config file; a notice lists them.",
    ]
    for title, names in _groups().items():
        rows = []
        for name in names:
            [group] = search.find(name)
            cls = resolve("methods", name)
            paper, _, what = group.title.partition(": ")
            presets = ", ".join(f"`{preset}`" for preset in cls.presets if preset != bounds.DEFAULT_PRESET)
            sends = "; ".join(["weights", *_statistics(facts[name])])
            rows.append([f"[`{name}`]({name}.md)", paper, sentence(what or group.title), sends, presets])
        heads = ["name", "paper", "what it does", "a site sends", "other presets"]
        parts += [f"## {title}", table(heads, rows)]
    parts += [f"The bytes are those of one site. {FACTS_CONDITION}", "## Limits", LIMITS]
    titles = {name: _title(name) for name in known_names("methods")}
    toc = "\n".join(sorted(titles, key=lambda name: titles[name].lower()))
    parts.append(f"```{{toctree}}\n:hidden:\n\n{toc}\n```")
    return "\n\n".join(parts) + "\n"


LIMITS = """\
* A method that works on volumes trains on patches (`data.patch_size`). ELCFS and CCST exchange the amplitudes and
  styles of axial slices, as their papers define them on 2-D images.
* StableFDG's attention needs one class for each image. For segmentation, `attention: false` leaves the style transfer
  alone.
* According to its paper, FISC helps little on greyscale images. With three or fewer sites, its clustering always gives
  one cluster. A notice says if the images are greyscale, if there are three or fewer sites, and if fewer than 5 % of
  FISC's triplets have a loss above 0, so that its contrast has nearly no effect."""


def _groups() -> dict[str, list[str]]:
    """The names of the methods by the titles in the docstring of `medfed.methods`."""
    names = {resolve("methods", name).__name__: name for name in known_names("methods")}
    text = " ".join((methods.__doc__ or "").split("\n\n")[1].split())
    groups = {}
    for part in text.split(". "):
        found = [names[word] for word in re.findall(r"`(\w+)`", part) if word in names]
        groups["Several methods at once" if found == ["stack"] else part.partition(":")[0]] = found
    return groups


def _settings(cls: type[Method], group: search.Group) -> str:
    own = {key: entry for key, entry in group.settings.items() if key not in ("name", "preset")}
    if not own:
        return "This method has no settings."
    parts = [settings_table(own, meanings_of(cls))]
    defaults = {key: entry.get("default") for key, entry in own.items()}
    presets = {
        name: defaults | {key: to_plain(value) for key, value in values.items()} for name, values in cls.presets.items()
    }
    changed = [key for key in own if any(values[key] != defaults[key] for values in presets.values())]
    if len(presets) > 1:
        equal = "" if changed else " They have the same values."
        parts.append(f"Presets: {', '.join(map(code, presets))}.{equal}")
    if changed:
        rows = [[f"`{key}`", *(code(as_json(values[key])) for values in presets.values())] for key in changed]
        parts.append(table(["setting", *(f"`{name}`" for name in presets)], rows))
    return "\n\n".join(parts)


def _messages(cls: type[Method], facts: Mapping[str, Any]) -> str:
    """The table of what a site sends and receives, with the bytes of both tasks, and the names of the sent numbers."""
    tasks = {task: facts[task] for task in TASKS if "messages" in facts[task]}
    n_bytes: dict[tuple[str, str, str], Counter[str]] = {}  # by direction, content and time, for each task
    names: dict[tuple[str, str, str], list[str]] = {}  # of the statistics with this content
    sent_facts: list[str] = []
    for task, measured in tasks.items():
        methods_sent = [resolve("methods", entry["name"]).sent for entry in measured["settings"].get("methods", ())]
        for row in measured["messages"]:
            if row["content"] == FACT:
                sent_facts += row["name"].split("; ") if row["direction"] == "up" else []
                continue
            [sent] = describe(row, sent_in_stack(methods_sent) if methods_sent else cls.sent)
            is_received = row["direction"] == "down"
            title = "weights" if row["content"] == WEIGHT else sent.title
            title += f", {sent.received}" if is_received and sent.received else ""
            key = ("receives" if is_received else "sends", title, _when(row))
            n_bytes.setdefault(key, Counter())[task] += row["bytes"]
            names.setdefault(key, []).append(row["name"])
    rows = []
    for key, by_task in sorted(n_bytes.items(), key=lambda entry: entry[0][0] != "sends"):
        direction, title, when = key
        of_statistics = ", ".join(code(name) for name in dict.fromkeys(names[key]) if name)
        content = f"{title} ({of_statistics})" if of_statistics else title
        rows.append([direction, content, when, *(f"{by_task[task]:,}" for task in tasks)])
    settings = {task: measured["settings"] for task, measured in tasks.items() if measured["settings"]}
    parts = [table(["a site", "content", "when", *(f"bytes: {TASKS[task]}" for task in tasks)], rows)]
    numbers = ", ".join(code(name) for name in dict.fromkeys(sent_facts))
    parts.append(f"A site also sends these numbers: {numbers}. `score` is from the validation, the others are not.")
    parts += [NOTES[cls]] if cls in NOTES else []
    parts += [f"The settings for {task} were `{json.dumps(values)}`." for task, values in settings.items()]
    return "\n\n".join(parts)


def _statistics(facts: Mapping[str, Any]) -> list[str]:
    """The shared statistics of a method, such as "`mean`, `std`: 1,024 bytes before round 1"."""
    task = next(one for one in facts.values() if "messages" in one)
    by_time: dict[str, list[Mapping[str, Any]]] = {}
    for row in task["messages"]:
        if row["content"] == STATISTIC and row["direction"] == "up":
            by_time.setdefault(_when(row), []).append(row)
    return [
        f"{', '.join(code(row['name']) for row in rows)}: {sum(row['bytes'] for row in rows):,} bytes {when}"
        for when, rows in by_time.items()
    ]


def _when(row: Mapping[str, Any]) -> str:
    """When a message is sent: "before round 1", "before every round", "in every round", "from round 2 on", ..."""
    if row["kind"] == "validate":
        return "after every round, for the validation"
    if row["rounds"] == [1]:
        return "before round 1" if row["kind"] == "share" else "in round 1"
    if row["rounds"][0] > 1:
        return f"from round {row['rounds'][0]} on"
    return "before every round" if row["kind"] == "share" else "in every round"


def _works_on(cls: type[Method], facts: Mapping[str, Any]) -> str:
    if isinstance(cls.dimensions, property):
        return "what all of its methods work on"
    tasks = " and ".join(task for task in TASKS if "messages" in facts[task])
    return f"{tasks} of images{', slices and patches of volumes (3-D)' if 3 in cls.dimensions else ' and slices'}"
