"""What the entries of a ledger are, and what they could reveal about patients.

A data-protection officer reads these sentences, so they promise nothing that the code does not do. A method declares
its own statistics and facts in `Method.sent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from medfed.federation import ledger
from medfed.federation.message import Kind


class Sent(NamedTuple):
    """A kind of value that messages carry."""

    title: str  # what it is
    reveals: str  # about patients
    received: str = ""  # of whom it is when it comes to a site, such as "of the other sites"; "" if that is the same


WEIGHTS = Sent(
    "weights of the network",
    "No image directly. Attacks on weights can find out whether a known image was used for training, and can "
    "sometimes reconstruct a rough copy of one. Fewer images and more rounds make this easier. The statistics of "
    "normalisation layers are means and variances of the network's features over many training images: their overall "
    "appearance, no single one.",
)
IMAGE_MOMENTS = Sent(  # the statistic `image_moments` of `data.standardise: dataset`, whatever the method
    "mean and variance of each image channel",
    "Brightness and contrast of all training images together, which can show the equipment. If there is one image, "
    "those of that image.",
)
SITE_STYLE = Sent(  # of several methods
    "style of the site: mean and spread of image features",
    "Colour, contrast and texture over the site's images, without position, so no shapes. It can show which equipment "
    "the site uses. The fewer the images, the more it reveals about each.",
)
N_IMAGES = Sent("number of training images", "How many training images the site has.")
MEAN_LOSS = Sent("mean training loss", "How difficult the site's images are for the network on average.")
_SCORE = "How well the network performs on the site's validation images on average."
_NOTHING = "Nothing about patients."
FACTS = {
    "examples": N_IMAGES,
    "steps": Sent("number of training steps", "Roughly how many images the site has, from its number of batches."),
    "loss": MEAN_LOSS,
    "score": Sent("mean validation score", _SCORE),
    "boundary_distance": Sent(
        "mean distance of boundary from background features",
        "How clearly the network separates outlines from the background in the site's validation images on average.",
    ),
    "pixels": Sent("number of pixels per channel", "How many training images the site has."),
    "moments": Sent("request for the moments of the images", _NOTHING),
    "round": Sent("number of the round", _NOTHING),
    "last": Sent("number of the site's last accepted round", _NOTHING),
    "weights_digest": Sent("checksum of the weights that a request needs", _NOTHING),
    "why": Sent("reason why the site could not do what was requested", "The text of an error at the site."),
}
SURVEY = Sent(
    "survey of the images",
    "Numbers of patients and images; quantiles of the sizes, voxel sizes and intensities of the images; how "
    "many images show a structure or class, how much of an image it covers, and where it lies. They can show which "
    "equipment the site uses. Left out are quantiles over fewer than 5 patients, and what is of fewer patients than "
    "the limit of the survey.",
)
UNKNOWN = Sent(
    "not known to this report",
    "Unknown: this report has no description of it. Read in the method's file what it contains before you release it.",
)


def sent_in_stack(methods: Sequence[Mapping[str, Sent]]) -> dict[str, Sent]:
    """`Method.sent` of a stack: tensors of method 1 are named `1/NAME`, numbers have the names of their method."""
    return {
        f"{place}{name}": sent for i, own in enumerate(methods) for name, sent in own.items() for place in ("", f"{i}/")
    }


def describe(row: Mapping[str, str], declared: Mapping[str, Sent]) -> list[Sent]:
    """What a row of a ledger holds; `UNKNOWN` without a description. The facts of a row have one description each.

    `declared` is `Method.sent` of the run's method.
    """
    if row["content"] == ledger.WEIGHT:
        return [WEIGHTS]
    if (row["kind"], row["direction"]) == (Kind.SURVEY, "up"):
        return [SURVEY]
    if row["content"] == ledger.FACT:
        return [{**declared, **FACTS}.get(name, UNKNOWN) for name in row["name"].split("; ")]
    return [IMAGE_MOMENTS if row["name"] == "image_moments" else declared.get(row["name"], UNKNOWN)]
