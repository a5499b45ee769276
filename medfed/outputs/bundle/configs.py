"""Write the configs of a bundle: `inference.json` (how to predict exactly as medfed does), `train.json` and others.

Values that depend on the run (`medfed.tasks.bundle_template`) are replaced in a template folder in `bundles/`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from medfed.federation.settings import Training
from medfed.outputs.bundle.program import PROGRAM_DEF
from medfed.outputs.environment import installed_version
from medfed.tasks.bundle_entries import Json
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.bundle_training import evaluate_config, train_config


def inference_config(template: Path, bundle: BundleTemplate, network_def: Json | None) -> Json:
    """The content of `inference.json`. With `network_def` None, because MONAI cannot build the network, the config
    loads the exported program `models/model.pt2`."""
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or PROGRAM_DEF
    bundle.fill_inference(config)
    return config


def training_configs(bundle: BundleTemplate, inference: Json, provenance: Json) -> dict[str, Json]:
    """The contents of `train.json` and `evaluate.json`, by "train" and "evaluate"; `inference` needs a network for
    MONAI."""
    training = {**asdict(Training()), **provenance.get("training_settings", {})}
    parts = bundle.training_parts(training, inference)
    return {"train": train_config(inference, parts, training), "evaluate": evaluate_config()}


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    """The content of `metadata.json`: versions, data, how the model was trained, and `scores` as `eval_metrics`."""
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= {
        "monai_version": installed_version("monai"),
        "pytorch_version": installed_version("torch").partition("+")[0],
        "numpy_version": installed_version("numpy"),
        "required_packages_version": {name: installed_version(name) for name in bundle.packages},
        "name": bundle.title,
        "data_source": provenance.get("dataset") or "not stated",
        "eval_metrics": scores,
        "references": [*content["references"], *provenance.get("method_references", ())],
        "medfed_provenance": {**provenance, "not_for_clinical_use": True},
    }
    bundle.fill_metadata(content)
    return content
