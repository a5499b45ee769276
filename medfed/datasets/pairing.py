"""Find the images and masks that patterns match, and bring each image together with its masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from medfed.core.errors import Problem
from medfed.datasets.patterns import Pattern
from medfed.datasets.walk import Files
from medfed.images.file_names import folded


@dataclass(frozen=True)
class Layout:
    """Where the images and masks of a dataset are.

    Args:
        images: patterns of images, of which the first that matches a file counts.
        masks: patterns of masks, each with the structure that the masks show, or "" if their values decide. The masks
            of an image that several patterns match are joined. Empty for classification.
        site: name of the site of images whose pattern has no field `site`.
        ignored_names: names of files and folders that are not read.
    """

    images: tuple[Pattern, ...]
    masks: tuple[tuple[str, Pattern], ...] = ()
    site: str = ""
    ignored_names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The patterns as text, such as "{site}/images/{case}.* with {site}/masks/{case}.*"."""
        images = " or ".join(pattern.text for pattern in self.images)
        masks = " and ".join(dict.fromkeys(pattern.text for _, pattern in self.masks))
        return f"{images} with {masks}" if masks else images


@dataclass(frozen=True)
class Pair:
    """An image that a pattern matched, with its masks.

    Args:
        image: path of the image, relative to the folder of the dataset.
        fields: values of the fields of its pattern, and the field `site` in any case.
        masks: each a structure (or "") with the path of a mask.
    """

    image: str
    fields: Mapping[str, str]
    masks: tuple[tuple[str, str], ...] = ()


@dataclass
class Pairs:
    """What a layout matches in a folder.

    Args:
        pairs: the images with their masks; for classification, without.
        problems: each with its site, or "" if it is not known; their places are relative to the folder of the dataset.
        unmatched: files that no pattern matches, and folders of DICOM images.
    """

    pairs: list[Pair] = field(default_factory=list)
    problems: list[tuple[str, Problem]] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def add_problem(self, hit: _Hit, kind: str, found: str, cure: str) -> None:
        self.problems.append((hit.fields["site"], Problem(kind, hit.path, found, cure)))


