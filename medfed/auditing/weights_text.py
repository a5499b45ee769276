"""The results of the attacks on weights as text, the description of these attacks, and what the audit did not try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from medfed.auditing.inversion import SIDE, SMOOTHNESS
from medfed.auditing.inversion_cases import EASY_STEPS, MARGIN, SUCCESS
from medfed.auditing.model_membership import CONTROL_AUC, N_OVERFITTED, OVERFIT_STEPS
from medfed.auditing.updates import MAX_IMAGES, MAX_TARGETS

Row = tuple[str, str, str]
CASE_LABELS = {
    "easy": "one image, exact gradient, small network without normalisation",
    "one": "one image, one SGD step, network of the plan",
    "batch": "{n_images} images, one SGD step, network of the plan",
    "round": "a round as planned ({n_images} images, {n_steps} steps of {optimizer}{privacy})",
}
WEIGHTS_NOTES = (
    f"Updates: the site trains on its own images, resized to {SIDE} x {SIDE} pixels, and its reply is attacked. The "
    "attacker has the global weights, the reply, the plan, and the true labels or masks of the attacked images. The "
    f"round as planned has the plan's optimiser, batch size, passes, clipping and noise, but at most {MAX_IMAGES} "
    "images, no augmentation, and neither restyled images nor further loss terms of the method. Each of these choices "
    "makes the attack easier.",
    "Gradient inversion (Geiping et al., NeurIPS 2020): signed Adam on the pixels of one image or of up to "
    f"{MAX_TARGETS} images together, until the gradient of the loss at the global weights points in the direction of "
    f"the change of the weights; total variation with the weight {SMOOTHNESS:g}. The step with the smallest cosine "
    "distance is used; the original image is not needed for this choice. If the plan uses Adam, soft signs of the "
    "gradient are compared. The local steps are not repeated one by one (unrolled).",
    f"Positive control of the updates: {EASY_STEPS} steps on the exact gradient of one image, with two smooth "
    "convolutions, a linear layer and no normalisation. Negative control of each row: the same attack, with the same "
    "labels and random numbers, on an update of images of other patients (of noise, if there are none). Verdicts: "
    f"image details count as reconstructed if their correlation is {MARGIN:g} above the negative control, and fully "
    f"from {SUCCESS:g} on. SSIM: after the linear change of brightness and contrast that fits best.",
    "Membership from the model: the attacker decides that a patient took part in the training if the loss of the "
    "patient's images is small (Yeom et al., CSF 2018), or fell far compared with the initial weights (Watson et al., "
    "ICLR 2022). Positive control: the network is trained for "
    f"{OVERFIT_STEPS} steps on one image each of at most {N_OVERFITTED} patients; the AUC must reach {CONTROL_AUC:g}. "
    "Negative control: the initial weights, whose interval must contain 0.5; otherwise only the second attack counts.",
)
NOT_TRIED = (
    "a coordinator that sends crafted weights, for example weights that make a layer store single images",
    "attacks with the BatchNorm statistics of the update, several random starts, or many more steps",
    "attacks that repeat the local steps of a round one by one, or combine the updates of several rounds",
    "learned attacks: a network that is trained to reconstruct images, or a learned prior of images",
    "stronger membership tests with shadow models, and membership from updates instead of the model",
    "attributes of patients, such as age or disease, and what masks or labels alone reveal",
    "reconstruction of several images at once from one statistic of a whole site",
    "statistics of a whole site, if other statistics have one row for each image: the attacks use these rows only",
    "statistics of later rounds, if the method sends them again, and combinations of rounds",
    "removing the noise that a method adds to a statistic by requesting the statistic several times",
)


def update_rows(result: Mapping[str, Any]) -> list[Row]:
    """Rows of a table: the attacked update, the mean detail correlation, and what to compare it with."""
    if not result["update"]:
        return [("images reconstructed from updates", "none", "not measured (--weights-steps 0)")]
    rows = []
    for case in result["update"]:
        detail, control = (
            fmean(each["detail_correlation"] for each in case[key]) for key in ("scores", "control_scores")
        )
        reference = f"negative control {control:z.3f}; {case['verdict']}"
        rows.append(
            (
                f"detail correlation, {case_label(case)}",
                f"{detail:z.3f}",
                f"positive control; {reference}" if case["case"] == "easy" else reference,
            )
        )
    return rows


def case_label(update: Mapping[str, Any]) -> str:
    """An attacked update in a few words; `update` is an entry of the list "update" of the audit's result."""
    privacy = ", clipping and noise" if update["privacy"] else ""
    return CASE_LABELS[update["case"]].format(**{**update, "privacy": privacy})


def model_rows(result: Mapping[str, Any]) -> list[Row]:
    """Rows of membership inference against trained weights: name, value, and what to compare it with."""
    of_model = result["model_membership"]
    if of_model is None:
        too_few = "fewer than two patients in training or held out"
        reason = too_few if result["model_given"] else "not measured (give --model)"
        return [("membership AUC, trained model", "none", reason)]
    counts = f"{of_model['members']} patients in training, {of_model['others']} held out"
    is_chance = of_model["untrained"]["low"] <= 0.5 <= of_model["untrained"]["high"]
    untrained = "negative control" + ("" if is_chance else ", failed: the patients differ before training")
    references = {
        "loss": f"{counts}; {of_model['verdict']}",
        "calibrated": "",
        "untrained": untrained,
        "overfitted": "positive control",
    }
    labels = {
        "loss": "loss of the trained model",
        "calibrated": "loss minus loss with the initial weights",
        "untrained": "loss with the initial weights",
        "overfitted": "loss of an overfitted network",
    }
    rows = [
        (
            f"membership AUC, {label}",
            f"{scores['auc']:.2f}",
            "; ".join(
                filter(
                    None, [f"chance 0.5; 95 % interval {scores['low']:.2f} to {scores['high']:.2f}", references[name]]
                )
            ),
        )
        for name, label in labels.items()
        if (scores := of_model[name])
    ]
    rows += [
        (f"members found at {float(rate):.0%} false alarms", f"{share:.0%}", f"chance {float(rate):.0%}")
        for rate, share in of_model["loss"]["tpr"].items()
    ]
    return rows


def describe_update(result: Mapping[str, Any]) -> str:
    """A sentence about the weights that the site would send in every round."""
    return f"in every round the weights of the network would be sent, about {result['update_bytes'] / 1e6:.2f} MB"


def mean_scores(scores: Sequence[Mapping[str, float]]) -> str:
    """The mean of `medfed.auditing.inversion.score` as a short text."""
    detail, whole, ssim = (fmean(each[key] for each in scores) for key in ("detail_correlation", "correlation", "ssim"))
    return f"detail {detail:z.3f}, whole image {whole:z.3f}, SSIM {ssim:z.3f}"
