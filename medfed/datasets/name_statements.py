"""Find out what names of files say about patients, visits, sides, views and sequences, and whether two contradict.

Only names are compared. Numbers count by the word before them; words such as left and right exclude each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

_DIGITS = re.compile(r"\d+")
_WORD_AND_NUMBER = re.compile(r"([^\W\d_]+)[_\-. ]*(\d+)")
_WORD = re.compile(r"[^\W\d_]+")
_LETTER = re.compile(r"(?<![^\W_])[a-z](?![^\W_])")
_WORD_OR_NUMBER = re.compile(r"[^\W_]+")
_CAPITAL_WITHIN_A_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NON = re.compile(r"(?<![^\W\d_])non[_\-. ]+(?=contrast)")  # "non-contrast" is one word
_SEQUENCE = re.compile(r"(?<![^\W\d_])t[12](?:w|ce|c|gd)?(?![^\W_])")  # T1 and T2 name a sequence; they count nothing
_DIGITS_AS_WORDS = str.maketrans({"1": "one", "2": "two"})  # of a sequence, whose number counts nothing
# Words that exclude each other, by what they are about. Words of the same entry mean the same. Words that only name
# masks, such as organs, lesions and readers, do not belong here: they say nothing about the image.
_OPPOSITES = {
    "side": (  # os and od are the left and the right eye; English, Latin, German, French, Italian, Spanish
        "left l os sin sinister links li gauche sinistra sinistro izquierda izquierdo",
        "right r od dex dexter rechts re droite droit destra destro derecha derecho",
    ),
    "phase of the heart": ("ed diastole diastolic", "es systole systolic"),
    "load of the heart": ("rest", "stress"),
    "breathing": ("insp inspiration inspiratory", "exp expiration expiratory"),
    "contrast agent": (
        "native noncontrast unenhanced",
        "contrast enhanced",
        "arterial",
        "venous portal portalvenous",
        "delayed",
    ),
    "treatment": ("pre preop preoperative before", "post postop postoperative after"),
    "visit": ("baseline", "followup follow"),
    "order": ("first", "second", "third"),
    "age of the file": ("old", "new"),
    "time": ("early", "late"),
    "finding": ("benign", "malignant", "normal"),
    "plane": ("ax axial tra transversal transverse", "sag sagittal", "cor coronal"),
    "mammogram": ("cc", "mlo"),
    "projection": ("ap", "pa", "frontal", "lat lateral", "medial"),
    "height": ("upper superior cranial", "lower inferior caudal"),
    "depth": ("anterior ventral", "posterior dorsal"),
    "distance": ("proximal", "distal"),
    "position": ("supine", "prone"),
    "modality": ("ct", "mr mri", "pet"),
    "sequence": ("t1 t1w", "t1c t1ce t1gd", "t2 t2w", "adc", "dwi", "flair"),
}
_MEANINGS = {
    word: (topic, words) for topic, choices in _OPPOSITES.items() for words in choices for word in words.split()
}


class _Statements(NamedTuple):
    """What the name of a file says about its content.

    Args:
        numbers: all numbers in the order of the name, without those of the sequences T1 and T2.
        by_word: the numbers by the word before them: 1 for "visit" in `p3_visit1`.
        meanings: by the topic, which of the words that exclude each other the name has.
    """

    numbers: tuple[int, ...]
    by_word: Mapping[str, set[int]]
    meanings: Mapping[str, set[str]]


def contradict(image: str, mask: str) -> bool:
    """Return whether the names of an image and a mask are of different patients, visits, sides, views or phases.

    They are if the same word has different numbers (`p1_visit1`, `p1_visit2`), if other numbers differ (`7`, `mask_8`;
    a number that only one name has is no difference), or if they have words that exclude each other (`7_left`,
    `7_right`). Upper and lower case, and zeros before a number, are not distinguished.
    """
    first, second = _statements(image), _statements(mask)
    if any(first.by_word[word] != second.by_word[word] for word in first.by_word.keys() & second.by_word.keys()):
        return True
    if any(first.meanings[key] != second.meanings[key] for key in first.meanings.keys() & second.meanings.keys()):
        return True
    fewer, more = sorted((first.numbers, second.numbers), key=len)
    rest = iter(more)
    return not all(number in rest for number in fewer)  # `in` goes on where it has stopped: the order must be equal


def differ_in_a_character(name: str, other: str) -> bool:
    """Return whether each of two names has a single letter that the other one lacks, such as `p0_A` and `p0_B`."""
    first, second = (set(_LETTER.findall(text.casefold())) for text in (name, other))
    return not (first <= second or second <= first)


def says_more_than_kind(text: str) -> bool:
    """Return whether a text in lower case says more than sequence, side, plane or phase: "anna_t1", but not "_t1"."""
    return any(word not in _MEANINGS for word in _WORD_OR_NUMBER.findall(_SEQUENCE.sub(" ", text)))


def topic_of(name: str) -> str:
    """Return what a name is about if it says nothing else, such as "side" for "left", "finding" for "benign"; or ""."""
    topics = _statements(name).meanings.keys()
    return "" if len(topics) != 1 or says_more_than_kind(name.casefold()) else next(iter(topics))


def spell_sequences(name: str) -> str:
    """Return a name in lower case, with the sequences T1 and T2 written as "tone" and "ttwo", so that they are no
    numbers."""
    return _SEQUENCE.sub(lambda match: match[0].translate(_DIGITS_AS_WORDS), name.casefold())


@lru_cache(maxsize=1 << 14)
def _statements(name: str) -> _Statements:
    """What a name says about its image: the numbers, the number after each word, and words with a known meaning."""
    words = _NON.sub("non", _CAPITAL_WITHIN_A_WORD.sub(" ", name).casefold())
    by_word: dict[str, set[int]] = {}
    for word, number in _WORD_AND_NUMBER.findall(words):
        by_word.setdefault(word, set()).add(int(number))
    meanings: dict[str, set[str]] = {}
    for word in [*_WORD.findall(words), *_SEQUENCE.findall(words)]:
        if word in _MEANINGS:
            topic, meaning = _MEANINGS[word]
            meanings.setdefault(topic, set()).add(meaning)
    return _Statements(tuple(map(int, _DIGITS.findall(_SEQUENCE.sub("", words)))), by_word, meanings)
