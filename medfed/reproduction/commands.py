"""The comparison that a part of an entry stands for: its command, its config and its methods."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import UserError
from medfed.reproduction.entries import Entry, Part, load_source

if TYPE_CHECKING:  # the list of all tables and figures needs no torch
    from medfed.config.overrides import Override
    from medfed.config.schema import Config
    from medfed.experiments.method_choice import MethodChoice

SHELL_SAFE = re.compile(r"[\w./:=,+-]+")


@dataclass(frozen=True)
class Command:
    """One call of `medfed.evaluate`, as a text that a user can type, and as objects for `medfed.api.compare`.

    Args:
        part: the part of the entry that the call makes.
        config: name of the config.
        set: changes of the config, as texts KEY=VALUE.
        methods: methods in the notation of `--methods`.
        vary: varied settings, as texts KEY=V1,V2,...
        sites: names of the unseen sites; empty takes all.
        pairs: pairs UNSEEN/VALIDATION; empty leaves one site out.
        stand_in: what the images are, if they are not those of the paper's dataset; "" otherwise.
    """

    part: Part
    config: str
    set: tuple[str, ...]
    methods: tuple[str, ...]
    vary: tuple[str, ...]
    sites: tuple[str, ...]
    pairs: tuple[str, ...]
    seeds: int
    stand_in: str = ""

    @property
    def leaves_two_out(self) -> bool:
        """Whether each run also has a validation site."""
        return bool(self.pairs)

    def arguments(self, out: Path | None = None) -> list[str]:
        """The arguments of `python -m medfed.evaluate`; None leaves `--out` away."""
        words = [self.config, "--leave-two-sites-out" if self.pairs else "--leave-one-site-out"]
        for flag, values in (("pairs", self.pairs), ("methods", self.methods), ("sites", self.sites)):
            words += [f"--{flag}", *values] if values else []
        words += [word for setting in self.vary for word in ("--vary", setting)]
        words += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        words += [word for change in self.set for word in ("--set", change)]
        words.append("--no-equal-effort")  # as the papers compare
        return [*words, "--out", str(out)] if out else words

    def to_text(self, out: Path | None = None) -> str:
        words = (word if SHELL_SAFE.fullmatch(word) else shlex.quote(word) for word in self.arguments(out))
        return " ".join(("python -m medfed.evaluate", *words))

    def load(self) -> Config:
        """The base config; UserError if a change does not fit it."""
        from medfed.api import find_config
        from medfed.config.schema import load

        return load(find_config(self.config), self.set)

    def choices(self) -> list[MethodChoice]:
        from medfed.experiments.method_choice import MethodChoice

        return [MethodChoice.parse(method) for method in self.methods]

    def varied(self) -> list[list[Override]]:
        """The values of each `--vary` option."""
        from medfed.config.overrides import Override

        return [Override.parse_each(text, "--vary") for text in self.vary]


def commands_of(
    entry: Entry,
    small: bool = False,
    folders: Mapping[str, str] = {},
    more: Sequence[str] = (),
    seeds: int | None = None,
) -> list[Command]:
    """The comparisons of a table or figure.

    Args:
        small: use few, small images: of the phantoms, or of the given folders; then only the parts of their datasets
            are among the comparisons.
        folders: the folder of each dataset, by its name in `data.yaml`. Other datasets are in the folder that the
            config names.
        more: further changes of the config, as texts KEY=VALUE; they come last.
        seeds: number of seeds; None takes that of the entry (1 for a small run).
    """
    parts = [part for part in entry.parts if not small or (part.data in folders if folders else part.small.run)]
    return [_command(part, small, folders.get(part.data), more, seeds) for part in parts]


def read_folders(entry: Entry, texts: Sequence[str], small: bool) -> dict[str, str]:
    """Parse folders of datasets that a user gave as NAME=FOLDER, or as FOLDER if there is one dataset only. In a small
    run, FOLDER alone stands for the first dataset. UserError if a folder is missing, or the dataset unknown."""
    names = list(dict.fromkeys(part.data for part in entry.parts))
    folders = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = next(iter(names), ""), text
            if len(names) > 1 and not small:
                raise UserError(f"--data {text}: {entry.heading} needs several datasets; write --data {name}={text}")
        if not names:
            raise UserError(f"--data {text}: {entry.heading} needs no images; leave --data out")
        if name not in names:
            raise UserError(f"--data {text}: {entry.heading} needs no dataset '{name}'; it needs {', '.join(names)}")
        if not Path(folder).is_dir():
            images, _, usual = load_source(name).title.rpartition(", in ")
            raise UserError(
                f"--data {text}: this folder does not exist; expected a folder with {images}; correct the "
                f"path, or leave --data out to use {'a phantom' if small else usual}"
            )
        folders[name] = folder
    return folders


def choose_parts(entry: Entry, commands: Sequence[Command], names: Sequence[str], small: bool) -> list[Command]:
    """The comparisons of the named parts; empty takes all. UserError if a name is not that of one of them."""
    known = {command.part.name: command for command in commands}
    for name in names:
        if not entry.parts:
            raise UserError(f"--only {name}: {entry.heading} has no parts; leave --only out")
        if name not in known:
            left_out = small and name in [part.name for part in entry.parts]
            why = "--small leaves this part out" if left_out else "no such part"
            raise UserError(f"--only {name}: {why}; expected one of {', '.join(known)}")
    return [command for name, command in known.items() if name in (names or known)]


def _command(part: Part, small: bool, folder: str | None, more: Sequence[str], seeds: int | None) -> Command:
    """The comparison of one part."""
    source, change = load_source(part.data), part.small
    root = (f"data.root={folder}",) if folder else ()
    if not small:
        changes = _last_of_each_key((*part.set, *root, *more))
        return Command(part, part.config, changes, part.methods, part.vary, part.sites, part.pairs, seeds or part.seeds)
    stand_in = source.stand_in if not folder else ""
    images = root or source.phantom
    chosen = {
        name: value if (value := getattr(change, name)) is not None else getattr(part, name)
        for name in ("methods", "vary", "sites", "pairs")
    }
    if stand_in:  # its sites have other names
        chosen |= {"sites": source.phantom_sites, "pairs": ()}
    replaced = ("network.",) if folder else ("network.", "data.")  # a small run has its own network, a phantom its data
    own = (text for text in part.set if not text.startswith(replaced))
    changes = _last_of_each_key((*own, *images, *source.small, *change.set, *more))
    return Command(part, part.config, changes, **chosen, seeds=seeds or 1, stand_in=stand_in)


def _last_of_each_key(changes: Sequence[str]) -> tuple[str, ...]:
    """The changes KEY=VALUE without those that a later one replaces."""
    return tuple({change.partition("=")[0]: change for change in changes}.values())
