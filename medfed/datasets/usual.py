"""Find the patterns of a folder of images: the usual ones are tried, and the first that pairs every image wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from medfed.core.errors import UserErrors
from medfed.datasets.unusual import describe_tried
from medfed.datasets.usual_layouts import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    UNLABELLED,
    USUAL_WORDS,
    as_settings,
    candidates,
    doubt_about,
    odd_sites,
    try_layouts,
    with_named_folders,
    word_of,
)
from medfed.datasets.walk import Files
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import folded, outside_problem
from medfed.images.reading import suffix


def find_patterns(files: Files, sites: Sequence[str] = ()) -> dict[str, Any]:
    """Return the first usual patterns that pair every image, or that do so at each site, as settings of `data`.

    UserError with a table of what was tried if there are none. Names of sites that look like parts of a split, years or
    patients are refused, unless the user lists them in `sites`.
    """
    files = _without_documents(files)
    names = {part for path in (*files.images, *files.series) for part in path.split("/")[:-1]}
    unlabelled = tuple(sorted(name for name in names if folded(name) in UNLABELLED))
    files = files.without(unlabelled)
    ignored = {"ignored_names": unlabelled} if unlabelled else {}
    tried = try_layouts(files, candidates(files), sites)
    if tried and tried[0].fits and not doubt_about(tried[0], sites):
        return as_settings(with_named_folders(files, tried[0]).layout) | ignored
    at_site = {} if any(one.fits for one in tried) else _try_each_site(files, sites)
    if at_site:
        common = max(at_site.values(), key=[*at_site.values()].count)
        return common | ignored | {"by_site": {site: own for site, own in at_site.items() if own != common}}
    if files.outside:
        raise outside_problem(files.root / files.outside[0], files.root)
    raise UserErrors(describe_tried(files, tried, sites))


def _without_documents(files: Files) -> Files:
    """Return these files without those of unknown formats that lie in no folder of images or masks, such as LICENSE."""
    known = [path for path in files.images if suffix(path) or kind_of(files.root / path)]
    folders = {path.rpartition("/")[0] for path in known} - {""}

    def is_image(path: str) -> bool:
        folder = path.rpartition("/")[0]
        return folder in folders or word_of(folder.rpartition("/")[2]) in {*IMAGE_FOLDERS, *MASK_FOLDERS}

    images = (*known, *filter(is_image, {*files.images} - {*known}))
    return replace(files, images=tuple(sorted(images))) if known or files.slices else files


def _try_each_site(files: Files, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the first patterns that pair every image of each folder in the root as settings; {} if one has none."""
    folders = sorted({path.split("/")[0] for path in (*files.images, *files.slices)})
    if len(folders) < 2 or any("/" not in path for path in files.images):
        return {}
    if not set(folders) <= set(sites) and (odd_sites(folders) or any(word_of(name) in USUAL_WORDS for name in folders)):
        return {}
    found = {}
    for folder in folders:
        inside = files.inside(folder)
        tried = try_layouts(inside, candidates(inside), (folder,))
        fitting = (one for one in tried if one.fits and one.layout.masks and set(one.sites()) == {folder})
        own = next((one for one in fitting if not doubt_about(one, (folder,))), None)
        if own is None:
            return {}
        found[folder] = as_settings(with_named_folders(inside, own).layout)
    return found
