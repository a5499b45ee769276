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
from medfed.federation.image_moments import MOMENTS, has_constants, moments_request, pool
from medfed.federation.message import Kind, Message, State, fact_bytes, readable
from medfed.federation.method import EVERY_ROUND, NEVER
from medfed.federation.site import Site
from medfed.federation.survey import survey_request
from medfed.federation.validation_site import ValidationSite
from medfed.results.text_tables import aligned

N_STEPS = 2  # training steps in a dry run
ONLY_VALIDATES = "This site only validates: nothing is trained here, and only the scores leave."


def dry_run(site: Site, start: State, seed: int) -> list[Outgoing]:
    """Return all replies that a site would send in the first round; nothing is sent.

    The site computes statistics of all its images and validation scores as in a real round, but does at most two
    training steps; its memory does not change. No other site takes part, so tensors whose number depends on the other
    sites may be missing.
    """
    short_site = replace(site, max_steps=N_STEPS, local_epochs=1, memory={})
    method, state = site.method, start
    sent = [_outgoing(site, survey_request())] if site.survey else []
    if has_constants(state.weights):
        sent.append(_outgoing(site, moments_request()))
        state = replace(state, weights={**state.weights, **pool({site.name: sent[-1].reply})})
    if method.shares != NEVER:
        weights = state.weights if method.share_reads_network else {}
        sent.append(_outgoing(site, Message(Kind.SHARE, weights, {}, {"round": 1})))
        shared = {site.name: sent[-1].reply.tensors}
        state = replace(state, memory=method.combine(state, shared, stream(seed, "combine", 1)))
    request = Message(Kind.TRAIN, state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    return [*sent, _outgoing(short_site, request), _outgoing(site, _validation(state))]


def agreed_replies(site: Site | ValidationSite, agreement: Agreement) -> list[Outgoing]:
    """Return the replies of `dry_run`, without a survey to which the hospital did not agree.

    A validation site would send its scores only.
    """
    state = State.of(site.network)
    if isinstance(site, ValidationSite):
        return [_outgoing(site, _validation(state))]
    return dry_run(replace(site, survey=agreed_survey(site, agreement)), state, site.seed)


def _validation(state: State) -> Message:
    return Message(Kind.VALIDATE, state.weights, {}, {"round": 1})


def _outgoing(site: Site | ValidationSite, request: Message) -> Outgoing:
    """A site's reply, with the numbers of patients behind its statistics."""
    reply = readable(site.reply(request))
    return Outgoing(reply, dict(site.n_patients) if isinstance(site, Site) else {})


def format_report(sent: Sequence[Outgoing], guard: Guard, method: str, n_rounds: int) -> str:
    """Return a text that shows in a table what the replies hold, and explains it."""
    site = guard.site
    table = [["kind", "what", "number", "shape", "bytes", "patients"]]
    every: list[Mapping] = []
    for reply, n_patients in sent:
        rows = ledger.message_rows(1, "up", {site.name: reply})
        every += rows
        for row in (row for row in rows if row["content"] != ledger.FACT):
            own = [n for name, n in n_patients.items() if ledger.statistic_name(name) == row["name"]]
            what, patients = str(row["name"] or "weights of the network"), str(min(own, default=""))
            table.append([reply.kind, what, str(row["n"]), str(row["shape"]), f"{row['bytes']:,}", patients])
        table += [[reply.kind, name, "1", "fact", f"{fact_bytes(fact):,}", ""] for name, fact in reply.facts.items()]
    has_patients = any(row[-1] for row in table[1:])  # a statistic leaves
    if not has_patients:
        table = [row[:-1] for row in table]
    sums = ledger.format_sums(ledger.sum_bytes(every)["up"])
    n_images = f"{len(site.training)} training images" if isinstance(site, Site) else f"{len(site.samples)} images"
    heading = (
        f"What would leave {site.name} and be sent to the coordinator in the first of {n_rounds} rounds of {method} "
        f"({n_images} do not leave):\n"
    )
    explanation = _explanation(sent, site, guard) if isinstance(site, Site) else ONLY_VALIDATES
    if has_patients:
        explanation += " Each number of a statistic is computed from at least the patients in the last column."
    return f"{heading}\n{aligned(table, 4)}\n\nIn the first round {sums} leave. {explanation}"


def _explanation(sent: Sequence[Outgoing], site: Site, guard: Guard) -> str:
    """Sentences about what leaves again, what the replies reveal, epsilon of the federation, and the survey."""
    agreement, shared = (
        guard.agreement,
        {name for reply, _ in sent if reply.kind == Kind.SHARE for name in reply.tensors},
    )
    text = "The rows of kind train and validate leave in every round. "
    if shared:
        in_each, but = guard.method.shares == EVERY_ROUND, f" ({MOMENTS} once)" if MOMENTS in shared else ""
        text += f"The rows of kind share leave {f'in every round{but}' if in_each else 'once, before round 1'}. "
    text += (
        f"The training images are of {site.training.n_patients} patients (data.patient_pattern decides which images "
        "are of one patient). "
        "None of this is anonymous: weights and statistics contain information about the images from which they were "
        "computed. medfed audit measures how much."
    )
    if agreement.max_epsilon is not None:
        text += (
            f" Epsilon of all rounds, with what has left before, is {guard.epsilon(guard.planned_releases(sent)):.4g} "
            f"(delta {agreement.delta:g}); facts and whole numbers have no noise, and epsilon does not cover them."
        )
    if site.survey and Kind.SURVEY in agreement.requests:
        text += " The rows of kind survey leave once, before round 1; each describes at least "
        text += f"{max(site.survey.min_patients, agreement.min_patients)} patients."
    elif site.survey:
        text += (
            " The plan asks for a survey of the images before round 1, to which you did not agree: it is refused. Add "
            "survey to agrees.requests to let the coordinator compare your images with those of the other sites."
        )
    return text
