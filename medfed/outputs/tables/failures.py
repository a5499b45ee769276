"""Shares of patients for whom the methods of a comparison fail."""

from __future__ import annotations

from collections.abc import Sequence

from medfed.metrics.failures import Share
from medfed.outputs.tables.block_statistics import Runs
from medfed.outputs.tables.comparison_data import FailureBlock, FailureLine
from medfed.tasks.scoring import Scoring


def failure_blocks(
    runs: Runs, scoring: Scoring, structure: str, methods: Sequence[str], sites: Sequence[str]
) -> list[FailureBlock]:
    """One block for each kind of failure of a structure; empty for a task without masks."""
    shares: dict[str, list[dict[str, Share | None]]] = {}  # at each site, then at all sites together
    for method in methods:
        rows = [[row for key, of_run in runs.items() if key[:2] == (method, site) for row in of_run] for site in sites]
        total = [row for of_site in rows for row in of_site] if all(rows) else []
        shares[method] = [scoring.failure_shares(part) for part in (*rows, total)]
    blocks = []
    for kind, title in scoring.failure_titles.items():
        of_kind = {method: [part[kind] for part in parts] for method, parts in shares.items()}
        lines = [FailureLine(method, tuple(parts[:-1]), parts[-1]) for method, parts in of_kind.items()]
        blocks.append(FailureBlock(structure, kind, title, tuple(lines)))
    return blocks
