"""The numbers of an audit as rows of text, how they were found, and what was not tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from medfed.auditing.membership import N_BOOTSTRAP
from medfed.auditing.perturbations import GAIN, NOISE, QUALITY, SHIFT
from medfed.auditing.reconstruction import FIT_STEPS, MAX_SIDE

CAUTION = ("A number near its control or chance says that this attack failed on these images; it does not say that "
           "none can succeed.")  # fmt: skip
KIND_LABELS = {
    "full": "from the full spectrum of the padded image",
    "window": "from what is sent: phase retrieval",
    "fitted": "from what is sent: fitted by gradient",
    "mean": "mean image of the site's other patients",
}
REFERENCE = {"full": "positive control", "window": "", "fitted": "", "mean": "negative control"}
METHOD_NOTES = (
    "Everything that is called sent, or a statistic, is the answer of the method's own code to the coordinator's "
    "question before the first round, with the network's first weights.",
    "Detail correlation: Pearson's correlation of two images from which a Gaussian blur (3 pixels of 128) is taken "
    "away, over what is not empty, after the shift and the point reflection that make the whole images agree best. "
    f"On a grid of at most {MAX_SIDE} pixels; of colour, the green channel.",
    "Full spectrum, the positive control: hybrid input-output, then error reduction, four random starts, no negative "
    "pixels; the image is padded with zeros to twice its side, and the attacker knows where. He keeps the start that "
    "fits best, without the original.",
    "Phase retrieval from what is sent: the same, with the frequencies that are sent and no others.",
    f"Fitted by gradient: at most {FIT_STEPS} steps of Adam (50 at least; fewer for large images), from noise, towards "
    "the method's own statistic of the image being the one that is sent.",
    "Re-identification: the statistic of a second look is compared with the rows that are sent (each number "
    "standardised, positive ones by their logarithm); right where the nearest is of that image. Perturbations: noise "
    f"of {NOISE:g} standard deviation on [0, 1]; mirrored; shifted by {SHIFT:.0%} of the side; JPEG {QUALITY}; a copy "
    f"with up to {GAIN:.0%} gain, shift, noise and JPEG; another image of the same patient, in a volume the next slice "
    "(right where the nearest other one is of that patient).",
    "Site identification: each site's patients are halved five times; right where a half's statistic is nearest to "
    "that of the other half of the same site.",
    "One patient left out: the Euclidean change of the site's statistic, as a share of its length.",
    "Membership: a patient counts as a member by how near the patient's own statistic is to the nearest of those sent; "
    f"AUC over patients of the training part and of the parts held out, 95 % interval of {N_BOOTSTRAP} bootstrap "
    "draws of patients; of few patients it is too narrow.",
)
NOT_TRIED = (
    "the weights and gradients that leave in every round, and whatever the method sends with them",
    "learned attacks: a network trained to draw images from statistics, or a prior over images of this kind",
    "many images sought at once from one statistic of a whole site",
    "stronger membership tests, with knowledge of the population or of several rounds",
    "statistics of later rounds, where the method sends them again, and all rounds together",
    "noise taken out of a statistic by asking again, where the method adds any",
)


def table_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, number, what to hold it against) for each measure that could be taken."""
    return [*_reconstruction(result["reconstruction"]), *_reidentification(result["reidentification"]),
            *_site(result["site_identification"], result["one_left_out"]), *_membership(result["membership"])]


def to_text(result: Mapping[str, Any]) -> str:
    """What would leave, and the table, for a terminal."""
    rows = table_rows(result)
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    head = f"audit of {result['site']}, {result['method']}, {result['dataset']} ({result['data']} data)"
    return "\n".join([
        head, describe_sent(result),
        *(f"  {what:<{widths[0]}}  {number:>{widths[1]}}  {against}".rstrip() for what, number, against in rows),
        CAUTION,
    ])  # fmt: skip


def describe_sent(result: Mapping[str, Any]) -> str:
    """One sentence about what would leave."""
    sent = result["sent"]
    entries = ", ".join(f"{entry['name']} {tuple(entry['shape'])}" for entry in sent["entries"])
    each = "one row for each image" if sent["row_for_each_image"] else "of the site as a whole"
    return f"before training {sent['bytes']} bytes would leave, envelope included, {each}: {entries}"


def _reconstruction(images: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    rows = []
    for kind, words in KIND_LABELS.items():
        values = [one[kind]["detail_correlation"] for one in images if kind in one]
        if values:
            spread = f"from {min(values):z.2f} to {max(values):z.2f}" if len(values) > 1 else ""
            against = "; ".join(filter(None, [REFERENCE[kind], spread]))
            rows.append((f"detail correlation, {words}", f"{fmean(values):z.3f}", against))
    return rows


def _reidentification(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if found is None:
        return [("image found among the site's", "none", "nothing is sent of a single image")]
    return [(f"image found among {found['n']}: {name}", f"{one['top_1']:.3f}", f"chance {one['chance']:.3f}")
            for name, one in found["perturbations"].items()]


def _site(identified: Mapping[str, Any] | None, left_out: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    rows = []
    if identified:
        rows.append((f"site identified among {identified['sites']}", f"{identified['top_1']:.3f}",
                     f"chance {identified['chance']:.3f}; this site {identified['own']:.2f}"))  # fmt: skip
    if left_out:
        distance = left_out.get("of_distance")
        rows.append(("one patient left out moves the statistic by", f"{left_out['largest_change']:.1%}",
                     f"at most; mean {left_out['mean_change']:.1%}"
                     + (f"; {distance:.2f} of the way to another site" if distance is not None else "")))  # fmt: skip
    return rows


def _membership(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if found is None:
        return [("membership AUC", "none", "fewer than two patients in training, or held out")]
    of = f"{found['members']} in training, {found['others']} not"
    words = {"same_images": "their images as they are", "second_look": "perturbed copies"}
    return [(f"membership AUC, {text}", f"{one['auc']:.2f}",
             f"chance 0.5; 95 % of draws {one['low']:.2f} to {one['high']:.2f}; {of}")
            for name, text in words.items() if (one := found[name])]  # fmt: skip
