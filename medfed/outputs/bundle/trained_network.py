"""Build a network with trained weights, and name what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.functional.weights import first_non_finite
from medfed.networks.parts.base import NetworkSettings
from medfed.tasks.task import Task

MAX_SHOWN_DIFFERENCES = 5

NetworkWrapper = Callable[[nn.Module], nn.Module]


def load_trained_network(
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    wrap: NetworkWrapper | None = None,
) -> nn.Module:
    """Build the network on the CPU in evaluation mode; `wrap` adds the method's layers. UserError if weights do not
    fit."""
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
    """Describe every weight that is missing, unknown, or has another shape."""
    for name in expected:
        if name not in actual:
            yield f"'{name}' is missing"
        elif expected[name].shape != actual[name].shape:
            yield f"'{name}' is {tuple(actual[name].shape)}, expected {tuple(expected[name].shape)}"
    yield from (f"'{name}' is unknown" for name in actual if name not in expected)
