"""Compare what would leave a hospital, as a dry run finds it, with what the hospital agreed to, before joining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from medfed.core.errors import UserErrors
from medfed.deployment.agreement import Agreement, Outgoing, counted_bytes, no_noise, too_few_patients
from medfed.federation.image_moments import MOMENTS
from medfed.federation.message import Kind
from medfed.federation.method import EVERY_ROUND
from medfed.federation.privacy_accounting import Releases, require_accountant
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

MAX_LISTED = 5  # names in an error message


def check_agreement(sent: Sequence[Outgoing], site: Site | ValidationSite, agreement: Agreement, file: str) -> None:
    """Raise UserError, with one sentence for each mistake, if `sent` (`agreed_replies`) exceeds the agreement.

    The list `sends`, `min_patients`, `megabytes_per_round` and `max_epsilon` are compared; `file` is the hospital's
    file.
    """
    mistakes = [
        f"{file}: {sentence}"
        for sentence in (
            *_unlisted(sent, agreement),
            *_of_too_few_patients(sent, site, agreement),
            *_too_large(sent, agreement),
            *_above_budget(sent, site, agreement),
        )
    ]
    if mistakes:
        raise UserErrors(mistakes)


def planned_releases(sent: Sequence[Outgoing], site: Site | ValidationSite) -> Releases:
    """Return how many messages a site would send in a federation, from its replies of the first round."""
    if isinstance(site, ValidationSite):
        return Releases()
    replies = [reply for reply, _ in sent]
    trained = [reply for reply in replies if reply.kind == Kind.TRAIN]
    shared = [reply for reply in replies if reply.kind == Kind.SHARE]
    n_sharing = site.rounds if site.method.shares == EVERY_ROUND else 1
    return Releases(
        weights=site.rounds * any(reply.weights for reply in trained),
        statistics=site.rounds * any(reply.tensors for reply in trained)
        + n_sharing * any(reply.tensors.keys() - {MOMENTS} for reply in shared)
        + any(MOMENTS in reply.tensors for reply in shared),
    )


def _unlisted(sent: Sequence[Outgoing], agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if a round would send statistics that the hospital did not agree to send."""
    tensors = {name for reply, _ in sent for name in reply.tensors}
    if missing := sorted(name for name in tensors if not agreement.allows(name)):
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        names = ", ".join(f"'{name}'" for name in missing[:MAX_LISTED]) + more
        yield (
            f"agrees.sends: a round would send the statistics {names}, which are not in the list; add them if you "
            "agree that they leave the hospital"
        )


def _of_too_few_patients(sent: Sequence[Outgoing], site: Site | ValidationSite, agreement: Agreement) -> Iterator[str]:
    """Yield a sentence for the statistic with the fewest patients, if they are too few."""
    shared = [(n_patients.get(name, 1), name) for reply, n_patients in sent for name in reply.tensors]
    if isinstance(site, Site) and shared:
        n, name = min(shared, key=lambda entry: entry[0])
        if n < agreement.min_patients:
            advice = site.method.patients_advice
            yield "agrees.min_patients: " + too_few_patients(name, n, agreement.min_patients, advice)


def _too_large(sent: Sequence[Outgoing], agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if a round would send more bytes than the hospital agreed to."""
    total = sum(counted_bytes(reply) for reply, _ in sent) / 1e6
    if total > agreement.megabytes_per_round:
        yield (
            f"agrees.megabytes_per_round: is {agreement.megabytes_per_round:g}, but a round would send {total:.3g} "
            "MB; increase it if you agree"
        )


def _above_budget(sent: Sequence[Outgoing], site: Site | ValidationSite, agreement: Agreement) -> Iterator[str]:
    """Yield a sentence if the planned rounds need a larger epsilon than the hospital agreed to, or have no noise."""
    if agreement.max_epsilon is None or isinstance(site, ValidationSite):
        return
    planned = planned_releases(sent, site)
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
