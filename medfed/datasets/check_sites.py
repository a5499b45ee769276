"""Warn of sites that may be something else: single cases, or the beginning of a longer name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from medfed.core.errors import Problem
from medfed.datasets.base import Contents
from medfed.datasets.patterns import Pattern

_SITE_END = re.compile(r"\{site\}([^{}/*?]+)\{")  # what stands between the site and another field in a file's name


def site_warnings(root: Path, contents: Contents, patterns: Sequence[Pattern]) -> list[Problem]:
    """Return the warnings about the sites that the patterns of images have found."""
    return [*_single_images(root, contents), *_cut_names(root, contents, patterns)]


def _single_images(root: Path, contents: Contents) -> list[Problem]:
    n_cases = [len(cases) for cases in contents.cases.values()]
    if contents.classes or len(n_cases) < 2 or set(n_cases) != {1}:
        return []
    found = f"each of the {len(n_cases)} sites has a single image"
    cure = "if these are the cases of one site, put them into a folder for this site, and correct data.image"
    return [Problem("sites with a single image", root, found, cure)]


def _cut_names(root: Path, contents: Contents, patterns: Sequence[Pattern]) -> list[Problem]:
    """Warn if the word after the site, such as Anna in St_Anna_1, has no digit: it may belong to the site."""
    warnings = []
    for pattern in patterns:
        for separator in _SITE_END.findall(pattern.text):
            words = ((case, *case.name.partition(separator)[:2]) for cases in contents.cases.values() for case in cases)
            cut = next((case for case, word, end in words if end and not re.search("[0-9]", word)), None)
            if cut:
                found = (
                    f"in '{pattern.text}', a site ends at the first '{separator}' of a name, and the names of the case "
                    f"{cut.name} of the site {cut.site} contain another, so that sites may be merged"
                )
                cure = "if the site is cut, write what it may be, such as {site:[A-Za-z_]+}"
                warnings.append(Problem("names of sites that may be cut", root, found, cure))
    return warnings