class _Hit(NamedTuple):
    path: str
    pattern: Pattern
    fields: dict[str, str]

    def key(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the values of some fields, by which two files are compared."""
        return tuple(folded(self.fields[name]) for name in names)


def pair(files: Files, layout: Layout) -> Pairs:
    """Match all files with the patterns of a layout.

    An image and a mask belong together if all fields that both of their patterns have are equal. A file that a pattern
    of masks matches is no image. Problems are: two files of one case, an image without a mask or with fewer masks than
    the others of its site, a mask without an image or with several.
    """
    result = Pairs()
    images: dict[object, _Hit] = {}
    masks: list[dict[object, _Hit]] = [{} for _ in layout.masks]

    def match(path: str, pattern: Pattern) -> _Hit | None:
        fields = pattern.match(path)
        return None if fields is None else _Hit(path, pattern, {"site": layout.site} | fields)

    def add(hits: dict[object, _Hit], hit: _Hit, kind: str) -> None:
        other = hits.setdefault((hit.pattern, hit.key(hit.pattern.fields)), hit)
        if other is not hit:
            found = f"another {kind} of the same case: {other.path}; expected one file"
            cure = f"remove one of them, or name the part in which they differ as a field of '{hit.pattern.text}'"
            result.add_problem(hit, f"second {kind} of a case", found, cure)

    series = [path for path in files.series if any(match(path, pattern) for pattern in layout.images)]
    for path in (*files.images, *series):
        by_mask = [(number, hit) for number, (_, pattern) in enumerate(layout.masks) if (hit := match(path, pattern))]
        for number, hit in by_mask:
            add(masks[number], hit, "mask")
        image = None if by_mask else next((hit for pattern in layout.images if (hit := match(path, pattern))), None)
        if image:
            add(images, image, "image")
        elif not by_mask:
            result.unmatched.append(path)
    inside = {hit.path for hit in images.values()}
    result.unmatched += [path for path in files.slices if not any(part in inside for part in parents(path))]
    if not layout.masks:
        result.pairs = [Pair(hit.path, hit.fields) for hit in images.values()]
    elif not _lacks_common_field(layout, list(images.values()), result):
        _join_masks(layout, list(images.values()), [list(hits.values()) for hits in masks], result)
    return result


def parents(path: str) -> Iterator[str]:
    """Yield a path and the paths of the folders that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _lacks_common_field(layout: Layout, images: Sequence[_Hit], result: Pairs) -> bool:
    """Return, as a problem too, whether a mask would belong to all images of a site, as no field tells them apart."""
    sites = {image.fields["site"] for image in images}
    for _, mask in layout.masks:
        if len(images) > len(sites) and not any({*one.fields} & {*mask.fields} - {"site"} for one in layout.images):
            fields = sorted({name for one in layout.images for name in one.fields} - {"site"})
            found = f"data.mask '{mask.text}' has none of the fields {fields} of data.image; expected the same names"
            cure = "correct data.image or data.mask"
            result.problems.append(("", Problem("patterns without a common field", images[0].path, found, cure)))
            return True
    return False


def _join_masks(layout: Layout, images: Sequence[_Hit], masks: Sequence[Sequence[_Hit]], result: Pairs) -> None:
    """Add the pairs of images and masks; `masks` are those of each pattern of the layout."""
    masks_of: dict[str, list[tuple[int, _Hit]]] = defaultdict(list)  # of each image, with the numbers of their patterns
    images_of: dict[str, dict[str, None]] = defaultdict(dict)  # of each mask, in order
    used = set[tuple[str, int]]()  # sites, with the patterns of masks that at least one of their images has
    for image_pattern, (number, (_, pattern)) in product(layout.images, enumerate(layout.masks)):
        names = [name for name in image_pattern.fields if name in pattern.fields]
        by_key: dict[tuple[str, ...], list[_Hit]] = defaultdict(list)
        for mask in masks[number]:
            by_key[mask.key(names)].append(mask)
        for image in (image for image in images if image.pattern == image_pattern):
            for mask in by_key.get(image.key(names), ()):
                masks_of[image.path].append((number, mask))
                images_of[mask.path][image.path] = None
                used.add((image.fields["site"], number))
    patterns_of: dict[str, list[int]] = defaultdict(list)  # of each structure
    for number, (structure, _) in enumerate(layout.masks):
        patterns_of[structure].append(number)
    for image in images:
        found = masks_of[image.path]
        numbers = {number for number, _ in found}
        for structure, of_structure in patterns_of.items():
            missing = [n for n in of_structure if n not in numbers and (image.fields["site"], n) in used]
            if not numbers.intersection(of_structure):
                text = f"this image has no mask{f' of {structure}' if structure else ''}"
                result.add_problem(image, "image without a mask", text, "add the mask, or remove the image")
            elif missing:
                pattern = layout.masks[missing[0]][1]
                text = f"this image has no mask '{pattern.text}', which other images of its site have"
                cure = "add it, or write one pattern with one more field, such as {number:.*}, if their number varies"
                result.add_problem(image, "image without one of its masks", text, cure)
        if found:
            by_structure = tuple((layout.masks[number][0], mask.path) for number, mask in found)
            result.pairs.append(Pair(image.path, image.fields, by_structure))
    for mask in (mask for hits in masks for mask in hits):
        of = list(images_of[mask.path])
        if not of:
            cure = "add the image, or remove the mask"
            result.add_problem(mask, "mask without an image", "this mask has no image", cure)
        elif len(of) > 1:
            text = f"this mask belongs to {len(of)} images, such as {of[0]} and {of[1]}; expected one image"
            result.add_problem(mask, "mask of several images", text, "say in data.image which of them is meant")
    result.problems = list(dict.fromkeys(result.problems))
