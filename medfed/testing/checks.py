"""The rules that every method keeps, as checks that need no test framework.

`check_method` runs all of them; `method_checks` lists them, so that pytest can show each as a test of its own:

    @pytest.mark.parametrize("name, check", medfed.testing.method_checks(MyMethod))
    def test_contract(name, check):
        check()

The checks train toy federations of three sites on the CPU. They do not find wrong mathematics, such as a penalty with
the wrong sign (compare one step with numbers computed by hand), what the shared tensors reveal about images (`python -m
medfed.audit` measures it), in-place changes through NumPy or `tensor.data`, or faults that appear only on a GPU, with
absent sites or with large images.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.federation.method import Method
from medfed.functional.hooks import capture_features
from medfed.methods.fedavg import FedAvg
from medfed.methods.stack import Stack
from medfed.metrics.class_metric import ClassMetric, compute_class_metric
from medfed.metrics.mask_metric import MaskMetric, compute_mask_metrics
from medfed.metrics.metric import check_declarations
from medfed.networks.parts.base import NetworkSettings
from medfed.testing.rules import RULES, ContractError, check_settings, require
from medfed.testing.toy import IMAGE_SIDE, ToyClassification, ToySegmentation, ToyVolumes
from medfed.testing.trial import Trial

IMAGE_SIDES = (IMAGE_SIDE, 64, 128, 256)  # pixels; the smallest that fits the network is used
TOYS = {"segmentation": ToySegmentation, "classification": ToyClassification, "volumes": ToyVolumes}
N_IMAGES = 8  # two training steps per round


def check_method(
    method: Method | type[Method],
    *,
    network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str | None = None,
) -> None:
    """Check that a method obeys the rules of the base class `Method`, by training it in small simulated federations.

    Each rule is checked for the method alone and inside a stack (a combination of several methods), in about ten
    seconds on a CPU. The docstring of the module `medfed.testing.checks` says what is not checked.

    Args:
        method: the class, which must be usable with its default settings, or an object with the settings to check.
        network: settings of the network to train, its class or its name, such as "unet". A network with a decoder
            segments, any other classifies images of the smallest side of 32, 64, 128 or 256 pixels that fits. None
            takes a small U-Net for segmentation and a small DenseNet for classification.
        tasks: what the method is made for: "segmentation", "classification" and "volumes" (segmentation of patches), or
            a list of them. None takes the first two, and "volumes" if `method.dimensions` contains 3. If `network` is
            given, only the task of this network is checked, and `tasks` must contain it.

    Raises:
        ContractError: if the method breaks a rule; the first such rule is reported.
        ValueError: if `tasks` is empty, unknown or does not fit `network`, or if `network` is no network, needs
            settings without a default, or fits none of these sides.
    """
    for _, check in method_checks(method, network=network, tasks=tasks):
        check()


def method_checks(
    method: Method | type[Method],
    *,
    network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str | None = None,
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name and the function of every check that `check_method` runs, so that pytest can run each as a test.

    Arguments and errors are those of `check_method`.

    Yields:
        (name, check): a name such as `restart-segmentation-stack`, and a function without arguments that raises
        ContractError if the rule is broken.

    >>> from medfed.methods import FedProx
    >>> [name for name, _ in method_checks(FedProx, tasks=["segmentation"])][:3]
    ['settings', 'wrap_network-segmentation', 'messages-segmentation']
    """
    if tasks is None:
        tasks = [task for task in TOYS if task != "volumes" or 3 in method.dimensions]
    tasks = [tasks] if isinstance(tasks, str) else list(tasks)
    if not tasks or not set(tasks) <= set(TOYS):
        raise ValueError(f"tasks must be some of {', '.join(TOYS)}, got {tasks}")
    settings, side = None, IMAGE_SIDE
    if network is not None:
        settings, side = _settings_and_side(network)
        task = "segmentation" if settings.decoder_levels else "classification"
        if task not in tasks:
            raise ValueError(f"tasks is {tasks}, but {type(settings).__name__} is a network for {task}")
        tasks = [task]
    name = getattr(method, "__name__", type(method).__name__)
    yield "settings", partial(_checked, name, "settings", check_settings, method)
    for task in tasks:
        for is_stacked in (False,) if isinstance(method, Stack) else (False, True):
            trial = Trial(method, TOYS[task](settings, image_side=side, n_images=N_IMAGES), is_stacked)
            for rule, check in RULES.items():
                full = f"{rule}-{task}" + ("-stack" if is_stacked else "")
                yield full, partial(_checked, name, full, check, trial)


