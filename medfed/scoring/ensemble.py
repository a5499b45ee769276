"""A bundle with the local models of the sites that trained it: an ensemble whose agreement predicts the Dice."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from monai.data import MetaTensor
from monai.transforms import Compose, NormalizeIntensityd
from torch import Tensor

from medfed.core.errors import UserError
from medfed.functional.dice_prediction import Calibration, PairSums, agreement
from medfed.functional.image_facts import facts_as_read, facts_of_prepared
from medfed.networks import pretrained
from medfed.outputs.bundle.files import open_bundle
from medfed.outputs.bundle.quality import QUALITY_FILE, check_quality_files, site_of
from medfed.scoring.bundle_model import BundleModel, load_bundle

HOW_TO_GET = (
    "export a run that was trained with federation.predict_quality: true, or score with labels, without --no-labels"
)


@dataclass(frozen=True)
class Ensemble:
    """The federated model of a bundle, the local models of its sites, and what the sites reported.

    Args:
        model: the federated model.
        members: by name of the site, the bundle with the local model of the site.
        content: content of `docs/quality.json`.
    """

    model: BundleModel
    members: Mapping[str, BundleModel]
    content: Mapping[str, Any]

    def calibration(self, structure: str) -> Calibration | None:
        """Return the line from the agreement to the Dice of a structure; None if the sites reported too few patients.

        Args:
            structure: the bundle's name of the structure.
        """
        by_site = {
            site: PairSums(**reply["calibration"][structure])
            for site, reply in self.content["sites"].items()
            if structure in reply["calibration"]
        }
        return Calibration.fit(by_site)

    def predict(self, image: MetaTensor, is_2d: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Predict the masks of one image, and how far the local models agree with them.

        Args:
            image: (C, H, W, D), as medfed reads it.
            is_2d: whether the image is a 2-D image file.

        Returns:
            By name of a structure, the mask (H, W, D) of the federated model; and its mean Dice with the masks of the
            local models, in [0, 1].
        """
        masks, _ = self.model.masks(image, is_2d)
        of_members = [member.masks(image, is_2d)[0] for member in self.members.values()]
        return masks, {
            name: agreement(mask, [of_member[name] for of_member in of_members]) for name, mask in masks.items()
        }

    def image_facts(self, image: MetaTensor, is_2d: bool, spacing_mm: Sequence[float] | None) -> Tensor:
        """Compute the facts about an image that the sites reported about theirs.

        Args:
            image: (C, H, W, D), as medfed reads it.
            is_2d: whether the image is a 2-D image file.
            spacing_mm: voxel size along H, W, D in mm; None if the file does not store it.

        Returns:
            (13,) float64, in the order of `medfed.functional.image_facts.NAMES`, NaN where a fact is not known.
        """
        steps = [step for step in self.model.preprocessing.transforms if not isinstance(step, NormalizeIntensityd)]
        prepared = replace(self.model, preprocessing=Compose(steps)).prepare(image, is_2d)
        slices = (prepared[..., None] if prepared.ndim == 3 else prepared).movedim(-1, 0)
        return torch.cat([facts_as_read(image.as_tensor(), spacing_mm), facts_of_prepared(slices)])


def load_ensemble(path: Path, device: torch.device) -> Ensemble:
    """Read a bundle with the local models of its sites. No code of the bundle runs.

    Args:
        path: folder of the unpacked bundle.
        device: device of the networks.

    Raises:
        UserError: if the bundle cannot be used, classifies images, or has no local models.
    """
    model = load_bundle(path, device)
    if not model.is_segmentation:
        raise UserError(
            f"{path}: the bundle classifies images, and the Dice is predicted for segmentation only; score "
            "it with labels, without --no-labels"
        )
    with open_bundle(path) as files:
        check_quality_files(files)
        names = {site: name for name in files.names if (site := site_of(name))}
        if not names:
            raise UserError(f"{path}: has no local models of the sites, so that no Dice can be predicted; {HOW_TO_GET}")
        content = files.json(QUALITY_FILE)
    if content.get("model_sha256") != model.facts["weights_sha256"]:
        raise UserError(
            f"{path}: {QUALITY_FILE}: its sums were measured with other weights than those in models/, so "
            "that no Dice can be predicted; score the bundle with labels, or copy the exported bundle "
            "again"
        )
    return Ensemble(model, {site: _member(model, path / name) for site, name in names.items()}, content)


def _member(model: BundleModel, weights: Path) -> BundleModel:
    """Return the bundle with the weights of a local model."""
    network = copy.deepcopy(model.network)
    if notices := pretrained.load_matching_weights(network, weights, (), model.translate_weight_name):
        raise UserError(f"{notices[0]}; expected weights of the bundle's own network; copy the bundle again")
    return replace(model, network=network)
