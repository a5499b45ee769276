"""Describe the files that no usual pattern pairs: what was tried, what is left over, and which lines to write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product

from medfed.datasets.pairing import pair
from medfed.datasets.part_names import is_part
from medfed.datasets.usual_layouts import (
    IMAGE_FOLDERS,
    IMAGE_WORDS,
    MASK_FOLDERS,
    MASK_WORDS,
    MAX_WORDS,
    Tried,
    as_settings,
    doubt_about,
    layout_of,
    word_of,
)
from medfed.datasets.walk import Files
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import composed, folded, stem_of
from medfed.images.reading import suffix

MAX_ROWS, MAX_SHAPES = 3, 6  # of the message that no pattern fits
MIN_PAIRED = 4  # complete pairs for each file without a counterpart, from which on this file is the mistake
_WORD = re.compile(r"[_\-. ][0-9]?[A-Za-z](?:(?![0-9]{2})[^_. ])*")  # such as "_seg-manual" or "_1stHO"
_ENDING = re.compile(f"{_WORD.pattern}$")
_MASK = re.compile(r"mask|segment|label|truth|annot|manual|(?:^|[^a-z])(?:seg|gt|anno)(?:$|[^a-z])", re.I)


def describe_tried(files: Files, tried: Sequence[Tried], sites: Sequence[str]) -> list[str]:
    """Return the lines of the message that no usual pattern pairs every image."""
    if not (files.images or files.slices):
        return [f"{files.root}: the folder holds no image; expected images of two or more sites"]
    for one in reversed(tried):  # a part above the site comes after a part that may be the site
        if one.fits and (doubt := doubt_about(one, sites)):
            names = [repr(site) if site.isdecimal() else site for site in sorted(one.sites())]
            advice = f"; if they are the sites, set data.sites: [{', '.join(names)}]"
            advice = "" if doubt_about(one, [*one.sites()]) else advice
            return [f"{files.root}: with {one.layout.text}, the sites are {', '.join(names)}, and {doubt}{advice}"]
    for one in tried:
        problems = one.result.problems
        if problems and not one.result.unmatched and len(one.result.pairs) > MIN_PAIRED * len(problems):
            site, problem = problems[0]
            without_it = {f"by_site.{site}.ignored_names": f"[{problem.place.rpartition('/')[2]}]"}
            return [
                f"{files.root / problem.place}: {problem.found}; {one.layout.text} fits all but {len(problems)} of the "
                "files; correct this one, or leave it out with",
                f"  {_flags(as_settings(one.layout) | without_it)}",
            ]
    return _table(files, tried)


def _table(files: Files, tried: Sequence[Tried]) -> list[str]:
    """Return the patterns that were tried, or that the names of the files have, with the number of images paired."""
    n_files = len(files.images) + len(files.slices)
    lines = [
        f"{files.root}: no usual pattern pairs all {n_files} files; expected an image and a mask of each case, or "
        "images in folders of classes"
    ]
    shapes = Counter(map(_Shapes(files).of, (*files.images, *files.slices))).most_common(MAX_SHAPES)
    images, masks = _images_and_masks([shape for shape, _ in shapes])
    different: dict[object, Tried] = {}
    for one in [*(one for one in tried if not one.fits), *_try_shapes(files, images, masks or images)]:
        if one.result.pairs:
            different.setdefault(frozenset((found.image, found.masks) for found in one.result.pairs), one)
    rows = [("image", "mask", "paired", "left over")]
    for one in sorted(different.values(), key=lambda one: -len(one.result.pairs))[:MAX_ROWS]:
        left = [problem.place for _, problem in one.result.problems] + one.result.unmatched
        settings = as_settings(one.layout)
        n_paired = f"{len(one.result.pairs)}"
        rows.append((settings["image"], settings.get("mask", "-"), n_paired, left[0] if left else "-"))
    lines += columns(rows) if len(rows) > 1 else []
    lines += columns([("files", "named as"), *((str(n), shape) for shape, n in shapes)])
    if unknown := [path for path in files.images if not suffix(path) and not kind_of(files.root / path)]:
        lines.append(f"{len(unknown)} of them, such as {unknown[0]}, have a format that cannot be read; convert them")
    image, mask = rows[1][:2] if len(rows) > 1 else (images[0], masks[0] if masks else "PATTERN")
    is_open = len(rows) > 2 and rows[1][0] == rows[2][0] and rows[1][2] == rows[2][2]  # two masks fit equally well
    tops = sorted({path.partition("/")[0] for path in (*files.images, *files.slices)})
    if all(word_of(top) in {*IMAGE_FOLDERS, *MASK_FOLDERS} for top in tops):
        lines.append(f"if {' and '.join(tops)} are the folders of one hospital, move them into a folder for it")
    return [
        *lines,
        "write the two lines that are right for these files, such as",
        f"  {_flags({'image': image, 'mask': 'PATTERN' if mask in ('-', image) or is_open else mask})}",
        "or list the images in a table (data.table); docs/real_hospitals.md explains patterns, also for classes, for a "
        "site with other patterns, and for files to leave out",
    ]


def _flags(settings: Mapping[str, object]) -> str:
    return " ".join(f"--set 'data.{key}={value}'" for key, value in settings.items())


def _try_shapes(files: Files, images: Sequence[str], masks: Sequence[str]) -> list[Tried]:
    """Compare patterns that the files have, each of images with each of masks, with all files."""
    tried = []
    for image, mask in product(images, masks):
        if image != mask and (images is not masks or suffix(image) != suffix(mask)):
            with suppress(ValueError):  # a name with braces
                layout = layout_of(image, mask)
                if {*layout.masks[0][1].fields} <= {*layout.images[0].fields}:
                    tried.append(Tried(layout, pair(files, layout)))
    return tried


def _images_and_masks(shapes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the patterns of files that may be images, and of those that are masks by their names."""
    masks = [shape for shape in shapes if _MASK.search(shape)]
    others = [shape for shape in shapes if shape not in masks] or masks
    images = [shape for shape in others if set(re.split(r"[^a-z]+", folded(shape))) & {*IMAGE_FOLDERS}]
    return images or others, masks


