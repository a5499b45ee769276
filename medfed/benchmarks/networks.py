"""Time of a training step and of a prediction with feature maps stored channels last, compared with contiguous ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medfed.functional.hooks import replace_output
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet
from medfed.networks.parts.base import NetworkSettings

NETWORKS: tuple[tuple[NetworkSettings, int], ...] = (  # settings, batch size
    (EfficientNetLite(pretrained=False), 16),
    (EfficientNetUNet(pretrained=False), 4),
    (DenseNetwork(), 16),
)


def time_networks(
    networks: Sequence[tuple[NetworkSettings, int]] = NETWORKS, sizes: Sequence[int] = (64, 128), repeats: int = 7
) -> dict[str, Any]:
    """Time a step of Adam and a prediction with both layouts of the feature maps, in turn, on RGB images of noise.

    `networks` are settings and batch sizes, `sizes` the sides of the images in pixels.

    Returns:
        `rows`, of each network and size: the median times `step_ms` and `predict_ms` with feature maps channels last,
        and `step_times_faster` and `predict_times_faster`, the time with contiguous feature maps divided by this time.
    """
    rows = []
    for settings, batch_size in networks:
        for size in sizes:
            network, images = settings.build(3, 2), torch.randn(batch_size, 3, size, size)
            stem = next(path for path, module in network.named_modules() if isinstance(module, nn.Conv2d))
            row = {"network": type(settings).__name__, "size": size, "batch_size": batch_size}
            for name, training in (("step", True), ("predict", False)):
                network.train(training)
                pairs = [_time_both(network, stem, images) for _ in range(repeats + 1)][1:]
                row[f"{name}_ms"] = statistics.median(ours for ours, _ in pairs)
                row[f"{name}_times_faster"] = statistics.median(theirs / ours for ours, theirs in pairs)
            rows.append(row)
    return {"threads": torch.get_num_threads(), "rows": rows}


def _time_both(network: nn.Module, stem: str, images: Tensor) -> tuple[float, float]:
    """Milliseconds with feature maps channels last, and contiguous."""
    ours = _time(network, images)
    with replace_output(network, {stem: Tensor.contiguous}):
        return ours, _time(network, images)


def _time(network: nn.Module, images: Tensor) -> float:
    """Milliseconds of a forward pass, or of a whole training step if the network is in training mode."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)
    began = time.perf_counter()
    with torch.set_grad_enabled(network.training):
        output = network(images)
    if network.training:
        output.square().mean().backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    optimizer.zero_grad()
    return 1000 * seconds


def networks_table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"networks whose feature maps are channels last, {result['threads']} threads",
            f"  {'network':<18}{'size':>6}{'batch':>7}{'step ms':>10}{'/ contiguous':>14}{'predict ms':>12}"
            f"{'/ contiguous':>14}",
            *(
                f"  {row['network']:<18}{row['size']:>6}{row['batch_size']:>7}{row['step_ms']:>10.1f}"
                f"{row['step_times_faster']:>13.2f}x{row['predict_ms']:>12.1f}{row['predict_times_faster']:>13.2f}x"
                for row in result["rows"]
            ),
        ]
    )