def check_network(network: NetworkSettings | type[NetworkSettings] | str) -> None:
    """Check that a network has the places that methods need, gives logits of the right shape, and can be federated.

    It is built, applied to two images, and trained by FedAvg in a small simulated federation. Not checked are other
    image sizes than the smallest of 32, 64, 128 and 256 pixels that fits, and whether the network learns well.

    Args:
        network: settings of the network, or their class or name, if all settings have a default.

    Raises:
        ContractError: if a rule is broken; the first such rule is reported.
        ValueError: as in `check_method`.
    """
    settings, side = _settings_and_side(network)
    built, name = settings.build(1, 3).eval(), type(settings).__name__
    known = dict(built.named_modules()).keys() - {""}
    places = ["head", "last_features", "encoder_stages", "decoder_levels", *["embedding"] * bool(settings.embedding)]
    for place in places:
        paths = getattr(settings, place)
        for path in (paths,) if isinstance(paths, str) else paths:
            require(path in known, f"{name}: {place}: the network has no submodule '{path}'")
    require(
        bool(settings.embedding) != bool(settings.decoder_levels),
        f"{name}: expected an embedding (classification) or decoder_levels (segmentation)",
    )
    received: list[torch.Tensor] = []
    before_head = settings.embedding or settings.last_features
    built.get_submodule(settings.head).register_forward_pre_hook(lambda module, inputs: received.append(inputs[0]))
    taps = (settings.last_features, *settings.encoder_stages)
    with torch.no_grad(), capture_features(built, (*taps, before_head)) as features:
        logits = built(torch.rand(2, 1, side, side))
    given = features[before_head]
    require(
        len(received) == 1 and torch.equal(received[0].flatten(1), given.flatten(1)),
        f"{name}: head: '{settings.head}' does not receive the output of '{before_head}', from which methods compute "
        "logits of their own",
    )
    expected = (2, 3) if settings.embedding else (2, 3, side, side)
    shape = tuple(logits.shape)
    require(shape == expected, f"{name}: build: expected logits {expected} of 3 outputs, got {shape}")
    for path in taps:
        require(features[path].ndim == 4, f"{name}: '{path}' does not output a feature map (B, C, H, W)")
    n_unique = len(list(built.named_parameters()))
    n_named = len(list(built.named_parameters(remove_duplicate=False)))
    require(n_named == n_unique, f"{name}: build: layers share weights, which would be averaged twice")
    check_method(FedAvg, network=settings)


def check_metric(metric: MaskMetric | ClassMetric) -> None:
    """Check that a metric declares what tables need, is best for a perfect prediction, and keeps to its limits.

    Raises:
        ContractError: if a rule is broken; the first such rule is reported.
        UserError: if the metric raises an error, or a missed structure is better than its worst value.
    """
    try:
        check_declarations([metric], ())
    except ValueError as error:
        raise ContractError(str(error)) from None
    perfect, *others = _class_values(metric) if isinstance(metric, ClassMetric) else _mask_values(metric)
    if perfect is None:
        raise ContractError(f"{metric.name}: value: unknown for a perfect prediction")
    if isinstance(metric, MaskMetric) and metric.accepts_empty_masks:
        require(
            None not in others, f"{metric.name}: accepts_empty_masks: no finite value for a missed or invented mask"
        )
    low, high = metric.limits or (-math.inf, math.inf)
    for value in (perfect, *(other for other in others if other is not None)):
        require(low <= value <= high, f"{metric.name}: limits: got {value}, expected a value in [{low}, {high}]")
        require(
            value <= perfect if metric.higher_is_better else value >= perfect,
            f"{metric.name}: higher_is_better is {metric.higher_is_better}, but a wrong prediction has {value} and a "
            f"perfect one {perfect}",
        )


def _mask_values(metric: MaskMetric) -> list[float | None]:
    """The values of a perfect prediction, and of a shifted, a larger, a smaller, a missing and an invented mask."""
    mask, shifted, larger, smaller, empty = torch.zeros(5, 12, 12, 4)
    mask[3:9, 3:9], shifted[5:11, 4:10], larger[1:11, 2:10], smaller[4:8, 5:8] = 1, 1, 1, 1
    pairs = ((mask, mask), *((other, mask) for other in (shifted, larger, smaller, empty)), (mask, empty))
    rows = [compute_mask_metrics([metric], *pair, (1.0, 1.0, 2.0), pair[0]) for pair in pairs]
    return [next((row[key] for key in row if key != "status" and row[key] is not None), None) for row in rows]  # type: ignore[misc]


def _class_values(metric: ClassMetric) -> list[float | None]:
    """The values of a perfect prediction of three classes, of an undecided and of a wrong one."""
    labels = np.arange(12) % 3
    predictions = (np.eye(3)[labels], np.full((12, 3), 1 / 3), np.eye(3)[(labels + 1) % 3])
    return [compute_class_metric(metric, probabilities, labels) for probabilities in predictions]


def _settings_and_side(network: NetworkSettings | type[NetworkSettings] | str) -> tuple[NetworkSettings, int]:
    """Return the settings, and the smallest of `IMAGE_SIDES` that the network can process."""
    settings: Any = resolve("networks", network) if isinstance(network, str) else network
    try:
        settings = settings() if isinstance(settings, type) else settings
    except (TypeError, ValueError) as error:
        raise ValueError(f"network: {settings.__name__} needs settings ({error}); pass an object with them") from None
    if not isinstance(settings, NetworkSettings):
        raise ValueError(f"network must be a name such as 'unet' or the settings of a network, got {network!r}")
    for side in IMAGE_SIDES:
        try:
            settings.check_image_size(side)
            return settings, side
        except UserError as error:
            reason = error
    raise ValueError(f"network: no image side of {', '.join(map(str, IMAGE_SIDES))} pixels fits: {reason}")


def _checked(method: str, name: str, check: Callable[[Any], None], subject: object) -> None:
    """Run one check; turn whatever it raises into a ContractError that names the method and the check."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(subject)
    except ContractError as error:
        raise ContractError(f"{method}: {name}: {error}") from None
    except Exception as error:  # code from outside medfed may raise anything
        raise ContractError(f"{method}: {name}: the method raised {type(error).__name__}: {error}") from error
