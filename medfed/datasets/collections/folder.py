"""Your own images, with masks or classes: where the files lie is a pattern, or a table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from monai.data import MetaTensor

from medfed.core import registry
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import Problem, UserError
from medfed.datasets import check_classes, check_patients, check_sites, dicom_names, table
from medfed.datasets.base import Card, Contents, Dataset, describe_unread
from medfed.datasets.case import Case, MaskFile
from medfed.datasets.pairing import Layout, Match, parents
from medfed.datasets.part_names import is_part
from medfed.datasets.patterns import Pattern, compile_patterns
from medfed.datasets.walk import walk
from medfed.images import dicom, dicom_files, dicom_seg, pairs, reading, two_dimensional
from medfed.images.file_names import folded
from medfed.images.mask_colours import BACKGROUND, ColourEntry, read_coloured_mask, structures_by_colour

IMAGE, MASK = "{site}/images/{case}.*", "{site}/masks/{case}.*"  # without a pattern in the config
SITE_KEYS = (
    "image mask mask_values mask_colours background_value mask_threshold intensity_max resample_masks "
    "ignore_mask_geometry patient_pattern ignored_names dicom_series"
).split()
CHANNEL_SAMPLES = 4  # images of each site that are read before the number of channels is decided
Patterns = str | tuple[str, ...]


@dataclass(frozen=True)
class Folder(Dataset):
    """Your own images for segmentation (with masks) or classification (with `{class}` in the pattern of the images).

    The files are found by patterns of their paths below `root`, or listed in a table:

        image: "{site}/images/{case}.png"
        mask: "{site}/masks/{case}_mask.png"

    Each `{word}` is a field, and `*` and `?` match any characters without a name; `.*` at the end is the suffix of any
    image format. `{site}`, `{patient}` and `{class}` have a meaning; a case has the values of all its fields as name.
    An image and a mask belong together if all fields that both patterns have are equal. A file that a pattern of masks
    matches is no image. A field may have a regular expression, as `{case}_{eye:[LR]}.png`. Upper and lower case make no
    difference. A folder of DICOM files is an image; a pattern matches it by its path, as `{site}/{case}/t2`.
    `python -m medfed.init FOLDER` tries the usual patterns, and docs/how_to/own_images.md has examples.

    The fields that are not explained here are explained at `Dataset`.

    Args:
        image: pattern of the images, or a list of patterns, of which the first that matches a file counts. null is
            "{site}/images/{case}.*". If `sites` names a single site, the pattern needs no `{site}`.
        mask: pattern of the masks; a list of patterns, whose masks are joined; or the patterns of each structure, such
            as {disc: "{site}/disc/{case}.png", cup: "{site}/cup/{case}.png"}. A field that only the masks have, such as
            `{lesion}` in "{site}/masks/{case}_{lesion}.png", joins several masks of an image. null is
            "{site}/masks/{case}.*", or no mask if the images have a `{class}`.
        table: a CSV file that lists the cases instead of the patterns, with the columns site, image, mask or
            class, and optionally patient and split (train, validation, test). It lies in `root`, or anywhere with an
            absolute path. Paths in it are relative to its folder, or absolute.
        by_site: settings of single sites, such as {CHASEDB1: {mask: "{site}/1st/{case}_1stHO.png"}}. They replace the
            settings of the same names: image, mask, mask_values, mask_colours, background_value, mask_threshold,
            intensity_max (not of volumes), resample_masks, ignore_mask_geometry, patient_pattern, ignored_names,
            dicom_series.
        image_channels: number of image channels, at least 1: 1 for grey images, 3 for colour (grey ones are repeated
            three times), more for volumes with a fourth axis.
        structure_names: names of the structures that the masks show, at least one. If `mask` has a pattern for each
            structure, they are its names.
        class_names: names of the classes to use, at least two, in the order of the class numbers; an empty list uses
            all values of the field or column `class`, in alphabetical order.
        mask_values: the values in the mask file that belong to each structure, such as {disc: [0, 128], cup: [0]}. If
            it is empty, a single structure is the one value other than the background (1 or 255, for example), and
            several structures have the values 1, 2, ... in their order. The entry `background` lists values that belong
            to no structure, as in {lesion: [4], background: [1, 2]}. Of a DICOM SEG, they are numbers of segments.
        mask_colours: the colours of each structure, if the masks show structures in colours, such as
            {disc: ["#808080", "#000000"], cup: 0} or {lesion: [255, 0, 0]}: a grey value, a text in quotes with red,
            green and blue in hexadecimal, the three numbers, or a list of colours with such texts. The background is
            the grey value `background_value`, or the entry `background`. All other colours are refused, also those that
            JPEG has blurred. A mask with a single structure in one colour on black needs no entry.
        background_value: the value in the mask file that belongs to no structure.
        mask_threshold: for masks with soft edges or stored as JPEG that show a single structure: all values above this
            threshold are the structure. null expects exactly one value other than the background.
        intensity_max: the stored value that means white, above 0; 0 means black. 8-bit image files do not need it
            (255), image files with more bits do. For volumes, null maps the percentiles 0.5 and 99.5 to 0 and 1.
        resample_masks: true resamples a mask of another size to the size of its image, by nearest neighbour; false
            refuses such a mask.
        patient_pattern: regular expression that is searched in the name of a case without its site and class; its first
            group is the patient. All images of a patient (two eyes, two visits) then stay in the same part of a split.
            null takes the field or column `patient`, or the PatientID of DICOM images (the first field after the site
            if it is empty); without these, every image is a patient of its own.
        ignored_names: names of files and folders that are not read, such as ["*_2nd.png", preview]. A `*` stands for
            any characters.
        dicom_series: the SeriesDescription of the DICOM series to read, if a case has several. A `*` stands for any
            characters; upper and lower case are not distinguished. null expects one series per case.
        dicom_salt: path of the file with the secret that hides the identifiers of DICOM patients; it is created if it
            does not exist. null is the file `.medfed_dicom_salt` in `root`.
    """

    image: Patterns | None = None
    mask: Patterns | dict[str, Patterns] | None = None
    table: str | None = None
    by_site: dict[str, dict[str, Any]] = field(default_factory=dict)
    image_channels: PositiveInt = 1
    structure_names: tuple[str, ...] = ("foreground",)
    class_names: tuple[str, ...] = ()
    mask_values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mask_colours: dict[str, ColourEntry] = field(default_factory=dict)
    background_value: int = 0
    mask_threshold: float | None = None
    intensity_max: PositiveFloat | None = None
    resample_masks: bool = False
    patient_pattern: str | None = None
    ignored_names: tuple[str, ...] = ()
    dicom_series: str | None = None
    dicom_salt: str | None = None

    card: ClassVar[Card] = Card(
        title="Your own sites",
        description="Any images of two or more hospitals, with masks or classes.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Run `python -m medfed.data check ROOT`. It tries the usual patterns, and shows what to write if "
        "none fits.",
        layout="files that data.image and data.mask match, such as ROOT/SITE/images/NAME.png with "
        "ROOT/SITE/masks/NAME.png, or files that a table lists (data.table)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table is not None and (self.image is not None or self.mask is not None):
            raise ValueError("table replaces image and mask; remove them, or remove table")
        self._check_structures()
        images = [pattern for layout in self._layouts for pattern in layout.images]
        if len(self.sites) != 1 and (without := [one.text for one in self._layout.images if "site" not in one.fields]):
            raise ValueError(f"image: '{without[0]}' has no field {{site}}; add it, or name the only site in sites")
        if self.classifies_by_pattern and self.mask is not None:
            raise ValueError("an image has a {class} or a mask; remove the field {class} from image, or remove mask")
        if self.classifies_by_pattern and not all("class" in pattern.fields for pattern in images):
            raise ValueError("image: only some patterns have the field {class}; expected it in all or none")
        names = tuple(map(folded, self.class_names))
        if len(set(names)) < len(names) or len(names) == 1:
            raise ValueError(f"class_names must be empty or at least two different names, got {list(self.class_names)}")
        if self.patient_pattern is not None:
            try:
                groups = re.compile(self.patient_pattern).groups
            except (re.error, OverflowError) as error:
                raise ValueError(f"patient_pattern '{self.patient_pattern}' is invalid: {error}; correct it") from None
            if not groups:
                raise ValueError("patient_pattern has no group; put parentheses around the part that names the patient")

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        return None  # `medfed.datasets.recognition` tries the usual patterns

    @property
    def classifies_by_pattern(self) -> bool:
        """Whether the patterns of the images have the field `class`."""
        return any("class" in pattern.fields for layout in self._layouts for pattern in layout.images)

    def with_stored_channels(self, cases: Iterable[Case] | None = None) -> Folder:
        """As in `Dataset`: 1 channel if all 2-D files are grey. Volumes do not change the number."""
        if cases is None:
            every = self.contents.cases.values()
            cases = [case for of in every for case in of[:: max(1, len(of) // CHANNEL_SAMPLES)][:CHANNEL_SAMPLES]]
        paths = [case.image for case in cases if reading.is_2d_image_file(case.image)]
        return replace(self, image_channels=two_dimensional.needed_channels(paths)) if paths else self

    @property
    def channels(self) -> int:
        return self.image_channels

    @property
    def structures(self) -> tuple[str, ...]:
        if self.classifies_by_pattern or (self.table is not None and self.contents.classes):
            return ()
        return self.named_structures

    @property
    def named_structures(self) -> tuple[str, ...]:
        """The names of the structures by the settings."""
        return tuple(self.mask if isinstance(self.mask, Mapping) else self.structure_names)

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        """(0, 255) for 2-D image files; (0, `intensity_max`), if it is set, for volumes. UserError for a mixture of the
        two, or for an `intensity_max` of a single site with volumes."""
        images = [case.image for site in self.site_names() for case in self.contents.cases[site]]
        kinds = {reading.is_2d_image_file(path): path for path in images if path.is_dir() or reading.suffix(path)}
        if len(kinds) > 1:
            found = f"the images are 2-D image files, such as {kinds[True]}, and volumes, such as {kinds[False]}"
            raise Problem(
                "2-D images and volumes", self.root, f"{found}; expected one kind", "convert one kind to the other"
            )
        if True in kinds:
            return 0.0, 255.0
        if own := [site for site, values in self.by_site.items() if "intensity_max" in values]:
            found = f"data.by_site.{own[0]}.intensity_max is for 2-D image files, and the images are volumes"
            raise Problem("scale of one site", self.root, found, "set data.intensity_max, or null for percentiles")
        return None if self.intensity_max is None else (0.0, self.intensity_max)

    def scan(self) -> Contents:
        """Find the cases by the patterns or in the table; names of DICOM cases tell nothing about the patients."""
        root = Path(self.root)
        if self.table is not None:
            contents = self._scan_table(root, root / self.table)
        else:
            files = walk(root, self.ignored_names)
            contents = self.scan_layouts(files, self._layouts)
            if all(pattern.text.startswith("{site}/") for pattern in self._layout.images) and not contents.problems[""]:
                self._refuse_folders_without_images(root, contents)
            if contents.classes:
                check_classes.refuse_masks(contents)
        if len(contents.classes) == 1:
            found = f"found only the class '{contents.classes[0]}'; expected at least two classes"
            raise Problem("a single class", self.root, found, "add images of another class, or masks")
        series = {site: [case for case in cases if case.image.is_dir()] for site, cases in contents.cases.items()}
        if not self.sites and any(series.values()) and self.table is None:
            check_patients.refuse_patients_as_sites(root, {site: cases for site, cases in series.items() if cases})
        for site, cases in contents.cases.items():
            contents.cases[site] = self._hide_names(root, cases, series[site])
        unknown = [name for name in self.by_site if name not in contents.cases]
        contents.warnings[""] += [
            Problem("unknown site", "data.by_site", f"there is no site '{name}'", "") for name in unknown
        ]
        if not (self.table or self.sites):
            contents.warnings[""] += check_sites.site_warnings(root, contents, self._layout.images)
        return contents

    @cached_property
    def _layouts(self) -> list[Layout]:
        """The general patterns, and those of each site that has its own."""
        keys = {"image", "mask", "ignored_names"}
        return [self._layout, *(at._layout for site, at in self._at_site.items() if keys & {*self.by_site[site]})]

    @cached_property
    def _layout(self) -> Layout:
        """The patterns without those of single sites."""
        images = _compiled("image", self.image or IMAGE)
        mask: Patterns | Mapping[str, Patterns]
        mask = ({} if "class" in images[0].fields else MASK) if self.mask is None else self.mask
        by_structure = mask if isinstance(mask, Mapping) else {"": mask}
        masks = tuple((name, one) for name, patterns in by_structure.items() for one in _compiled("mask", patterns))
        return Layout(images, masks, self.sites[0] if len(self.sites) == 1 else "", self.ignored_names)

    def _scan_table(self, root: Path, path: Path) -> Contents:
        """Return the cases that the table lists."""
        contents = Contents()
        rows = table.read_table(path)
        if others := sorted(table.columns_of(path) - {*table.COLUMNS, ""}):
            found = f"not read: the columns {', '.join(others)}; the column of the patients is called 'patient'"
            warning = Problem("columns that are not read", path, found, "rename or remove the columns")
            contents.warnings[""].append(warning)
        if not (rows["mask"] != "").any():
            contents.classes = self.class_names_of(zip(rows["site"], rows["class"]))
        table.find_table_cases(path, rows, contents.classes, contents, self.patient_in_name)
        files = walk(root, self.ignored_names)
        listed = {os.path.abspath(path) for cases in contents.cases.values() for case in cases for path in case.files}
        left = [
            path
            for path in (*files.images, *files.slices)
            if listed.isdisjoint(os.path.abspath(root / part) for part in parents(path))
        ]
        contents.unread = describe_unread(root, left, "the table does not list them")
        return contents

    def class_names_of(self, classes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """As in `Dataset`, but `class_names`, if it is set."""
        names = super().class_names_of(classes)
        known = set(map(folded, names))
        if missing := [name for name in self.class_names if folded(name) not in known]:
            suggestion = registry.suggestion(missing[0], names)
            raise UserError(f"{self.root}: no image of the class '{missing[0]}'. {suggestion}")
        return self.class_names or names

    def patient_name(self, site: str, one: Match) -> str:
        """Return the patient by `patient_pattern`, else by the field `patient`, PatientID, or the first field."""
        image = Path(self.root) / one.path
        name = "/".join(value for key, value in one.fields.items() if key not in ("site", "class"))
        by_name = self.patient_in_name(site, name, image)
        if not by_name and "patient" not in one.fields and image.is_dir():
            folders = [part for part in name.split("/") if not is_part(part)] or [name]
            return dicom.patient_id(image, self._at(site).ignored_names) or folders[0]
        return by_name or one.fields.get("patient", "")

    def patient_in_name(self, site: str, name: str, image: Path) -> str:
        """Return the first group of `patient_pattern` in the name of a case; "" without a pattern."""
        pattern = self._at(site).patient_pattern
        if pattern is None:
            return ""
        match = re.search(pattern, name)
        if not (match and match[1]):
            found = f"data.patient_pattern '{pattern}' does not match the name '{name}'"
            cure = f"correct the pattern, set another one in data.by_site: {{{site}: {{...}}}}, or rename the file"
            raise Problem("name without a patient", image, found, cure)
        return match[1]

    def _refuse_folders_without_images(self, root: Path, contents: Contents) -> None:
        """Turn each folder where a site is expected, but of which no file is read, into a problem."""
        used = {folded(site) for site in (*contents.cases, *self.by_site)}
        for unread in list(contents.unread):
            folder = Path(unread.place).name
            if Path(unread.place) != root and folded(folder) not in used:
                cure = f"set image and mask in data.by_site: {{{folder}: {{...}}}}"
                cure = unread.cure or f"{cure}, or data.ignored_names: [{folder}] to leave the folder out"
                contents.unread.remove(unread)
                contents.cases[folder] = []
                kind = f"folder of which no file {'can be read' if unread.cure else 'fits'}"
                contents.problems[folder].append(Problem(kind, unread.place, unread.found, cure))

    def fit_mask(self, case: Case, image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
        """As in `Dataset`, after reordering the axes of a volume's mask and, with `resample_masks`, resampling a mask
        of another size."""
        return self._fit(case, image, case.mask_path, mask, notices)

    def _fit(self, case: Case, image: MetaTensor, path: Path, mask: MetaTensor, notices: list[str]) -> MetaTensor:
        """Return one of the masks of a case on the voxel grid of its image."""
        pairs.check_kinds(case.image, path)
        ignores = self._at(case.site).ignore_mask_geometry
        if case.image.is_dir() or not (ignores or reading.is_2d_image_file(case.image)):
            mask = pairs.reorder_mask(image, mask, notices)
        elif ignores and pairs.reorder_mask(image, mask, []) is not mask:
            notices.append("axes of the mask not reordered, although its header fits then (data.ignore_mask_geometry)")
        if self._at(case.site).resample_masks and image.shape[1:] != mask.shape[1:]:
            mask = pairs.resample_mask(case.image, image, path, mask)
            notices.append("mask resampled to the size of its image")
        pairs.check_pair(case.image, image, path, mask, ignores)
        return mask

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        own = self._at(case.site)
        if case.image.is_dir():
            series = dicom.read_series(case.image, own.dicom_series, own.ignored_names)
            return reading.check_image(case.image, series, self.channels, notices)
        return reading.read_image(case.image, self.channels, notices, own.intensity_max)

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        new: list[str] = []
        masks = [self._at(case.site)._read_mask_file(case, file, new) for file in case.masks]
        if not pairs.have_one_grid(masks):
            image = self.read_image(case, [])
            masks = [self._fit(case, image, file.path, mask, new) for file, mask in zip(case.masks, masks)]
        notices += [notice for notice in dict.fromkeys(new) if notice not in notices]
        return pairs.join_masks(masks) if len(masks) > 1 else masks[0]

    def _read_mask_file(self, case: Case, file: MaskFile, notices: list[str]) -> MetaTensor:
        """Read one mask file as (S, H, W, D), with zeros for the structures that it does not show by its pattern."""
        if not file.structure:
            return self._read_structures(case, file.path, self.structures, notices)
        mask = self._read_structures(case, file.path, (file.structure,), notices)
        channels = torch.zeros(len(self.structures), *mask.shape[1:], dtype=torch.uint8)
        channels[self.structures.index(file.structure)] = mask.as_tensor()[0]
        return MetaTensor(channels, affine=mask.affine, meta={"label_values": mask.meta["label_values"]})

    def _read_structures(self, case: Case, path: Path, names: Sequence[str], notices: list[str]) -> MetaTensor:
        """Read a DICOM SEG object, or a mask whose values or colours mean structures, as (S, H, W, D)."""
        values = {name: self.mask_values[name] for name in names if name in self.mask_values}
        background = (self.background_value, *self.mask_values.get(BACKGROUND, ()))
        if dicom_files.kind_of(path) == "segmentation":
            return dicom_seg.read_segmentation(path, self._grid(case), names, values, background, notices)
        if self.mask_colours:
            chosen = {name: colours for name, colours in self.mask_colours.items() if name in (*names, BACKGROUND)}
            by_colour = structures_by_colour(chosen, names, self.background_value)
            return read_coloured_mask(path, by_colour, names, notices)
        is_single = len(names) == 1 and not values
        mask = reading.read_labels(path, notices, self.mask_threshold, is_single and self.background_value == 0)
        labels: dict[int, tuple[str, ...]] = dict.fromkeys(background, ())
        if not is_single:
            for index, name in enumerate(names, 1):
                for value in values.get(name, (index,)):
                    labels[value] = (*labels.get(value, ()), name)
            return reading.to_structures(path, mask, labels, names)
        others = [value for value in reading.label_values(mask) if value not in background]
        if len(others) > 1:
            shown = f"{reading.format_values(others)}, and the background value {self.background_value}"
            found = f"the mask has the values {shown}; expected exactly one value in addition to the background value"
            if len(others) > 8 and not reading.is_2d_image_file(path):
                cure = "check whether this file is the mask and not the image; if its values are structures, set "
                cure += "data.structure_names and data.mask_values, and for soft edges data.mask_threshold"
                raise Problem("mask of several values", path, found, cure)
            is_soft = len(others) > 8 or path.suffix.lower() in (".jpg", ".jpeg")
            setting = f"mask_threshold: {128 if is_soft else 0}"
            if self.background_value or min(others) < 0:
                setting = f"mask_values: {{{names[0]}: {others}}}"
            when = "for soft edges or JPEG files" if is_soft else "if all are the structure"
            cure = f"{when}, set data.{setting}, or data.by_site: {{{case.site}: {{{setting}}}}}"
            cure += "" if is_soft else "; if they are several structures, set data.structure_names and data.mask_values"
            raise Problem("mask of several values", path, found, cure)
        return reading.to_structures(path, mask, labels | dict.fromkeys(others, tuple(names)), names)

    @cached_property
    def _at_site(self) -> dict[str, Folder]:
        """This dataset with the settings of each site in `by_site`; ValueError for a setting that is none."""
        at_site = {}
        for site, values in self.by_site.items():
            if wrong := [key for key in values if key not in SITE_KEYS]:
                raise ValueError(f"by_site.{site}.{wrong[0]}: unknown key. {registry.suggestion(wrong[0], SITE_KEYS)}")
            try:
                at_site[site] = replace(self, by_site={}, sites=(site,), **values)
            except ValueError as error:
                raise ValueError(f"by_site.{site}: {error}") from None
            if at_site[site].named_structures != self.named_structures:
                raise ValueError(f"by_site.{site}.mask must name the same structures as mask")
        return at_site

    def source_of(self, site: str) -> str:
        """Return the patterns of a site, such as "{site}/images/{case}.* with {site}/masks/{case}.*", or the table."""
        return self.table or self._at(site)._layout.text

    def _at(self, site: str) -> Folder:
        """Return this dataset with the settings of a site."""
        return self._at_site.get(site, self)

    def _grid(self, case: Case) -> dicom_seg.Grid:
        """Return the voxel grid of the image of a case, on which a DICOM SEG mask is placed."""
        if case.image.is_dir():
            stack = dicom.find_stack(case.image, self.dicom_series, self.ignored_names)
            return dicom_seg.Grid(
                case.image, stack.shape, stack.affine, dicom.text(stack.slices[0], "FrameOfReferenceUID")
            )
        image = self.read_image(case, [])
        return dicom_seg.Grid(case.image, tuple(image.shape[1:]), image.affine.numpy())

    def _hide_names(self, root: Path, cases: list[Case], series: Sequence[Case]) -> list[Case]:
        """Replace the names of the DICOM cases of a site by names that tell nothing about the patients."""
        if not series:
            return cases
        salt = dicom_names.read_salt(Path(self.dicom_salt) if self.dicom_salt else root / dicom_names.SALT_FILE)
        hidden = set(series)
        return [dicom_names.hide_names(case, salt) if case in hidden else case for case in cases]

    def _check_structures(self) -> None:
        names, values, is_mapping = self.named_structures, dict(self.mask_values), isinstance(self.mask, Mapping)
        if values and BACKGROUND in names:
            raise ValueError(f"mask_values: {BACKGROUND} lists values of no structure; give the structure another name")
        of_no_structure = values.pop(BACKGROUND, ())
        if not names or len(set(names)) < len(names):
            raise ValueError(f"structure_names must be one or more different names, got {list(names)}")
        if tuple(self.structure_names) not in (("foreground",), names):
            raise ValueError(f"structure_names are those of mask, {list(names)}, got {list(self.structure_names)}")
        wrong = set(values) - set(names) if is_mapping else set(values) ^ set(names)
        if self.mask_values and (wrong or not all(self.mask_values.values())):
            raise ValueError(f"mask_values must assign values to each of {list(names)}, got {dict(self.mask_values)}")
        for value in (self.background_value, *of_no_structure):
            if any(value in numbers for numbers in values.values()):
                raise ValueError(f"the value {value} of the background also belongs to a structure in mask_values")
        if self.mask_colours and (self.mask_values or self.mask_threshold is not None):
            raise ValueError("mask_colours replaces mask_values and mask_threshold; remove them, or mask_colours")
        if self.mask_colours:
            structures_by_colour(self.mask_colours, names, self.background_value)
        if self.mask_threshold is not None and (self.mask_values or (len(names) > 1 and not is_mapping)):
            raise ValueError("mask_threshold needs a single structure without mask_values; remove one of the settings")


def _compiled(key: str, texts: Patterns) -> tuple[Pattern, ...]:
    try:
        return compile_patterns((texts,) if isinstance(texts, str) else texts)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
