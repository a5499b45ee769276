"""The files of a bundle from which `medfed.score --no-labels` predicts the Dice: local models, and the sites' sums.

`models/local_models/SITE.safetensors` has the weights of a site's local model, under the names of `models/model.pt`.
`docs/quality.json` has the sums and the facts about images of each site (`medfed.federation.quality`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from medfed.core import site_names
from medfed.core.errors import UserError
from medfed.federation.quality import check_json
from medfed.outputs.bundle.files import BundleFiles
from medfed.outputs.damaged_file import damaged_file
from medfed.outputs.run_folder import QUALITY_JSON, RunFolder

QUALITY_FILE = f"docs/{QUALITY_JSON}"
FOLDER, SUFFIX, MODEL = "models/local_models/", ".safetensors", "models/model.pt"
CARD_TITLE = "\n## Prediction without labels\n"  # the last section of the bundle's README
CARD = (
    CARD_TITLE
    + """
`python -m medfed.score BUNDLE IMAGES --no-labels` predicts the Dice on images without masks. For this, the bundle has
the local models of {sites} in `models/local_models/`, and sums of these sites in `docs/quality.json`. A local model
says more about the images of its site than the model of the bundle. MONAI does not use these files.
"""
)


@dataclass(frozen=True)
class BundleQuality:
    """What a run with `federation.predict_quality` adds: local models (site -> weights) and the content of
    `docs/quality.json`."""

    local_models: Mapping[str, Mapping[str, Tensor]]
    content: Mapping[str, Any]


def quality_of_run(folder: RunFolder, weights: Mapping[str, Tensor]) -> BundleQuality | None:
    """None without `federation.predict_quality`; entries of local models that are not among `weights` are left out."""
    if not (local_models := folder.load_result_models()):
        return None
    content = folder.read_json(QUALITY_JSON)
    with damaged_file(folder.path / QUALITY_JSON):
        check_json(content, str(folder.path / QUALITY_JSON))
    kept = {
        site: {name: entry for name, entry in of_site.items() if name in weights}
        for site, of_site in local_models.items()
    }
    return BundleQuality(kept, content)


def write_quality(
    folder: Path, quality: BundleQuality, module: nn.Module, stored_weights: Callable[[], Mapping[str, Tensor]]
) -> None:
    """Write the local models and `docs/quality.json` into a bundle, and a section into its `docs/README.md`.

    `stored_weights` returns the present weights of `module` under the names of `models/model.pt`; the weights of
    `module` are the same afterwards.
    """
    own = {name: entry.clone() for name, entry in module.state_dict().items()}
    (folder / FOLDER).mkdir()
    for site, weights in quality.local_models.items():
        module.load_state_dict(dict(weights))
        data = safetensors.torch.save({name: entry.contiguous() for name, entry in stored_weights().items()})
        (folder / f"{FOLDER}{site}{SUFFIX}").write_bytes(data)  # with the usual access rights, unlike `save_file`
    module.load_state_dict(own)
    sha256 = hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
    text = json.dumps({**quality.content, "model_sha256": sha256}, indent=2, sort_keys=True, allow_nan=False)
    (folder / QUALITY_FILE).write_text(text + "\n", encoding="utf-8")
    with (folder / "docs" / "README.md").open("a", encoding="utf-8") as card:
        card.write(CARD.format(sites=", ".join(sorted(quality.local_models))))


def site_of(name: str) -> str | None:
    """The site whose local model is in the file with this path in a bundle; None for other files."""
    site = name.removeprefix(FOLDER).removesuffix(SUFFIX)
    if name != f"{FOLDER}{site}{SUFFIX}":
        return None
    try:
        site_names.check([site])
    except ValueError:
        return None
    return site


def check_quality_files(files: BundleFiles) -> None:
    """Check the local models and `docs/quality.json` of a bundle; UserError if only one of the two is there or is
    damaged."""
    sites = {name: site for name in files.names if (site := site_of(name))}
    if bool(sites) != (QUALITY_FILE in files.names):
        raise UserError(f"{files.path}: has only one of {QUALITY_FILE} and {FOLDER}; copy the bundle again")
    for name in sites:
        with files.names[name]() as file:
            try:
                safetensors.torch.load(file.read())
            except Exception as error:  # safetensors raises its own error, and ValueError for a cut header
                raise UserError(f"{files.path}: {name} is damaged ({error}); copy the bundle again") from error
    if sites:
        try:
            check_json(files.json(QUALITY_FILE), QUALITY_FILE)
        except ValueError as error:
            raise UserError(f"{files.path}: {error}") from error
