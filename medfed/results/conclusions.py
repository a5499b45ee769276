"""What can and what cannot be concluded from a comparison, in at most 120 words."""

from __future__ import annotations

from typing import Any

from medfed.metrics.metric import Metric
from medfed.results.comparison import Comparison
from medfed.results.scores import ALL
from medfed.results.statistics import AVERAGE, BETTER, MIN_SEEDS, UNDECIDED, UNTESTED, WITHDRAWN, WORSE, verdict_text
from medfed.results.text_tables import difference_text, number

CONCLUSIONS = "What can and what cannot be concluded"
MAX_NAMED = 3  # methods of one verdict, in all structures together


def conclusions_of(comparison: Comparison) -> list[str]:
    """Sentences about the average difference of the main metric, for each structure, and about what they hold for."""
    metric = comparison.metrics[comparison.shown[0]]
    table = comparison.differences
    if table.empty:
        return []
    sentences = []
    n_named = max(1, MAX_NAMED // len(comparison.structures))
    for structure in comparison.structures:
        own = table[(table.structure == structure) & (table.metric == metric.name) & (table.role == "unseen")]
        own = own[own.site == AVERAGE]
        name = metric.label if structure == ALL else f"{structure}, {metric.label}"
        decided = _decided(list(own[own.kind == "method"].itertuples()), metric, n_named)
        sentences += [f"{name}: {decided}."] * bool(decided)
        methods = set(comparison.compared) - {comparison.baseline}
        unknown = methods - set(own.row[own.kind.isin(["method", "effort"])]) - set(own.minus)
        sentences += [f"{name}: no average difference for {len(unknown)} methods."] * bool(unknown)
    n = len(comparison.seeds)
    few = f" {n} seed{'s' * (n > 1)}: another training may turn it." * (n < MIN_SEEDS)
    end = " The images are SYNTHETIC: nothing follows for patients." * (comparison.data == "phantom")
    return [
        *sentences,
        f"This is about new patients of these sites and about these models, not about other hospitals.{few}{end}",
    ]


def _decided(differences: list[Any], metric: Metric, n_named: int) -> str:
    """Which methods are better, worse, and not decided; `n_named` of each."""
    parts = []
    order = (BETTER, WORSE, UNDECIDED, UNTESTED, WITHDRAWN)
    for text in dict.fromkeys(map(verdict_text, sorted(differences, key=lambda d: order.index(d.verdict)))):
        own = sorted((d for d in differences if verdict_text(d) == text), key=lambda d: -abs(d.difference))
        named = ", ".join(f"{d.row} ({difference_text(d, metric)} from {d.minus})" for d in own[:n_named])
        parts.append(f"{text}: {named}{f' and {len(own) - n_named} more' * (len(own) > n_named)}")
    verdicts = {d.verdict for d in differences}
    if verdicts & {UNDECIDED, WORSE} and BETTER not in verdicts:
        parts.insert(0, "no method is better than its reference")
    visible = [d.detectable for d in differences if d.verdict == UNDECIDED and d.detectable == d.detectable]
    if visible:
        limit = number(max(visible), metric.decimals)
        parts.append(f"in rows that are not decided, a difference below about {limit} may well be missed")
    return "; ".join(parts)
