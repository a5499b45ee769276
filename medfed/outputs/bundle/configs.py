"""Write the configs of a bundle: `inference.json` (how to predict exactly as medfed does), `train.json` and others.

Both start from the template in `bundles/`. Only values that depend on the run are replaced, as the task defines them
(`medfed.tasks.bundle_template`).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from medfed.core.errors import UserError
from medfed.federation.settings import Training
from medfed.outputs.bundle.program import PROGRAM_DEF
from medfed.outputs.environment import installed_version
from medfed.tasks.bundle_entries import Json
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.bundle_training import evaluate_config, train_config

NOT_INSTALLED = {"pydicom": "3.0.1"}  # the version to state if the package is not installed here


def inference_config(template: Path, bundle: BundleTemplate, network_def: Json | None) -> Json:
    """Create the content of a bundle's `configs/inference.json`, which tells MONAI how to predict as medfed does.

    Args:
        template: folder with the parts of the bundle that are the same for every run. Its file `configs/inference.json`
            is read and completed; the file itself is not changed.
        bundle: object that fills in preprocessing and other entries that depend on the task and the run.
        network_def: the description from which MONAI's config parser builds the network ("_target_" and arguments).
            None is for networks that MONAI cannot build: the config then loads the exported program `models/model.pt2`.

    Returns:
        The config as plain JSON values.
    """
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or PROGRAM_DEF
    bundle.fill_inference(config)
    return config


def training_configs(bundle: BundleTemplate, inference: Json, provenance: Json) -> dict[str, Json]:
    """Create the contents of `configs/train.json` and `configs/evaluate.json`, by the names "train" and "evaluate".

    Args:
        bundle: object that knows the transforms, the loss and the metric of the task.
        inference: content of `configs/inference.json`, whose network MONAI can build.
        provenance: how the model was trained. The optimiser's settings are those under "training_settings"; without
            them, the defaults of a config.
    """
    training = {**asdict(Training()), **provenance.get("training_settings", {})}
    parts = bundle.training_parts(training, inference)
    return {"train": train_config(inference, parts, training), "evaluate": evaluate_config()}


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    """Create the content of a bundle's `configs/metadata.json`: versions, data, scores, and how the model was trained.

    Args:
        template: folder with the parts of the bundle that are the same for every run. Its file `configs/metadata.json`
            is read and completed; the file itself is not changed.
        bundle: object that fills in the entries that depend on the task.
        provenance: how the model was trained (sites, method, rounds and others), as plain JSON values.
        scores: mean scores by name, for the entry `eval_metrics`, for example {"unseen_prostate_dice": 0.85}.

    Returns:
        The metadata as plain JSON values.
    """
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= {
        "monai_version": installed_version("monai"),
        "pytorch_version": installed_version("torch").partition("+")[0],
        "numpy_version": installed_version("numpy"),
        "required_packages_version": {name: _version(name) for name in bundle.packages},
        "name": bundle.title,
        "data_source": provenance.get("dataset") or "not stated",
        "eval_metrics": scores,
        "references": [*content["references"], *provenance.get("method_references", ())],
        "medfed_provenance": {**provenance, "not_for_clinical_use": True},
    }
    bundle.fill_metadata(content)
    return content


def _version(package: str) -> str:
    """Return the installed version of a package; a bundle may need a package that medfed itself does not need."""
    try:
        return installed_version(package)
    except UserError:
        if package in NOT_INSTALLED:
            return NOT_INSTALLED[package]
        raise