class _Shapes:
    """Describe paths by patterns: a field stands for what differs from file to file."""

    def __init__(self, files: Files) -> None:
        paths = [path.split("/") for path in (*files.images, *files.slices)]
        self.stems = [stem_of(path[-1]) for path in paths]
        self.ends = Counter(word for stem in self.stems for word in set(_WORD.findall(stem)))
        names = {path[-1] for path in paths}
        words = {word for name in names for word in re.split(r"[_\-. ]+", folded(name))}
        at_site = Counter((path[0], path[-1]) for path in paths if len(path) > 2)
        are_words = len(names) <= MAX_SHAPES and not words.isdisjoint((*IMAGE_WORDS, *MASK_WORDS))
        self.fixed = {name for (_, name), n in at_site.items() if n > 1 and are_words}  # the same for each case
        self.folders = [
            {path[level] for path in paths if level < len(path) - 1} for level in range(max(map(len, paths)))
        ]

    def of(self, path: str) -> str:
        """Return the pattern of a path, such as "{site}/{case}_T2.nii.gz"."""
        *folders, name = path.split("/")
        between = [self._folder(level, folder) for level, folder in enumerate(folders)]
        if name in self.fixed and len(folders) > 1:
            return composed("/".join(["{site}/{case}", *between[2:], name]))
        stem, end = stem_of(name), ""  # the last word, if it is frequent, and the words before it that all files have
        while (match := _ENDING.search(stem.removesuffix(end))) and self.ends[match[0]] > 1:
            if end and self.ends[match[0]] < len(self.stems):
                break
            end = match[0] + end
        separator = match[0] if (match := re.search(r"[_\-. ]", stem)) else "_"
        start = "" if folders else f"{{site}}{separator}"
        return composed("/".join([*between, f"{start}{{case}}{end}{name[len(stem) :]}"]))

    def _folder(self, level: int, name: str) -> str:
        """Return what stands for a folder: the site, a part, its name if there are few names, or a field."""
        if level == 0:
            return "{site}"
        if all(map(is_part, self.folders[level])):
            return "{part}"
        return name if len(self.folders[level]) <= MAX_WORDS else f"{{folder{level}}}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines of text, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
