"""Find the usual patterns that pair every image of a folder, or say what the usual patterns leave over."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from medfed.core.errors import UserErrors
from medfed.datasets import check_patients
from medfed.datasets.pairing import Layout, Pairs, pair
from medfed.datasets.part_names import MAX_YEARS, are_years, is_no_patient, is_part
from medfed.datasets.patterns import compile_pattern
from medfed.datasets.walk import Files
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import folded, stem_of
from medfed.images.reading import is_2d_image_file, suffix

IMAGE_FOLDERS = tuple("images imgs img image imagestr original originals dicom".split())
MASK_FOLDERS = tuple(
    "masks mask labels label labelstr seg segs segmentation segmentations gt groundtruth annotation annotations".split()
)
IMAGE_WORDS = tuple("image img imaging scan photo t1 t2 t2w t1w flair ct us xray volume".split())
MASK_WORDS = tuple("mask masks segmentation seg label labels gt groundtruth annotation annotations anno".split())
FOLDERS = (  # of images and of masks; <images> and <masks> are folders with usual names
    ("{site}/<images>/", "{site}/<masks>/"),
    ("{site}/", "{site}/"),
    ("{site}/", "{site}/<masks>/"),
    ("<images>/{site}/", "<masks>/{site}/"),
    ("{site}/{folder}/<images>/", "{site}/{folder}/<masks>/"),
    ("{site}/<images>/{folder}/", "{site}/<masks>/{folder}/"),
    ("{site}/{folder}/", "{site}/{folder}/"),
)
NAMES = (  # of images and of masks; the words before or after the name of a case are usual ones
    ("{case}.*", "{case}.*"),
    ("{case}_0000.*", "{case}.*"),
    ("{case}.*", "{case}<after mask>.*"),
    ("{case}<after image>.*", "{case}<after mask>.*"),
    ("{case}<after image>.*", "{case}.*"),
    ("<before image>{case}.*", "<before mask>{case}.*"),
)
FIXED = (
    ("{site}/{case}/<only image>.*", "{site}/{case}/<only mask>.*"),
    ("{site}/images{part:Tr|Ts|Va}/{case}_0000.*", "{site}/labels{part:Tr|Ts|Va}/{case}.*"),
    ("{site}/images{part:Tr|Ts|Va}/{case}.*", "{site}/labels{part:Tr|Ts|Va}/{case}.*"),
)
SERIES = (  # folders of DICOM files
    ("{site}/<images>/{case}", "{site}/<masks>/{case}.*"),
    ("{site}/<images>/{case}", "{site}/<masks>/{case}<after mask>.*"),
    ("{site}/{case}", "{site}/{case}<after mask>.*"),
    ("{site}/{case}", "{site}/{case}/<only mask>.*"),
    ("{site}/{case}", "{site}/{case}/<masks>/*"),
    ("{site}/{study}/{case}", "{site}/{study}/{case}/<only mask>.*"),  # without {patient}: PatientID is the patient
    ("{site}/{study}/{case}", "{site}/{study}/{case}<after mask>.*"),
)
CLASSES = ("{site}/{class}/{case}.*", "{site}/{folder}/{class}/{case}.*")
GROUPS = {*"benign malignant normal abnormal positive negative healthy disease pre post".split()}
UNLABELLED, LABELS = "imagests", "labelsts"  # nnU-Net's and MSD's test images, and their masks, if they are published
MIN_SHARE = 10  # pairs for each file without a partner, from which a pattern is taken for the right one
MAX_WORDS = 4  # of one kind that are tried
MAX_SITES = 50  # whose patterns are found one by one
MAX_TRIED = 6  # patterns that are compared with all files, if no pattern fits a file of every folder
MAX_ROWS, MAX_EXAMPLES = 3, 6  # of the message that no pattern fits
USUAL_WORDS = {*IMAGE_FOLDERS, *MASK_FOLDERS, *IMAGE_WORDS, *MASK_WORDS}  # names that no site has
_PATIENT = re.compile(r"(?:patient|patnt|pat|pt|p|subject|subj|sub|case)[_\- ]?\d+", re.IGNORECASE)
_PERSON = re.compile(r"(?:patient|patnt|pat|subject|subj|sub)[_-]?\d+", re.IGNORECASE)
_DAY = re.compile(r"(?<!\d)(?:(?:19|20)\d{6}|\d{4}(?:19|20)\d{2})(?!\d)")  # TCGA_CS_4941_19960909, anna_01021996
_SLOT = re.compile(r"<[^>]*>")


def find_patterns(files: Files, sites: Sequence[str] = ()) -> dict[str, Any]:
    """Return the first usual patterns that fit, as settings of `data`; UserError with a table of what was tried.

    1. patterns that pair every image;
    2. patterns of each site that pair every image with its mask, if the folders of the sites are in the root;
    3. patterns that match every file, with at least ten pairs for each file without a partner, which is then an error.

    Names of sites that look like parts of a split, years or patients are refused unless the user lists them in `sites`.
    Files of unknown formats are left out.
    """
    unknown = [path for path in files.images if not suffix(path) and not kind_of(files.root / path)]
    names = {part for path in (*files.images, *files.series) for part in path.split("/")[:-1]}
    are_labelled = LABELS in map(folded, names)
    unlabelled = tuple(sorted(name for name in names if folded(name) == UNLABELLED and not are_labelled))
    files = replace(files, images=tuple(path for path in files.images if path not in {*unknown})).without(unlabelled)
    ignored: dict[str, Any] = {"ignored_names": unlabelled} if unlabelled else {}
    tried: list[Pairs] = []
    for layout in _promising(files):
        one = pair(files, layout)
        tried.append(one)
        if one.pairs and not one.left and (layout.masks or all(map(is_part, one.values("folder")))):
            if doubt := _doubt_about(one, sites):
                raise UserErrors([f"{files.root}: {doubt}"])
            return _settings(one) | ignored
    of_site = _patterns_by_site(files, sites)
    if of_site and all(of_site.values()):
        general = max(of_site.values(), key=[*of_site.values()].count)
        others = {
            site: {key: text for key, text in own.items() if text != general[key]}
            for site, own in of_site.items()
            if own != general
        }
        return general | {"by_site": others} | ignored
    for one in tried:  # a few files are missing, which the dataset then names
        is_near = one.problems and not one.unmatched and MIN_SHARE * len(one.problems) <= len(one.pairs)
        if is_near and not _doubt_about(one, sites):
            return _settings(one) | ignored
    raise UserErrors(_describe(files, tried, unknown, of_site))


def _settings(paired: Pairs) -> dict[str, Any]:
    field = f"{{{_meaning(paired)}}}"
    patterns = {"image": paired.layout.images, "mask": [pattern for _, pattern in paired.layout.masks]}
    return {key: own[0].text.replace("{folder}", field) for key, own in patterns.items() if own}


def _patterns_by_site(files: Files, sites: Sequence[str]) -> dict[str, Any]:
    """Return the first usual patterns that pair every image of each site with its mask; empty for a site without any.

    Folders of images and masks with unusual names would look like two classes, so classes are left out.
    """
    paths = (*files.images, *files.slices)
    folders = sorted({path.partition("/")[0] for path in paths})
    is_odd = not all("/" in path for path in paths) or (_odd_sites(folders) and not {*folders} <= {*sites})
    if not 2 <= len(folders) <= MAX_SITES or is_odd:
        return {}
    of_site: dict[str, dict[str, Any]] = {}
    for site in folders:
        inside = files.below(site)
        paired = (pair(inside, layout) for layout in _promising(inside) if layout.masks)
        fitting = (one for one in paired if one.pairs and not one.left and not _doubt_about(one, sites))
        first = next(fitting, None)
        of_site[site] = _settings(first) if first else {}
    return of_site


def _promising(files: Files) -> list[Layout]:
    """Return the usual layouts that fit a file of every folder; if there are none, those that fit the most folders."""
    examples = _examples(files, 1)
    sample = examples[:: max(1, len(examples) // 200)]
    fitting: dict[Layout, int] = {}
    for layout in _candidates(files):
        patterns = [*layout.images, *(pattern for _, pattern in layout.masks)]
        fitting[layout] = sum(any(pattern.match(path) is not None for pattern in patterns) for path in sample)
    complete = [layout for layout, n in fitting.items() if n == len(sample)]
    others = sorted((layout for layout, n in fitting.items() if 0 < n < len(sample)), key=lambda one: -fitting[one])
    return [*complete, *others[:MAX_TRIED]]


def _examples(files: Files, n: int) -> list[str]:
    """Return the first images of each folder, at most `n`."""
    by_folder: dict[str, list[str]] = {}
    for path in files.images:
        by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    return [path for inside in by_folder.values() for path in inside[:n]]


def _candidates(files: Files) -> Iterator[Layout]:
    """Yield the layouts of the usual patterns with the words that occur in the names of these files."""
    words = _words(files)
    pairs = [(image + a, mask + b) for image, mask in FOLDERS for a, b in NAMES]
    for image, mask in (*pairs, *FIXED, *(SERIES if files.series else ())):
        slots = dict.fromkeys(_SLOT.findall(image + mask))
        for chosen in product(*(words[slot] for slot in slots)):
            texts = [image, mask]
            for slot, word in zip(slots, chosen):
                texts = [text.replace(slot, word) for text in texts]
            if texts[0] != texts[1]:
                yield Layout((compile_pattern(texts[0]),), (("", compile_pattern(texts[1])),))
    if files.images and not files.series and _may_be_classes(files):
        yield from (Layout((compile_pattern(text),)) for text in CLASSES)


def _words(files: Files) -> dict[str, list[str]]:
    """Return, for each slot of the usual patterns, the words with this meaning in the names of files and folders."""
    folders = {part for path in files.images for part in path.split("/")[:-1]}
    folders |= {part for path in files.series for part in path.split("/")}
    words = {
        "<images>": sorted(name for name in folders if _word(name) in IMAGE_FOLDERS),
        "<masks>": sorted(name for name in folders if _word(name) in MASK_FOLDERS),
    }
    usual = f"(?:{'|'.join((*IMAGE_WORDS, *MASK_WORDS))})"
    stems = [stem_of(path.removesuffix(".dcm")) for path in files.images]
    for kind, known in (("image", IMAGE_WORDS), ("mask", MASK_WORDS)):
        either = f"(?:{'|'.join(sorted(known, key=len, reverse=True))})"
        for place, regex in (
            ("after", rf".([_\-. ]{either})$"),
            ("before", rf"^((?:(?!{usual}[_\-. ])[a-z]+[_\-. ])?{either}[_\-. ])."),
            ("only", rf"^((?:[^{{}}*?]*[_\-. ])?{either})$"),
        ):
            counts = Counter(match[1] for stem in stems if (match := re.search(regex, stem, re.I)))
            spelling = {folded(word): word for word, _ in reversed(counts.most_common(MAX_WORDS))}
            words[f"<{place} {kind}>"] = [*spelling.values()][::-1]
    return words


def _word(name: str) -> str:
    """Return a name in lower case and without separators: "groundtruth" for "Ground Truth"."""
    return re.sub(r"[_\- ]", "", folded(name))


def _may_be_classes(files: Files) -> bool:
    """Return whether the folders that hold the images may be classes, and not images and masks.

    They are none if a name says that it is a mask or an image, if a file's name continues that of another one (`1` and
    `1_lesion`), if most folders of a site have no folder of the same name at another site, if folders beside each other
    hold the same names, or one of them continues several names of another one, or if the only two share a name.
    """
    by_parent: dict[str, dict[str, set[str]]] = {}
    for path in files.images:
        parent, _, folder = path.rpartition("/")[0].rpartition("/")
        by_parent.setdefault(parent, {}).setdefault(folder, set()).add(folded(stem_of(path)))
    names = Counter(folded(folder) for inside in by_parent.values() for folder in inside)
    words = {word for path in files.images for word in re.split(r"[_\-. /]+", folded(path.rpartition(".")[0]))}
    if words & {*MASK_WORDS, *MASK_FOLDERS, *IMAGE_FOLDERS} or not all(map(is_2d_image_file, files.images)):
        return False
    if len({path.split("/")[0] for path in files.images}) > 1 and 2 * sum(n > 1 for n in names.values()) < len(names):
        return False
    continued = set[tuple[str, str]]()
    for parent, inside in by_parent.items():
        stems, folders_of = [*inside.values()], defaultdict[str, set[str]](set)
        for folder, own in inside.items():
            for name in own:
                folders_of[name].add(folder)
        if any(own & _beginnings(name) for own in stems for name in own):
            return False
        if len(stems) > 1 and stems.count(stems[0]) == len(stems):
            return False
        if len(stems) == len(names) == 2 and stems[0] & stems[1]:
            return False
        continued |= {(parent, name) for own in stems for name in _continued(own, folders_of)}
    return len(continued) < 2


def _continued(names: Collection[str], folders_of: Mapping[str, Collection[str]]) -> set[str]:
    """Return the names that those of a folder continue, if all of them continue names of one other folder."""
    starts = [{start for start in _beginnings(name) if start in folders_of} for name in names]
    folders = [set[str]().union(*(folders_of[start] for start in of_name)) for of_name in starts]
    return set[str]().union(*starts) if set.intersection(*folders) else set()


def _beginnings(name: str) -> set[str]:
    """Return the beginnings of a name up to each separator: `1` of `1_lesion`."""
    return {name[: match.start()] for match in re.finditer(r"(?<=.)[_\-. ]", name)}


def _doubt_about(tried: Pairs, listed: Sequence[str]) -> str:
    """Return why patterns that pair every image are not taken, as a sentence without its place; or ""."""
    sites, folders = tried.values("site"), tried.values("folder")
    if len(sites) == 1 and folders and not {*sites} <= {*listed} and not all(map(is_part, folders)):
        return (
            f"the only folder, {sites[0]}, may be a site with patients, or hold the sites; give the folder that "
            f"contains the sites, or set data.sites: [{sites[0]}]"
        )
    if folders and not _meaning(tried):
        return (
            f"the folders inside the sites, such as {' and '.join(folders[:2])}, may be patients or something else; "
            f"set data.image and data.mask as {tried.layout.text}, with {{patient}} for the part that names the "
            "patient, and another word for {folder} if this is none"
        )
    what = _odd_sites(sites)
    if what and not {*sites} <= {*listed}:
        shown = ", ".join(repr(site) if site.isdecimal() else site for site in sites)
        return (
            f"with {tried.layout.text}, the sites are {shown}, and these look like {what}; expected one folder for "
            f"each hospital; move everything into such a folder, or, if they are the sites, set data.sites: [{shown}]"
        )
    return ""


def _meaning(paired: Pairs) -> str:
    """Return which field the folders between site and images are: part, group or patient; "" if they may be others.

    Patients have a number, and only one folder; if the sites have the same few folders, these may be grades.
    """
    folders = paired.values("folder")
    if all(map(is_part, folders)):
        return "part"
    if GROUPS & set(map(folded, folders)):
        return "group"
    are_numbered = all(re.search("[0-9]", name) for name in folders) and not are_years(folders)
    are_others = all(map(is_no_patient, folders)) or _names_recur(paired) or _folders_recur(paired)
    return "patient" if are_numbered and not are_others and not check_patients.suggest_pattern(folders) else ""


def _names_recur(paired: Pairs) -> bool:
    """Return whether several folders of a site hold files of the same patients: `A/sub-1`, `A/sub-2`, `B/sub-1`, ..."""
    named = {
        (match.fields["site"], match.fields["folder"], folded(person))
        for match in paired.pairs
        for person in _PERSON.findall(match.path.rpartition("/")[2])
    }
    n_folders = Counter((site, person) for site, _, person in named)
    are_patients = all(map(_PATIENT.fullmatch, paired.values("folder")))
    return not are_patients and sum(n > 1 for n in n_folders.values()) > 1


def _folders_recur(paired: Pairs) -> bool:
    """Return whether few folders, not called as patients, are at several sites, or half of them: BIRADS2 to BIRADS5."""
    at_sites = {(match.fields["site"], folded(match.fields["folder"])) for match in paired.pairs}
    n_sites = Counter(folder for _, folder in at_sites)
    are_shared = len(n_sites) <= MAX_YEARS and 2 * sum(n > 1 for n in n_sites.values()) >= len(n_sites)
    return are_shared and not all(map(_PATIENT.fullmatch, n_sites))


def _odd_sites(sites: Sequence[str]) -> str:
    """Return what the names of sites look like, if they look like something else; or ""."""
    if any(map(is_part, sites)):
        return "parts of a split"
    if are_years(sites):
        return "years"
    is_numbered = len(sites) > 2 and len({re.sub("[0-9]{3,}$", "", name) for name in sites}) == 1
    has_dates = len(sites) > 2 and all(map(_DAY.search, sites))
    if is_numbered or has_dates or (len(sites) > 1 and all(map(_PATIENT.fullmatch, sites))):
        return "patients"
    return "folders of images and masks" if all(_word(site) in USUAL_WORDS for site in sites) else ""


def _describe(
    files: Files, tried: Sequence[Pairs], unknown: Sequence[str], of_site: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return the lines of the message that no usual pattern pairs every image; `of_site` are those of single sites."""
    if not (files.images or files.slices or unknown):
        return [f"{files.root}: the folder holds no image; expected images of two or more sites"]
    n_files = len(files.images) + len(files.slices) + len(unknown)
    examples = [*_examples(files, MAX_ROWS), *files.slices, *unknown][:MAX_EXAMPLES]
    lines = [
        f"{files.root}: no usual pattern pairs all {n_files} files, such as {', '.join(examples)}; expected an image "
        "and a mask of each case, or images in folders of classes"
    ]
    fits = {site: own for site, own in of_site.items() if own}
    missing = {*of_site} - {*fits}
    nearly = [one for one in tried if missing <= {*one.values("site")} and _settings(one) in fits.values()]
    rows = [("image", "mask", "paired", "left over")]
    for one in nearly[:1] or sorted(tried, key=lambda one: -len(one.pairs))[:MAX_ROWS]:
        if one.pairs and one.left:
            mask = one.layout.masks[0][1].text if one.layout.masks else "-"
            rows.append((one.layout.images[0].text, mask, str(len(one.pairs)), one.left[0]))
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if fits and not nearly:
        lines.append(f"no usual pattern pairs all files of {', '.join(sorted(missing))}; those of the other sites are")
        lines.append(f"  --set {shlex.quote(f'data.by_site={json.dumps(fits, ensure_ascii=False)}')}")
    if unknown:
        lines.append(f"{len(unknown)} files, such as {unknown[0]}, have a format that cannot be read; convert them")
    tops = sorted({path.partition("/")[0] for path in (*files.images, *files.slices)})
    if tops and all(_word(top) in USUAL_WORDS for top in tops):
        return [*lines, f"if {' and '.join(tops)} are the folders of one hospital, move them into a folder for it"]
    image, mask = rows[1][:2] if len(rows) > 1 else ("{site}/images/{case}.*", "{site}/masks/{case}_mask.*")
    shown = "such as" if len(rows) > 1 else "in this form"
    classes = "{class}"
    if files.images and {path.count("/") for path in files.images} == {3}:
        _, outer, inner, _ = ({*names} for names in zip(*(path.split("/") for path in files.images)))
        classes = "{class}/{patient}" if len(outer) < len(inner) else "{patient}/{class}"
    return [
        *lines,
        f"write the lines that are right for these files (each file that does not fit is then named), {shown}",
        f"  --set 'data.image={image}'" + f" --set 'data.mask={mask}'" * (mask != "-"),
        f"or the line for folders of classes, --set 'data.image={{site}}/{classes}/{{case}}.*', or list the "
        "images in a table (data.table); docs/how_to/own_images.md explains patterns, sites with other patterns, and "
        "files to leave out",
    ]
