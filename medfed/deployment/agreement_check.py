"""Compare what would leave a hospital, as a dry run finds it, with what the hospital agreed to, before joining."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medfed.core.errors import UserErrors
from medfed.deployment.agreement import Agreement, counted_bytes, no_noise, too_few_patients
from medfed.federation.image_moments import MOMENTS
from medfed.federation.ledger import STATISTIC, WEIGHT
from medfed.federation.message import Kind
from medfed.federation.method import EVERY_ROUND
from medfed.federation.privacy_accounting import Releases, require_accountant
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

MAX_LISTED = 5  # names in an error message
Row = Mapping[str, Any]  # a row of the ledger, with the number of patients (`medfed.deployment.dry_run`)


def check_agreement(rows: Sequence[Row], site: Site | ValidationSite, agreement: Agreement, file: str) -> None:
    """Raise UserError, with one sentence for each mistake, if `rows` (`outgoing_rows`) exceed the agreement.

    The list `sends`, `min_patients`, `megabytes_per_round` and `max_epsilon` are compared; `file` is the hospital's
    file.
    """
    mistakes = [
        f"{file}: {sentence}"
        for sentence in (
            *_unlisted(rows, agreement),
            *_of_too_few_patients(rows, site, agreement),
            *_too_large(rows, agreement),
            *_above_budget(rows, site, agreement),
        )
    ]
    if mistakes:
        raise UserErrors(mistakes)


def planned_releases(rows: Sequence[Row], site: Site | ValidationSite) -> Releases:
    """Return how many messages a site would send in a federation, from its rows of the first round."""
    if isinstance(site, ValidationSite):
        return Releases()
    content = {
        kind: {row["content"] for row in rows if row["kind"] == kind and row["name"] != MOMENTS}
        for kind in (Kind.SHARE, Kind.TRAIN)
    }
    n_sharing = site.rounds if site.method.shares == EVERY_ROUND else 1
    return Releases(
        weights=site.rounds * (WEIGHT in content[Kind.TRAIN]),
        statistics=site.rounds * (STATISTIC in content[Kind.TRAIN])
        + n_sharing * (STATISTIC in content[Kind.SHARE])
        + any(row["name"] == MOMENTS for row in rows),
    )


def _unlisted(rows: Sequence[Row], agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if a round would send statistics that the hospital did not agree to send."""
    tensors: set[str] = {row["name"] for row in rows if row["content"] == STATISTIC}
    if missing := sorted(name for name in tensors if not agreement.allows(name)):
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        names = ", ".join(f"'{name}'" for name in missing[:MAX_LISTED]) + more
        yield (
            f"agrees.sends: a round would send the statistics {names}, which are not in the list; add them if you "
            "agree that they leave the hospital"
        )


def _of_too_few_patients(rows: Sequence[Row], site: Site | ValidationSite, agreement: Agreement) -> Iterator[str]:
    """Yield a sentence for the statistic with the fewest patients, if they are too few."""
    shared = [row for row in rows if row["content"] == STATISTIC]
    if isinstance(site, Site) and shared:
        row = min(shared, key=lambda row: row["patients"])
        if row["patients"] < agreement.min_patients:
            advice = site.method.patients_advice
            yield "agrees.min_patients: " + too_few_patients(
                row["name"], row["patients"], agreement.min_patients, advice
            )


def _too_large(rows: Sequence[Row], agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if a round would send more bytes than the hospital agreed to."""
    total = counted_bytes(rows) / 1e6
    if total > agreement.megabytes_per_round:
        yield (
            f"agrees.megabytes_per_round: is {agreement.megabytes_per_round:g}, but a round would send {total:.3g} "
            "MB; increase it if you agree"
        )


def _above_budget(rows: Sequence[Row], site: Site | ValidationSite, agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if the planned rounds need a larger epsilon than the hospital agreed to, or have no noise."""
    if agreement.max_epsilon is None or isinstance(site, ValidationSite):
        return
    planned = planned_releases(rows, site)
    if why := no_noise(site.privacy, planned):
        yield f"agrees.max_epsilon: {why}"
        return
    require_accountant(site.privacy)
    needed = agreement.epsilon(site.privacy, planned)
    if needed > agreement.max_epsilon:
        yield (
            f"agrees.max_epsilon: is {agreement.max_epsilon:g}, but the {site.rounds} rounds of the plan need "
            f"epsilon {needed:.4g} (delta {agreement.delta:g}); ask the coordinator for a plan with more noise or "
            "fewer rounds, or increase it if you agree"
        )
