"""The results of an audit as rows of one table, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from medfed.auditing.membership import COPIES, SAME
from medfed.auditing.updates import CONTROL, UPDATE
from medfed.results.text_tables import TextTable, text_table, to_terminal

Row = tuple[str, str, str]  # measure; number; what to compare the number with, such as chance
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
    UPDATE: "from the update",
    CONTROL: "negative control, an update without this image",
}
REFERENCE = {"full": "positive control", "mean": "negative control"}
CASE_LABELS = {
    "easy": "one image, exact gradient, small network without normalisation",
    "one": "one image, one SGD step, network of the plan",
    "batch": "{n_images} images, one SGD step, network of the plan",
    "round": "a round as planned ({n_images} images, {n_steps} steps of {optimizer}{privacy})",
}
TOO_FEW = "fewer than two patients in training or held out"


def measures(result: Mapping[str, Any]) -> TextTable:
    """Each measure of an audit with its control or chance level."""
    rows = [*_of_statistics(result)] if result["sent"]["entries"] else []
    rows += [*_of_updates(result), *_of_model(result)]
    head = ("Measure", "Number", "Compare with")
    return text_table("What the statistics and the weights reveal", head, rows, n_words=3)


def to_text(result: Mapping[str, Any]) -> str:
    """The results for the terminal: what the site would send, the measures, and a caution about their meaning."""
    title = f"audit of {result['site']}, {result['method']}, {result['dataset']} ({result['data']} data)"
    sent = f"before training {describe_sent(result)}"
    update = f"in every round {describe_update(result)}"
    return "\n".join([title, sent, update, to_terminal(measures(result)), CAUTION])


def describe_sent(result: Mapping[str, Any]) -> str:
    """The tensors that the site would send before training, and their number of bytes."""
    sent = result["sent"]
    if not sent["entries"]:
        return "the method would send no statistics of images"
    entries = ", ".join(f"{entry['name']} {tuple(entry['shape'])}" for entry in sent["entries"])
    kinds = {entry["row_for_each_image"]: None for entry in sent["entries"]}
    content = " or ".join("one row for each image" if each else "about the site as a whole" for each in kinds)
    return f"{sent['bytes']} bytes would be sent, message header included, {content}: {entries}"


def describe_update(result: Mapping[str, Any]) -> str:
    statistics, weights = result["update_statistics"], f"about {result['update_bytes'] / 1e6:.2f} MB"
    if not statistics["names"]:
        return f"the weights of the network would be sent, {weights}"
    names = f"{', '.join(statistics['names'])}, {statistics['bytes']:,} bytes"
    return f"the weights of the network ({weights}) and statistics ({names}) would be sent; no attack uses the latter"


def case_label(update: Mapping[str, Any]) -> str:
    """An attacked update in a few words; `update` is an entry of the list "update" of the audit's result."""
    privacy = ", clipping and noise" if update["privacy"] else ""
    return CASE_LABELS[update["case"]].format(**{**update, "privacy": privacy})


def rounded(value: float, digits: int = 3) -> str:
    """A correlation, without a minus sign before zeros."""
    return f"{round(value, digits) + 0:.{digits}f}"


def _of_statistics(result: Mapping[str, Any]) -> Iterator[Row]:
    """The attacks on shared statistics."""
    for kind, label in KIND_LABELS.items():
        values = [scores[kind]["detail_correlation"] for scores in result["reconstruction"] if kind in scores]
        if values:
            spread = f"from {rounded(min(values), 2)} to {rounded(max(values), 2)}" if len(values) > 1 else ""
            yield f"detail correlation, {label}", rounded(fmean(values)), _joined(REFERENCE.get(kind), spread)
    if linked := result["reidentification"]:
        for name, rates in linked["perturbations"].items():
            found, chance = f"{rates['top_1']:.3f}", f"chance {rates['chance']:.3f}"
            yield f"image re-identified among {linked['n']}: {name}", found, chance
    else:
        yield "image re-identified", "none", "no statistics of single images would be sent"
    if identified := result["site_identification"]:
        compared = f"chance {identified['chance']:.3f}; this site {identified['own']:.2f}"
        yield f"site identified among {identified['sites']}", f"{identified['top_1']:.3f}", compared
    if left_out := result["one_left_out"]:
        share = left_out.get("of_distance")
        of_distance = None if share is None else f"{share:.2f} of the distance to another site"
        compared = _joined(f"mean change {left_out['mean_change']:.1%}", of_distance)
        yield "largest change of the statistics without one patient", f"{left_out['largest_change']:.1%}", compared
    if attacked := result["membership"]:
        for view, label in ((SAME, "unchanged images"), (COPIES, "perturbed copies")):
            if attacked[view]:
                yield _auc_row(f"shared statistics, {label}", attacked[view], _counts(attacked))
    else:
        yield "membership AUC, shared statistics", "none", TOO_FEW


def _of_updates(result: Mapping[str, Any]) -> Iterator[Row]:
    """The mean detail correlation of each attacked update, and of its negative control."""
    if not result["update"]:
        yield "images reconstructed from updates", "none", "not measured (--weights-steps 0)"
    for case in result["update"]:
        detail, control = (
            fmean(each["detail_correlation"] for each in case[key]) for key in ("scores", "control_scores")
        )
        positive = "positive control" if case["case"] == "easy" else ""
        compared = _joined(positive, f"negative control {rounded(control)}", case["verdict"])
        yield f"detail correlation, {case_label(case)}", rounded(detail), compared


def _of_model(result: Mapping[str, Any]) -> Iterator[Row]:
    """Membership inference against trained weights."""
    attacked = result["model_membership"]
    if attacked is None:
        reason = TOO_FEW if result["model_given"] else "not measured (give --model)"
        yield "membership AUC, trained model", "none", reason
        return
    is_chance = attacked["untrained"]["low"] <= 0.5 <= attacked["untrained"]["high"]
    failed = None if is_chance else "failed: the patients differ before training"
    yield _auc_row("loss of the trained model", attacked["loss"], _counts(attacked), attacked["verdict"])
    yield _auc_row("loss minus loss with the initial weights", attacked["calibrated"])
    yield _auc_row("loss with the initial weights", attacked["untrained"], "negative control", failed)
    yield _auc_row("loss of an overfitted network", attacked["overfitted"], "positive control")
    for rate, share in attacked["loss"]["tpr"].items():
        yield f"members found at {float(rate):.0%} false alarms", f"{share:.0%}", f"chance {float(rate):.0%}"


def _auc_row(name: str, scores: Mapping[str, float], *compared: str | None) -> Row:
    interval = f"95 % interval {scores['low']:.2f} to {scores['high']:.2f}"
    return f"membership AUC, {name}", f"{scores['auc']:.2f}", _joined("chance 0.5", interval, *compared)


def _counts(attacked: Mapping[str, Any]) -> str:
    return f"{attacked['members']} patients in training, {attacked['others']} held out"


def _joined(*parts: str | None) -> str:
    return "; ".join(filter(None, parts))
