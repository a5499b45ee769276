"""What stands between the wire and a hospital's site: the guard, the hospital's own ledger, and the end."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from tqdm import tqdm

from medfed.config.schema import Config
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.core.registry import suggestion
from medfed.deployment.agreement import VALIDATION_KINDS, Agreement, Guard
from medfed.engines.in_process import InProcess
from medfed.experiments.loading import SiteImages
from medfed.experiments.setup import build_network, build_site, task_of
from medfed.federation.ledger import COLUMNS, entries
from medfed.federation.message import Message
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.outputs.run_folder import append_rows

COUNTS, LEDGER, MODEL, SECRET = "answered.json", "ledger.csv", "model.safetensors", "noise.key"


def build_local_site(config: Config, name: str) -> Site | ValidationSite:
    """A hospital's site, where there is the folder of no other; one that only validates does so with all its images."""
    if name != config.federation.validation_site:
        return build_site(config, name)
    dataset = config.data.ready(None)
    if name not in (known := dataset.site_names()):
        raise UserError(f"{dataset.root}: no site '{name}' here, which is to validate. {suggestion(name, known)}")
    task = task_of(config, dataset)
    with tqdm(disable=True) as bar:
        samples = SiteImages(dataset, task, bar).samples(dataset.cases_of([name])[name])
    if samples is None:
        raise UserError(f"{dataset.root}: the site {name} has no images to validate on; add some")
    return ValidationSite(name, samples, task, build_network(config, task).to(pick_device(config.device)))


@dataclass
class GuardedSite:
    """Answers letters as the site does, within what the hospital agreed to, and writes down what crossed its border."""

    site: Site | ValidationSite
    folder: Path
    agreement: Agreement

    def __post_init__(self) -> None:
        kept = self.folder / COUNTS
        told = json.loads(kept.read_text()) if kept.is_file() else {"answered": {}, "sent_bytes": {}, "sent": {}}
        self.guard = Guard(self.agreement, self.site.network.state_dict(), answered=Counter(told["answered"]),
                           sent_bytes=Counter(told["sent_bytes"]), sent=told.get("sent", {}))  # fmt: skip
        if isinstance(self.site, ValidationSite):
            self.guard.kinds = VALIDATION_KINDS
            self._engine = InProcess([], self.folder, validation_site=self.site)
            return
        self.guard.stays, self.guard.shares = self.site.local_keys, self.site.method.shares
        self.site.noise_key = _secret(self.folder / SECRET)
        self._engine = InProcess([self.site], self.folder)

    def answer(self, letter: Message) -> Message:
        """The answer to a letter.

        Raises:
            Refused: if the letter or the answer is not what the hospital agreed to; then nothing leaves.
        """
        self.guard.check_request(letter)
        if letter.kind == "end":
            write_atomically(self.folder / MODEL, safetensors.torch.save(letter.weights))
            answer = Message("end")
        else:
            answer = self._engine.exchange(letter.kind, {self.site.name: letter})[self.site.name]
        self.guard.check_reply(letter, answer)
        self._record(letter, answer)
        return answer

    def _record(self, letter: Message, answer: Message) -> None:
        """Before the answer leaves: a ledger that lacks what left would be worth nothing."""
        number, name = letter.facts["round"], self.site.name
        rows = [*entries(number, "down", {name: letter}), *entries(number, "up", {name: answer})]
        append_rows(self.folder / LEDGER, COLUMNS, rows)
        counts = {"answered": self.guard.answered, "sent_bytes": self.guard.sent_bytes, "sent": self.guard.sent}
        write_atomically(self.folder / COUNTS, json.dumps(counts, sort_keys=True))


def _secret(path: Path) -> bytes:
    """32 bytes that never leave the hospital, the same after a restart."""
    if not path.is_file():
        unfinished = path.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)  # before anything is in it
        unfinished.write_bytes(secrets.token_bytes(32))
        unfinished.replace(path)
    return path.read_bytes()
