"""The dry run: before anything is sent, show what would leave a hospital, and compare it with the agreement.

The site runs one round on a few of its images, with the requests that a coordinator would send, and the replies are
listed as rows of the ledger. Called by `medfed site`, with and without `--dry-run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.deployment.agreement import Agreement
from medfed.federation import ledger
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.local_round import Samples
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.outputs.tables.table import align_columns

N_BATCHES = 2  # training batches in a dry run
MAX_LISTED = 5  # names in an error message
Row = Mapping[str, Any]  # a row of the ledger


@dataclass(frozen=True)
class _FirstSamples:
    """The first `n` of a site's samples; see `Samples`."""

    samples: Samples
    n: int

    @property
    def n_patients(self) -> int:
        """Number of patients of the whole site."""
        return self.samples.n_patients

    def __len__(self) -> int:
        return min(self.n, len(self.samples))

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples with these indices as a batch."""
        return self.samples.batch(indices)


def dry_run(site: Site, start: State, seed: int) -> Sequence[Row]:
    """Compute what a site that trains would send in the first round, without sending anything.

    The site computes statistics of all its images and validation scores as in a real round, but trains on at most two
    batches of images. No other site takes part, so tensors whose number depends on the other sites may be missing.

    Args:
        site: the site. Its memory (the tensors that the site keeps between rounds) is not changed by the training.
        start: the coordinator's state before the first round, with the network's first weights.
        seed: the seed of the coordinator's random streams.

    Returns:
        One row for each tensor or single value that would leave the site: a dict with the keys
        `medfed.federation.ledger.COLUMNS`, such as `name`, `shape` and `bytes`.
    """
    short_site = replace(
        site, training=_FirstSamples(site.training, N_BATCHES * site.settings.batch_size), local_epochs=1, memory={}
    )
    method, state = site.method, start
    rows: list[Row] = []
    if has_constants(state.weights):
        moments = site.reply(moments_request())
        state = replace(state, weights={**state.weights, **pool({site.name: moments})})
        rows += ledger.message_rows(1, "up", {site.name: moments})
    if method.shares != NEVER:
        weights = state.weights if method.share_reads_network else {}
        shared = site.reply(Message("share", weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        rows += ledger.message_rows(1, "up", {site.name: shared})
    request = Message("train", state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    rows += ledger.message_rows(1, "up", {site.name: short_site.reply(request)})
    return [*rows, *_validation_rows(site, state)]


def _validation_rows(site: Site | ValidationSite, state: State) -> Sequence[Row]:
    request = Message("validate", state.weights, {}, {"round": 1})
    return ledger.message_rows(1, "up", {site.name: site.reply(request)})


def outgoing_rows(site: Site | ValidationSite) -> Sequence[Row]:
    """List everything that would leave a site in one round, without sending anything.

    Args:
        site: a site that trains, or a validation site, which would send its scores only.

    Returns:
        One row for each tensor or single value: a dict with the keys `medfed.federation.ledger.COLUMNS`, such as
        `name`, `shape` and `bytes`.
    """
    state = State.of(site.network)
    return _validation_rows(site, state) if isinstance(site, ValidationSite) else dry_run(site, state, site.seed)


def check_agreement(rows: Sequence[Row], site: Site | ValidationSite, agreement: Agreement, file: str) -> None:
    """Check that the hospital agreed to everything that would leave the hospital in a round.

    Args:
        rows: one dict for each tensor or single value that would leave, as `outgoing_rows` returns them.
        site: the site. The tensors of its network are weights, all other tensors in `rows` are statistics.
        agreement: what the hospital agreed to.
        file: the path of the hospital's YAML file, which contains the agreement; for error messages.

    Raises:
        UserError: if a statistic is not in the list `sends` of the agreement, or the total size is above
            `megabytes_per_round` of the agreement.
    """
    tensors: set[str] = {row["name"] for row in rows if row["dtype"] != "fact"} - set(site.network.state_dict())
    if missing := sorted(name for name in tensors if not agreement.allows(name)):
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        names = ", ".join(f"'{name}'" for name in missing[:MAX_LISTED]) + more
        raise UserError(f"{file}: agrees.sends: a round would send the statistics {names}, which are not in the list; "
                        "add them if you agree that they leave the hospital")
    total = sum(row["bytes"] for row in rows) / 1e6
    if total > agreement.megabytes_per_round:
        raise UserError(f"{file}: agrees.megabytes_per_round: is {agreement.megabytes_per_round:g}, but a round "
                        f"would send {total:.1f} MB; increase it if you agree")


def format_report(rows: Sequence[Row], site: Site | ValidationSite, method: str, n_rounds: int) -> str:
    """Return a text that shows everything that would leave a site in a round: a table and an explanation.

    The weights of the network are not listed one by one. The table has one line for all weights in the replies to
    requests of one kind ("share", "train" or "validate").

    Args:
        rows: one dict for each tensor or single value that would leave, as `outgoing_rows` returns them.
        site: the site. Its network tells which entries of `rows` are weights.
        method: the name of the federated method.
        n_rounds: the number of rounds of the federation.
    """
    network = set(site.network.state_dict())
    table = [["kind", "what", "shape", "type", "bytes"]]
    for kind in ("share", "train", "validate"):
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        entries = [row for row in rows_of_kind if row["name"] in network]
        if entries:
            n, size = len(entries), sum(row["bytes"] for row in entries)
            table.append([kind, f"weights of the network ({n} tensors)", "", "", f"{size:,}"])
        table += [
            [kind, row["name"], row["shape"], row["dtype"], f"{row['bytes']:,}"]
            for row in rows_of_kind
            if row not in entries
        ]
    total = sum(row["bytes"] for row in rows) / 1e6
    if isinstance(site, ValidationSite):
        n_images = f"{len(site.samples)} images do not leave"
        explanation = "This site only validates: nothing is trained here, and only the scores leave."
    else:
        n_images = f"{len(site.training)} training images do not leave"
        explanation = (f"In total {total:.2f} MB leave in each round. None of this is anonymous: weights and "
                       "statistics contain information about the images from which they were computed. "
                       "python -m medfed.audit measures how much.")  # fmt: skip
    heading = (f"What would leave {site.name} and be sent to the coordinator in each of {n_rounds} rounds of {method} "
               f"({n_images}):\n")  # fmt: skip
    text = align_columns([[(word, "") for word in line] for line in table], False, n_left=4)
    return "\n".join([heading, text, "\n" + explanation])
