"""The two configs of a bundle: how to predict exactly as medfed does, and what the model is.

Both start from the files of the template in `bundles/`; only what depends on the run is replaced, by what the task
declares (`medfed.tasks.bundle_template`).
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from medfed.tasks.bundle_template import BundleTemplate, Json

TORCHSCRIPT = {
    "_target_": "torch.jit.load",
    "f": "$@bundle_root + '/models/model.ts'",
    "map_location": "@device",
}


def inference_config(template: Path, bundle: BundleTemplate, network_def: Json | None) -> Json:
    """`configs/inference.json`.

    Args:
        template: the folder of the template.
        network_def: the network in MONAI's words; None loads the bundle's TorchScript instead.
    """
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or TORCHSCRIPT
    bundle.fill_inference(config)
    return config


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    """`configs/metadata.json`; `scores` are plain numbers by name."""
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= {
        "monai_version": version("monai"),
        "pytorch_version": version("torch").partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {name: version(name) for name in bundle.packages},
        "name": bundle.title,
        "data_source": provenance.get("dataset") or "not stated",
        "eval_metrics": scores,
        "medfed_provenance": {**provenance, "not_for_clinical_use": True},
    }
    bundle.fill_metadata(content)
    return content
