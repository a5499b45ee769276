"""T2-weighted prostate MRI from six hospitals, whole gland: the collection of MS-Net and SAML (Liu et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monai.data import MetaTensor

from medfed.datasets.base import Card, Dataset
from medfed.datasets.case import Case
from medfed.images import reading

SITES = {  # name of the site: possible names of its folder; older copies use the second
    "RUNMC": ("RUNMC", "ISBI"),
    "BMC": ("BMC", "ISBI_1.5"),
    "I2CVB": ("I2CVB", "HCRUDB"),
    "UCL": ("UCL",),
    "BIDMC": ("BIDMC",),
    "HK": ("HK",),
}
LABELS = {0: (), 1: ("prostate",), 2: ("prostate",)}  # RUNMC and BMC mark two zones, the others the whole gland


@dataclass(frozen=True)
class Prostate(Dataset):
    """T2-weighted prostate MRI with masks of the whole gland; the fields are explained at `Dataset`."""

    card = Card(
        title="Prostate MRI, six hospitals",
        description="T2-weighted axial MRI of 116 patients from six hospitals, resized to 384 x 384 pixels in the "
        "slice plane, with masks of the whole gland: RUNMC 30, BMC 30, I2CVB 19, UCL 13, BIDMC 12, HK 12.",
        licence="Each source has its own terms for research use (NCI-ISBI 2013 on TCIA, I2CVB, PROMISE12); read them "
        "before you share anything.",
        citation="Liu, Dou, Heng, 'Shape-aware meta-learning for generalizing prostate MRI segmentation to unseen "
        "domains', MICCAI 2020; Liu, Dou, Yu, Heng, 'MS-Net: multi-site network for improving prostate segmentation "
        "with heterogeneous MRI data', IEEE TMI 2020; and the three sources: Bloch et al., NCI-ISBI 2013, TCIA; "
        "Lemaitre et al., Computers in Biology and Medicine 2015 (I2CVB); Litjens et al., Medical Image Analysis 2014 "
        "(PROMISE12).",
        how_to_get="Follow the download link on https://liuquande.github.io/SAML/ and unpack it so that the six "
        "folders lie in data/prostate; then run `python -m medfed.data check data/prostate`. The command "
        "`python -m medfed.data prepare prostate SOURCE... data/prostate` makes these folders from the downloads of "
        "the three sources. Without them, `if_missing: phantom` makes a synthetic phantom.",
        layout="ROOT/SITE/CaseNN.nii.gz with ROOT/SITE/CaseNN_segmentation.nii.gz, SITE one of "
        + ", ".join(" or ".join(names) for names in SITES.values()),
    )
    published_counts = {"RUNMC": 30, "BMC": 30, "I2CVB": 19, "UCL": 13, "BIDMC": 12, "HK": 12}

    image_patterns = ("{site}/{case:case[0-9]+}.nii*",)
    mask_patterns = ("{site}/{case:case[0-9]+}_segmentation.nii*",)
    site_folders = SITES
    channels = 1
    structures = ("prostate",)

    def case_name(self, site: str, values: Mapping[str, str]) -> str:
        """Return the name of a case as the collection writes it at most sites, such as "Case00"."""
        return values["case"].capitalize()

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        """Return the whole gland, (1, H, W, D): the values 1 and 2, which mark two zones at some sites."""
        labels = reading.read_labels(case.mask_path, notices)
        return reading.to_structures(case.mask_path, labels, LABELS, self.structures)
