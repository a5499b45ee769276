"""Send the global weights to each site only once, although several requests of a round need the same weights.

1. The coordinator (`WeightsSender`) sends a site the weights and their checksum in the first request that needs these
   weights. Later requests to the same site contain only the checksum, as long as the weights are the same.
2. The site (`ReceivedWeights`) keeps the last weights in memory, and completes each request with a copy of them.
3. If a site no longer has the weights, for example because its process was restarted, it replies "weights_needed", and
   the coordinator repeats the request with the weights and their checksum.

A request has one of four forms:

    `weights`   `weights_digest`   meaning
    filled      checksum           the weights are sent, and the site keeps them (step 1)
    empty       checksum           the site uses the weights that it has kept under this checksum (step 2)
    filled      ""                 complete: as the coordinator makes it, and as the site uses it
    empty       ""                 complete: the request needs no weights
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from medfed.federation.engine import Engine
from medfed.federation.message import WEIGHTS_NEEDED, Message, weights_digest

Messages = dict[str, Message]  # from the name of a site to its message


class WeightsSender:
    """Sends requests through an engine, with a checksum in place of weights that a site was already sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._weights: Mapping[str, Tensor] = {}  # the weights that were sent last
        self._digest = ""
        self._receivers: set[str] = set()  # the sites that were sent them

    def assume_sent(self, weights: Mapping[str, Tensor], sites: Iterable[str]) -> None:
        """Record that an earlier process of a resumed run sent these weights to these sites."""
        self._use(weights)
        self._receivers.update(sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> tuple[Messages, list[tuple[str, Messages]]]:
        """Send one complete request to each site; return the replies, and a record of all messages as they were sent.

        All requests that have weights have the same ones. The record lists directions, "down" (to the sites) or "up",
        and messages by site.
        """
        sent = self._shortened(messages)
        replies = self._engine.exchange(kind, sent)
        records: list[tuple[str, Messages]] = [("down", sent), ("up", replies)]
        needed = {
            site: replace(messages[site], weights_digest=self._digest)
            for site, reply in replies.items()
            if reply.kind == WEIGHTS_NEEDED and site in sent and sent[site].weights_digest and not sent[site].weights
        }
        if needed:
            again = self._engine.exchange(kind, needed)
            records += [("down", needed), ("up", again)]
            others = {site: reply for site, reply in replies.items() if site not in needed}
            replies = dict(sorted({**others, **again}.items()))
        return replies, records

    def _shortened(self, messages: Mapping[str, Message]) -> Messages:
        """Return the requests as they are sent; sites with the same request object and form get the same new object."""
        variants: dict[tuple[int, bool], Message] = {}
        sent: Messages = {}
        for site, message in messages.items():
            if not message.weights:
                sent[site] = message
                continue
            self._use(message.weights)
            key = id(message), site in self._receivers
            if key not in variants:
                weights = {} if site in self._receivers else message.weights
                variants[key] = replace(message, weights=weights, weights_digest=self._digest)
            sent[site] = variants[key]
        self._receivers.update(site for site, message in sent.items() if message.weights_digest)
        return sent

    def _use(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights as those to send; if they are new, no site has received them."""
        if weights is not self._weights:
            self._weights, self._digest, self._receivers = weights, weights_digest(weights), set()


@dataclass
class ReceivedWeights:
    """The global weights that the sites of one process received last, with their checksum.

    One copy serves all sites of a process, but a site uses it only if these weights were sent to this site.
    """

    _digest: str = ""
    _weights: Mapping[str, Tensor] = field(default_factory=dict)
    _sites: set[str] = field(default_factory=set)

    def complete(self, requests: Mapping[str, Message]) -> tuple[Messages, list[str]]:
        """Return the requests with a copy of the weights for their checksum, and the sites that never received these.

        All checksums must be equal. Weights that come with their checksum are kept first. Sites with the same request
        object get the same new object.
        """
        complete: dict[int, Message] = {}
        completed: Messages = {}
        missing: list[str] = []
        for site, request in requests.items():
            if request.weights_digest and request.weights:
                self.keep(request.weights_digest, request.weights, [site])
            if not request.weights_digest:
                completed[site] = request
            elif request.weights_digest == self._digest and site in self._sites:
                if id(request) not in complete:
                    weights = {name: entry.clone() for name, entry in self._weights.items()}
                    complete[id(request)] = replace(request, weights=weights, weights_digest="")
                completed[site] = complete[id(request)]
            else:
                missing.append(site)
        return completed, missing

    def keep(self, digest: str, weights: Mapping[str, Tensor], sites: Iterable[str]) -> None:
        """Keep weights (not copied) under their checksum for these sites, and drop those of another checksum."""
        if digest != self._digest:
            self._digest, self._weights, self._sites = digest, weights, set()
        self._sites.update(sites)
