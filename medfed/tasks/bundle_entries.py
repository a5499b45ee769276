"""Entries of a MONAI bundle's config as plain JSON, which all templates and `train.json` use."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

INTERPOLATE, NARROW = "torch.nn.functional.interpolate", "torch.narrow"  # functions that a bundle's Lambdad may call


def step(class_: str, keys: str | list[str] = "image", **arguments: Any) -> Json:
    """The JSON entry of the dictionary transform `class_` of `monai.transforms`, such as "Resized"."""
    return {"_target_": f"monai.transforms.{class_}", "keys": keys, **arguments}
