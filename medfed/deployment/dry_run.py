"""The dry run: before anything is sent, show what would leave a hospital.

The site runs one short round, with the requests that a coordinator would send. The replies are listed as rows of the
ledger, and the guard compares them with the agreement (`Guard.check_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from medfed.core.seeds import stream
from medfed.deployment.agreement import Agreement, Outgoing
from medfed.deployment.guard import Guard, agreed_survey
from medfed.federation import ledger
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.message import Kind, Message, State, fact_bytes, readable
from medfed.federation.method import NEVER
from medfed.federation.site import Site
from medfed.federation.survey import survey_request
from medfed.federation.validation_site import ValidationSite
from medfed.results.text_tables import aligned

N_STEPS = 2  # training steps in a dry run


def dry_run(site: Site, start: State, seed: int) -> Sequence[Outgoing]:
    """Return all replies that a site would send in the first round; nothing is sent.

    The site computes statistics of all its images and validation scores as in a real round, but does at most two
    training steps; its memory does not change. No other site takes part, so tensors whose number depends on the other
    sites may be missing.
    """
    short_site = replace(site, max_steps=N_STEPS, local_epochs=1, memory={})
    method, state = site.method, start
    sent = [_outgoing(site, site.reply(survey_request()))] if site.survey else []
    if has_constants(state.weights):
        moments = site.reply(moments_request())
        state = replace(state, weights={**state.weights, **pool({site.name: moments})})
        sent.append(_outgoing(site, moments))
    if method.shares != NEVER:
        weights = state.weights if method.share_reads_network else {}
        shared = site.reply(Message(Kind.SHARE, weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        sent.append(_outgoing(site, shared))
    request = Message(Kind.TRAIN, state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    sent.append(_outgoing(short_site, short_site.reply(request)))
    return [*sent, _validation(site, state)]


def _validation(site: Site | ValidationSite, state: State) -> Outgoing:
    return _outgoing(site, site.reply(Message(Kind.VALIDATE, state.weights, {}, {"round": 1})))


def _outgoing(site: Site | ValidationSite, reply: Message) -> Outgoing:
    """A site's last reply, with the numbers of patients behind its statistics."""
    return Outgoing(readable(reply), dict(site.n_patients) if isinstance(site, Site) else {})


def agreed_replies(site: Site | ValidationSite, agreement: Agreement) -> Sequence[Outgoing]:
    """Return the replies of `dry_run`, without a survey to which the hospital did not agree.

    A validation site would send its scores only.
    """
    state = State.of(site.network)
    if isinstance(site, ValidationSite):
        return [_validation(site, state)]
    return dry_run(replace(site, survey=agreed_survey(site, agreement)), state, site.seed)


def format_report(
    sent: Sequence[Outgoing], site: Site | ValidationSite, method: str, n_rounds: int, agreement: Agreement
) -> str:
    """Return a text that shows in a table what the replies hold, and explains it."""
    table = [["kind", "what", "number", "shape", "bytes", "patients"]]
    every: list[Mapping] = []
    for reply, n_patients in sent:
        rows = ledger.message_rows(1, "up", {site.name: reply})
        every += rows
        for row in (row for row in rows if row["content"] != ledger.FACT):
            own = [n for name, n in n_patients.items() if ledger.statistic_name(name) == row["name"]]
            what = str(row["name"] or "weights of the network")
            patients = str(min(own)) if own else ""
            table.append([reply.kind, what, str(row["n"]), str(row["shape"]), f"{row['bytes']:,}", patients])
        table += [[reply.kind, name, "1", "fact", f"{fact_bytes(fact):,}", ""] for name, fact in reply.facts.items()]
    sums = ledger.format_sums(ledger.sum_bytes(every)["up"])
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
            f"the number of patients in the last column.{_epsilon_text(sent, site, agreement)}"
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


def _epsilon_text(sent: Sequence[Outgoing], site: Site, agreement: Agreement) -> str:
    """Sentence for the hospital about the epsilon of all planned rounds; "" if it set no limit."""
    if agreement.max_epsilon is None:
        return ""
    guard = Guard(agreement, site)
    epsilon = guard.epsilon(guard.planned_releases(sent))
    return (
        f" With the noise of the plan, epsilon of all rounds is {epsilon:.4g} (delta {agreement.delta:g}); facts "
        "have no noise, and epsilon does not cover them."
    )
