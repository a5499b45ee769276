"""Networks, codecs and layers.

`build` makes a network by name, ready to train. Inside medfed a network is described by `NetworkSettings`, the
`network` block of a config: it names the places in the network that methods read or change.

>>> import torch
>>> from medfed.networks import build
>>> network = build("unet", in_channels=1, out_channels=2, features=(8, 8, 16, 16, 32, 8))
>>> network(torch.rand(1, 1, 64, 64)).shape
torch.Size([1, 2, 64, 64])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from torch import nn

    from medfed.networks.parts.adain import StyleCodec as StyleCodec
    from medfed.networks.parts.adain import load_codec as load_codec
    from medfed.networks.parts.amplitude_normaliser import AmplitudeNormaliser as AmplitudeNormaliser
    from medfed.networks.parts.base import NetworkSettings as NetworkSettings
    from medfed.networks.parts.highlighter import Highlighter as Highlighter
    from medfed.networks.parts.style_layers import DSU as DSU
    from medfed.networks.parts.style_layers import EFDMix as EFDMix
    from medfed.networks.parts.style_layers import MixStyle as MixStyle
    from medfed.networks.parts.tent import Tent as Tent

__getattr__, __dir__, __all__ = lazy_names(__name__, own=["build"])


def build(name: str, in_channels: int, out_channels: int, **settings: object) -> nn.Module:
    """Return a new network that maps images (B, in_channels, H, W) to logits.

    Args:
        name: name of a network: "unet", "elcfs_unet", "efficientnet_unet", "densenet", "resnet", "efficientnet_lite",
            "monai_network" or "bundle". For a class of your own, derived from `NetworkSettings`, it is the path
            `package.module.Class`.
        in_channels: number of image channels.
        out_channels: number of structures (segmentation) or classes (classification).
        **settings: settings of the network, such as `features=(8, 8, 16, 16, 32, 8)` for "unet". The setting `weights`
            names a file of pretrained weights to start from. Without this setting, "bundle", "efficientnet_unet" and
            "efficientnet_lite" start from their own pretrained weights, and all other networks start from random
            weights.

    Returns:
        A module in training mode. A segmentation network returns logits (B, out_channels, H, W), a classification
        network (B, out_channels).

    Raises:
        UserError: if there is no such network or the file of weights does not fit.
        TypeError: if the network has no such setting.
        ValueError: if a setting is out of range.
    """
    from medfed.core.registry import resolve

    network_settings = resolve("networks", name)(**settings)
    network = network_settings.build(in_channels, out_channels)
    network_settings.load_pretrained(network)
    return network
