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
    candidates,
    doubt_about,
    layout_of,
    try_layouts,
    word_of,
)
from medfed.datasets.walk import Files
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import composed, folded, stem_of
from medfed.images.reading import suffix

MAX_ROWS, MAX_SHAPES, MAX_SITES_SHOWN = 3, 6, 20  # of the message that no pattern fits
MIN_PAIRED = 4  # complete pairs for each file without a counterpart, from which on this file is the mistake
PATIENT_WORDS = ("sub", "subj", "subject", "patient", "pat", "pt", "p", "case")
_BEGINNING = re.compile(r"^[A-Za-z][A-Za-z_\-. ]*[_\-. ](?=[0-9])")
_WORD = re.compile(r"[_\-. ][0-9]?[A-Za-z](?:(?![0-9]{2})[^_. ])*")  # such as "_seg-manual" or "_1stHO"
_ENDING = re.compile(f"{_WORD.pattern}$")
_MASK = re.compile(r"mask|segment|label|truth|annot|manual|(?:^|[^a-z])(?:seg|gt|anno)(?:$|[^a-z])", re.I)


def describe_tried(
    files: Files, tried: Sequence[Tried], sites: Sequence[str], at_site: Mapping[str, Tried | None]
) -> list[str]:
    """Return the lines of the message that no usual pattern pairs every image: what was tried, what is left, what to
    write."""
    n_files = len(files.images) + len(files.slices)
    if not n_files:
        return [f"{files.root}: the folder holds no image; expected images of two or more sites"]
    for one in reversed(tried):  # a part above the site comes after a part that may be the site
        if one.fits and (doubt := doubt_about(one, sites)):
            names = [repr(site) if site.isdecimal() else site for site in sorted(one.sites())]
            advice = f"; if they are the sites, set data.sites: [{', '.join(names)}]"
            advice = "" if doubt_about(one, [*one.sites()]) else advice
            return [f"{files.root}: with {one.layout.text}, the sites are {', '.join(names)}, and {doubt}{advice}"]
    for one in tried:
        n_problems = len(one.result.problems)
        if n_problems and not one.result.unmatched and len(one.result.pairs) > MIN_PAIRED * n_problems:
            return _single_files(files, one)
    return _table(files, tried, at_site, n_files)


def _single_files(files: Files, tried: Tried) -> list[str]:
    """Return what to do about the few files that do not fit patterns which pair all others."""
    site, problem = tried.result.problems[0]
    n = len(tried.result.problems)
    name = problem.place.rpartition("/")[2]
    return [
        f"{files.root / problem.place}: {problem.found}{f' ({n} such files)' if n > 1 else ''}; all other files fit "
        f"{tried.layout.text}",
        "to go on without this file, add these settings; without the last one, the check lists every problem",
        f"  {_flags({**as_settings(tried.layout), f'by_site.{site}.ignored_names': f'[{name}]'})}",
    ]


def _table(files: Files, tried: Sequence[Tried], at_site: Mapping[str, Tried | None], n_files: int) -> list[str]:
    """Return the patterns that were tried, or that the names of the files have, with the number of images paired."""
    shown = [
        f"{files.root}: no usual pattern pairs all {n_files} files; expected an image and a mask of each case, or "
        "images in folders of classes"
    ]
    general, open_site = None, next((site for site, own in at_site.items() if own is None), "")
    if open_site:
        for site, own in sorted(at_site.items(), key=lambda item: item[1] is not None)[:MAX_SITES_SHOWN]:
            shown.append(f"  {site}: {own.layout.text if own else 'no usual pattern'} pairs all files")
            general = own or general
        shown.append(f"in {open_site}:")
        files = files.inside(open_site)
        tried = try_layouts(files, candidates(files), [open_site])
    shapes = Counter(map(_Shapes(files).of, (*files.images, *files.slices))).most_common(MAX_SHAPES)
    different: dict[object, Tried] = {}
    for one in [*(one for one in tried if not one.fits), *_try_shapes(files, [shape for shape, _ in shapes])]:
        if one.result.pairs:
            different.setdefault(frozenset((found.image, found.masks) for found in one.result.pairs), one)
    rows = [("image", "mask", "paired", "left over")]
    for one in sorted(different.values(), key=lambda one: -len(one.result.pairs))[:MAX_ROWS]:
        left = [problem.place for _, problem in one.result.problems] + one.result.unmatched
        settings = as_settings(one.layout)
        n_paired = f"{len(one.result.pairs)}"
        rows.append((settings["image"], settings.get("mask", "-"), n_paired, left[0] if left else "-"))
    shown += _columns(rows) if len(rows) > 1 else []
    shown += _columns([("files", "named as"), *((str(n), shape) for shape, n in shapes)])
    if unknown := [path for path in files.images if not suffix(path) and not kind_of(files.root / path)]:
        shown.append(f"{len(unknown)} of them, such as {unknown[0]}, have a format that cannot be read; convert them")
    images, masks = _images_and_masks([shape for shape, _ in shapes])
    image, mask = rows[1][:2] if len(rows) > 1 else (images[0], masks[0] if masks else "PATTERN")
    is_open = len(rows) > 2 and rows[1][0] == rows[2][0] and rows[1][2] == rows[2][2]  # two masks fit equally well
    settings = {"image": image, "mask": "PATTERN" if mask in ("-", image) or is_open else mask}
    if general:
        at_open = f'{{image: "{settings["image"]}", mask: "{settings["mask"]}"}}'
        settings = {**as_settings(general.layout), "by_site": f"{{{open_site}: {at_open}}}"}
    tops = sorted({path.partition("/")[0] for path in (*files.images, *files.slices)})
    if all(word_of(top) in {*IMAGE_FOLDERS, *MASK_FOLDERS} for top in tops):
        shown.append(
            f"if {' and '.join(tops)} are the folders of one hospital, give the folder that contains the hospitals, or "
            "move everything into a folder for this hospital"
        )
    return [
        *shown,
        "write the two lines that are right for these files, such as",
        f"  {_flags(settings)}",
        "leave files out with data.ignored_names; write {class} in data.image, and no data.mask, if folders are "
        "classes; or list the images in a table (data.table); docs/real_hospitals.md explains patterns",
    ]


