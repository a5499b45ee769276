"""Write a bundle's model card, `docs/README.md`: what the model is, its scores at each site, and its limitations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from medfed.federation.sent import WEIGHTS
from medfed.metrics.metric import DISTANCE_UNITS
from medfed.outputs.tables import run_table
from medfed.results.notes import NO_IMAGES, NOT_STATED, TRANSDUCTIVE, adaptation_notes, computation_notes, did_not_learn
from medfed.results.run_scores import run_scores_of
from medfed.results.statistics import AVERAGE
from medfed.results.text_tables import escape_markdown, to_markdown
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import CARD, RUN_TABLE

ROLES = {"unseen": "did not train", "seen": "trained"}
ORIGIN = {
    "phantom": "trained and tested on synthetic phantom data, not for clinical use",
    "real": "trained on real images, not for clinical use",
}
NO_ORIGIN = "the origin of the training images is not stated, not for clinical use"
UNKNOWN = "not stated"
SUFFIXES = {unit: f"_{end}" for end, unit in DISTANCE_UNITS.items()}
OWN_ENTRIES_NOTE = (
    "Sites that trained are scored with their own entries of the network. The bundle contains the average of these "
    "entries, so its scores may differ."
)
PROGRAM_TEXT = """MONAI does not have this network. `models/model.pt2` contains it as an exported program
(`torch.export`): the tensor operations for images of {size} x {size} pixels, and the weights. PyTorch {torch} wrote the
file; other versions may not read it. `torch.export.load` can run code that a file contains, so load only a program from
a sender whom you trust.

"""
TRANSDUCTIVE_NOTE = "TRANSDUCTIVE: {}. The bundle does not do this, so its scores may differ."


def model_card(
    template: Path,
    bundle: BundleTemplate,
    module: nn.Module,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any],
    versions: Mapping[str, str],
    image_size: int,
    can_train: bool,
    image_pattern: str,
) -> str:
    """The template's `docs/README.md` with each {placeholder} replaced; `versions` are of packages to install."""
    text = (template / "docs" / "README.md").read_text()
    method = summary.get("method_summary") or {}
    of_method = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in method.items()}
    keys = ("dataset", "rounds", "selected_round", "selection", "seed")
    values = {
        **{key: UNKNOWN if provenance.get(key) is None else as_plain_markdown(str(provenance[key])) for key in keys},
        "title": as_plain_markdown(bundle.title),
        "pattern": image_pattern,
        "origin": ORIGIN.get(str(provenance.get("data")), NO_ORIGIN)
        + "; IT DID NOT LEARN" * bool(did_not_learn(summary)),
        "sites": as_plain_markdown(", ".join(provenance.get("sites") or ())) or UNKNOWN,
        "unseen_site": as_plain_markdown(provenance.get("unseen_site") or "none"),
        "method": " - ".join(filter(None, (provenance.get("method", UNKNOWN), provenance.get("method_about")))),
        "sent": sent_text(provenance, summary.get("privacy")),
        "notes": card_notes(summary),
        "method_summary": "".join(f"\n- {name.replace('_', ' ').capitalize()}: {v}" for name, v in of_method.items()),
        "scores": scores_table(summary),
        "image_size": image_size,
        "program": "" if can_train else PROGRAM_TEXT.format(size=image_size, torch=versions["torch"]),
        "training": bundle.training_text(can_train),
        "requirements": " ".join(f"{name}=={number}" for name, number in versions.items()),
    }
    of_task = bundle.card_values(module)
    of_task |= {name: as_plain_markdown(str(of_task[name])) for name in ("classes", "structures") if name in of_task}
    return text.format(**values, **of_task)


def sent_text(provenance: Mapping[str, Any], privacy: Mapping[str, Any] | None) -> str:
    """Sentences about where the images were, what left the sites, and with which noise; `privacy` is the summary's."""
    if "sent" not in provenance:
        return "It was trained at several sites, which exchanged model weights."
    sent = provenance["sent"]
    if not sent:
        return "It was trained without a federation: its training images were in one place."
    others = as_plain_markdown("; ".join(title for title in sent if title != WEIGHTS.title))
    more = f" They also sent: {others}." if others else " They sent no images."
    if privacy:
        epsilon = "no finite epsilon" if privacy["epsilon"] == "none" else f"epsilon {privacy['epsilon']:.4g}"
        numbers = f"{epsilon}, delta {privacy['delta']:g}, for a whole site"
        more += f" Weights and statistics were clipped or had noise ({numbers})."
        more += " The noise of this simulation was not secret." if "assumes" in privacy else ""
    return f"It was trained at several sites, which exchanged model weights and numbers such as losses.{more}"


