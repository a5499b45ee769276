"""All sites in one process, one after another; messages still cross as bytes, so nothing else can leak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.engines.site_store import SiteStore
from medfed.federation.engine import OnReply, OnStep
from medfed.federation.message import Message, failed_reply
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

Commit = Callable[[], None]  # puts a site's new file in its place


@dataclass
class InProcess:
    """The engine of simulations and of the first run on a laptop.

    Args:
        members: the sites that train.
        folder: where the sites' checkpoints are (`SiteStore`); None keeps nothing, and a
            site then goes on from the work of a rejected reply.
        validation_site: a site that only scores, if there is one. It is not among `sites`.
        settings, plan, source: the federation's; for engines whose sites are built elsewhere, the whole config as YAML
            and what to call it.
    """

    local_sites: list[Site]
    folder: Path | None = None
    validation_site: ValidationSite | None = None
    settings: Federation = Federation()
    config_yaml: str = ""
    source: str = ""
    on_reply: OnReply | None = None
    on_step: OnStep | None = None
    _store: SiteStore | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self._store = SiteStore(self.folder)

    def sites(self) -> list[str]:
        return sorted(site.name for site in self.local_sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Each site in turn, in the order of their names."""
        by_name = self._by_name()
        trained = [site for site in self.local_sites if site.name in messages] if kind == "train" else []
        number = next(iter(messages.values())).facts.get("round", 0) if messages else 0
        if trained and self._store:
            self._store.begin_round(self.local_sites, messages.keys(), number)
        replies = {}
        commits: list[Future[None]] = []
        requests = _Requests(messages)
        with ThreadPoolExecutor(1) as disk:  # the next site trains while the disk takes this one's file
            for index, name in enumerate(sorted(messages), start=1):
                reply, commit = self._deliver(by_name[name], requests.take(name))
                replies[name] = Message.from_bytes(reply)
                commits += [disk.submit(commit)] if commit else []
                if self.on_reply:
                    self.on_reply(kind, name, index, len(messages))
        for file in commits:
            file.result()  # raises for a full disk
        if trained and self._store:
            self._store.end_round(sorted(trained, key=lambda site: site.name), number)
        return replies

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Give every site the memory that it had after the round that it last took part in (`State.took_part`)."""
        if self._store:
            self._store.restore(self.local_sites, took_part)

    def close(self) -> None:
        """After the last exchange: nothing runs that must be ended."""

    def _by_name(self) -> dict[str, Site | ValidationSite]:
        by_name: dict[str, Site | ValidationSite] = {site.name: site for site in self.local_sites}
        if self.validation_site:
            by_name[self.validation_site.name] = self.validation_site
        return by_name

    def _deliver(self, site: Site | ValidationSite, request: bytes) -> tuple[bytes, Commit | None]:
        """The reply, and what puts the site's new file in its place, if there is one."""
        message = Message.from_bytes(request)
        if isinstance(site, ValidationSite):
            return self._answer(site, message), None
        site.progress = self.on_step or site.progress
        if self._store and message.kind == "train":
            return self._store.train(site, request, partial(self._answer, site))
        if self._store and site.local_keys and "last" in message.facts:
            self._store.go_back(site, message.facts["last"])
        return self._answer(site, message), None

    def _answer(self, site: Site | ValidationSite, message: Message) -> bytes:
        """The reply's bytes; a reply that says why there is none, where the federation goes on without the site."""
        try:
            return site.reply(message).to_bytes()
        except UserError as why:
            if self.settings.on_bad_update != "drop":
                raise
            return failed_reply(str(why)).to_bytes()


class _Requests:
    """Messages as bytes: one that goes to several sites is written once, one that goes to a single site in its turn."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self._messages = messages
        self._n_receivers = Counter(id(message) for message in messages.values())
        self._written: dict[int, bytes] = {}

    def take(self, name: str) -> bytes:
        message = self._messages[name]
        request = self._written.get(id(message)) or message.to_bytes()
        if self._n_receivers[id(message)] > 1:
            self._written[id(message)] = request
        return request