def _flags(settings: Mapping[str, object]) -> str:
    return " ".join(f"--set 'data.{key}={value}'" for key, value in settings.items())


def _try_shapes(files: Files, shapes: Sequence[str]) -> list[Tried]:
    """Compare the patterns that the files have, each as images with each other as masks, with all files."""
    images, masks = _images_and_masks(shapes)
    tried = []
    for image, mask in product(images, masks or shapes):
        if image != mask and (masks or suffix(image) != suffix(mask)):
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
    """Describe paths by patterns, in which what differs from file to file is a field."""

    def __init__(self, files: Files) -> None:
        stems = [stem_of(path) for path in files.images]
        self.starts = Counter(match[0] for stem in stems if (match := _BEGINNING.search(stem)))
        self.ends = Counter(word for stem in stems for word in set(_WORD.findall(stem)))
        self.n_files = len(stems)
        paths = [path.split("/") for path in (*files.images, *files.slices)]
        sites = {path[0] for path in paths}
        names = {path[-1] for path in paths}
        n_alike = max(Counter(map(_without_numbers, names)).values())
        places = Counter((path[0] if path[2:] else "", path[-1]) for path in paths if path[2:] or n_alike == 1)
        words = {word for name in names for word in re.split(r"[_\-. ]+", folded(name))}
        if len(names) > MAX_SHAPES or not words & {*IMAGE_WORDS, *MASK_WORDS}:
            places.clear()
        self.fixed = {name for (_, name), n in places.items() if n > 1}  # the same in each folder
        self.folders: list[dict[str, str]] = []  # of each level below the sites: name of a folder, what stands for it
        for level in range(1, max(map(len, paths)) - 1):
            at_level = [path for path in paths if len(path) > level + 1]
            sites_of: dict[str, set[str]] = {}
            inside: dict[str, set[str]] = {}
            for path in at_level:
                sites_of.setdefault(path[level], set()).add(path[0])
                inside.setdefault(path[level], set()).update(path[level + 1 : -1][:1])
            alike = Counter(map(_without_numbers, sites_of))
            named = [{(path[0], path[-1]) for path in at_level if path[level] == name} for name in sites_of]
            is_divided = sum(map(len, named)) < 2 * len(set().union(*named))  # most files are in one folder only
            is_group = len(inside) > 1 and all(len(one) > 1 for one in inside.values())
            is_group = is_group and len(set(map(frozenset, inside.values()))) == 1
            field = "{part}" if all(map(is_part, sites_of)) else "{folder}" if level == 1 else f"{{folder{level}}}"
            self.folders.append({})
            for name, at in sites_of.items():
                is_name = len(alike) <= MAX_WORDS or (len(sites) > 1 and at == sites)
                is_number = alike[_without_numbers(name)] > (1 if is_divided else MAX_WORDS)
                is_name = is_name and not is_group and not is_number and field != "{part}"
                self.folders[-1][name] = name if is_name else field

    def of(self, path: str) -> str:
        """Return the pattern of a path, such as "{site}/{case}_T2.nii.gz"."""
        site, *inner = path.split("/")
        *folders, name = inner or [site]
        between = [self.folders[level][folder] for level, folder in enumerate(folders)]
        stem = stem_of(name)
        if name in self.fixed:
            return "/".join(["{site}", *("{case}" if len(between) == 1 else part for part in between), name])
        start = match[0] if inner and (match := _BEGINNING.search(stem)) and self.starts[match[0]] > 1 else ""
        start = "" if word_of(start) in PATIENT_WORDS else start  # a part of the name that says who the patient is
        end = ""  # the last word, if it is frequent, and the words before it that all files have
        while (match := _ENDING.search(stem.removesuffix(end))) and self.ends[match[0]] > 1:
            if end and self.ends[match[0]] < self.n_files:
                break
            end = match[0] + end
        shown = composed(f"{start}{{case}}{end}{name[len(stem) :]}")
        separator = match[0] if (match := re.search(r"[_\-. ]", stem)) else "_"
        return "/".join(["{site}", *between, shown]) if inner else f"{{site}}{separator}{shown}"


def _without_numbers(name: str) -> str:
    return re.sub(r"[0-9]+", "0", folded(name))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines of text, with columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
