"""Write trained weights as a MONAI bundle, which gives the same predictions without medfed."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from monai.data import save_net_with_metadata
from monai.networks.utils import convert_to_torchscript
from torch import Tensor, nn

from medfed.core.errors import UserError, argument
from medfed.federation.message import digest
from medfed.functional.weights import first_non_finite
from medfed.networks.base import NetworkSettings
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.configs import inference_config, metadata, training_configs
from medfed.outputs.bundle.model_card import model_card, scores
from medfed.outputs.bundle.quality import BundleQuality, write_quality
from medfed.outputs.environment import installed_version
from medfed.tasks.bundle_training import LOGGING_CONF
from medfed.tasks.task import Task

PACKAGE = Path(__file__).parent.parent.parent
MAX_SHOWN_DIFFERENCES = 5

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
    quality: BundleQuality | None = None,
) -> Path:
    """Write a MONAI bundle with trained weights. If an error occurs, no folder is left.

    If the network cannot be converted to TorchScript, the bundle has no `models/model.ts`, and a warning gives the
    reason. A UserError is raised instead if MONAI cannot build the network, because the bundle then needs TorchScript.

    Args:
        out: folder to create; it must not exist. Its name should end in `_segmentation` or `_classification`, because
            MONAI Label infers the task from it.
        network: settings of the network.
        weights: all weights of the network (with the layers that `wrap` adds), by name.
        task: the task. It defines the preprocessing, the threshold, the names of structures or classes, and the
            bundle's template.
        provenance: how the model was trained, as plain JSON values: sites, unseen_site, method, rounds, seed, data
            ("phantom" for synthetic images, or "real") and others.
        summary: content of `summary.json`, for the scores and the remarks of the model card.
        input_is_2d: True if the input images are 2-D image files such as PNG (always for classification), False if they
            are NIfTI volumes.
        wrap: function that adds the layers of the federated method to the network (`Method.wrap_network`). None is for
            the plain network. MONAI cannot build added layers, so a bundle with added layers needs TorchScript.
        quality: the sites' local models and sums, for `medfed.score --no-labels`; None writes none. Not with `wrap`.

    Returns:
        `out`.

    Raises:
        UserError: if `out` exists, if the weights do not fit the network or are not finite, if a needed TorchScript
            cannot be made, or if the bundle does not pass `check_bundle`.
    """
    target = out.resolve()  # without steps such as `a/..`, which exist only once the folder `a` was created
    if target.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with {argument('out')}")
    bundle = task.bundle(input_is_2d)
    template = template_folder(bundle.folder)
    definition = None if wrap else network.network_def(task.channels, task.out_channels)
    module = load_trained_network(network, weights, task, wrap)
    facts = {**provenance, "weights_sha256": digest(safetensors.torch.save(module.state_dict()))}
    configs = {
        "inference": inference_config(template, bundle, definition),
        "metadata": metadata(template, bundle, facts, scores(summary)),
    }
    training = training_configs(bundle, configs["inference"], provenance) if definition else {}
    with atomic_folder(target) as folder:
        for name, content in {**configs, **training}.items():
            _write(folder / "configs" / f"{name}.json", json.dumps(content, indent=4, allow_nan=False) + "\n")
        _write(folder / "configs" / "logging.conf", LOGGING_CONF)
        (folder / "models").mkdir()
        stored = module.state_dict() if wrap else network.monai_weights(module, task.channels, task.out_channels)
        torch.save(stored, folder / "models" / "model.pt")
        has_script = _save_script(folder / "models" / "model.ts", module, task, configs, needed=definition is None)
        versions = {name: installed_version(name).partition("+")[0] for name in ("torch", "monai")}
        versions |= configs["metadata"]["required_packages_version"] | {"fire": installed_version("fire")}
        card = model_card(
            template, bundle, module, facts, summary, versions, task.image_size, has_script, bool(training)
        )
        _write(folder / "docs" / "README.md", card)
        if quality:
            write_quality(folder, quality, network, module, task.channels, task.out_channels)
        shutil.copyfile(template / "LICENSE", folder / "LICENSE")
        check_bundle(folder)
    return out


def template_folder(name: str) -> Path:
    """Return the folder of a bundle template: the parts of a bundle that are the same for every run.

    In a source checkout, the templates are in the folder `bundles/` next to the folder `medfed/`. In an installed
    package, they are in `medfed/bundles/`.

    Args:
        name: name of the template, for example "prostate_segmentation".

    Raises:
        UserError: if the template is missing.
    """
    places = [PACKAGE / "bundles" / name, PACKAGE.parent / "bundles" / name]
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
    """Build the network on the CPU with the given weights, in evaluation mode.

    Args:
        network: settings of the network.
        weights: all weights of the network (its state dict), by name.
        task: the task, which defines the numbers of input and output channels.
        wrap: function that adds the layers of the federated method to the network; None for the plain network.

    Returns:
        The network.

    Raises:
        UserError: if the weights do not fit the network, or if a weight is not finite. The message lists the first
            differences.
    """
    module = network.build(task.channels, task.out_channels)
    module = (wrap(module) if wrap else module).eval()
    expected = module.state_dict()
    if differences := list(_differences(expected, weights)):
        more = (
            "" if len(differences) <= MAX_SHOWN_DIFFERENCES else f" and {len(differences) - MAX_SHOWN_DIFFERENCES} more"
        )
        raise UserError(
            f"the weights do not fit {network} with {task.channels} channels in and {task.out_channels} out: "
            f"{'; '.join(differences[:MAX_SHOWN_DIFFERENCES])}{more}; check that model and config belong to one run"
        )
    if name := first_non_finite(weights):
        raise UserError(
            f"the weights are not finite (first in '{name}'): training diverged, so there is no model to export"
        )
    module.load_state_dict(dict(weights))
    return module


def _differences(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a text for every weight that is missing, unknown, or has another shape."""
    for name in expected:
        if name not in actual:
            yield f"'{name}' is missing"
        elif expected[name].shape != actual[name].shape:
            yield f"'{name}' is {tuple(actual[name].shape)}, expected {tuple(expected[name].shape)}"
    yield from (f"'{name}' is unknown" for name in actual if name not in expected)


