"""A hospital's site behind its guard; it also writes the hospital's own ledger and receives the final model."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import safetensors.torch

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.core.registry import suggestion
from medfed.deployment.agreement import TRAIN, Agreement
from medfed.deployment.guard import KINDS, VALIDATION_KINDS, Guard
from medfed.deployment.hospital_state import hospital_secret, read_counts, write_counts
from medfed.engines.in_process import InProcess
from medfed.experiments.setup import build_network, build_sites, build_task, prepare_device
from medfed.federation.ledger import COLUMNS, format_sums, message_rows, sum_bytes
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message
from medfed.federation.model_transfer import ReceivedWeights
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases
from medfed.federation.site import Site
from medfed.federation.survey import SiteSurvey
from medfed.federation.survey import fact_names as survey_facts
from medfed.federation.validation_site import ValidationSite
from medfed.outputs.run_files import append_rows
from medfed.outputs.run_folder import RunFolder

LEDGER, MODEL = "ledger.csv", "model.safetensors"


def build_local_site(config: Config, name: str) -> Site | ValidationSite:
    """Build a hospital's site from its images: one that trains, or the validation site of the config."""
    if name != config.federation.validation_site:
        (site,), _ = build_sites(config, [name])
        return site
    dataset = config.data.ensure_available(None)
    if name not in (known := dataset.site_names()):
        raise UserError(f"{dataset.root}: has no folder of the validation site '{name}'. {suggestion(name, known)}")
    task = build_task(config, dataset)
    if not (cases := dataset.cases_by_site([name])[name]):
        raise UserError(f"{dataset.root}: the site {name} has no images to validate on; add some")
    samples = task.load(dataset, cases, lambda case, notices: None, lambda n: None)
    network = build_network(config.network, config.method, task, config.seed)
    return ValidationSite(name, samples, task, network.to(prepare_device(config)))


def agreed_survey(site: Site, agreement: Agreement) -> SiteSurvey | None:
    """Return the survey to which the hospital agreed, with the larger minimum group size; None if it did not."""
    if site.survey is None or Kind.SURVEY not in agreement.requests:
        return None
    return replace(site.survey, min_patients=max(site.survey.min_patients, agreement.min_patients))


@dataclass
class GuardedSite:
    """A hospital's site that replies only to what the hospital agreed to.

    Every request and every reply is checked (`Guard`) and recorded in the hospital's own list, `ledger.csv`, in its
    output folder. The numbers of replies and bytes that the guard has counted are kept after a restart; UserError if
    this hospital did not write them (`read_counts`).
    """

    site: Site | ValidationSite
    folder: Path
    agreement: Agreement

    def __post_init__(self) -> None:
        self._received = ReceivedWeights()
        counts = read_counts(self.folder) or {}
        self.guard = Guard(
            self.agreement,
            self.site.network.state_dict(),
            n_replies=Counter(counts.get("answered", {})),
            sent_bytes=Counter(counts.get("sent_bytes", {})),
            sent=counts.get("sent", {}),
            released=Releases(**counts.get("released", {})),
        )
        if isinstance(self.site, ValidationSite):
            self.guard.kinds = VALIDATION_KINDS if TRAIN in self.agreement.requests else ()
            self._engine = InProcess([], self.folder, validation_site=self.site)
            return
        method = self.site.method
        self.guard.local_keys, self.guard.shares = self.site.local_keys, method.shares
        self.guard.share_reads_network = method.share_reads_network
        self.guard.patients_advice = method.patients_advice
        self.guard.fact_names = {Kind.TRAIN: method.fact_names}
        self.site.survey = agreed_survey(self.site, self.agreement)
        self.guard.kinds = KINDS if TRAIN in self.agreement.requests else ()
        if self.site.survey:
            self.guard.kinds = (Kind.SURVEY, *self.guard.kinds)
            self.guard.fact_names[Kind.SURVEY] = survey_facts(self.site.survey.n_labels)
        self.guard.privacy = self.site.privacy
        self.site.noise_key = hospital_secret()
        self._engine = InProcess([self.site], self.folder)

    def reply(self, request: Message) -> Message:
        """Return the site's reply; raise Refused, after which nothing may be sent, if the hospital did not agree.

        The final model of a request of kind "end" is saved as `model.safetensors`. The reply is "weights_needed" if
        this process does not have the weights with the checksum in the request.
        """
        self.guard.check_request(request)
        complete, missing = self._received.complete({self.site.name: request})
        if missing:
            reply = Message(WEIGHTS_NEEDED)
        else:
            reply = self._reply(complete[self.site.name])
            n_patients = self.site.n_patients if isinstance(self.site, Site) else {}
            self.guard.check_reply(complete[self.site.name], reply, n_patients)
        self._record(request, reply)
        return reply

    def _reply(self, request: Message) -> Message:
        """Compute the site's reply, or store the final model for a request of kind "end"."""
        if request.kind == Kind.END:
            write_atomically(self.folder / MODEL, safetensors.torch.save(request.weights))
            return Message(Kind.END)
        return self._engine.exchange(request.kind, {self.site.name: request})[self.site.name]

    def _record(self, request: Message, reply: Message) -> None:
        """Write the ledger and the counts; called before the reply leaves, so that no sent reply is ever missing."""
        number, name = request.facts["round"], self.site.name
        rows = [*message_rows(number, "down", {name: request}), *message_rows(number, "up", {name: reply})]
        append_rows(self.folder / LEDGER, COLUMNS, rows)
        write_counts(
            self.folder,
            {
                "answered": self.guard.n_replies,
                "sent_bytes": self.guard.sent_bytes,
                "sent": self.guard.sent,
                "released": asdict(self.guard.released),
            },
        )


def describe_participation(folder: Path, agreement: Agreement, privacy: Privacy) -> str:
    """Return a text that says how many bytes were sent and received, and how much of `agrees.max_epsilon` is spent."""
    sums = sum_bytes(RunFolder(folder).ledger())
    lines = [f"Sent: {format_sums(sums['up'])}. Received: {format_sums(sums['down'])}."]
    if agreement.max_epsilon is not None:
        released = Releases(**(read_counts(folder) or {}).get("released", {}))
        lines.append(
            f"Epsilon of the weights and statistics that left: {agreement.epsilon(privacy, released):.4g} of "
            f"at most {agreement.max_epsilon:g} (delta {agreement.delta:g}). Facts left without noise."
        )
    return "\n".join(lines)
