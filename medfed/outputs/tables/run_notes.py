"""Notes of tables about single runs: synthetic data, adaptation to test images, runs that did not learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.outputs.tables.adaptation import TRANSDUCTIVE, comparison_adaptation_notes
from medfed.outputs.tables.comparison_row import LOCAL, POOLED, ComparisonRow, is_federated
from medfed.outputs.tables.learning import did_not_learn

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
NOT_FEDERATED = {
    POOLED: "one model, trained on the images of all source sites in one place",
    LOCAL: "one model of each source site alone; a score is the mean over these models, failures and cases are those "
    "of all of them",
}


def data_label(data: str) -> str:
    """First line of every table of results: whether the images are synthetic ("phantom") or "real"."""
    return PHANTOM if data == "phantom" else f"{data} data"


def computation_notes(summary: Mapping[str, Any]) -> list[str]:
    """Clauses for a run that was not deterministic, or whose network computed in bfloat16; else empty."""
    notes = ["NOT DETERMINISTIC: the same config and seed give other weights each time"]
    return notes * (summary.get("deterministic") is False) + ["trained in bf16"] * (summary.get("precision") == "bf16")


def run_notes(results: Sequence[dict]) -> list[str]:
    """The notes of a comparison about its runs, such as models that did not learn; `results` as in `build_table`."""
    notes = (_not_federated, _incomplete_local, _transductive, _computation, _not_learned)
    return [note for notes_of_kind in notes for note in notes_of_kind(results)]


def _not_federated(results: Sequence[dict]) -> list[str]:
    """Notes that explain the rows which are not federated."""
    labels = list(dict.fromkeys(result["method"] for result in results if not is_federated(result["method"])))
    kinds = {ComparisonRow(label.partition(", ")[0]).arrangement for label in labels}
    notes = [f"{', '.join(labels)}: no federated methods, so they are neither ranked nor tested"] * bool(labels)
    return [*notes, *(f"{kind}: {text}" for kind, text in NOT_FEDERATED.items() if kind in kinds)]


def _incomplete_local(results: Sequence[dict]) -> list[str]:
    """For which unseen sites and seeds the row `local` lacks models; a federated run knows the source sites."""
    runs = [
        (result["row"], result["summary"], result["seed"])
        for result in results
        if "row" in result and "unseen_site" in result["summary"]
    ]
    folds: dict[tuple, list[ComparisonRow]] = {}
    for row, summary, seed in runs:
        if row.trained_at:
            folds.setdefault((row.label, summary["unseen_site"], seed), []).append(row)
    notes = []
    for (label, unseen, seed), rows in sorted(folds.items()):
        sources = {
            site
            for row, summary, of_seed in runs
            for site in summary.get("source_sites", ())
            if (summary["unseen_site"], of_seed) == (unseen, seed) and rows[0].is_reference_of(row)
        }
        trained = {row.trained_at for row in rows}
        notes += [
            f"{label}: INCOMPLETE at unseen {unseen} seed {seed}: the mean over the models of "
            f"{', '.join(sorted(trained))}; not finished: {', '.join(sorted(sources - trained))}"
        ] * bool(sources - trained)
    return notes


def _transductive(results: Sequence[dict]) -> list[str]:
    """A note for each method that used unlabelled test images, and what an adaptation to them changed."""
    kinds = {result["method"]: result.get("transductive_by") or () for result in results}
    notes = [
        f"{method}: TRANSDUCTIVE ({name}): {TRANSDUCTIVE.get(name, name)}"
        for method, by in sorted(kinds.items())
        for name in by
    ]
    return [*notes, *comparison_adaptation_notes(results)]


def _computation(results: Sequence[dict]) -> list[str]:
    """A note for each method some of whose runs were not deterministic, or were trained in bf16."""
    notes = {(result["method"], note) for result in results for note in computation_notes(result["summary"])}
    return [f"{method}: {note}" for method, note in sorted(notes)]


def _not_learned(results: Sequence[dict]) -> list[str]:
    """A note for each method some of whose runs did not learn."""
    notes = []
    for method in sorted({result["method"] for result in results}):
        of_method = [result for result in results if result["method"] == method]
        failed = [result for result in of_method if did_not_learn(result["summary"])]
        runs = ", ".join(map(_run_name, failed))
        notes += [
            f"{method}: DID NOT LEARN in {len(failed)} of {len(of_method)} runs: on the source sites, a trivial "
            f"prediction or the initial weights are as good as the model ({runs})"
        ] * bool(failed)
    return notes


def _run_name(result: dict) -> str:
    """The unseen site and the seed of a run and, for `local`, the site that trained."""
    trained_at = result["row"].trained_at if "row" in result else ""
    return f"{f'at {trained_at}, ' * bool(trained_at)}unseen {result['summary']['unseen_site']} seed {result['seed']}"
