"""Send the global weights to each site only once, although several requests of a round need the same weights.

A request is a message from the coordinator to a site; a reply is the site's message back. "share", "train" and
"validate" requests need the global weights. A checksum stands for the weights: equal weights have equal checksums, and
different weights have different ones (`weights_digest`). The transfer has three steps:

1. The coordinator (`WeightsSender`) sends a site the weights and their checksum in the first request that needs these
   weights. Later requests to the same site contain only the checksum, as long as the weights are the same.
2. The site (`ReceivedWeights`) keeps the last weights in memory. Before a request is used, the site completes it: the
   checksum is removed and, if the weights are not in the request, a copy of the kept weights is added.
3. If a site no longer has the weights, for example because its process was restarted, it sends a reply of kind
   "weights_needed", and the coordinator repeats the request with the weights and their checksum.

A request therefore has one of four forms:

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

from medfed.federation.encoding import pack
from medfed.federation.engine import Engine
from medfed.federation.message import WEIGHTS_NEEDED, Message, digest

Messages = dict[str, Message]  # from the name of a site to its message


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return a checksum of weights: 64 hexadecimal characters that depend on names, order, dtypes, shapes and values.

    Args:
        weights: entries of a network's state dict, by name.
    """
    return digest(pack({"weights": weights}, {}))


class WeightsSender:
    """Sends requests through an engine, without the weights to sites to which the same weights were already sent.

    Such a request contains the checksum of the weights in their place. The module's docstring describes the transfer.

    Args:
        engine: delivers the requests to the sites, and returns the replies.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._weights: Mapping[str, Tensor] = {}  # the weights that were sent last
        self._digest = ""
        self._receivers: set[str] = set()  # the sites that were sent them

    def assume_sent(self, weights: Mapping[str, Tensor], sites: Iterable[str]) -> None:
        """Record that weights were already sent to some sites, by an earlier process of a run that is now resumed.

        `exchange` then sends these sites only the checksum of the weights. A site that no longer has the weights
        replies "weights_needed", and `exchange` sends the weights.

        Args:
            weights: the global weights: entries of the network's state dict, by name.
            sites: the names of the sites to which the weights were sent.
        """
        self._use(weights)
        self._receivers.update(sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> tuple[Messages, list[tuple[str, Messages]]]:
        """Send one request to each site; return the replies, and a record of all messages.

        If the weights of a request were already sent to a site, the site receives the checksum of the weights in their
        place. If a site replies "weights_needed", it receives the request a second time, with the weights.

        Args:
            kind: the kind of all these requests: "share", "train", "validate" or "end".
            messages: dictionary from the name of a site to its complete request: with weights, or without weights if it
                needs none. Requests with weights all have the same weights.

        Returns:
            - Dictionary from the name of a site to its reply.
            - Record of all messages as they were sent, in order. Each entry is a pair: the direction, "down" (to the
              sites) or "up" (to the coordinator), and a dictionary from the name of a site to the message.
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
        """Return the requests as they are sent. Sites with the same request object and form get the same new object."""
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
        if weights is not self._weights:
            self._weights, self._digest, self._receivers = weights, weights_digest(weights), set()


@dataclass
class ReceivedWeights:
    """The global weights that the sites of one process received last, in memory, with their checksum.

    All sites of a federation use the same global weights, so one copy serves all sites of a process. A site uses the
    copy only if these weights were sent to this site. The module's docstring describes the transfer.
    """

    _digest: str = ""
    _weights: Mapping[str, Tensor] = field(default_factory=dict)
    _sites: set[str] = field(default_factory=set)

    def complete(self, requests: Mapping[str, Message]) -> tuple[Messages, list[str]]:
        """Replace the checksum in each request by the weights that have this checksum.

        If a request contains weights together with their checksum, the weights are kept in memory first. Later requests
        that have only the checksum are completed with the kept weights.

        Args:
            requests: dictionary from the name of a site to its request (`Message`), as it was received; not changed.
                All checksums in these requests are equal.

        Returns:
            - Dictionary from the name of a site to its complete request: with a copy of the weights, and without the
              checksum. If two sites had the same request object, they get the same new object. A request without a
              checksum is returned as it is.
            - Names of the sites whose request has only a checksum, if the weights with this checksum were not sent to
              the site earlier. These sites are missing in the dictionary.
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
        """Store global weights in memory, and note that these sites have them.

        Weights that were stored earlier under another checksum are removed, together with the notes about them.

        Args:
            digest: the checksum of the weights, as `weights_digest` returns it.
            weights: entries of the network's state dict, by name; not copied.
            sites: names of the sites that have these weights. `complete` uses the stored weights only for such sites.
        """
        if digest != self._digest:
            self._digest, self._weights, self._sites = digest, weights, set()
        self._sites.update(sites)
