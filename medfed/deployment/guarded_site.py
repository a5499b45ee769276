"""A hospital's site behind its guard; it also writes the hospital's own ledger and receives the final model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors.torch

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.core.registry import suggestion
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guard import Guard
from medfed.deployment.hospital_state import count_releases, hospital_secret, read_replies, write_replies
from medfed.engines.in_process import InProcess
from medfed.experiments.setup import build_network, build_sites, build_task, prepare_device
from medfed.federation.ledger import COLUMNS, format_sums, message_rows, sum_bytes
from medfed.federation.message import WEIGHTS_NEEDED, Kind, Message, failed_reply
from medfed.federation.model_transfer import ReceivedWeights
from medfed.federation.privacy_accounting import epsilon
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.outputs.run_files import append_rows
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.task import UNOBSERVED

LEDGER, MODEL = "ledger.csv", "model.safetensors"
HIDDEN_ERROR = "could not reply; the hospital's own log has the reason"  # an error may name files, and thus patients


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
    samples = task.load(dataset, cases, UNOBSERVED)
    network = build_network(config.network, config.method, task, config.seed)
    return ValidationSite(name, samples, task, network.to(prepare_device(config)))


@dataclass
class GuardedSite:
    """A hospital's site that replies only to what the hospital agreed to.

    Every request and every reply is checked (`Guard`) and recorded in the hospital's own list, `ledger.csv`, in its
    output folder. The replies that left are counted after a restart, too.
    """

    site: Site | ValidationSite
    folder: Path
    agreement: Agreement

    def __post_init__(self) -> None:
        self.guard = Guard(self.agreement, self.site, read_replies(self.folder) or [])
        self._received = ReceivedWeights()
        if isinstance(self.site, ValidationSite):
            self._engine = InProcess([], self.folder, validation_site=self.site)
            return
        self.site.survey = self.guard.survey
        self.site.noise_key = hospital_secret()
        self._engine = InProcess([self.site], self.folder)

    def reply(self, request: Message) -> Message:
        """Return the site's reply; raise Refused, after which only its sentence may be sent, without an agreement.

        The final model of a request of kind "end" is saved as `model.safetensors`. The reply is "weights_needed" if
        this process does not have the weights with the checksum in the request.
        """
        try:
            reply = self._agreed_reply(request)
        except Exception as error:
            self._record(request, failed_reply(error.sent if isinstance(error, Refused) else HIDDEN_ERROR))
            raise
        # Recorded before the reply leaves, so that no reply that left is ever missing.
        self._record(request, reply)
        write_replies(self.folder, self.guard.replies)
        return reply

    def _agreed_reply(self, request: Message) -> Message:
        self.guard.check_request(request)
        complete, missing = self._received.complete({self.site.name: request})
        if missing:
            return Message(WEIGHTS_NEEDED)
        reply = self._reply(complete[self.site.name])
        n_patients = self.site.n_patients if isinstance(self.site, Site) else {}
        self.guard.check_reply(complete[self.site.name], reply, n_patients)
        return reply

    def _record(self, request: Message, reply: Message) -> None:
        """Add a request and the reply to the hospital's ledger; a refused request may have any round, or none."""
        number = request.facts.get("round", 0)
        messages = {"down": request, "up": reply}
        rows = [
            row
            for direction, message in messages.items()
            for row in message_rows(number, direction, {self.site.name: message})
        ]
        append_rows(self.folder / LEDGER, COLUMNS, rows)

    def _reply(self, request: Message) -> Message:
        """Compute the site's reply, or store the final model for a request of kind "end"."""
        if request.kind == Kind.END:
            write_atomically(self.folder / MODEL, safetensors.torch.save(request.weights))
            return Message(Kind.END)
        return self._engine.exchange(request.kind, {self.site.name: request})[self.site.name]


def describe_participation(folder: Path, agreement: Agreement) -> str:
    """Return a text that says how many bytes were sent and received, and how much of `agrees.max_epsilon` is spent."""
    sums = sum_bytes(RunFolder(folder).ledger())
    lines = [f"Sent: {format_sums(sums['up'])}. Received: {format_sums(sums['down'])}."]
    if agreement.max_epsilon is not None:
        spent = epsilon(count_releases(read_replies(folder) or []), agreement.delta)
        lines.append(
            f"Epsilon of the weights and statistics that left: {spent:.4g} of at most {agreement.max_epsilon:g} "
            f"(delta {agreement.delta:g}). Facts and whole numbers left without noise."
        )
    return "\n".join(lines)
