"""What would leave a site: one round on a few of its images, before anything is sent, held against the agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from medfed.config.schema import Config
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
from medfed.outputs.tables.table import aligned

BATCHES = 2  # of training, in a rehearsal


@dataclass(frozen=True)
class _First:
    """The first so many of a site's samples."""

    samples: Samples
    n: int

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def __len__(self) -> int:
        return min(self.n, len(self.samples))

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.samples.batch(indices)


def dry_run(site: Site, start: State, seed: int) -> list[dict[str, object]]:
    """The rows of the ledger (`medfed.federation.ledger`) that the first round would have, of what goes up.

    The site shares what it would share, of all its images, and validates on all that it would; it trains for two
    batches. As the only site of a federation it gets nothing from others, so answers whose number depends on those of
    others are not foreseen.
    """
    few = replace(site, training=_First(site.training, BATCHES * site.settings.batch_size), local_epochs=1, memory={})
    method, rows, state = site.method, [], start
    if method.shares != NEVER:
        shared = site.answer(Message("share", state.weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        rows += ledger.entries(1, "up", {site.name: shared})
    letter = Message("train", state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    rows += ledger.entries(1, "up", {site.name: few.answer(letter)})
    return [*rows, *_validated(site, state)]


def _validated(site: Site | ValidationSite, state: State) -> list[dict[str, object]]:
    asked = Message("validate", state.weights, {}, {"round": 1})
    return ledger.entries(1, "up", {site.name: site.answer(asked)})


def outgoing_rows(site: Site | ValidationSite, config: Config) -> list[dict[str, object]]:
    """What one round would send, as rows of the ledger."""
    state = State.of(site.network)
    return _validated(site, state) if isinstance(site, ValidationSite) else dry_run(site, state, config.seed)


def check_agreement(
    rows: list[dict[str, object]], site: Site | ValidationSite, config: Config, agreement: Agreement
) -> None:
    """UserError if the method sends what the hospital did not agree to, or more of it."""
    tensors = {row["name"] for row in rows if row["dtype"] != "fact"} - set(site.network.state_dict())
    if strange := sorted(name for name in tensors if not agreement.lets(name)):
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        which = ", ".join(f"'{name}'" for name in strange[:5]) + more
        raise UserError(f"{config.source}: agrees.sends: {config.method_name} would send {which}, not in it; add it if "
                        "you agree that it leaves")
    total = sum(row["bytes"] for row in rows) / 1e6
    if total > agreement.megabytes_per_round:
        raise UserError(f"{config.source}: agrees.megabytes_per_round: {agreement.megabytes_per_round:g}, but a round "
                        f"sends {total:.1f} MB; raise it if you agree")


def format_report(rows: list[dict[str, object]], site: Site | ValidationSite, config: Config) -> str:
    """A table of what would leave, and what it means."""
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
    onlooks = isinstance(site, ValidationSite)
    stays = f"{len(site.samples)} images stay" if onlooks else f"{len(site.training)} training images stay"
    head = (f"What would leave {site.name}, to the coordinator, in a round of {config.method_name} "
            f"({config.federation.rounds} rounds; {stays}):\n")
    meaning = ("It validates alone: nothing is trained here." if onlooks else
               f"{total:.2f} MB a round. None of this is anonymous: weights and statistics tell about the images they "
               "were made from; python -m medfed.audit measures how much.")  # fmt: skip
    table = aligned([[(word, "") for word in line] for line in shown], False, n_left=4)
    return "\n".join([head, table, "\n" + meaning])
