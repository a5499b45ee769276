"""Refuse a config whose network or training step needs more memory than the machine has, before anything is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.machine import available_memory_bytes
from medfed.networks.parts.memory import MemoryNeeds, estimate_memory
from medfed.tasks.task import Task


def check_network_memory(config: Config, task: Task, image_size: int) -> MemoryNeeds | None:
    """Return the memory that the network and a step need at least, None if unknown; UserError if it is not free."""
    needs = estimate_memory(
        lambda: config.method.wrap_network(config.network.build(task.channels, task.out_channels), config.network),
        task.channels,
        image_size,
    )
    free = available_memory_bytes()
    if needs is None or free is None:
        return needs
    if needs.parameters > free:
        key, value = _largest_number(config)
        raise UserError(
            f"{config.source}: {key}: is {value}; training this network needs at least {_gigabytes(needs.parameters)} "
            f"for its parameters, but {_gigabytes(free)} of memory are free; choose a smaller number"
        )
    if needs.parameters + needs.per_image > free:
        raise UserError(
            f"{config.source}: data.image_size: is {image_size}; training with one such image needs at least "
            f"{_gigabytes(needs.parameters + needs.per_image)}, but {_gigabytes(free)} of memory are free; choose "
            "smaller images or a smaller network"
        )
    return needs


def check_step_memory(config: Config, needs: MemoryNeeds | None, n_images: Iterable[int]) -> None:
    """Raise UserError if the largest training step does not fit into the free memory; `n_images` is by site."""
    free = available_memory_bytes()
    if needs is None or free is None or not needs.per_image:
        return
    n = min(config.training.batch_size, max(n_images, default=0))
    if needs.parameters + n * needs.per_image > free:
        most = max(1, int((free - needs.parameters) / needs.per_image))
        raise UserError(
            f"{config.source}: training.batch_size: is {config.training.batch_size}; a training step with {n} images "
            f"needs at least {_gigabytes(needs.parameters + n * needs.per_image)}, but {_gigabytes(free)} of memory "
            f"are free; choose at most {most}"
        )


def _largest_number(config: Config) -> tuple[str, object]:
    """Return the key and the value of the setting of the network or the method that has the largest whole number."""
    values = {
        f"{block}.{field.name}": getattr(settings, field.name)
        for block, settings in (("network", config.network), ("method", config.method))
        for field in dataclasses.fields(settings)
    }

    def largest(value: object) -> int:
        """The largest whole number in a value, which may be a nested tuple; 0 without one."""
        if isinstance(value, tuple):
            return max(map(largest, value), default=0)
        return value if isinstance(value, int) else 0

    key = max(values, key=lambda key: largest(values[key]))
    value = values[key]
    return key, list(value) if isinstance(value, tuple) else value


def _gigabytes(n_bytes: float) -> str:
    return "more than 1,000,000,000 GB" if math.isinf(n_bytes) else f"{n_bytes / 1e9:,.1f} GB"
