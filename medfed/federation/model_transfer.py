"""Send the global weights to each site once, although several requests of a round need them.

A request contains a checksum of the weights that it needs (`Message.weights_digest`). At the coordinator,
`WeightsSender` leaves the weights out of a request to a site that was sent the same weights before. At the site,
`ReceivedWeights` keeps the last weights in memory, and puts them into such a request before anything else reads the
request. If a site does not have the weights, for example because its process was started again, the site replies
`WEIGHTS_NEEDED`, and the coordinator sends the complete request.
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
    """Sends requests through an engine, without the weights if the site was sent the same weights before.

    Args:
        engine: the engine, which carries the messages.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._weights: Mapping[str, Tensor] = {}  # the weights that were sent last
        self._digest = ""
        self._receivers: set[str] = set()  # the sites that were sent them

    def assume_sent(self, weights: Mapping[str, Tensor], sites: Iterable[str]) -> None:
        """Assume, for a run that is resumed, that these weights were sent to some sites before the run was stopped.

        Args:
            weights: the global weights.
            sites: the names of these sites. A site that no longer has the weights asks for them.
        """
        self._use(weights)
        self._receivers.update(sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> tuple[Messages, list[tuple[str, Messages]]]:
        """Send one request to each site; return the replies and a record of everything that was sent.

        Args:
            kind: the kind of all these requests, such as "train".
            messages: the complete requests by the name of the site. All requests that have weights have the same ones.

        Returns:
            Two values. The first is the replies by the name of the site. The second is a list of all messages in the
            order in which they were sent. Each entry is a direction ("down" to the sites, or "up" from the sites) and
            the messages by the name of the site, such as the requests without their weights.
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
    """Keeps in memory the weights that the sites of one process received last.

    All sites of a federation work on the same global weights, so the process keeps one copy for all its sites. A site
    can use the copy only if the site itself has received these weights.
    """

    _digest: str = ""
    _weights: Mapping[str, Tensor] = field(default_factory=dict)
    _sites: set[str] = field(default_factory=set)

    def complete(self, requests: Mapping[str, Message]) -> tuple[Messages, list[str]]:
        """Put the weights into requests that contain only a checksum, and keep weights that come with a request.

        The result is the same whether the weights came with a request or with an earlier one.

        Args:
            requests: the requests by the name of the site, as they were received. They are not changed. All requests
                that need weights need the same ones.

        Returns:
            Two values. The first is the complete requests by the name of the site, without the checksum. Their weights
            are copies. If several sites have the same request object, they also have the same complete object. A
            request without a checksum is returned unchanged. The second is the names of the sites that do not have the
            weights. They have no complete request.
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
        """Keep weights in memory, as if some sites had received them. Other weights are no longer kept.

        Args:
            digest: the checksum of the weights, which later requests contain.
            weights: entries of the network's state dict, by name. They are not copied.
            sites: the names of these sites.
        """
        if digest != self._digest:
            self._digest, self._weights, self._sites = digest, weights, set()
        self._sites.update(sites)
