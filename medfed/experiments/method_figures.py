"""What figures show of a method: images in the styles of sites, mixtures of styles, and maps of attention.

Each function takes a method, the state after the last round and images (B, C, H, W); a method without an entry here has
no such figure. For several methods together, it is that of the first one that has any.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor, nn

from medfed.federation.local_round import Architecture
from medfed.federation.message import State
from medfed.federation.method import Method, Tensors
from medfed.functional.fourier import unpack_window
from medfed.functional.hooks import capture_features
from medfed.functional.weights import select_prefix
from medfed.methods import ccst, elcfs, fisc, harmofl, stable_fdg
from medfed.methods.stack import Stack, own_state
from medfed.networks.parts.amplitude_normaliser import AmplitudeNormaliser


@singledispatch
def restyled(method: Method, state: State, image: Tensor) -> Tensors:
    """Images in [0, 1], not standardised, redrawn in the style of each site, by its name; "all sites" for one style."""
    return {}


@restyled.register
def _(method: elcfs.ELCFS, state: State, image: Tensor) -> Tensors:
    spectrum, ratio = method.spectrum(image), torch.ones(len(image))
    means = elcfs.mean_windows(state)
    return {site: elcfs.mixed(image, spectrum, [mean] * len(image), ratio) for site, mean in means.items()}


@restyled.register
def _(method: ccst.CCST, state: State, image: Tensor) -> Tensors:
    """In the overall style of each site, or in the first of its single styles."""
    transfer = method.style_transfer
    return {
        site: torch.cat([transfer.restyle(single[None], mean[:1], std[:1]) for single in image]).cpu()
        for site, (mean, std) in ccst.style_bank(state.memory).items()
    }


@restyled.register
def _(method: fisc.FISC, state: State, image: Tensor) -> Tensors:
    match = method.matcher(state, "style", method.alpha)
    return {"all sites": match(image).cpu()} if match else {}  # eq. 4


@restyled.register
def _(method: harmofl.HarmoFL, state: State, image: Tensor) -> Tensors:
    if harmofl.WINDOW not in state.memory:
        return {}
    normaliser = AmplitudeNormaliser(image.shape[1], method.half_width)
    normaliser.get_buffer("window").copy_(unpack_window(state.memory[harmofl.WINDOW]))
    return {"all sites": normaliser(image)}


@restyled.register
def _(method: Stack, state: State, image: Tensor) -> Tensors:
    images = (restyled(own, own_state(state, i), image) for i, own in enumerate(method.methods))
    return next(filter(None, images), {})


@singledispatch
def interpolated(
    method: Method, state: State, site: str, image: Tensor, ratio: float | None, rng: torch.Generator
) -> Tensors:
    """Images of a site mixed with each other site's styles by `ratio` in [0, 1]; None draws it for each image."""
    return {}


@interpolated.register
def _(
    method: elcfs.ELCFS, state: State, site: str, image: Tensor, ratio: float | None, rng: torch.Generator
) -> Tensors:
    spectrum, mixed = method.spectrum(image), {}
    for name, bank in sorted(select_prefix(state.memory, elcfs.BANK).items()):
        if name != site:
            positions, ratios = torch.rand(2, len(image), generator=rng)
            ratios = ratios if ratio is None else torch.full_like(ratios, ratio)
            packed = [bank[int(u * len(bank))] for u in positions.tolist()]
            mixed[name] = elcfs.mixed(image, spectrum, packed, ratios)  # eq. 2-3
    return mixed


@interpolated.register
def _(method: Stack, state: State, site: str, image: Tensor, ratio: float | None, rng: torch.Generator) -> Tensors:
    own = enumerate(method.methods)
    return next(filter(None, (interpolated(part, own_state(state, i), site, image, ratio, rng) for i, part in own)), {})


@singledispatch
def attention(method: Method, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
    """For standardised images, a map (B, h, w) of the positions that the network attends to, of sum 1."""
    return None


@attention.register
def _(method: stable_fdg.StableFDG, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
    if not method.attention:
        return None
    with torch.no_grad(), capture_features(network, (architecture.last_features,)) as captured:
        network(image)
        return getattr(network, stable_fdg.NAME).scores(captured[architecture.last_features])


@attention.register
def _(method: Stack, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
    maps = (attention(own, network, architecture, image) for own in method.methods)
    return next((own for own in maps if own is not None), None)
