"""From trained weights to a MONAI bundle that a hospital runs without medfed, with the same masks or classes."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from monai.data import save_net_with_metadata
from monai.networks.utils import convert_to_torchscript
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.federation.message import digest
from medfed.functional.weights import first_non_finite
from medfed.networks.base import NetworkSettings
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.configs import inference_config, metadata
from medfed.outputs.bundle.model_card import model_card, scores
from medfed.tasks.task import Task

PACKAGE = Path(__file__).parent.parent.parent
SHOWN_DIFFERENCES = 5

NetworkWrapper = Callable[[nn.Module], nn.Module]


def write_bundle(
    out: Path,
    *,
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    provenance: dict[str, Any],
    summary: dict[str, Any],
    input_is_2d: bool,
    wrap: NetworkWrapper | None = None,
) -> Path:
    """Write the bundle's folder, whole or not at all, and return it.

    Where the network can be neither scripted nor traced, `models/model.ts` is missing, and a warning says why.

    Args:
        out: a folder that does not exist yet; its name best ends in `_segmentation`, as MONAI Label infers the task
            from it (`_classification` where whole pictures are told apart).
        network, weights: the network and the state dict of what predicts.
        task: gives preprocessing, threshold, names and the template (`Task.bundle`).
        provenance: plain facts (JSON): sites, unseen_site, method, rounds, seed, data ("phantom" or "real") and so on.
        summary: as `Scoring.summarise` returns it, with what else the card should tell of the run
            (`medfed.outputs.bundle.model_card`).
        input_is_2d: the hospital's images are PNG pictures rather than NIfTI volumes; always so for classification.
        wrap: adds to the network what a method's predictions need (`Method.wrap_network`). MONAI cannot build that, so
            the bundle runs its TorchScript.

    Raises:
        UserError: if `out` exists, the weights do not fit or are not finite, or the result would not pass
            `check_bundle`.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with --out")
    bundle = task.bundle(input_is_2d)
    template = template_folder(bundle.folder)
    definition = None if wrap else network.network_def(task.channels, task.out_channels)
    module = load_trained_network(network, weights, task, wrap)
    facts = {**provenance, "weights_sha256": digest(safetensors.torch.save(module.state_dict()))}
    configs = {
        "inference": inference_config(template, bundle, definition),
        "metadata": metadata(template, bundle, facts, scores(summary)),
    }
    with _atomic_folder(out) as folder:
        for name, content in configs.items():
            _write(folder / "configs" / f"{name}.json", json.dumps(content, indent=4, allow_nan=False) + "\n")
        (folder / "models").mkdir()
        torch.save(module.state_dict(), folder / "models" / "model.pt")
        has_script = _save_script(folder / "models" / "model.ts", module, task, configs, needed=definition is None)
        names = ("torch", "monai", *configs["metadata"]["required_packages_version"], "fire")
        versions = {name: version(name).partition("+")[0] for name in names}
        card = model_card(template, bundle, module, facts, summary, versions, task.image_size, has_script)
        _write(folder / "docs" / "README.md", card)
        shutil.copyfile(template / "LICENSE", folder / "LICENSE")
        check_bundle(folder)
    return out


def template_folder(name: str) -> Path:
    """A template: in `bundles/` beside the package (a checkout), or in the package (an installed one)."""
    places = [PACKAGE.parent / "bundles" / name, PACKAGE / "bundles" / name]
    for place in places:
        if (place / "configs" / "inference.json").is_file():
            return place
    raise UserError(f"the bundle template is neither in {places[0]} nor in {places[1]}; install medfed again")


def load_trained_network(
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    wrap: NetworkWrapper | None = None,
) -> nn.Module:
    """The network with these weights, in evaluation mode, on the CPU; `wrap` as in `write_bundle`.

    Raises:
        UserError: with the first differences if the weights are of another network; or if one is not finite.
    """
    module = network.build(task.channels, task.out_channels)
    module = (wrap(module) if wrap else module).eval()
    expected = module.state_dict()
    if differences := list(_differences(expected, weights)):
        more = "" if len(differences) <= SHOWN_DIFFERENCES else f" and {len(differences) - SHOWN_DIFFERENCES} more"
        raise UserError(
            f"the weights do not fit {network} with {task.channels} channels in and {task.out_channels} out: "
            f"{'; '.join(differences[:SHOWN_DIFFERENCES])}{more}; are model and config of the same run?"
        )
    if name := first_non_finite(weights):
        raise UserError(f"the weights are not finite (first in '{name}'): training diverged, and there is no model")
    module.load_state_dict(dict(weights))
    return module


def _differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    for name in expected:
        if name not in found:
            yield f"'{name}' is missing"
        elif expected[name].shape != found[name].shape:
            yield f"'{name}' is {tuple(found[name].shape)}, expected {tuple(expected[name].shape)}"
    yield from (f"'{name}' is unknown" for name in found if name not in expected)


def _save_script(
    path: Path, module: nn.Module, task: Task, configs: dict[str, Any], needed: bool
) -> bool:
    """TorchScript with the configs inside, as `monai.bundle ckpt_export` writes it; whether that worked."""
    probe = torch.zeros(2, task.channels, task.image_size, task.image_size)
    probe[0, ..., ::3], probe[1, ..., ::2] = 1, 1  # two, as statistics of a batch may need more than one
    try:
        script = _to_torchscript(module, probe)
    except Exception as error:  # TorchScript raises whatever it meets: its own errors, NotSupportedError, OSError, ...
        reason = str(error).strip().partition("\n")[0]
        if needed:
            raise UserError(
                f"this network is not one of MONAI's and cannot be scripted ({reason}); choose another network.name"
            ) from error
        warnings.warn(f"the bundle has no models/model.ts: the network cannot be scripted ({reason})", stacklevel=3)
        return False
    inside = {"inference.json": json.dumps(configs["inference"]).encode()}
    save_net_with_metadata(script, str(path), include_config_vals=False, meta_values=configs["metadata"],
                           more_extra_files=inside)
    return True


@torch.no_grad()
def _to_torchscript(module: nn.Module, probe: Tensor) -> torch.jit.ScriptModule:
    """TorchScript of the same answers: scripted, or traced where layers hang on hooks, which cannot be scripted."""
    images = [probe, probe[:1], probe.mT.repeat(2, 1, 1, 1)]
    if has_hooks := any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # the comparison below tells what went wrong
            script = torch.jit.trace(module, probe)
    else:
        script = convert_to_torchscript(module)
    for image in images if has_hooks else images[:1]:  # a trace may have taken the number of images for a constant
        torch.testing.assert_close(script(image), module(image), rtol=1e-5, atol=1e-5)
    return script


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well, and vanishes when it does not."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out}: cannot write here ({error.strerror}); choose another folder with --out") from error
    try:
        yield unfinished
        os.rename(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
