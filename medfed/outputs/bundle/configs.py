"""Write the two configs of a bundle: `inference.json` (how to predict exactly as medfed does) and `metadata.json`.

Both start from the template in `bundles/`. Only values that depend on the run are replaced, as the task defines them
(`medfed.tasks.bundle_template`).
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
    """Create the content of `configs/inference.json`.

    Args:
        template: folder of the bundle template.
        bundle: the task's part of the template.
        network_def: definition of the network for MONAI's config parser; None loads the bundle's TorchScript instead.
    """
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or TORCHSCRIPT
    bundle.fill_inference(config)
    return config


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    """Create the content of `configs/metadata.json`.

    Args:
        template: folder of the bundle template.
        bundle: the task's part of the template.
        provenance: facts about the run, as plain JSON values.
        scores: scores by name, for `eval_metrics`.
    """
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
