"""What each entry of a ledger is, and what it could reveal about patients, by method (names may have two meanings).

A data-protection officer reads these sentences, so they promise nothing that the code does not do. An entry without a
description here is reported as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.outputs.report.ledger_totals import ENTRY, NORMALISATION, SITE, WEIGHTS, LedgerKey


@dataclass(frozen=True)
class EntryDescription:
    """What one kind of sent value is, in words, and what it could reveal about patients."""

    title: str
    reveals: str


UNKNOWN = EntryDescription(
    "not known to this report",
    "Unknown: this report has no description of it. Read in the method's file what it contains before you release it.",
)
_STYLE = EntryDescription(
    "style: mean and spread of image features",
    "Colour, contrast and texture without position, so no shapes. They are those of all images together or, if the "
    "shape has a row for each image, of single images; someone who has such an image could match it to its row.",
)
_SITE_STYLE = EntryDescription(
    "style of the site: mean and spread of image features",
    "Colour, contrast and texture over the site's images, without position, so no shapes. It can show which equipment "
    "the site uses. The fewer the images, the more it reveals about each.",
)
_SPREAD = EntryDescription(
    "how much styles vary at the site",
    "How similar the site's images are, but no single image.",
)
_WINDOWS = EntryDescription(
    "low-frequency amplitude windows",
    "Brightness and coarse contrast of single images, without phase, so no shapes. Their number is the number of "
    "images. Someone who has an image could match it to its window.",
)
_WEIGHTS = EntryDescription(
    "weights of the network",
    "No image directly. Attacks on weights can find out whether a known image was used for training, and can "
    "sometimes reconstruct a rough copy of one. Fewer images and more rounds make this easier.",
)
_NORMALISATION = EntryDescription(
    "normalisation statistics, part of the network",
    "Means and variances of the network's features over many training images: their overall appearance, no single one.",
)
_FACTS = {
    "examples": EntryDescription("number of training images", "How many training images the site has."),
    "steps": EntryDescription(
        "number of training steps",
        "Roughly how many images the site has, from its number of batches.",
    ),
    "loss": EntryDescription("mean training loss", "How difficult the site's images are for the network on average."),
    "score": EntryDescription(
        "mean validation score",
        "How well the network performs on the site's validation images on average.",
    ),
    "triplets": EntryDescription("number of triplets of the triplet loss", "Roughly how many images the site has."),
    "live_triplets": EntryDescription(
        "number of triplets with a loss above 0",
        "How well the network separates the classes of the site's images on average.",
    ),
    "dice": EntryDescription(
        "mean validation Dice",
        "How well the network performs on the site's validation images on average.",
    ),
    "boundary_distance": EntryDescription(
        "mean distance of boundary from background features",
        "How clearly the network separates outlines from the background in the site's validation images on average.",
    ),
    "pixels": EntryDescription("number of pixels per channel", "How many training images the site has."),
    "moments": EntryDescription("request for the moments of the images", "Nothing about patients."),
    "round": EntryDescription("number of the round", "Nothing about patients."),
    "last": EntryDescription("number of the site's last accepted round", "Nothing about patients."),
    "weights_digest": EntryDescription("checksum of the weights that a request needs", "Nothing about patients."),
}
_TENSORS = {
    ("ccst", "mean"): _STYLE,
    ("ccst", "std"): _STYLE,
    ("ccst", "codec_error"): EntryDescription(
        "error of the style codec",
        "How similar an image and its copy from the codec are.",
    ),
    ("fisc", "style/mean"): _SITE_STYLE,
    ("fisc", "style/std"): _SITE_STYLE,
    ("fisc", "n_clusters"): EntryDescription(
        "number of clusters of styles",
        "How many kinds of appearance the site's images have.",
    ),
    ("stable_fdg", "mean"): _SITE_STYLE,
    ("stable_fdg", "std"): _SITE_STYLE,
    ("stable_fdg", "mean_spread"): _SPREAD,
    ("stable_fdg", "std_spread"): _SPREAD,
    ("elcfs", "windows"): _WINDOWS,
    ("harmofl", "amplitude"): EntryDescription(
        "mean low-frequency amplitude window",
        "Mean brightness and coarse contrast over the site's images, without phase, so no shapes. It can show which "
        "equipment the site uses.",
    ),
    ("feddg_ga", "loss"): EntryDescription("loss of the network at the site", _FACTS["loss"].reveals),
    ("scaffold", "examples"): _FACTS["examples"],
    ("scaffold", f"change/{ENTRY}"): EntryDescription(
        "change of the control variates (mean gradients)",
        _WEIGHTS.reveals,
    ),
    ("scaffold", f"control/{ENTRY}"): EntryDescription(
        "control variates (mean gradients of all sites)",
        _WEIGHTS.reveals,
    ),
    ("epi_fcr", f"domain/{ENTRY}"): EntryDescription("weights of the site's own network", _WEIGHTS.reveals),
    ("copa", ENTRY): EntryDescription("weights of the site's own head", _WEIGHTS.reveals),
}
_RECEIVED = {  # (method, name of what comes to a site): (its name when a site sent it, from which sites it is)
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
_IMAGE_MOMENTS = EntryDescription(  # of `data.standardise: dataset`, whatever the method
    "mean and variance of each image channel",
    "Brightness and contrast of all training images together, which can show the equipment. If there is one image, "
    "those of that image.",
)
_PROTOTYPES = EntryDescription(
    "prototypes: mean features of a class",
    "The features of a typical image of a class; if a class has one image, the features of that image.",
)
HEADINGS = {"weight": "model weights", "statistic": "statistics", "fact": "facts"}  # by the content of a key


def describe_entry(key: LedgerKey, methods: list[str]) -> EntryDescription:
    """Describe what was sent; `UNKNOWN` without a description. `1/NAME` is of the second method of a stack,
    `methods[1]`."""
    if key.content == "weight":
        return {WEIGHTS: _WEIGHTS, NORMALISATION: _NORMALISATION}[key.name]
    if key.content == "fact":
        return _FACTS.get(key.name, UNKNOWN)
    method, name = _method_and_name(key.name, methods)
    if key.direction == "down" and (method, name) in _RECEIVED:
        name, source = _RECEIVED[method, name]
        return EntryDescription(f"{_TENSORS[method, name].title}, {source}", _TENSORS[method, name].reveals)
    if method == "fpl" and name.startswith(("prototype/", "clusters/")):
        return _PROTOTYPES
    return _IMAGE_MOMENTS if key.name == "image_moments" else _TENSORS.get((method, name), UNKNOWN)


def _method_and_name(name: str, methods: list[str]) -> tuple[str, str]:
    """The method that sent a tensor, and the tensor's name without the method's place in a stack ("1/")."""
    place, _, rest = name.partition("/")
    if len(methods) > 1 and place.isdecimal() and int(place) < len(methods):
        return methods[int(place)], rest
    return methods[0] if methods else "", name
