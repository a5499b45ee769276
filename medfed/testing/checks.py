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

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.federation.method import Method
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
        for is_stacked in (False, True):
            trial = Trial(method, TOYS[task](settings, image_side=side, n_images=N_IMAGES), is_stacked)
            is_first = task == tasks[0]
            for rule, check in {
                **RULES,
                **(FIRST_TASK_RULES if is_first else {}),
                **(MASK_RULES if task == "segmentation" else {}),
            }.items():
                full = f"{rule}-{task}" + ("-stack" if is_stacked else "")
                yield full, partial(_checked, name, full, check, trial)


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