def _save_script(
    path: Path, module: nn.Module, task: Task, configs: dict[str, Any], needed: bool
) -> bool:
    """Write TorchScript with the configs inside, as `monai.bundle ckpt_export` does; return whether that worked."""
    probe = torch.zeros(2, task.channels, task.image_size, task.image_size)
    probe[0, ..., ::3], probe[1, ..., ::2] = 1, 1  # two images, because batch statistics need more than one
    try:
        script = _to_torchscript(module, probe)
    except Exception as error:  # TorchScript raises many types: its own errors, NotSupportedError, OSError, ...
        reason = str(error).strip().partition("\n")[0]
        if needed:
            raise UserError(
                f"MONAI does not have this network, and TorchScript cannot compile it ({reason}); choose another "
                "network.name"
            ) from error
        warnings.warn(
            f"the bundle has no models/model.ts: TorchScript cannot compile the network ({reason})", stacklevel=3
        )
        return False
    inside = {"inference.json": json.dumps(configs["inference"]).encode()}
    save_net_with_metadata(script, str(path), include_config_vals=False, meta_values=configs["metadata"],
                           more_extra_files=inside)
    return True


@torch.no_grad()
def _to_torchscript(module: nn.Module, probe: Tensor) -> torch.jit.ScriptModule:
    """Compile the network: scripted, or traced if it has hooks, which cannot be scripted; then compare the outputs."""
    images = [probe, probe[:1], probe.mT.repeat(2, 1, 1, 1)]
    if has_hooks := any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # the comparison below detects a wrong trace
            script = torch.jit.trace(module, probe)
    else:
        script = convert_to_torchscript(module)
    for image in images if has_hooks else images[:1]:  # a trace may have fixed the batch size
        torch.testing.assert_close(script(image), module(image), rtol=1e-5, atol=1e-5)
    return script


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` if the block succeeds and is deleted if it fails.

    Args:
        out: the folder to create; it must not hold files.

    Raises:
        UserError: if the folder cannot be written.
    """
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise _write_error(out, error) from error
    try:
        yield unfinished
        try:
            os.rename(unfinished, out)
        except OSError as error:
            raise _write_error(out, error) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_error(out: Path, error: OSError) -> UserError:
    """Return the error about a folder that cannot be written."""
    return UserError(f"{out}: cannot write here ({error.strerror}); choose another folder with {argument('out')}")


def _write(path: Path, text: str) -> None:
    """Write a text file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
