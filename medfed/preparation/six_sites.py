"""The six prepared sites of prostate MRI: the collection of MS-Net and SAML (Liu et al., 2020).

Layout, as https://liuquande.github.io/SAML/ distributes it and `medfed.datasets.prostate` reads it: one folder per site
(BIDMC, BMC, HK, I2CVB, RUNMC, UCL), with CaseNN.nii.gz and CaseNN_segmentation.nii.gz.

RUNMC may share patients with Task05_Prostate of the Medical Segmentation Decathlon, according to the README of
https://github.com/mzenk/segmentation_failures_benchmark: a network that was trained on one must not be tested on the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.case import Case
from medfed.datasets.prostate import SITES, Prostate
from medfed.preparation.entry import Content, Download, Entry, walk

TITLE = "six prepared sites"
LAYOUT = "SITE/CaseNN.nii.gz with SITE/CaseNN_segmentation.nii.gz, SITE one of " + ", ".join(SITES)
NOTES = (
    "RUNMC may share patients with Task05_Prostate of the Medical Segmentation Decathlon; do not pretrain on that "
    "collection and test on RUNMC",
)


def find(source: Path) -> Download | None:
    """Return the cases of the collection; the folder of the sites may lie at any depth. None if there is none."""
    for folder in walk(source):
        dataset = Prostate(root=str(folder))
        try:
            sites = dataset.find_sites()
        except UserError:
            continue
        entries = [entry for site, path in sites.items() for entry in _entries(dataset, site, path)]
        if any(entry.files for entry in entries):
            return Download(TITLE, tuple(entries), NOTES)
    return None


def _entries(dataset: Prostate, site: str, folder: Path) -> list[Entry]:
    cases, problems = dataset.find_cases(site, folder)
    usable = [Entry(site, case.name, partial(_files, dataset, case)) for case in cases]
    left_out = [problem.partition(": ") for problem in problems]
    return usable + [Entry(site, Path(path).name, None, reason) for path, _, reason in left_out]


def _files(dataset: Prostate, case: Case) -> Mapping[str, Content]:
    """Return the unchanged files of a case, after reading them."""
    dataset.load(case)
    parts = ((case.image, ""), (case.mask_path, "_segmentation"))
    return {f"{case.site}/{case.name}{part}{_suffix(path)}": path.read_bytes() for path, part in parts}


def _suffix(path: Path) -> str:
    return ".nii.gz" if path.name.lower().endswith(".gz") else ".nii"
