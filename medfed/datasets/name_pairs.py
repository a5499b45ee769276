"""Find out which image and which mask belong together, from nothing but their names (without suffixes).

Three ways are tried: equal names, a rule that turns the name of each image into that of its mask (`im0001` and
`im0001ah`, `Test_Image_1` and `mask_1`), and equal numbers (`img7` and `mask_007`). The way that pairs the most names
is taken, except one that pairs names that contradict each other (`name_statements.contradict`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from medfed.datasets.name_statements import contradict, differ_in_a_character, says_more_than_kind, spell_sequences

MASK_WORDS = (
    "mask",
    "masks",
    "segmentation",
    "seg",
    "segs",
    "label",
    "labels",
    "gt",
    "groundtruth",
    "ground_truth",
    "annotation",
    "annotations",
)
MAX_SAMPLED_NAMES = 12  # images from which rules are derived; every rule is then tried with all images
MAX_RULES = 20  # of those that the sampled images vote for, the number that is tried with all images
_WORDS = "|".join(sorted(MASK_WORDS, key=len, reverse=True))
_SUFFIX = re.compile(rf"(.+?)[_\-. ]+(?:{_WORDS})", re.IGNORECASE)
_PREFIX = re.compile(rf"(?:{_WORDS})[_\-. ]+(.+)", re.IGNORECASE)
_NUMBERED_SUFFIX = re.compile(rf"(.+?)[_\-. ]+(?:{_WORDS})[_\-. ]?\d+", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_NUMBER_AT_END = re.compile(r"[_\-. ]\D*\d+")
_TOKEN_START = re.compile(r"(?<=[_\-. ])")
_CHANNEL = re.compile(r"_\d{4}")  # nnU-Net's ending of an image name: _0000 for the first channel
_WITH_DIGITS = re.compile(rf"[_\-. ]?t[12]w?|{_CHANNEL.pattern}", re.IGNORECASE)


@dataclass(frozen=True)
class NamePairs:
    """Which image belongs to which mask.

    Args:
        image_of: name of the image by the name of its mask. Names without a partner are missing.
        second_masks: (mask, other mask, image) for every mask whose image already has another mask.
        rivals: (mask, image, other image) for masks to which two images may belong. If there is one, nothing is
            guessed: `image_of` is empty.
    """

    image_of: Mapping[str, str]
    second_masks: Sequence[tuple[str, str, str]] = ()
    rivals: Sequence[tuple[str, str, str]] = ()


class _Rule(NamedTuple):
    """Replace the part `old` of an image's name by `new`: at its start, at its end, or after its n-th separator."""

    place: str | int
    old: str
    new: str

    def apply(self, name: str) -> str | None:
        """Return the name of the mask that belongs to an image; None if the image's name lacks the part `old`."""
        if self.place == "start":
            return self.new + name[len(self.old) :] if name.startswith(self.old) else None
        if self.place == "end":
            return name[: len(name) - len(self.old)] + self.new if name.endswith(self.old) else None
        starts = [match.start() for match in _TOKEN_START.finditer(name)]
        assert isinstance(self.place, int)
        if self.place >= len(starts) or not name.startswith(self.old, starts[self.place]):
            return None
        start = starts[self.place]
        return name[:start] + self.new + name[start + len(self.old) :]


@dataclass
class _Trial:
    """What one way of pairing has found; the fields are those of `NamePairs`."""

    image_of: dict[str, str] = field(default_factory=dict)
    second_masks: list[tuple[str, str, str]] = field(default_factory=list)


def mask_base(stem: str) -> str | None:
    """Return a file's name without the word for a mask at its end or start: `a` for `a_mask`, `a-seg` and `GT_a`.

    "" if the name is nothing but such a word; None if it has none.
    """
    if stem.casefold() in MASK_WORDS:
        return ""
    match = _SUFFIX.fullmatch(stem) or _PREFIX.fullmatch(stem)
    return match[1] if match else None


def numbered_mask_base(stem: str) -> str | None:
    """Return the name before a word for a mask with a number, such as `a` for `a_mask_1`; None for other names."""
    match = _NUMBERED_SUFFIX.fullmatch(stem)
    return match[1] if match else None


def split_names(stems: Collection[str]) -> tuple[list[str], list[str]]:
    """Divide the names in one folder into those of images and those of masks, by the words in `MASK_WORDS`.

    A name with such a word is an image nevertheless if it has a mask itself and is the mask of no other image.
    """
    known = {stem.casefold() for stem in stems}
    bases = {stem: base for stem in stems if (base := mask_base(stem)) is not None}
    have_a_mask = {base.casefold() for base in bases.values()}
    for stem in stems:
        numbered = numbered_mask_base(stem)
        if stem not in bases and numbered is not None and numbered.casefold() in known:
            bases[stem] = numbered
    masks = [
        stem
        for stem in stems
        if stem in bases and (bases[stem].casefold() in known or stem.casefold() not in have_a_mask)
    ]
    chosen = set(masks)
    return [stem for stem in stems if stem not in chosen], masks


