"""The dry run: before anything is sent, show what would leave a hospital.

The site runs one short round, with the requests that a coordinator would send, and the replies are listed as rows of
the ledger, which `medfed.deployment.agreement_check` compares with the agreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from medfed.core.seeds import stream
from medfed.deployment.agreement import Agreement
from medfed.deployment.agreement_check import planned_releases
from medfed.deployment.guarded_site import agreed_survey
from medfed.federation import ledger
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import NEVER
from medfed.federation.privacy_accounting import require_accountant
from medfed.federation.site import Site
from medfed.federation.survey import survey_request
from medfed.federation.validation_site import ValidationSite
from medfed.results.text_tables import aligned

N_STEPS = 2  # training steps in a dry run
Row = Mapping[str, Any]  # a row of the ledger, with the number of patients


def dry_run(site: Site, start: State, seed: int) -> Sequence[Row]:
    """Return rows for everything that a site would send in the first round; nothing is sent.

    The site computes statistics of all its images and validation scores as in a real round, but does at most two
    training steps; its memory does not change. No other site takes part, so tensors whose number depends on the other
    sites may be missing. A row has the keys `medfed.federation.ledger.COLUMNS`, and `patients`: from how many patients
    each number of a statistic is computed, at least; None for weights and facts.
    """
    short_site = replace(site, max_steps=N_STEPS, local_epochs=1, memory={})
    method, state = site.method, start
    rows: list[Row] = [*_rows(site, site.reply(survey_request()))] if site.survey else []
    if has_constants(state.weights):
        moments = site.reply(moments_request())
        state = replace(state, weights={**state.weights, **pool({site.name: moments})})
        rows += _rows(site, moments)
    if method.shares != NEVER:
        weights = state.weights if method.share_reads_network else {}
        shared = site.reply(Message(Kind.SHARE, weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        rows += _rows(site, shared)
    request = Message(Kind.TRAIN, state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    rows += _rows(short_site, short_site.reply(request))
    return [*rows, *_validation_rows(site, state)]


def _validation_rows(site: Site | ValidationSite, state: State) -> Sequence[Row]:
    """The ledger rows of the reply that the site would send to a request for validation."""
    return _rows(site, site.reply(Message(Kind.VALIDATE, state.weights, {}, {"round": 1})))


def _rows(site: Site | ValidationSite, reply: Message) -> Sequence[Row]:
    """Return the rows of a site's last reply, with the numbers of patients behind the statistics."""
    n_patients = site.n_patients if isinstance(site, Site) else {}
    return [
        {**row, "patients": n_patients[str(row["name"])] if row["content"] == ledger.STATISTIC else None}
        for row in ledger.message_rows(1, "up", {site.name: reply})
    ]


def outgoing_rows(site: Site | ValidationSite, agreement: Agreement) -> Sequence[Row]:
    """Return the rows of `dry_run`, without a survey to which the hospital did not agree.

    A validation site would send its scores only.
    """
    state = State.of(site.network)
    if isinstance(site, ValidationSite):
        return _validation_rows(site, state)
    return dry_run(replace(site, survey=agreed_survey(site, agreement)), state, site.seed)


def format_report(
    rows: Sequence[Row], site: Site | ValidationSite, method: str, n_rounds: int, agreement: Agreement
) -> str:
    """Return a text that shows the rows in a table and explains them; all weights of one kind of reply share a line."""
    table = [["kind", "what", "shape", "type", "bytes", "patients"]]
    for kind in Kind:
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        entries = [row for row in rows_of_kind if row["content"] == ledger.WEIGHT]
        if entries:
            n, size = len(entries), sum(row["bytes"] for row in entries)
            table.append([kind, f"weights of the network ({n} tensors)", "", "", f"{size:,}", ""])
        table += [
            [kind, row["name"], row["shape"], row["dtype"], f"{row['bytes']:,}", str(row["patients"] or "")]
            for row in rows_of_kind
            if row not in entries
        ]
    sums = ledger.format_sums(ledger.sum_bytes(rows)["up"])
    if isinstance(site, ValidationSite):
        n_images = f"{len(site.samples)} images do not leave"
        explanation = (
            f"In the first round {sums} leave. This site only validates: nothing is trained here, and "
            "only the scores leave."
        )
    else:
        n_images = f"{len(site.training)} training images do not leave"
        explanation = (
            f"In the first round {sums} leave. None of this is anonymous: weights and "
            "statistics contain information about the images from which they were computed. "
            "python -m medfed.audit measures how much. Each number of a statistic is computed from at least "
            f"the number of patients in the last column.{_epsilon_text(rows, site, agreement)}"
            f"{_survey_text(site, agreement)}"
        )
    heading = (
        f"What would leave {site.name} and be sent to the coordinator in each of {n_rounds} rounds of {method} "
        f"({n_images}):\n"
    )
    text = aligned(table, 4)
    return "\n".join([heading, text, "\n" + explanation])


def _survey_text(site: Site, agreement: Agreement) -> str:
    """Sentence for the hospital about the survey of its images; "" if the plan has none."""
    if site.survey is None:
        return ""
    if Kind.SURVEY in agreement.requests:
        return " The rows of kind survey leave once, before round 1."
    return (
        " The plan asks for a survey of the images before round 1, to which you did not agree: it is refused. Add "
        "survey to agrees.requests to let the coordinator compare your images with those of the other sites."
    )


def _epsilon_text(rows: Sequence[Row], site: Site, agreement: Agreement) -> str:
    """Sentence for the hospital about the epsilon of all planned rounds; "" if it set no limit."""
    if agreement.max_epsilon is None:
        return ""
    require_accountant(site.privacy)
    epsilon = agreement.epsilon(site.privacy, planned_releases(rows, site))
    return (
        f" With the noise of the plan, epsilon of all rounds is {epsilon:.4g} (delta {agreement.delta:g}); facts "
        "have no noise, and epsilon does not cover them."
    )
