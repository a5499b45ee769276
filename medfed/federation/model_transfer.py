"""Send the global weights to each site once, although several requests of a round are about them.

A request names the weights that it is about by a checksum (`Message.weights_digest`). `WeightsSender`, at the
coordinator, leaves the weights out of a request to a site that was sent the same weights before. `ReceivedWeights`, at
the site, keeps the weights that came last in memory and puts them back, before anything else reads the request. A site
that does not have them, for example because its process was started again, replies `WEIGHTS_NEEDED`, and the
coordinator sends the whole request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from medfed.federation.engine import Engine
from medfed.federation.message import WEIGHTS_NEEDED, Message, digest, pack

Messages = dict[str, Message]  # by the name of the site


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return a checksum of weights: 64 hexadecimal characters that depend on names, order, dtypes, shapes and values.

    Args:
        weights: entries of a network's state dict, by name.
    """
    return digest(pack({"weights": weights}, {}))


class WeightsSender:
    """Sends requests through an engine; leaves the weights out where the site was sent the same weights before.

    Args:
        engine: carries the messages.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._weights: Mapping[str, Tensor] = {}  # the weights that were sent last
        self._digest = ""
        self._receivers: set[str] = set()  # the sites that were sent them

    def assume_sent(self, weights: Mapping[str, Tensor], sites: Iterable[str]) -> None:
        """Assume that an earlier process has sent these weights, for a run that is resumed.

        Args:
            weights: the global weights.
            sites: the names of the sites to which they were sent. A site that no longer has them says so.
        """
        self._use(weights)
        self._receivers.update(sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> tuple[Messages, list[tuple[str, Messages]]]:
        """Send one request to each site and return the replies, and everything that was sent.

        Args:
            kind: the kind of all these requests, such as "train".
            messages: the complete requests by the name of the site. They are about the same weights, or have none.

        Returns:
            The replies by the name of the site. Then, in order, what was sent: the direction ("down" to the sites, "up"
            from them) and the messages as they travelled, by the name of the site.
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
        """Return the requests as they are sent. Requests that were one object stay one: it is converted only once."""
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
    """The weights that the sites of one process received last, in memory.

    All sites of a federation work on the same global weights, so that one copy serves all sites of a process. Each site
    uses it only if it has received these weights itself.
    """

    _digest: str = ""
    _weights: Mapping[str, Tensor] = field(default_factory=dict)
    _sites: set[str] = field(default_factory=set)

    def complete(self, requests: Mapping[str, Message]) -> tuple[Messages, list[str]]:
        """Put the weights into requests and take their checksum out; keep weights that come with a request.

        The result is the same whether the weights came with a request or with an earlier one.

        Args:
            requests: the requests by the name of the site, as they were received. They are not changed. They are all
                about the same weights, or have none.

        Returns:
            The complete requests by the name of the site, and the names of the sites that do not have the weights.
            Requests that were one object stay one. Their weights are copies. A request that names no weights is
            returned as it is.
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
        """Keep weights in memory, as if these sites had received them; other weights are forgotten.

        Args:
            digest: the checksum under which requests will name the weights.
            weights: entries of the network's state dict, by name; not copied.
            sites: the names of the sites.
        """
        if digest != self._digest:
            self._digest, self._weights, self._sites = digest, weights, set()
        self._sites.update(sites)
