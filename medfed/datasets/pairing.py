"""Find the images and masks that patterns match, and bring each image together with its masks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from medfed.core.errors import Problem
from medfed.datasets.patterns import Pattern
from medfed.datasets.walk import Files
from medfed.images.file_names import folded

MAX_NAMED = 3  # files that a message names


@dataclass(frozen=True)
class Layout:
    """Where the images and masks of a dataset are.

    Args:
        images: patterns of images, of which the first that matches a file counts.
        masks: patterns of masks, each with the structure that the masks show, or "" if their values decide. The masks
            of an image that several patterns match are joined. Empty for classification.
        site: name of the site of images whose pattern has no field `site`.
    """

    images: tuple[Pattern, ...]
    masks: tuple[tuple[str, Pattern], ...] = ()
    site: str = ""

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
        fields: values of the fields of its pattern.
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
    images: dict[tuple[Pattern, tuple[str, ...]], _Hit] = {}
    masks: list[dict[tuple[str, ...], _Hit]] = [{} for _ in layout.masks]
    series = [path for path in files.series if any(_hit(path, pattern) for pattern in layout.images)]
    for path in (*files.images, *series):
        by_mask = [(index, hit) for index, (_, pattern) in enumerate(layout.masks) if (hit := _hit(path, pattern))]
        for index, hit in by_mask:
            _add(masks[index], hit.key(hit.pattern.fields), hit, "mask", layout.site, result)
        image = None if by_mask else next((hit for pattern in layout.images if (hit := _hit(path, pattern))), None)
        if image:
            _add(images, (image.pattern, image.key(image.pattern.fields)), image, "image", layout.site, result)
        elif not by_mask:
            result.unmatched.append(path)
    inside = {hit.path for hit in images.values()}
    result.unmatched += [path for path in files.slices if not any(part in inside for part in parents(path))]
    if not layout.masks:
        result.pairs = [Pair(hit.path, hit.fields) for hit in images.values()]
        return result
    if problem := _without_common_field(layout, images.values()):
        result.problems.append(problem)
        return result
    find = _masks_by_image(layout, masks)
    used: dict[str, list[str]] = {}
    for image in images.values():
        found = find(image)
        for _, mask in found:
            used.setdefault(mask.path, []).append(image.path)
        result.pairs.append(Pair(image.path, image.fields, tuple((name, mask.path) for name, mask in found)))
    result.problems += _incomplete(layout, result.pairs)
    result.pairs = [found for found in result.pairs if found.masks]
    for hits in masks:
        for mask in hits.values():
            of = list(dict.fromkeys(used.get(mask.path, ())))
            site = mask.fields.get("site", layout.site)
            if not of:
                cure = "add the image, or remove the mask"
                result.problems.append(
                    (site, Problem("mask without an image", mask.path, "this mask has no image", cure))
                )
            elif len(of) > 1:
                others = f"{of[0]} and {of[1]}" + (f" and {len(of) - 2} more" if len(of) > 2 else "")
                several = f"this mask belongs to {len(of)} images, {others}; expected one image"
                cure = "say in data.image which of them is meant"
                result.problems.append((site, Problem("mask of several images", mask.path, several, cure)))
    result.problems = list(dict.fromkeys(result.problems))
    return result


def _hit(path: str, pattern: Pattern) -> _Hit | None:
    fields = pattern.match(path)
    return None if fields is None else _Hit(path, pattern, fields)


def parents(path: str) -> Iterator[str]:
    """Yield a path and the paths of the folders that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _add(hits: dict, key: object, hit: _Hit, kind: str, site: str, result: Pairs) -> None:
    """Add a file, or the problem that another file has the same fields."""
    other = hits.setdefault(key, hit)
    if other is not hit:
        found = f"another {kind} of the same case: {other.path}; expected one file"
        cure = f"remove one of them, or name the part in which they differ as a field of '{hit.pattern.text}'"
        problem = Problem(f"second {kind} of a case", hit.path, found, cure)
        result.problems.append((hit.fields.get("site", site), problem))


def _without_common_field(layout: Layout, images: Collection[_Hit]) -> tuple[str, Problem] | None:
    """Return the problem that a mask would belong to all images of a site, because no field tells them apart."""
    sites = {image.fields.get("site", layout.site) for image in images}
    for _, mask in layout.masks:
        if len(images) > len(sites) and not any({*one.fields} & {*mask.fields} - {"site"} for one in layout.images):
            fields = sorted({name for one in layout.images for name in one.fields} - {"site"})
            found = f"data.mask '{mask.text}' has none of the fields {fields} of data.image; expected the same names"
            place = next(iter(images)).path
            return "", Problem("patterns without a common field", place, found, "correct data.image or data.mask")
    return None


def _masks_by_image(
    layout: Layout, masks: Sequence[Mapping[tuple[str, ...], _Hit]]
) -> Callable[[_Hit], list[tuple[str, _Hit]]]:
    """Return a function that finds the masks of an image, by an index for each pair of patterns."""
    indices: dict[tuple[Pattern, int], tuple[list[str], dict[tuple[str, ...], list[_Hit]]]] = {}
    for image in layout.images:
        for number, (_, mask) in enumerate(layout.masks):
            shared = [name for name in image.fields if name in mask.fields]
            by_key: dict[tuple[str, ...], list[_Hit]] = {}
            for hit in masks[number].values():
                by_key.setdefault(hit.key(shared), []).append(hit)
            indices[image, number] = shared, by_key

    def find(image: _Hit) -> list[tuple[str, _Hit]]:
        found = []
        for number, (structure, _) in enumerate(layout.masks):
            shared, by_key = indices[image.pattern, number]
            found += [(structure, hit) for hit in by_key.get(image.key(shared), ())]
        return found

    return find


def _incomplete(layout: Layout, pairs: Sequence[Pair]) -> list[tuple[str, Problem]]:
    """Return the problems of images without a mask, or without a mask that other images of their site have."""
    problems = []
    patterns = {structure: [p for name, p in layout.masks if name == structure] for structure, _ in layout.masks}
    used = {  # patterns of masks that at least one image of a site has
        (image.fields.get("site", layout.site), pattern.text)
        for image in pairs
        for _, path in image.masks
        for _, pattern in layout.masks
        if pattern.match(path) is not None
    }
    for image in pairs:
        if len(image.masks) >= len(layout.masks) == 1:
            continue
        site = image.fields.get("site", layout.site)
        for structure, of_structure in patterns.items():
            paths = [path for name, path in image.masks if name == structure]
            missing = [p for p in of_structure if not any(p.match(path) is not None for path in paths)]
            what = f"mask of {structure}" if structure else "mask"
            if not paths:
                cure = "add the mask, or remove the image"
                problem = Problem("image without a mask", image.image, f"this image has no {what}", cure)
                problems.append((site, problem))
            elif missing := [pattern for pattern in missing if (site, pattern.text) in used]:
                found = f"this image has no mask '{missing[0].text}', which other images of its site have"
                cure = "add it, or write one pattern with one more field, such as {number:.*}, if their number varies"
                problems.append((site, Problem("image without one of its masks", image.image, found, cure)))
    return problems
