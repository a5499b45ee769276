"""Matching the images of a site that did not train to the mean appearance of the federation, before the prediction.

The setting `evaluation.match` selects what is matched. The means come from the statistics that the sites shared for
training, so nothing else leaves a site, and neither labels nor scores of the unseen site are used.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from medfed.config.schema import Config
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.federation.message import State
from medfed.networks.parts.style_transfer import shows_something
from medfed.tasks.task import Match

SHARED = {"window": "low-frequency windows of its images", "style": "styles of its images"}


def check_match(config: Config) -> None:
    """Raise UserError if `evaluation.match` has no unseen site, or a method that does not share what it needs."""
    kind, source = config.evaluation.match, config.source
    if kind == "none":
        return
    if not config.federation.unseen_site:
        raise UserError(
            f"{source}: evaluation.match: is '{kind}', but federation.unseen_site is empty, so there is no "
            "site to match; name a site, or set evaluation.match to none"
        )
    if kind not in config.method.match_kinds:
        others = " or ".join(sorted(config.method.match_kinds))
        raise UserError(
            f"{source}: evaluation.match: '{kind}' needs a method whose sites share {SHARED[kind]}, and with these "
            f"settings {registry.name_of('methods', type(config.method))} does not; set evaluation.match to "
            f"{f'{others} or ' if others else ''}none, or choose another method, such as "
            f"{'elcfs' if kind == 'window' else 'ccst'}"
        )


def match_of(config: Config, state: State) -> Match | None:
    """Return a function that matches images (B, C, H, W) in [0, 1], except blank ones, as `evaluation.match` says. None
    if images are not matched, or, with a warning, if no site shared statistics."""
    kind = config.evaluation.match
    if kind == "none":
        return None
    matcher = config.method.matcher(state, kind, config.evaluation.match_ratio)
    if matcher is None:
        warnings.warn(f"evaluation.match: no site shared {SHARED[kind]}, so the images are not matched", stacklevel=2)
        return None

    def match(images: Tensor) -> Tensor:
        """The matched images, (B, C, H, W); blank images stay as they are."""
        return torch.where(shows_something(images)[:, None, None, None], matcher(images), images)

    return match
