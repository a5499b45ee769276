"""Find the images and masks that patterns match, and bring each image together with its masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from medfed.core.errors import Problem
from medfed.datasets.patterns import Pattern
from medfed.datasets.walk import Files
from medfed.images.file_names import folded


@dataclass(frozen=True)
class Layout:
    """Where the images and masks of a dataset are; masks of one image that several patterns match are joined."""

    images: tuple[Pattern, ...]  # the first that matches a file counts
    masks: tuple[tuple[str, Pattern], ...] = ()  # with the structure, or "" if the values decide; () for classification
    site: str = ""  # of images whose pattern has no field `site`
    ignored_names: tuple[str, ...] = ()  # of files and folders that are not read

    @property
    def text(self) -> str:
        """The patterns as text, such as "{site}/images/{case}.* with {site}/masks/{case}.*"."""
        images = " or ".join(pattern.text for pattern in self.images)
        masks = " and ".join(dict.fromkeys(pattern.text for _, pattern in self.masks))
        return f"{images} with {masks}" if masks else images


@dataclass
class Match:
    """A file that a pattern matched: a mask, or an image with its masks."""

    path: str  # relative to the folder of the dataset
    pattern: Pattern
    fields: dict[str, str]  # values of the fields of the pattern, and the field `site` in any case
    masks: list[tuple[str, str]] = field(default_factory=list)  # of an image: a structure (or "") with the path of each

    def key(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the values of some fields, by which two files are compared."""
        return tuple(folded(self.fields[name]) for name in names)


@dataclass
class Pairs:
    """What a layout matches: images with masks or of classes; problems, with the site; and images that do not fit."""

    layout: Layout
    pairs: list[Match] = field(default_factory=list)
    problems: list[tuple[str, Problem]] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    @property
    def left(self) -> list[str]:
        """Paths of the images and masks that are in no pair."""
        return [problem.place for _, problem in self.problems] + self.unmatched

    def values(self, name: str) -> list[str]:
        """Return the different values of a field."""
        return sorted({match.fields[name] for match in self.pairs if name in match.fields})

    def add_problem(self, match: Match, kind: str, found: str, cure: str) -> None:
        self.problems.append((match.fields["site"], Problem(kind, match.path, found, cure)))


def pair(files: Files, layout: Layout) -> Pairs:
    """Match all files with the patterns of a layout.

    An image and a mask belong together if all fields that both of their patterns have are equal. A file that a pattern
    of masks matches is no image.
    """
    result = Pairs(layout)
    images: dict[object, Match] = {}
    masks: list[dict[object, Match]] = [{} for _ in layout.masks]

    def add(matches: dict[object, Match], path: str, pattern: Pattern, kind: str) -> bool:
        """Add a file if the pattern matches it; return whether it does."""
        fields = pattern.match(path)
        if fields is None:
            return False
        match = Match(path, pattern, {"site": layout.site} | fields)
        other = matches.setdefault((pattern, match.key(pattern.fields)), match)
        if other is not match:
            found = f"another {kind} of the same case: {other.path}; expected one file"
            cure = f"remove one of them, or name the part in which they differ as a field of '{pattern.text}'"
            result.add_problem(match, f"second {kind} of a case", found, cure)
        return True

    series = [path for path in files.series if any(pattern.match(path) for pattern in layout.images)]
    for path in (*files.images, *series):
        is_mask = [add(masks[number], path, pattern, "mask") for number, (_, pattern) in enumerate(layout.masks)]
        if not any(is_mask) and not any(add(images, path, pattern, "image") for pattern in layout.images):
            result.unmatched.append(path)
    inside = {image.path for image in images.values()}
    result.unmatched += [path for path in files.slices if not any(part in inside for part in parents(path))]
    if layout.masks:
        _join_masks(layout, list(images.values()), [list(matches.values()) for matches in masks], result)
    else:
        result.pairs = list(images.values())
    return result


def parents(path: str) -> Iterator[str]:
    """Yield a path and the paths of the folders that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _join_masks(layout: Layout, images: Sequence[Match], masks: Sequence[Sequence[Match]], result: Pairs) -> None:
    """Add the pairs of images and masks; `masks` are those of each pattern of the layout."""
    numbers_of: dict[str, set[int]] = defaultdict(set)  # of each image, of the patterns of its masks
    used = set[tuple[str, int]]()  # sites, with the patterns of masks that at least one of their images has
    for number, (structure, pattern) in enumerate(layout.masks):
        images_of: dict[str, list[Match]] = {mask.path: [] for mask in masks[number]}
        for image_pattern in layout.images:
            names = [name for name in image_pattern.fields if name in pattern.fields]
            by_key: dict[tuple[str, ...], list[Match]] = defaultdict(list)
            for mask in masks[number]:
                by_key[mask.key(names)].append(mask)
            with_image: dict[tuple[str, ...], list[Match]] = defaultdict(list)
            for image in images:
                if image.pattern == image_pattern and image.key(names) in by_key:
                    with_image[image.key(names)].append(image)
                    numbers_of[image.path].add(number)
                    used.add((image.fields["site"], number))
            for key, of_key in with_image.items():
                for mask in by_key[key]:
                    images_of[mask.path] += of_key[:2]
        for mask in masks[number]:
            of = images_of[mask.path]
            if not of:
                cure = "add the image, or remove the mask" if images else "correct data.image, which matches no file"
                result.add_problem(mask, "mask without an image", "this mask has no image", cure)
            elif len(of) > 1:
                text = f"this mask belongs to several images, such as {of[0].path} and {of[1].path}; expected one image"
                cure = "write the fields that tell them apart in data.image and data.mask with the same names"
                result.add_problem(mask, "mask of several images", text, cure)
            for image in of:
                image.masks.append((structure, mask.path))
    for image in images:
        numbers = numbers_of[image.path]
        for structure in dict.fromkeys(structure for structure, _ in layout.masks):
            of_structure = [number for number, (name, _) in enumerate(layout.masks) if name == structure]
            missing = [n for n in of_structure if n not in numbers and (image.fields["site"], n) in used]
            if numbers.isdisjoint(of_structure):
                text = f"this image has no mask{f' of {structure}' if structure else ''}"
                cure = "add the mask (all background, if there is nothing to show), or leave the image out with "
                cure += "data.ignored_names"
                result.add_problem(image, "image without a mask", text, cure)
            elif missing:
                pattern = layout.masks[missing[0]][1]
                text = f"this image has no mask '{pattern.text}', which other images of its site have"
                cure = "add it, or write one pattern with one more field, such as {number:.*}, if their number varies"
                result.add_problem(image, "image without one of its masks", text, cure)
        if numbers:
            result.pairs.append(image)
