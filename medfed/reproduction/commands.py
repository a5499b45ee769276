"""The comparisons that a user asks for: some parts of an entry, small, or on another folder of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from medfed.core.errors import UserError
from medfed.reproduction.entries import Entry, Part, sources


def commands_of(
    entry: Entry,
    only: Sequence[str] = (),
    *,
    small: bool = False,
    folder: str | None = None,
    more: Sequence[str] = (),
    seeds: int | None = None,
) -> list[Part]:
    """The comparisons of a table or figure.

    Args:
        only: names of parts; empty takes all (of a small run without a folder: those that it has).
        small: use few, small images: of phantoms, or of the given folder.
        folder: the folder of the images, if it is not the one that the config names.
        more: further changes of the config, as texts KEY=VALUE; they come last.
        seeds: number of seeds; None takes that of the entry (1 for a small run).
    """
    known = {part.name: part for part in entry.parts}
    if unknown := [name for name in only if name not in known]:
        expected = f"expected one of {', '.join(known)}" if known else "leave --only out"
        raise UserError(f"--only {unknown[0]}: {entry.heading} has no such part; {expected}")
    parts = [part for part in entry.parts if part.name in only or not only and (part.small.run or folder or not small)]
    if folder is not None:
        names = list(dict.fromkeys(part.data for part in parts))
        if len(names) != 1:
            cure = f"choose parts of one with --only: {', '.join(known)}" if names else "leave --data out"
            raise UserError(f"--data {folder}: {entry.heading} needs the datasets {', '.join(names) or '-'}; {cure}")
        if not Path(folder).is_dir():
            images = sources()[names[0]].title.rpartition(", in ")[0]
            raise UserError(f"--data {folder}: this folder does not exist; expected a folder with {images}")
    return [_command(part, small, folder, more, seeds) for part in parts]


def _command(part: Part, small: bool, folder: str | None, more: Sequence[str], seeds: int | None) -> Part:
    source = sources()[part.data]
    root = (f"data.root={folder}",) if folder else ()
    if not small:
        return replace(part, set=_last_of_each_key((*part.set, *root, *more)), seeds=seeds or part.seeds)
    names = ("methods", "vary", "sites", "pairs")
    chosen = {name: value for name in names if (value := getattr(part.small, name)) is not None}
    stand_in = "" if folder else source.stand_in
    if stand_in:  # its sites have other names
        chosen |= {"sites": source.phantom_sites, "pairs": ()}
    replaced = ("network.",) if folder else ("network.", "data.")  # a small run has its own network, a phantom its data
    own = (text for text in part.set if not text.startswith(replaced))
    changes = _last_of_each_key((*own, *(root or source.phantom), *source.small, *part.small.set, *more))
    return replace(part, set=changes, **chosen, seeds=seeds or 1, stand_in=stand_in)


def _last_of_each_key(changes: Sequence[str]) -> tuple[str, ...]:
    """The changes KEY=VALUE without those that a later one replaces."""
    return tuple({change.partition("=")[0]: change for change in changes}.values())
