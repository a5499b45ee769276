"""Finding the folders of published sites, which copies of a collection name differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medfed.core.errors import UserError


def find(root: Path, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """The folder of every site that is there, whatever its capitals.

    Args:
        root: an existing folder.
        names: for each site, what its folder may be called.

    Raises:
        UserError: if two folders are the same site.
    """
    by_name: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        by_name.setdefault(path.name.casefold(), []).extend([path] if path.is_dir() else [])
    found = {site: sum((by_name.get(name.casefold(), []) for name in known), []) for site, known in names.items()}
    for site, folders in found.items():
        if len(folders) > 1:
            both = " and ".join(map(str, folders))
            raise UserError(f"{both}: are both the site {site}; expected one folder, so move one away")
    return {site: folders[0] for site, folders in found.items() if folders}