def as_plain_markdown(names: str) -> str:
    """Names in one line that Markdown shows as they are."""
    return escape_markdown(" ".join(names.split())).replace("[", r"\[")


def card_notes(summary: Mapping[str, Any]) -> str:
    """Paragraphs of remarks about the scores, such as an adaptation to test images; "" without any."""
    by = summary.get("transductive_by", ())
    keeps_own = bool(summary.get("sites_kept_entries")) and not summary.get("clients")
    notes = [TRANSDUCTIVE_NOTE.format(TRANSDUCTIVE[name]) for name in by] + [OWN_ENTRIES_NOTE] * keeps_own
    notes += [f"{note}." for note in adaptation_notes([summary])]
    notes += [f"{note[:1].upper()}{note[1:]}." for note in computation_notes(summary)]
    notes += [f"**{why}.**" for why in [did_not_learn(summary)] if why]
    if start := summary.get("start_weights"):
        notes.append(f"Training started from the weights in {start['file']} (SHA-256 {start['sha256']}).")
    if name := summary.get("validation_site"):
        selects = summary.get("selection") == "validation_site"
        role = "the round was selected by its scores" if selects else "it was scored only"
        notes.append(f"{name} did not train; {role}.")
    if clients := summary.get("clients"):
        notes.append(
            f"The patients of the sites were divided among {clients['n']} simulated clients "
            f"({clients['partition']}). {clients['per_round']} clients took part in each round."
        )
    if ratio := summary.get("vertical_ratio"):
        inner, outer = ratio["of"]
        errors = [(words, ratio[role]["mean_error"]) for role, words in ROLES.items() if role in ratio]
        texts = ", ".join(f"{error:.3f} (sites that {words})" for words, error in errors if error is not None)
        notes += [f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {texts}."] * bool(texts)
    return "".join(f"\n\n{note}" for note in notes)


def scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """Mean scores over sites for `eval_metrics`, such as {"unseen_prostate_dice": 0.85}, with the ends of intervals."""
    scoring = scoring_of(summary)
    ratio = summary.get("vertical_ratio") or {}
    values = {}
    for role in ROLES:
        if (error := ratio.get(role, {}).get("mean_error")) is not None:
            values[f"{role}_vertical_{'_to_'.join(ratio['of'])}_error"] = round(error, 6)
    shown = {metric.name for metric in scoring.metrics_in(CARD)}
    for line in run_scores_of(summary).itertuples():
        if line.role in ROLES and line.site == AVERAGE and line.metric in shown:
            prefix = f"{line.role}_{line.structure}" if scoring.has_structures else line.role
            name, scale = f"{prefix}_{line.metric}{SUFFIXES.get(line.unit, '')}", 100 if line.unit == "%" else 1
            ends = {"": line.mean, "_95_percent_low": line.low, "_95_percent_high": line.high}
            values |= {f"{name}{end}": round(value / scale, 6) for end, value in ends.items() if not math.isnan(value)}
    return values


def scores_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table with 95 % intervals, and notes below it; one sentence if a federation of hospitals has none."""
    scoring = scoring_of(summary)
    if not summary["scores"]:
        unknown = f"{NO_IMAGES}, so whether the model learned is not known."
        return unknown if summary.get("data") == NOT_STATED else "This run has no scores."
    tables = [run_table.score_table(scoring, summary)]
    notes = [run_table.INTERVAL_NOTE, *scoring.notes_in(RUN_TABLE)]
    if failures := run_table.failure_table(scoring, summary):
        tables.append(failures)
        notes += run_table.failure_notes(scoring, summary)
    return "\n\n".join([*map(to_markdown, tables), " ".join(f"{note}." for note in notes)])
