"""The usual patterns of images and masks, and how well they fit the files of a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from medfed.core.errors import UserError
from medfed.datasets import check_patients
from medfed.datasets.pairing import Layout, Pairs, pair
from medfed.datasets.part_names import are_patients, are_years, is_part
from medfed.datasets.patterns import compile_pattern
from medfed.datasets.walk import Files
from medfed.images import two_dimensional
from medfed.images.file_names import folded, stem_of
from medfed.images.reading import is_2d_image_file

IMAGE_FOLDERS = tuple("images imgs img image imagestr original originals dicom".split())
MASK_FOLDERS = tuple(
    "masks mask labels label labelstr seg segs segmentation segmentations gt groundtruth annotation annotations".split()
)
IMAGE_WORDS = tuple("image img scan photo t1 t2 t2w t1w flair ct us xray volume".split())
MASK_WORDS = tuple("mask masks segmentation seg label labels gt groundtruth annotation annotations anno".split())
FOLDERS = (  # of images and of masks; <images> and <masks> are folders with usual names
    ("{site}/<images>/", "{site}/<masks>/"),
    ("{site}/", "{site}/"),
    ("{site}/", "{site}/<masks>/"),
    ("<images>/{site}/", "<masks>/{site}/"),
    ("{site}/{folder}/<images>/", "{site}/{folder}/<masks>/"),
    ("{site}/<images>/{folder}/", "{site}/<masks>/{folder}/"),
    ("{site}/{folder}/", "{site}/{folder}/"),
    ("{site}/{folder}/", "{site}/{folder}/<masks>/"),
    ("{part}/{site}/<images>/", "{part}/{site}/<masks>/"),
    ("{part}/{site}/", "{part}/{site}/"),
    ("<images>/{site:[a-z][a-z0-9]*}_", "<masks>/{site:[a-z][a-z0-9]*}_"),
    ("{site:[a-z][a-z0-9]*}_", "{site:[a-z][a-z0-9]*}_"),
)
NAMES = (  # of images and of masks; the words before or after the name of a case are usual ones
    ("{case}.*", "{case}.*"),
    ("{case}_0000.*", "{case}.*"),
    ("{case}.*", "{case}<after mask>.*"),
    ("{case}<after image>.*", "{case}<after mask>.*"),
    ("{case}<after image>.*", "{case}.*"),
    ("{case}.*", "<before mask>{case}.*"),
    ("<before image>{case}.*", "<before mask>{case}.*"),
)
FIXED = (("{site}/{case}/<fixed image>.*", "{site}/{case}/<fixed mask>.*"),)
SERIES = (  # folders of DICOM files
    ("{site}/<images>/{case}", "{site}/<masks>/{case}.*"),
    ("{site}/<images>/{case}", "{site}/<masks>/{case}<after mask>.*"),
    ("{site}/{case}", "{site}/{case}<after mask>.*"),
    ("{site}/{case}", "{site}/{case}/<fixed mask>.*"),
    ("{site}/{case}", "{site}/{case}/<segmentation>"),
    ("{site}/{case}", "{site}/{case}/<masks>/<segmentation>"),
    ("{site}/{case}", "{site}/{case}/{case}<after mask>.*"),
    ("<images>/{site}/{case}", "<masks>/{site}/{case}.*"),
    ("{site}/{study}/{case}", "{site}/{study}/{case}/<fixed mask>.*"),  # without {patient}: PatientID is the patient
    ("{site}/{study}/{case}", "{site}/{study}/{case}<after mask>.*"),
    ("{site}/{study}/{case}", "{site}/{study}/{case}/<masks>/<segmentation>"),
)
CLASSES = ("{site}/{class}/{case}.*", "{site}/{part}/{class}/{case}.*", "{part}/{site}/{class}/{case}.*")
SIDES = ("left", "right", "l", "r", "od", "os", "le", "re")
GROUPS = ("benign", "malignant", "normal", "abnormal", "positive", "negative", "healthy", "disease", "pre", "post")
UNLABELLED = ("imagests", "labelsts")  # nnU-Net's and MSD's test images
MAX_WORDS = 4  # of one kind that are tried
MAX_TRIED = 6  # patterns that are compared with all files, if no pattern fits a file of every folder
MIN_IMAGES = 5  # of a site in the names of the files; fewer may be the images of a patient
USUAL_WORDS = {*IMAGE_FOLDERS, *MASK_FOLDERS, *IMAGE_WORDS, *MASK_WORDS, *SIDES, *GROUPS}  # names that no site has
_SLOT = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Tried:
    layout: Layout
    result: Pairs

    @property
    def fits(self) -> bool:
        pairs = self.result.pairs
        is_complete = bool(pairs) and not self.result.problems and not self.result.unmatched
        return is_complete and all(is_part(one.fields["part"]) for one in pairs if "part" in one.fields)

    def sites(self) -> Counter[str]:
        """Count the images of each site."""
        return Counter(one.fields.get("site", self.layout.site) for one in self.result.pairs)


def layout_of(image: str, mask: str = "") -> Layout:
    """Return the layout of a pattern of images and one of masks; without the latter, of classes."""
    return Layout((compile_pattern(image),), (("", compile_pattern(mask)),) if mask else ())


def candidates(files: Files) -> Iterator[Layout]:
    """Yield the layouts of the usual patterns with the words that occur in the names of these files."""
    words = _words(files)
    pairs = [(image + a, mask + b) for image, mask in FOLDERS for a, b in NAMES if (image, a) != (mask, b)]
    for image, mask in [*pairs, *FIXED, *(SERIES if files.series else ())]:
        slots = list(dict.fromkeys(_SLOT.findall(image + mask)))
        for chosen in product(*(words.get(slot, ()) for slot in slots)):
            values = dict(zip(slots, chosen))
            if "<fixed image>" in values and not (  # `scan` and `gland_label`, or `liver` and `mask`, say what they are
                folded(values["<fixed image>"]) in IMAGE_WORDS or word_of(values["<fixed mask>"]) in MASK_WORDS
            ):
                continue
            texts = [image, mask]
            for slot, word in values.items():
                texts = [text.replace(slot, word) for text in texts]
            if texts[0] != texts[1]:
                yield layout_of(*texts)
    if files.images and not files.series and _may_be_classes(files):
        yield from map(layout_of, CLASSES)


def _words(files: Files) -> dict[str, list[str]]:
    """Return, for each slot of the usual patterns, the words with this meaning in the names of files and folders."""
    folders = {part for path in files.images for part in path.split("/")[:-1]}
    folders |= {part for path in files.series for part in path.split("/")}
    words = {
        "<images>": sorted(name for name in folders if word_of(name) in IMAGE_FOLDERS),
        "<masks>": sorted(name for name in folders if word_of(name) in MASK_FOLDERS),
    }
    stems = [stem_of(path) for path in files.images]
    for kind, known in (("image", IMAGE_WORDS), ("mask", MASK_WORDS)):
        either = "|".join(sorted(known, key=len, reverse=True))
        for place, regex in (("after", rf".([_\-. ](?:{either}))$"), ("before", rf"^((?:{either})[_\-. ]).")):
            counts = Counter(match[1] for stem in stems if (match := re.search(regex, stem, re.I)))
            one_spelling = {folded(word): word for word, _ in reversed(counts.most_common(MAX_WORDS))}
            words[f"<{place} {kind}>"] = [*one_spelling.values()][::-1]
    folders_of: dict[str, set[str]] = {}
    for path in files.images:
        folders_of.setdefault(folded(stem_of(path)), set()).add(path.rpartition("/")[0])
    spelling = {folded(stem): stem for stem in stems}
    for stem, of_stem in folders_of.items():
        if len(of_stem) > 1:  # a fixed name, in each folder of a case
            is_mask = not {*MASK_WORDS}.isdisjoint(re.split(r"[_\-. ]+", stem))
            words.setdefault("<fixed mask>" if is_mask else "<fixed image>", []).append(spelling[stem])
    names = Counter(path.rpartition("/")[2] for path in files.images if not is_2d_image_file(path))
    words["<segmentation>"] = [name for name, n in names.most_common() if n > 1]
    return {slot: found[:MAX_WORDS] if "fixed" in slot or "seg" in slot else found for slot, found in words.items()}


def word_of(name: str) -> str:
    """Return a name in lower case and without separators: "groundtruth" for "Ground Truth"."""
    return re.sub(r"[_\- ]", "", folded(name))


def try_layouts(files: Files, layouts: Iterable[Layout], sites: Sequence[str]) -> list[Tried]:
    """Compare layouts with the files until one fits without a doubt, which comes first; those that cannot fit, because
    they fit no file of some folder, come last."""
    examples: dict[str, str] = {}
    for path in files.images:
        examples.setdefault(path.rpartition("/")[0], path)
    sample = [*examples.values()][:: max(1, len(examples) // 200)]
    ranked: dict[int, list[Layout]] = {}
    for layout in layouts:
        patterns = [*layout.images, *(pattern for _, pattern in layout.masks)]
        n_fitting = sum(any(pattern.match(path) is not None for pattern in patterns) for path in sample)
        ranked.setdefault(n_fitting, []).append(layout)
    complete = ranked.pop(len(sample), [])
    others = [layout for n in sorted(ranked.keys() - {0}, reverse=True) for layout in ranked[n]]
    tried: list[Tried] = []
    for layout in (*complete, *others[:MAX_TRIED]):
        tried.append(Tried(layout, pair(files, layout)))
        if tried[-1].fits and not doubt_about(tried[-1], sites):
            return [tried[-1], *tried[:-1]]
    return tried


def doubt_about(tried: Tried, listed: Sequence[str]) -> str:
    """Return why patterns that pair every image are not taken, as a clause; "" if there is no reason."""
    return _doubt_about_sites(tried, listed) or _doubt_about_folders(tried)


def _doubt_about_sites(tried: Tried, listed: Sequence[str]) -> str:
    """Return why the sites may be none.

    The names of sites must not look like something else, unless the user lists them. Names in the folders of parts, or
    at the beginning of files, may also be patients: a patient is in one part, and has a number.
    """
    counts, image = tried.sites(), tried.layout.images[0]
    pairs = tried.result.pairs
    folders = {one.fields["folder"] for one in pairs if "folder" in one.fields}
    if are_years(folders):
        return "the folders inside the sites look like years; say whether they are patients, with {patient} or {year}"
    if set(counts) <= set(listed):
        return ""
    words = {name.rstrip("0123456789") for name in map(folded, counts)}
    if "{site:" in image.text and (len(words) < 2 or min(counts.values()) < MIN_IMAGES):
        return "the words at the beginning of the names may be sites or patients"
    parts = {(one.fields["part"], one.fields["site"]) for one in pairs if image.text.startswith("{part}")}
    if parts and (len(parts) == len(counts) or len(parts) < len(counts) * len({part for part, _ in parts})):
        return "not all of them are in two or more parts, so they may be patients"
    if len(counts) == 1 and folders and not all(map(is_part, folders)):
        return (
            f"the only folder, {next(iter(counts))}, may be a site with patients, or hold the sites; give the folder "
            "that contains the sites"
        )
    if what := odd_sites(counts):
        return f"these look like {what}; expected one folder for each hospital; move everything into such a folder"
    return "these look like folders of images and masks" if all(word_of(site) in USUAL_WORDS for site in counts) else ""


def _doubt_about_folders(tried: Tried) -> str:
    """Return why the folders inside the sites may be no patients although several images lie in each; or ""."""
    pairs = [one for one in tried.result.pairs if "folder" in one.fields and "case" in one.fields]
    folders = sorted({one.fields["folder"] for one in pairs})
    n_folders = len({(one.fields["site"], one.fields["folder"], one.fields.get("part")) for one in pairs})
    if len(folders) < 2 or any(is_part(name) or folded(name) in {*SIDES, *GROUPS} for name in folders):
        return ""
    if suggestion := check_patients.suggest_pattern(folders):
        both = " and ".join(suggestion[1][:2])
        return f"the folders inside the sites, such as {both}, may be of one patient; write the patient as a field"
    cases = Counter(folded(one.fields["case"]) for one in pairs)
    are_words = not all(re.search("[0-9]", name) for name in folders)
    if len(pairs) > n_folders and are_words and 2 * sum(n > 1 for n in cases.values()) >= len(cases):
        return (
            f"the folders inside the sites, such as {folders[0]} and {folders[1]}, hold files of the same names; say "
            "which is the patient, as {patient}/{case} or {kind}/{patient}"
        )
    return ""


def odd_sites(sites: Iterable[str]) -> str:
    """Return what the names of sites look like, if they look like something else; or ""."""
    names = list(sites)
    if any(map(is_part, names)):
        return "parts of a split"
    is_numbered = len(names) > 2 and len({re.sub("[0-9]+$", "", name) for name in names}) == 1
    if are_patients(names) or (is_numbered and all(re.search("[0-9]{3}$", name) for name in names)):
        return "patients"
    return "years" if are_years(names) else ""


def with_named_folders(files: Files, tried: Tried) -> Tried:
    """Give the field `folder` its meaning: a part, a side, a group such as "benign", or the patient."""
    pairs = tried.result.pairs
    if "folder" not in pairs[0].fields:
        return tried
    names = {folded(one.fields["folder"]) for one in pairs}
    meaning = "patient"
    if all(map(is_part, names)):
        meaning = "part"
    elif names & set(SIDES):
        meaning = "side"
    elif names & set(GROUPS) or are_years(names):
        meaning = "group"
    renamed = {"{folder}": f"{{{meaning}}}"}
    if meaning == "side" and 2 * len({folded(one.fields["case"]) for one in pairs}) <= len(pairs) + 1:
        renamed["{case}"] = "{patient}"  # both sides have an image of the same name
    texts = [tried.layout.images[0].text, tried.layout.masks[0][1].text]
    for old, new in renamed.items():
        texts = [text.replace(old, new) for text in texts]
    layout = layout_of(*texts)
    return Tried(layout, pair(files, layout))


def as_settings(layout: Layout) -> dict[str, Any]:
    """Return a layout as settings of the block `data`."""
    settings: dict[str, Any] = {"image": layout.images[0].text}
    if layout.masks:
        settings["mask"] = layout.masks[0][1].text
    return settings


def _may_be_classes(files: Files) -> bool:
    """Return whether the folders that hold the images may be classes, and not images and masks.

    They are none if a name says that it is a mask or an image, if the folders of a site have other names than those of
    the other sites, or if folders beside each other hold files of the same names (two folders, or a few names), a file
    whose name continues that of another one, or some photographs and others black and white drawings, as masks are.
    """
    if not all(map(is_2d_image_file, files.images)):
        return False
    by_parent: dict[str, dict[str, list[str]]] = {}
    for path in files.images:
        parent, _, folder = path.rpartition("/")[0].rpartition("/")
        by_parent.setdefault(parent, {}).setdefault(folder, []).append(path)
    names = Counter(folded(folder) for inner in by_parent.values() for folder in inner)
    words = {word for path in files.images for word in re.split(r"[_\-. /]+", folded(path.rpartition(".")[0]))}
    if words & {*MASK_WORDS, *MASK_FOLDERS, *IMAGE_FOLDERS} or any(map(is_part, names)):
        return False
    if len({path.split("/")[0] for path in files.images}) > 1 and 2 * sum(n > 1 for n in names.values()) < len(names):
        return False
    for inner in by_parent.values():
        stems = [{folded(stem_of(path)) for path in paths} for paths in inner.values()]
        if len(stems) > 1 and set.intersection(*stems) and (len(names) == 2 or len(stems[0]) <= MAX_WORDS):
            return False
        if any(map(_continues, stems)) or len({_are_drawings(files.root, paths[:3]) for paths in inner.values()}) > 1:
            return False
    return True


def _continues(names: Collection[str]) -> bool:
    """Return whether a name is the beginning of another one up to a separator: `1` and `1_lesion`."""
    return any(name[: match.start()] in names for name in names for match in re.finditer(r"(?<=.)[_\-. ]", name))


def _are_drawings(root: Path, paths: Sequence[str]) -> bool:
    """Return whether images are drawings in black and white, or of three values at most; False for unreadable ones."""
    with suppress(UserError):
        images = [two_dimensional.read_image_file(root / path, None, []) for path in paths]
        contrast = [(one, one <= 16, one >= 239) for one in images]
        return all(
            len(np.unique(one)) <= 3 or (dark.any() and light.any() and np.mean(dark | light) > 0.95)
            for one, dark, light in contrast
        )
    return False