def pair_names(images: Collection[str], masks: Collection[str]) -> NamePairs:
    """Pair the names of images with the names of masks by the best way; the names in each group are all different."""
    equal = _pair_equal(images, masks)
    if len(equal.image_of) >= min(len(images), len(masks)):
        return NamePairs(equal.image_of, equal.second_masks)
    trials = [trial for trial in _pair_by_rule(images, masks) if not _has_contradiction(trial)]
    by_number = _pair_by_number(images, masks)
    ways = [equal, *trials] if _has_contradiction(by_number) else [equal, *trials, by_number]
    best = max(ways, key=lambda trial: len(trial.image_of))
    if best is not equal and (rivals := _rivals(best, trials)):
        return NamePairs({}, (), rivals)
    return NamePairs(best.image_of, [*best.second_masks, *_numbered_masks(best.image_of, masks)])


def belong_to_others(image: str, mask: str) -> bool:
    """Return whether the names of an image and a mask contradict each other, so that they are of different images.

    In addition to `name_statements.contradict`, single letters count if the mask's name says that it is a mask: then
    `p0_B_mask` is the mask of `p0_B` and not of `p0_A`. Without such a word, letters may say which file is the mask.
    """
    base = mask_base(mask) or numbered_mask_base(mask)
    return contradict(image, mask) or (base is not None and differ_in_a_character(image, base))


def has_equal_names(images: Collection[str], masks: Collection[str]) -> bool:
    """Return whether a mask has the name of an image, also with a word such as `_mask` or in another case."""
    return bool(_pair_equal(images, masks).image_of)


def are_channels(image: str, other: str) -> bool:
    """Return whether two names differ only in nnU-Net's number of the channel, such as a_0000 and a_0001."""
    return _CHANNEL.fullmatch(image[-5:]) is not None and image != other and image[:-5] == other[:-5]


