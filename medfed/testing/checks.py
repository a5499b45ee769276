"""The rules that every method keeps, as checks that need no test framework.

`check_method` runs all of them; `method_checks` lists them, so that pytest can show each as a test of its own:

    @pytest.mark.parametrize("name, check", medfed.testing.method_checks(MyMethod))
    def test_contract(name, check):
        check()

The checks train toy federations of three sites for two rounds (`medfed.testing.toy`). The checks say whether a method
works in a federation: whether results depend on the order of the sites, whether a run can be continued after a restart,
whether only tensors leave a site. The checks do NOT test

- the method's mathematics: a method whose penalty has the wrong sign, or that averages the wrong tensors, passes.
  Compare one step with numbers that you computed by hand or with the authors' code;
- privacy: what the shared tensors reveal about the images (`python -m medfed.audit` measures it);
- a GPU: the checks run on the CPU. Random numbers from torch's global generator are reproducible there, but differ on
  a GPU; only the generator that a hook receives gives the same numbers on both;
- in-place changes through NumPy or `tensor.data`, which torch does not count, or of the statistics that `share` reads;
- rounds without some of the sites, large images, memory and time.
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
from medfed.testing.rules import FIRST_TASK_RULES, MASK_RULES, RULES, ContractError, check_settings
from medfed.testing.toy import IMAGE_SIDE, ToyClassification, ToySegmentation
from medfed.testing.trial import Trial

IMAGE_SIDES = (IMAGE_SIDE, 64, 128, 256)  # pixels; the smallest that fits the network is used
TOYS: dict[str, type[ToySegmentation] | type[ToyClassification]] = {
    "segmentation": ToySegmentation,
    "classification": ToyClassification,
}
N_IMAGES = 8  # two training steps per round
Check = Callable[[], None]


def check_method(
    method: Method | type[Method],
    *,
    network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str = tuple(TOYS),
) -> None:
    """Check that a method obeys the rules of the base class `Method`, by training it in small simulated federations.

    Each rule is checked for the method alone and inside a stack (a combination of several methods), in about ten
    seconds on a CPU. The docstring of the module `medfed.testing.checks` says what is not checked.

    Args:
        method: the class, which must be usable with its default settings, or an object with the settings to check.
        network: settings of the network to train, its class or its name, such as "unet". The network decides the task:
            a network with a decoder segments, any other classifies. The images have the smallest side of 32, 64, 128 or
            256 pixels that fits the network. None takes a small U-Net for segmentation and a small DenseNet for
            classification.
        tasks: what the method is made for: "segmentation", "classification" or a list of both. If `network` is given,
            only the task of this network is checked, and `tasks` must contain it.

    Raises:
        ContractError: if the method breaks a rule; the first such rule is reported.
        ValueError: if `tasks` is empty, names an unknown task or does not fit `network`, or if `network` is no network,
            needs settings without a default, or does not fit images of any of these sides.

    Example::

        medfed.testing.check_method(MyMethod, tasks=["segmentation"])
    """
    for _, check in method_checks(method, network=network, tasks=tasks):
        check()


def method_checks(
    method: Method | type[Method],
    *,
    network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str = tuple(TOYS),
) -> Iterator[tuple[str, Check]]:
    """Yield the name and the function of every check that `check_method` runs, so that pytest can run each as a test.

    Arguments and errors are those of `check_method`.

    Yields:
        (name, check): a name such as `restart-segmentation-stack`, and a function without arguments that raises
        ContractError if the rule is broken. The checks of one task use the same training run, which starts when the
        first of these checks is called.

    >>> from medfed.methods import FedProx
    >>> [name for name, _ in method_checks(FedProx, tasks=["segmentation"])][:3]
    ['settings', 'wrap_network-segmentation', 'messages-segmentation']
    """
    tasks = [tasks] if isinstance(tasks, str) else list(tasks)
    if not tasks or not set(tasks) <= set(TOYS):
        raise ValueError(f"tasks must be some of {', '.join(TOYS)}, got {tasks}")
    settings, side = None, IMAGE_SIDE
    if network is not None:
        settings = _network_settings(network)
        side = _image_side(settings)
        task = "segmentation" if settings.decoder_levels else "classification"
        if task not in tasks:
            raise ValueError(f"tasks is {tasks}, but {type(settings).__name__} is a network for {task}")
        tasks = [task]
    name = getattr(method, "__name__", type(method).__name__)
    yield "settings", partial(_checked, name, "settings", check_settings, method)
    for task in tasks:
        for is_stacked in (False,) if isinstance(method, Stack) else (False, True):
            trial = Trial(method, TOYS[task](settings, image_side=side, n_images=N_IMAGES), is_stacked)
            is_first = task == tasks[0]
            for rule, check in {
                **RULES,
                **(FIRST_TASK_RULES if is_first else {}),
                **(MASK_RULES if task == "segmentation" else {}),
            }.items():
                full = f"{rule}-{task}" + ("-stack" if is_stacked else "")
                yield full, partial(_checked, name, full, check, trial)


def check_network(network: NetworkSettings | type[NetworkSettings] | str) -> None:
    """Check that a network has the places that methods need, gives logits of the right shape, and can be federated.

    It is built twice, applied to two images, and trained by FedAvg in a small simulated federation. Not checked are
    other image sizes than the smallest of 32, 64, 128 and 256 pixels that fits, and whether the network learns well.

    Args:
        network: settings of the network, or their class or name, if all settings have a default.

    Raises:
        ContractError: if a rule is broken; the first such rule is reported.
        ValueError: as in `check_method`.
    """
    settings = _network_settings(network)
    side, name = _image_side(settings), type(settings).__name__
    built = settings.build(1, 3).eval()
    places = {
        "head": (settings.head,),
        "last_features": (settings.last_features,),
        "encoder_stages": settings.encoder_stages,
        "decoder_levels": settings.decoder_levels,
        "embedding": (settings.embedding,) * bool(settings.embedding),
    }
    for rule, paths in places.items():
        known = dict(built.named_modules()).keys() - {""}
        if wrong := [path for path in paths if path not in known]:
            raise ContractError(f"{name}: {rule}: the network has no submodule '{wrong[0]}'")
    if bool(settings.embedding) == bool(settings.decoder_levels):
        raise ContractError(f"{name}: expected an embedding (classification) or decoder_levels (segmentation)")
    with torch.no_grad(), capture_features(built, (settings.last_features, *settings.encoder_stages)) as features:
        logits = built(torch.rand(2, 1, side, side))
    expected = (2, 3) if settings.embedding else (2, 3, side, side)
    if tuple(logits.shape) != expected:
        raise ContractError(f"{name}: build: expected logits {expected} of 3 outputs, got {tuple(logits.shape)}")
    if wrong := [path for path, feature in features.items() if feature.ndim != 4]:
        raise ContractError(f"{name}: '{wrong[0]}' does not output a feature map (B, C, H, W)")
    names = [name for name, _ in built.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(built.named_parameters())):
        raise ContractError(f"{name}: build: layers share weights, which would be averaged twice")
    check_method(FedAvg, network=settings)


def check_metric(metric: MaskMetric | ClassMetric) -> None:
    """Check that a metric declares what tables need, is best for a perfect prediction, and keeps to its limits.

    Raises:
        ContractError: if a rule is broken; the first such rule is reported.
        UserError: if the metric raises an error, or a missed structure is better than its worst value.
    """
    name = type(metric).__name__
    try:
        check_declarations([metric], ())
    except ValueError as error:
        raise ContractError(str(error)) from None
    perfect, others = _class_values(metric) if isinstance(metric, ClassMetric) else _mask_values(metric)
    if perfect is None:
        raise ContractError(f"{name}: value: unknown for a perfect prediction")
    for value in (perfect, *others):
        low, high = metric.limits or (-math.inf, math.inf)
        if value is not None and not low <= value <= high:
            raise ContractError(f"{name}: limits: got {value}, expected a value in [{low}, {high}]")
        if value is not None and (value > perfect if metric.higher_is_better else value < perfect):
            better = "higher" if metric.higher_is_better else "lower"
            raise ContractError(f"{name}: higher_is_better: {value} of a wrong prediction is {better} than {perfect}")


def _mask_values(metric: MaskMetric) -> tuple[float | None, list[float | None]]:
    """The value of a perfect prediction, and those of shifted, missing and invented masks."""
    mask, shifted, empty = torch.zeros(3, 12, 12, 4)
    mask[3:9, 3:9], shifted[5:11, 4:10] = 1, 1
    pairs = ((mask, mask), (shifted, mask), (empty, mask), (mask, empty))
    rows = [compute_mask_metrics([metric], *pair, (1.0, 1.0, 2.0), pair[0]) for pair in pairs]
    values = [next((row[key] for key in row if key != "status" and row[key] is not None), None) for row in rows]
    return values[0], values[1:]  # type: ignore[return-value]


def _class_values(metric: ClassMetric) -> tuple[float | None, list[float | None]]:
    """The value of a perfect prediction of three classes, and those of an undecided and of a wrong one."""
    labels = np.arange(12) % 3
    perfect, even = np.eye(3)[labels], np.full((12, 3), 1 / 3)
    others = [compute_class_metric(metric, values, labels) for values in (even, np.eye(3)[(labels + 1) % 3])]
    return compute_class_metric(metric, perfect, labels), others


def _network_settings(network: NetworkSettings | type[NetworkSettings] | str) -> NetworkSettings:
    cls = resolve("networks", network) if isinstance(network, str) else network
    if isinstance(cls, type) and issubclass(cls, NetworkSettings):
        try:
            return cls()
        except (TypeError, ValueError) as error:
            raise ValueError(f"network: {cls.__name__} needs settings ({error}); pass an object with them") from None
    if not isinstance(cls, NetworkSettings):
        raise ValueError(f"network must be a name such as 'unet' or the settings of a network, got {network!r}")
    return cls


def _image_side(settings: NetworkSettings) -> int:
    """Return the smallest of some image sides in pixels that fits a network; ValueError if none does."""
    for side in IMAGE_SIDES:
        try:
            settings.check_image_size(side)
            return side
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
