"""The engine `in_process`: all sites run in this process, one after another.

Messages are still converted to bytes and back, as for any other engine, so that a site receives nothing but what is in
the message. Each site's reply and memory are stored in a file after each training round (`SiteStore`), so that a run
that was stopped can be resumed with bit-identical results.
"""

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

Commit = Callable[[], None]  # moves a site's new file to its final place


@dataclass
class InProcess:
    """Engine that runs all sites in this process; the default for simulations.

    Args:
        local_sites: the sites that train.
        folder: folder in which each site's reply, and the tensors that the site keeps between rounds, are stored after
            each training round. None stores nothing. Then a run cannot be resumed, and work of a rejected reply is not
            undone at the site.
        validation_site: the validation site; None if there is none. The method `sites` does not return its name.
        settings: the `federation` section of the config.
        config_yaml: the whole config as YAML text. Only subclasses that build the sites in other processes use it.
        source: the name of the config in error messages. Only such subclasses use it.
        on_reply: function that is called after each reply with (kind, site, number of replies so far, number of
            requests); None calls nothing.
        on_step: function that is called after each training step with (site, step, steps of this round); None calls
            nothing.
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
        """Return the sorted names of the sites that train. The validation site, which never trains, is left out."""
        return sorted(site.name for site in self.local_sites)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let each site reply to its request; the sites work one after another, in the order of their names.

        Args:
            kind: the kind of all these requests: "share", "train" or "validate".
            messages: the requests by the name of the site.

        Returns:
            The replies by the name of the site, sorted by name. If a site raises a UserError and the setting
            `federation.on_bad_update` is "drop", its reply is a message of kind "failed" with the reason.

        Raises:
            UserError: if a site raises a UserError and the setting `federation.on_bad_update` is "stop", or if a site's
                file in the engine's folder is missing or damaged.
        """
        by_name = self._by_name()
        training_sites = [site for site in self.local_sites if site.name in messages] if kind == "train" else []
        number = next(iter(messages.values())).facts.get("round", 0) if messages else 0
        if training_sites and self._store:
            self._store.begin_round(self.local_sites, messages.keys(), number)
        replies = {}
        commits: list[Future[None]] = []
        requests = _Requests(messages)
        with ThreadPoolExecutor(1) as disk:  # writes a site's file to the disk while the next site trains
            for index, name in enumerate(sorted(messages), start=1):
                reply, commit = self._deliver(by_name[name], requests.take(name))
                replies[name] = Message.from_bytes(reply)
                commits += [disk.submit(commit)] if commit else []
                if self.on_reply:
                    self.on_reply(kind, name, index, len(messages))
        for written in commits:
            written.result()  # raises the error of a failed write, such as a full disk
        if training_sites and self._store:
            self._store.end_round(sorted(training_sites, key=lambda site: site.name), number)
        return replies

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Give each site back the tensors that the site kept after its last accepted round.

        Such tensors are, for example, the state of the site's optimiser. The tensors are read from the site's file in
        the engine's folder. Nothing happens if the engine has no folder. The method is called before the first round,
        so that a run can be resumed, and after the last round, for the evaluation.

        Args:
            took_part: the number of each site's last accepted round, by the name of the site (`State.took_part`).

        Raises:
            UserError: if the file of a site is missing or damaged.
        """
        if self._store:
            self._store.restore(self.local_sites, took_part)

    def close(self) -> None:
        """Do nothing. Other engines end processes and connections here; this engine has none."""

    def _by_name(self) -> dict[str, Site | ValidationSite]:
        by_name: dict[str, Site | ValidationSite] = {site.name: site for site in self.local_sites}
        if self.validation_site:
            by_name[self.validation_site.name] = self.validation_site
        return by_name

    def _deliver(self, site: Site | ValidationSite, request: bytes) -> tuple[bytes, Commit | None]:
        """Return the site's reply, and the function that commits its new file; None if no file was written."""
        message = Message.from_bytes(request)
        if isinstance(site, ValidationSite):
            return self._reply(site, message), None
        site.progress = self.on_step or site.progress
        if self._store and message.kind == "train":
            return self._store.train(site, request, partial(self._reply, site))
        if self._store and site.local_keys and "last" in message.facts:
            self._store.restore_memory(site, message.facts["last"])
        return self._reply(site, message), None

    def _reply(self, site: Site | ValidationSite, request: Message) -> bytes:
        """Return the bytes of the site's reply; after a UserError, of a "failed" reply if the federation allows it."""
        try:
            return site.reply(request).to_bytes()
        except UserError as error:
            if self.settings.on_bad_update != "drop":
                raise
            return failed_reply(str(error)).to_bytes()


class _Requests:
    """Converts requests to bytes: a request to several sites only once, any other request just before its delivery."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self._messages = messages
        self._n_receivers = Counter(id(message) for message in messages.values())
        self._encoded: dict[int, bytes] = {}

    def take(self, name: str) -> bytes:
        """Return the bytes of the request to the site of this name."""
        message = self._messages[name]
        request = self._encoded.get(id(message)) or message.to_bytes()
        if self._n_receivers[id(message)] > 1:
            self._encoded[id(message)] = request
        return request
