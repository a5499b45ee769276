"""What the things in a ledger are, and what they could reveal of people, in a sentence each.

A table to be read by a data-protection officer, so it promises nothing that the code does not do: a name that is not
here is told as unknown, and the same name of another method is another thing.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.outputs.report.ledger_totals import ENTRY, NORMALISATION, SITE, WEIGHTS, Key


@dataclass(frozen=True)
class Words:
    """title: what it is; reveals: what it could tell about people."""

    title: str
    reveals: str


UNKNOWN = Words(
    "not known to this report",
    "Unknown: this report has no sentence about it. Read in the method's file what it holds before you release it.",
)
_STYLE = Words(
    "style: mean and spread of image features",
    "Colour, contrast and texture, without position, so no shapes; of all images together, or, where the shape counts "
    "several, of single images, which someone who has such an image could match to it.",
)
_SITE_STYLE = Words(
    "style of the site: mean and spread of image features",
    "Colour, contrast and texture over the site's images, without position, so no shapes; it tells which equipment "
    "made them. The fewer the images, the more it tells about each.",
)
_SPREAD = Words("how much styles vary at the site", "How alike the site's images are; none of them stands out of it.")
_WINDOWS = Words(
    "low-frequency amplitude windows",
    "Brightness and coarse contrast of single images, without phase, so no shapes. Their number tells how many images "
    "there are; someone who has an image could match it to its window.",
)
_WEIGHTS = Words(
    "weights of the network",
    "No image directly. Attacks on weights can tell whether a known image was trained on, and sometimes recover "
    "a rough likeness of one; fewer images and more rounds make that easier.",
)
_NORMALISATION = Words(
    "normalisation statistics, part of the network",
    "Means and variances of the network's inner features over many training images: their overall look, no single one.",
)
_FACTS = {
    "examples": Words("number of training images", "How many training images the site has."),
    "steps": Words("number of training steps", "How many images the site has, roughly, by its number of batches."),
    "loss": Words("mean training loss", "How hard the site's images are for the network on the whole."),
    "score": Words("mean validation score", "How well the network does on the site's validation images on the whole."),
    "dice": Words("mean validation Dice", "How well the network does on the site's validation images on the whole."),
    "boundary_distance": Words(
        "mean distance of boundary from background features",
        "How sharply the network draws outlines on the site's validation images on the whole.",
    ),
    "round": Words("number of the round", "Nothing about people."),
}
_TENSORS = {
    ("ccst", "mean"): _STYLE,
    ("ccst", "std"): _STYLE,
    ("ccst", "codec_error"): Words("error of the style codec", "How alike an image and its copy by the codec are."),
    ("fisc", "style/mean"): _SITE_STYLE,
    ("fisc", "style/std"): _SITE_STYLE,
    ("fisc", "n_clusters"): Words("number of clusters of styles", "How many kinds of look the site's images have."),
    ("stable_fdg", "mean"): _SITE_STYLE,
    ("stable_fdg", "std"): _SITE_STYLE,
    ("stable_fdg", "mean_spread"): _SPREAD,
    ("stable_fdg", "std_spread"): _SPREAD,
    ("elcfs", "windows"): _WINDOWS,
    ("harmofl", "amplitude"): Words(
        "mean low-frequency amplitude window",
        "Mean brightness and coarse contrast over the site's images, without phase, so no shapes; it tells which "
        "equipment made them.",
    ),
    ("feddg_ga", "loss"): Words("loss of the network at the site", _FACTS["loss"].reveals),
    ("scaffold", "examples"): _FACTS["examples"],
    ("scaffold", f"change/{ENTRY}"): Words("change of the control variates (mean gradients)", _WEIGHTS.reveals),
    ("scaffold", f"control/{ENTRY}"): Words("control variates (mean gradients of all sites)", _WEIGHTS.reveals),
    ("epi_fcr", f"domain/{ENTRY}"): Words("weights of the site's own network", _WEIGHTS.reveals),
    ("copa", ENTRY): Words("weights of the site's own head", _WEIGHTS.reveals),
}
_OTHERS = {  # what comes down: its name when it went up, and whose it is
    ("ccst", f"style/{SITE}/mean"): ("mean", "of the other sites"),
    ("ccst", f"style/{SITE}/std"): ("std", "of the other sites"),
    ("elcfs", f"bank/{SITE}"): ("windows", "of the other sites"),
    ("copa", f"heads/{SITE}/{ENTRY}"): (ENTRY, "of the other sites"),
    ("epi_fcr", f"domain/{ENTRY}"): (f"domain/{ENTRY}", "of another site"),
    ("fisc", "style/mean"): ("style/mean", "common to all sites"),
    ("fisc", "style/std"): ("style/std", "common to all sites"),
    ("harmofl", "amplitude"): ("amplitude", "mean over all sites"),
    **{("stable_fdg", name): (name, "of other sites") for name in ("mean", "std", "mean_spread", "std_spread")},
}
_PROTOTYPES = Words(
    "prototypes: mean inner features of a class",
    "What a typical image of a class looks like to the network; of a class with one image, that image's features.",
)
GROUPS = {"weights": "model weights", "tensor": "statistics", "fact": "facts"}


def words_for(key: Key, methods: list[str]) -> Words:
    """Of a sum of the ledger.

    Args:
        methods: the run's method, or those of a stack in their order, whose tensors are called `0/NAME`, `1/NAME`, ...
    """
    if key.group == "weights" and key.name in (WEIGHTS, NORMALISATION):
        return {WEIGHTS: _WEIGHTS, NORMALISATION: _NORMALISATION}[key.name]
    if key.group == "fact":
        return _FACTS.get(key.name, UNKNOWN)
    method, name = _method_and_name(key.name, methods)
    if key.direction == "down" and (method, name) in _OTHERS:
        name, whose = _OTHERS[method, name]
        return Words(f"{_TENSORS[method, name].title}, {whose}", _TENSORS[method, name].reveals)
    if method == "fpl" and name.startswith(("prototype/", "clusters/")):
        return _PROTOTYPES
    return _TENSORS.get((method, name), UNKNOWN)


def _method_and_name(name: str, methods: list[str]) -> tuple[str, str]:
    place, _, rest = name.partition("/")
    if len(methods) > 1 and place.isdecimal() and int(place) < len(methods):
        return methods[int(place)], rest
    return methods[0] if methods else "", name
