"""The results of an audit as text, and the description of the attacks on shared statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from medfed.auditing.membership import N_BOOTSTRAP
from medfed.auditing.perturbations import GAIN, NOISE, QUALITY, SHIFT
from medfed.auditing.reconstruction import FIT_STEPS, MAX_SIDE
from medfed.auditing.weights_text import describe_update, model_rows, update_rows

CAUTION = (
    "A number close to its control or to chance means that this attack failed on these images. It does not mean "
    "that no attack can succeed. Weights and statistics contain information about patients; clipping and noise "
    "(privacy) only reduce it."
)
KIND_LABELS = {
    "full": "from the complete spectrum of the padded image",
    "window": "from the shared amplitudes: phase retrieval",
    "fitted": "from the shared statistics: gradient fit",
    "mean": "mean image of the site's other patients",
}
REFERENCE = {"full": "positive control", "window": "", "fitted": "", "mean": "negative control"}
METHOD_NOTES = (
    "The shared statistics are the site's own replies to the coordinator's requests before the first round, with the "
    "initial weights of the network. With data.standardise: dataset, these include the moments of the images, and the "
    "network has the constants that follow from the moments of all sites that train.",
    "Detail correlation: Pearson's correlation of the fine details of two images, inside the part that is not empty. "
    "The fine details are the image minus its Gaussian blur (3 pixels of 128). The images are first aligned by the "
    f"shift and the point reflection that make them most similar. The grid has at most {MAX_SIDE} x {MAX_SIDE} pixels; "
    "of colour images the green channel is used.",
    "Complete spectrum (positive control): hybrid input-output, then error reduction, from four random starts, without "
    "negative pixels. The image is padded with zeros to twice its size, and the attacker knows where the padding is. "
    "The start with the best fit is used; the original image is not needed for this choice.",
    "Phase retrieval from the shared amplitudes: the same algorithm, with the shared frequencies only.",
    f"Gradient fit: at most {FIT_STEPS} steps of Adam (at least 50; fewer for large images) on an image that starts as "
    "noise, until the method's own statistics of it are close to the shared ones.",
    "Re-identification: the attacker computes the statistics of a perturbed image and chooses the nearest of the "
    "shared rows. Every number is standardised; positive numbers are compared on a logarithmic scale. The choice is "
    f"correct if the row belongs to the same image. Perturbations: noise with a standard deviation of {NOISE:g} on "
    f"[0, 1]; mirroring; a shift by {SHIFT:.0%} of the side; JPEG compression with quality {QUALITY}; a copy with up "
    f"to {GAIN:.0%} change of brightness, shift, noise and JPEG compression; and another image of the same patient, in "
    "a volume the next slice. For the last one, the choice is correct if the nearest row of another image belongs to "
    "the same patient.",
    "Site identification: the patients of each site are split into random halves five times. A half is identified if "
    "the nearest statistics are those of the other half of the same site.",
    "One patient left out: the Euclidean change of the site's statistics, relative to their norm.",
    "Membership: the attacker decides that a patient's images are part of the shared statistics if the patient's own "
    "statistics are close to the nearest shared ones. The AUC compares patients of the training part with patients who "
    f"were held out. The 95 % interval comes from {N_BOOTSTRAP} bootstrap samples of patients; with few patients it is "
    "too narrow.",
)


def table_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, what to compare the value with, such as chance) of each measure of an audit."""
    of_weights = [*update_rows(result), *model_rows(result)]
    if not result["sent"]["entries"]:
        return of_weights
    return [
        *_reconstruction(result["reconstruction"]),
        *_reidentification(result["reidentification"]),
        *_site(result["site_identification"], result["one_left_out"]),
        *_membership(result["membership"]),
        *of_weights,
    ]


def to_text(result: Mapping[str, Any]) -> str:
    """The results for the terminal: what the site would send, a table, and a caution about their meaning."""
    rows = table_rows(result)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    title = f"audit of {result['site']}, {result['method']}, {result['dataset']} ({result['data']} data)"
    return "\n".join(
        [
            title,
            describe_sent(result),
            describe_update(result),
            *(
                f"  {name:<{widths[0]}}  {number:>{widths[1]}}  {reference}".rstrip()
                for name, number, reference in rows
            ),
            CAUTION,
        ]
    )


def describe_sent(result: Mapping[str, Any]) -> str:
    """A sentence with the tensors that the site would send before training, and their number of bytes."""
    sent = result["sent"]
    if not sent["entries"]:
        return "before training the method would send no statistics of images"
    entries = ", ".join(f"{entry['name']} {tuple(entry['shape'])}" for entry in sent["entries"])
    kinds = {entry["row_for_each_image"]: None for entry in sent["entries"]}
    content = " or ".join("one row for each image" if each else "about the site as a whole" for each in kinds)
    return f"before training {sent['bytes']} bytes would be sent, message header included, {content}: {entries}"


def _reconstruction(images: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Mean and range of the detail correlation of every kind of reconstruction."""
    rows = []
    for kind, label in KIND_LABELS.items():
        values = [scores[kind]["detail_correlation"] for scores in images if kind in scores]
        if values:
            spread = f"from {min(values):z.2f} to {max(values):z.2f}" if len(values) > 1 else ""
            reference = "; ".join(filter(None, [REFERENCE[kind], spread]))
            rows.append((f"detail correlation, {label}", f"{fmean(values):z.3f}", reference))
    return rows


def _reidentification(result: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """The rate of correct links for every perturbation."""
    if result is None:
        return [("image re-identified", "none", "no statistics of single images would be sent")]
    return [
        (f"image re-identified among {result['n']}: {name}", f"{rates['top_1']:.3f}", f"chance {rates['chance']:.3f}")
        for name, rates in result["perturbations"].items()
    ]


def _site(identified: Mapping[str, Any] | None, left_out: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """The rate of identified sites and the influence of one patient."""
    rows = []
    if identified:
        rows.append(
            (
                f"site identified among {identified['sites']}",
                f"{identified['top_1']:.3f}",
                f"chance {identified['chance']:.3f}; this site {identified['own']:.2f}",
            )
        )
    if left_out:
        distance = left_out.get("of_distance")
        rows.append(
            (
                "largest change of the statistics without one patient",
                f"{left_out['largest_change']:.1%}",
                f"mean change {left_out['mean_change']:.1%}"
                + (f"; {distance:.2f} of the distance to another site" if distance is not None else ""),
            )
        )
    return rows


def _membership(result: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Rows (name, value, what to compare it with) of membership inference from shared statistics."""
    if result is None:
        return [("membership AUC, shared statistics", "none", "fewer than two patients in training or held out")]
    counts = f"{result['members']} patients in training, {result['others']} held out"
    views = {"same_images": "unchanged images", "second_look": "perturbed copies"}
    return [
        (
            f"membership AUC, shared statistics, {label}",
            f"{scores['auc']:.2f}",
            f"chance 0.5; 95 % interval {scores['low']:.2f} to {scores['high']:.2f}; {counts}",
        )
        for view, label in views.items()
        if (scores := result[view])
    ]
