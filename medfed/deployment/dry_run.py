"""What would leave a site, before anything is sent: one round on a few of its images, checked against the agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.deployment.agreement import Agreement
from medfed.federation import ledger
from medfed.federation.local_round import Samples
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.outputs.tables.table import align_columns

N_BATCHES = 2  # of training, in a dry run
Row = Mapping[str, Any]  # of the ledger


@dataclass(frozen=True)
class _First:
    """The first `n` of a site's samples."""

    samples: Samples
    n: int

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def __len__(self) -> int:
        return min(self.n, len(self.samples))

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.samples.batch(indices)


def dry_run(site: Site, start: State, seed: int) -> Sequence[Row]:
    """The ledger's rows (`medfed.federation.ledger`) of what a training site would send in the first round.

    The site shares statistics of all its images and validates as in a run; it trains for two batches. It is the only
    site, so tensors whose number depends on the other sites are not predicted.
    """
    few = replace(site, training=_First(site.training, N_BATCHES * site.settings.batch_size), local_epochs=1, memory={})
    method, state = site.method, start
    rows: list[Row] = []
    if method.shares != NEVER:
        shared = site.reply(Message("share", state.weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        rows += ledger.message_rows(1, "up", {site.name: shared})
    request = Message("train", state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    rows += ledger.message_rows(1, "up", {site.name: few.reply(request)})
    return [*rows, *_validated(site, state)]


def _validated(site: Site | ValidationSite, state: State) -> Sequence[Row]:
    request = Message("validate", state.weights, {}, {"round": 1})
    return ledger.message_rows(1, "up", {site.name: site.reply(request)})


def outgoing_rows(site: Site | ValidationSite) -> Sequence[Row]:
    """What one round would send, as rows of the ledger."""
    state = State.of(site.network)
    return _validated(site, state) if isinstance(site, ValidationSite) else dry_run(site, state, site.seed)


def check_agreement(rows: Sequence[Row], site: Site | ValidationSite, agreement: Agreement, file: str) -> None:
    """Raise UserError if a round sends what the hospital did not agree to, or more of it.

    Args:
        rows: what `outgoing_rows` returns.
        file: of the hospital, for messages.
    """
    tensors: set[str] = {row["name"] for row in rows if row["dtype"] != "fact"} - set(site.network.state_dict())
    if strange := sorted(name for name in tensors if not agreement.allows(name)):
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        which = ", ".join(f"'{name}'" for name in strange[:5]) + more
        raise UserError(f"{file}: agrees.sends: a round would send {which}, not in it; add it if "
                        "you agree that it leaves")
    total = sum(row["bytes"] for row in rows) / 1e6
    if total > agreement.megabytes_per_round:
        raise UserError(f"{file}: agrees.megabytes_per_round: {agreement.megabytes_per_round:g}, but a round "
                        f"sends {total:.1f} MB; raise it if you agree")


def format_report(rows: Sequence[Row], site: Site | ValidationSite, method: str, n_rounds: int) -> str:
    """A table of what would leave (`outgoing_rows`) in each of the rounds, and what that means."""
    network = set(site.network.state_dict())
    shown = [["kind", "what", "shape", "type", "bytes"]]
    for kind in ("share", "train", "validate"):
        own = [row for row in rows if row["kind"] == kind]
        entries = [row for row in own if row["name"] in network]
        if entries:
            n, size = len(entries), sum(row["bytes"] for row in entries)
            shown.append([kind, f"weights of the network ({n} tensors)", "", "", f"{size:,}"])
        shown += [
            [kind, row["name"], row["shape"], row["dtype"], f"{row['bytes']:,}"] for row in own if row not in entries
        ]
    total = sum(row["bytes"] for row in rows) / 1e6
    if isinstance(site, ValidationSite):
        stays, meaning = f"{len(site.samples)} images stay", "It validates alone: nothing is trained here."
    else:
        stays = f"{len(site.training)} training images stay"
        meaning = (f"{total:.2f} MB a round. None of this is anonymous: weights and statistics tell about the images "
                   "they were made from; python -m medfed.audit measures how much.")  # fmt: skip
    head = (f"What would leave {site.name}, to the coordinator, in a round of {method} "
            f"({n_rounds} rounds; {stays}):\n")
    table = align_columns([[(word, "") for word in line] for line in shown], False, n_left=4)
    return "\n".join([head, table, "\n" + meaning])
