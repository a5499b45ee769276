"""A MONAI bundle as a model that predicts masks or class probabilities; no code of the bundle runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import monai.inferers
import torch
from monai.data import MetaTensor
from monai.transforms import Activationsd, AsDiscreted, Compose
from torch import Tensor, nn

from medfed.core.errors import UserError, is_out_of_memory
from medfed.networks.parts.bundle_config import read_config
from medfed.outputs.bundle.check import open_bundle
from medfed.scoring.bundle_network import INFERENCE, METADATA, load_network
from medfed.scoring.bundle_steps import BundleSteps

BACKGROUND = "background"


@dataclass(frozen=True)
class BundleModel:
    """A bundle's network with its weights, and the steps before and after it."""

    path: Path
    network: nn.Module
    dimensions: int  # of the images that the network receives
    channels: int
    is_segmentation: bool
    names: Mapping[int, str]  # of each output by its number; for segmentation, the structures without the background
    preprocessing: Compose
    inferer: monai.inferers.Inferer
    postprocessing: Compose | None
    is_label_map: bool  # the postprocessing returns the number of a structure in each voxel, instead of masks
    first: int  # number of the output that the first channel of the masks shows
    about: Mapping[str, Any]  # what `summary.json` says about the bundle

    @torch.no_grad()
    def masks(self, image: MetaTensor, is_2d: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The masks (H, W, D), uint8 of 0 and 1, and the probabilities of an image (C, H, W, D), by structure; none if
        the bundle applies no sigmoid or softmax, or brings the masks to the file's grid after it has made them."""
        if self.postprocessing is None:
            raise TypeError("this bundle classifies images, so it has no masks")
        item = self._prepare(image, is_2d)
        prepared = item["image"]
        output = self._infer(prepared.as_tensor()[None])[0].cpu()
        item["pred"] = MetaTensor(output, meta=prepared.meta, applied_operations=prepared.applied_operations)
        steps = self.postprocessing.transforms
        at = next(place for place, step in enumerate(steps) if isinstance(step, AsDiscreted))
        item = self._call(Compose(steps[:at]), item, "postprocessing")
        values = item["pred"].as_tensor().clone()
        pred = self._call(Compose(steps[at:]), item, "postprocessing")["pred"].as_tensor()
        expected = (image.shape[2], image.shape[1]) if is_2d else tuple(image.shape[1:])
        if tuple(pred.shape[1:]) not in (expected, (*expected, 1)):
            raise UserError(
                f"{self.path}: the masks have the size {tuple(pred.shape[1:])}, but the image has "
                f"{expected}; expected an Invertd in the postprocessing"
            )
        masks = _as_read(pred, expected, is_2d)
        by_name = {
            name: (masks[0] == number if self.is_label_map else masks[number - self.first] > 0).to(torch.uint8)
            for number, name in self.names.items()
        }
        is_known = any(isinstance(step, Activationsd) for step in steps[:at])
        if not is_known or values.shape[1:] != pred.shape[1:] or max(self.names) >= len(values):
            return by_name, {}
        probabilities = _as_read(values, expected, is_2d)
        return by_name, {name: probabilities[number] for number, name in self.names.items()}

    @torch.no_grad()
    def probabilities(self, images: Sequence[MetaTensor]) -> Tensor:
        """Return the class probabilities (B, K), float64 on the CPU, of B images (C, H, W, 1) in [0, 255]."""
        prepared = [self._prepare(image, is_2d=True)["image"].as_tensor() for image in images]
        if len({image.shape for image in prepared}) > 1:
            outputs = torch.cat([self._infer(image[None]) for image in prepared])
        else:
            outputs = self._infer(torch.stack(prepared))
        return outputs.double().softmax(dim=1).cpu()

    def _prepare(self, image: MetaTensor, is_2d: bool) -> dict[str, MetaTensor]:
        """Apply the bundle's own transforms to an image."""
        plain = image.as_tensor()
        as_loaded = MetaTensor(plain[..., 0].mT.contiguous()) if is_2d else MetaTensor(plain, affine=image.affine)
        return self._call(self.preprocessing, {"image": as_loaded}, "preprocessing")

    def _infer(self, images: Tensor) -> Tensor:
        """Return the network's output (B, K, ...) for prepared images (B, C, ...)."""
        axes = 3 if isinstance(self.inferer, monai.inferers.SliceInferer) else self.dimensions
        if images.ndim != axes + 2:
            raise UserError(
                f"{self.path}: after the preprocessing, an image has {images.ndim - 2} axes, but the "
                f"{type(self.inferer).__name__} of the bundle expects {axes}; score other images"
            )
        device = next(self.network.parameters()).device
        return self._call(lambda batch: self.inferer(batch, self.network), images.to(device), "inferer")

    def _call(self, step: Callable[[Any], Any], argument: Any, part: str) -> Any:
        """Apply a step of the bundle; its errors become a UserError that names the part of the config."""
        try:
            return step(argument)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            cause = error.__cause__ or error  # MONAI hides the reason behind its own error
            raise UserError(
                f"{self.path / INFERENCE}: {part}: fails with these images ({type(cause).__name__}: "
                f"{str(cause).strip()[:200]}); score other images"
            ) from error


def _as_read(values: Tensor, size: tuple[int, ...], is_2d: bool) -> Tensor:
    """Return values (K, ...) on the grid that MONAI has, as (K, H, W, D) on the grid that medfed reads."""
    values = values.reshape(len(values), *size)
    return values.mT[..., None] if is_2d else values


def load_bundle(path: Path, device: torch.device) -> BundleModel:
    """Build the model of an unpacked bundle; UserError names the file and key that medfed cannot build or load."""
    files = open_bundle(path)
    if missing := [name for name in (INFERENCE, METADATA) if name not in files.names]:
        raise UserError(f"{path}: {missing[0]} is missing; expected a MONAI bundle with its configs as JSON")
    keys = ("preprocessing", "postprocessing", "inferer", "network_def")
    inference, metadata = read_config(path / INFERENCE, keys), files.json(METADATA)
    steps = BundleSteps(inference, str(path / INFERENCE))
    n_channels, n_outputs, definition = _outputs(metadata, path / METADATA)
    settings, network, description, weights = load_network(path, inference, metadata, n_channels, n_outputs)
    is_segmentation = bool(settings.decoder_levels)
    if not is_segmentation and sorted(definition) != list(range(n_outputs)):
        raise UserError(
            f"{path / METADATA}: network_data_format.outputs.pred.channel_def: names {len(definition)} "
            f"classes, but the network has {n_outputs} outputs; expected a name for each"
        )
    preprocessing = steps.preprocessing()
    is_label_map, first = steps.output_form() if is_segmentation else (False, 0)
    provenance = metadata.get("medfed_provenance")  # if medfed exported the bundle
    sites = provenance.get("sites") if isinstance(provenance, Mapping) else None
    about = {
        "name": str(metadata.get("name", path.name)),
        "version": str(metadata.get("version", "")),
        "network": description,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "inference_sha256": hashlib.sha256((path / INFERENCE).read_bytes()).hexdigest(),
        "trained_at": [str(site) for site in sites] if isinstance(sites, list) else [],
    }
    return BundleModel(
        path,
        network.to(device).eval(),
        settings.dimensions,
        n_channels,
        is_segmentation,
        _structures(definition, n_outputs, is_label_map) if is_segmentation else definition,
        preprocessing,
        steps.inferer(),
        steps.postprocessing(preprocessing) if is_segmentation else None,
        is_label_map,
        first,
        about,
    )


def _outputs(metadata: Mapping[str, Any], file: Path) -> tuple[int, int, dict[int, str]]:
    """Return the numbers of image channels and of outputs, and the names of the outputs."""
    try:
        data = metadata["network_data_format"]
        inputs, outputs = data["inputs"]["image"], data["outputs"]["pred"]
        n_channels, n_outputs, named = inputs["num_channels"], outputs["num_channels"], outputs["channel_def"]
        definition = {int(number): str(name) for number, name in named.items()}
        if type(n_channels) is not int or type(n_outputs) is not int or min(n_channels, n_outputs) < 1:
            raise ValueError("num_channels is not a whole number above 0")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{file}: network_data_format: does not describe the outputs ({error!r}); expected "
            "inputs.image.num_channels, outputs.pred.num_channels and outputs.pred.channel_def"
        ) from error
    return n_channels, n_outputs, definition


def _structures(definition: Mapping[int, str], n_outputs: int, is_label_map: bool) -> dict[int, str]:
    """Return the name of each structure by the number of its label or mask, without the background."""
    names = {number: name for number, name in sorted(definition.items()) if name.lower() != BACKGROUND}
    if not is_label_map and n_outputs == 1 and len(names) == 1:  # one mask, described as labels 0 and 1
        return {0: next(iter(names.values()))}
    return {number: name for number, name in names.items() if is_label_map or number < n_outputs}