def _numbered_masks(image_of: Mapping[str, str], masks: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield `NamePairs.second_masks` that differ only in the number at their end from the mask of an image.

    These are `a_2` and `a_lesion2` if `a_1` and `a_lesion1` are the masks of the image `a`.
    """
    by_ending = {
        (image, _DIGITS.sub("#", mask[len(image) :])): mask
        for mask, image in image_of.items()
        if mask.startswith(image) and mask != image
    }
    for mask in masks:
        for image, ending in () if mask in image_of else [(mask[:n], mask[n:]) for n in range(1, len(mask))]:
            if _NUMBER_AT_END.fullmatch(ending) and (image, _DIGITS.sub("#", ending)) in by_ending:
                yield mask, by_ending[image, _DIGITS.sub("#", ending)], image


def _has_contradiction(trial: _Trial) -> bool:
    """Return whether a way of pairing has paired two names that contradict each other, and is therefore wrong."""
    return any(belong_to_others(image, mask) for mask, image in trial.image_of.items())


def _pair_equal(images: Collection[str], masks: Collection[str]) -> _Trial:
    """Pair equal names. A word such as `_mask` may be added to the mask's name; upper and lower case may differ."""
    trial, mask_of, known = _Trial(), dict[str, str](), set(images)
    by_lower_case = {image.casefold(): image for image in images}
    for mask in masks:
        names = [name for name in (mask, mask_base(mask), numbered_mask_base(mask)) if name]
        image = next((name for name in names[:2] if name in known), None)
        image = image or next(
            (by_lower_case[name.casefold()] for name in names if name.casefold() in by_lower_case), None
        )
        if image is None:
            continue
        if image in mask_of:
            trial.second_masks.append((mask, mask_of[image], image))
            del trial.image_of[mask_of[image]]
        mask_of[image] = mask
        trial.image_of[mask] = image
    return trial


def _pair_by_rule(images: Collection[str], masks: Collection[str]) -> list[_Trial]:
    """Pair the names by each of the rules that turn many sampled images into masks; the best rule is the first."""
    by_name: dict[str, str] = {}
    for mask in masks:
        by_name.setdefault(mask.casefold(), mask)
        if base := mask_base(mask):
            by_name.setdefault(base.casefold(), mask)
    ordered = sorted(images)
    sample = ordered[:: max(1, len(ordered) // MAX_SAMPLED_NAMES)]
    votes = Counter(rule for image in sample for name in by_name for rule in set(_rules(image.casefold(), name)))
    trials = []
    for rule, n_votes in votes.most_common(MAX_RULES):
        if n_votes == 1 and (len(sample) > 1 and len(masks) > 1 or not _is_safe_alone(rule)):
            continue
        trial = _Trial()
        for image in images:
            name = image.casefold()
            partner = by_name.get(rule.apply(name) or "")
            if partner is not None and partner not in trial.image_of and _keeps_the_case(rule, name):
                trial.image_of[partner] = image
        trials.append(trial)
    return sorted(trials, key=lambda trial: -len(trial.image_of))


def _rules(image: str, mask: str) -> Iterator[_Rule]:
    """Yield the rules that turn the name of an image into the name of a mask and leave all numbers unchanged."""
    start = _common_start(image, mask)
    end = len(image) - _common_start(image[::-1], mask[::-1])
    end_of_mask = len(mask) - (len(image) - end)
    found = []
    if any(map(str.isalnum, image[:start])):
        found.append(_Rule("end", image[start:], mask[start:]))
    if any(map(str.isalnum, image[end:])):
        found.append(_Rule("start", image[:end], mask[:end_of_mask]))
    starts = [match.start() for match in _TOKEN_START.finditer(image) if match.start() <= start]
    if starts and starts[-1] <= min(end, end_of_mask) and end < len(image):
        found.append(_Rule(len(starts) - 1, image[starts[-1] : end], mask[starts[-1] : end_of_mask]))
    for rule in found:
        numbers = [_DIGITS.findall(part) for part in (rule.old, rule.new)]
        if numbers[0] == numbers[1] or not all(numbers):
            yield rule


def _keeps_the_case(rule: _Rule, name: str) -> bool:
    """Return whether a rule leaves something in a name, in lower case, that says which case it is.

    A rule that turns `anna_t1` and `anna_t2` into `bert_t1` and `bert_t2` leaves only the names of sequences, and so it
    exchanges the patient. Words for a mask can be exchanged: `img_left` may belong to `mask_left`.
    """
    if not rule.old.strip("_-. ") or rule.new.strip("_-. ") in ("", *MASK_WORDS):
        return True
    if rule.place == "start":
        rest = name[len(rule.old) :]
    elif rule.place == "end":
        rest = name[: len(name) - len(rule.old)]
    else:
        start = [match.start() for match in _TOKEN_START.finditer(name)][int(rule.place)]
        rest = name[:start] + " " + name[start + len(rule.old) :]
    return says_more_than_kind(rest)


def _common_start(first: str, second: str) -> int:
    """Return the length of the common start of two names, without a number that only one of them continues."""
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    while n and first[n - 1].isdigit() and (first[n : n + 1].isdigit() or second[n : n + 1].isdigit()):
        n -= 1
    return n


def _is_safe_alone(rule: _Rule) -> bool:
    """Return whether a rule that fits a single pair of names is no coincidence.

    It adds or removes no number, and at the start or within a name it adds nothing but a word for a mask: otherwise
    `anna_1` and `bert_1` would be a pair.
    """
    if rule.place != "end" and rule.new.strip("_-. ") not in ("", *MASK_WORDS):
        return False
    parts = [part for part in (rule.old, rule.new) if part and not _WITH_DIGITS.fullmatch(part)]
    is_cut = bool(rule.old) and rule.place == "end" and rule.old[0].isalpha()
    return not any(map(_DIGITS.search, parts)) and (not is_cut or _WITH_DIGITS.fullmatch(rule.old) is not None)


def _continues(image: str, mask: str) -> bool:
    """Return whether the name of a mask is that of an image and more after a separator, as `1_reader` for `1`."""
    return mask.casefold().startswith(image.casefold()) and mask[len(image) : len(image) + 1] in tuple("_-. ")


def _rivals(best: _Trial, trials: Sequence[_Trial]) -> list[tuple[str, str, str]]:
    """Return `NamePairs.rivals`: masks that another rule, which pairs nearly as many names, gives to another image."""
    return [
        (mask, image, trial.image_of[mask])
        for trial in trials
        if len(trial.image_of) * 2 > len(best.image_of)
        for mask, image in best.image_of.items()
        if trial.image_of.get(mask, image) != image
        and (_continues(image, mask) <= _continues(trial.image_of[mask], mask))
    ]


def _pair_by_number(images: Collection[str], masks: Collection[str]) -> _Trial:
    """Pair names by the numbers that differ within each group, if both groups have exactly the same numbers."""
    numbers = [_varying_numbers(names) for names in (images, masks)]
    if not (numbers[0] and numbers[1]) or set(numbers[0]) != set(numbers[1]):
        return _Trial()
    return _Trial({mask: numbers[0][number] for number, mask in numbers[1].items()})


def _varying_numbers(names: Collection[str]) -> dict[tuple[int, ...], str]:
    """Return the names by those of their numbers that are not the same in all names.

    Empty if the names differ in something else than numbers, or if two names have the same numbers.
    """
    counts = [spell_sequences(name) for name in names]
    if len({_DIGITS.sub("#", name) for name in counts}) != 1 or len(names) < 2:
        return {}
    rows = [tuple(map(int, _DIGITS.findall(name))) for name in counts]
    varying = [column for column, values in enumerate(zip(*rows)) if len(set(values)) > 1]
    by_number = {tuple(row[column] for column in varying): name for row, name in zip(rows, names)}
    return by_number if len(by_number) == len(names) else {}
