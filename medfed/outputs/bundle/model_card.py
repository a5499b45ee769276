"""A bundle's `docs/README.md`: what the model is, how well it did at each site, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from medfed.outputs.tables import run_table
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import CARD, RUN_TABLE

ROLES = {"unseen": "took no part", "seen": "took part"}
ORIGIN = {
    "phantom": "trained and tested on synthetic phantom data, not for clinical use",
    "real": "trained on real images, not for clinical use",
}
NO_ORIGIN = "the origin of its images is not stated, not for clinical use"
UNKNOWN = "not stated"
KEPT = "Sites that took part are scored with the entries that each keeps; the bundle has their average."
TRANSDUCTIVE = {
    "tent": "These scores are transductive: the network adapted to the test images of each site while predicting "
    "(Tent). The bundle does not adapt, so it may score otherwise.",
    "batch_stats": "Scores of sites that took no part are transductive: BatchNorm used the statistics of each batch of "
    "their test images. The bundle has the average of the sites' statistics, so it may score otherwise.",
    "nearest": "Scores of sites that took no part are transductive in a weak sense: they got the BatchNorm of the "
    "source site whose statistics are nearest to those of their unlabelled test images. The bundle has the average, so "
    "it may score otherwise.",
}


def model_card(
    template: Path,
    bundle: BundleTemplate,
    module: nn.Module,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any],
    versions: Mapping[str, str],
    image_size: int,
    has_script: bool,
) -> str:
    """The template's text with its {placeholders} filled.

    Args:
        module: the trained network.
        provenance, summary: as `medfed.outputs.bundle.write.write_bundle` takes them. Of the summary, `transductive`,
            `transductive_by`, `sites_kept_entries`, `method_facts` and `vertical_ratio` are told where they are there.
        versions: what to install, by package.
        has_script: whether there is a `models/model.ts`.
    """
    text = (template / "docs" / "README.md").read_text()
    sites, facts = provenance.get("sites") or [], summary.get("method_facts") or {}
    values = {
        "title": bundle.title,
        "origin": ORIGIN.get(str(provenance.get("data")), NO_ORIGIN),
        "dataset": provenance.get("dataset") or UNKNOWN,
        "sites": ", ".join(sites) or UNKNOWN,
        "unseen_site": provenance.get("unseen_site") or "none",
        "method": " - ".join(filter(None, (provenance.get("method", UNKNOWN), provenance.get("method_about")))),
        "rounds": provenance.get("rounds", UNKNOWN),
        "selected_round": provenance.get("selected_round", UNKNOWN),
        "selection": provenance.get("selection", UNKNOWN),
        "seed": provenance.get("seed", UNKNOWN),
        "notes": card_notes(summary),
        "facts": "".join(f"\n- {name.replace('_', ' ').capitalize()}: {_fact(value)}" for name, value in facts.items()),
        "scores": scores_table(summary),
        "image_size": image_size,
        "script": "" if has_script else "There is no `models/model.ts`: this network could not be scripted.\n\n",
        "requirements": " ".join(f"{name}=={number}" for name, number in versions.items()),
    }
    return text.format(**values, **bundle.card_values(module))


def card_notes(summary: Mapping[str, Any]) -> str:
    """What a reader of the scores must know beside them, a paragraph each, or nothing."""
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    found = [TRANSDUCTIVE[name] for name in by] + [KEPT] * bool(summary.get("sites_kept_entries"))
    if start := summary.get("start_weights"):
        found.append(f"Training started from the weights in {start['file']} (SHA-256 {start['sha256']}).")
    if name := summary.get("validation_site"):
        chose = "the round was chosen on it" if summary.get("selection") == "validation_site" else "it was only scored"
        found.append(f"{name} did not train; {chose}.")
    if clients := summary.get("clients"):
        found.append(f"The sites' people were handed out to {clients['n']} clients ({clients['partition']}), "
                     f"{clients['per_round']} of them a round.")
    if ratio := summary.get("vertical_ratio"):
        inner, outer = ratio["of"]
        errors = [(words, ratio[role]["mean_error"]) for role, words in ROLES.items() if role in ratio]
        told = ", ".join(f"{error:.3f} (sites that {words})" for words, error in errors if error is not None)
        found += [f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {told}."] * bool(told)
    return "".join(f"\n\n{note}" for note in found)


def scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """Means over sites by role, structure and metric, for `eval_metrics`; what is unknown is left out."""
    scoring = scoring_of(summary)
    ratio = summary.get("vertical_ratio") or {}
    found = {}
    for role in ROLES:
        if (error := ratio.get(role, {}).get("mean_error")) is not None:
            found[f"{role}_vertical_{'_to_'.join(ratio['of'])}_error"] = round(error, 6)
        for structure, group in summary.get(role, {}).get("mean", {}).items():
            prefix = f"{role}_{structure}" if scoring.has_structures else role
            for column in scoring.columns_in(CARD):
                if (mean := group.get(column.key, {}).get("mean")) is not None:
                    found[f"{prefix}_{column.key}"] = round(mean, 6)
    return found


def scores_table(summary: Mapping[str, Any]) -> str:
    """The table of the run with intervals, and what its columns are."""
    scoring = scoring_of(summary)
    if not any(summary.get(role, {}).get("sites") for role in ROLES):
        return "No scores were kept with this run."
    head, *rows = run_table.score_rows(scoring, summary, with_interval=True)
    n_texts = 1 + scoring.has_structures
    ruled = [head, (*["---"] * n_texts, *["---:"] * (len(head) - n_texts)), *rows]
    written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in ruled]
    card_notes = " ".join(f"{note}." for note in (scoring.interval_note, *scoring.notes_in(RUN_TABLE)))
    return "\n".join([*written, "", card_notes])


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

