"""Entries of a MONAI bundle's config as plain JSON, which all templates and `train.json` use."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

INTERPOLATE, NARROW = "torch.nn.functional.interpolate", "torch.narrow"  # functions that a bundle's Lambdad may call


def step(class_: str, keys: str | list[str] = "image", **arguments: Any) -> Json:
    """Return the JSON entry of one MONAI dictionary transform for a bundle's config.

    Args:
        class_: name of the transform's class in `monai.transforms`, such as "Resized".
        keys: key or keys of the data dictionary whose values the transform changes.
        arguments: further arguments of the transform's class.

    Returns:
        The class under "_target_", the keys under "keys", and each further argument under its name.
    """
    return {"_target_": f"monai.transforms.{class_}", "keys": keys, **arguments}
