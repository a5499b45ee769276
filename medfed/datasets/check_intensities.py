"""Describe images with unusual intensities: nearly blank, equal to their mask, or with single values far from others.

Each function returns a list of short descriptions, with the same text for every image, so that a report can count them.
"""

from __future__ import annotations

import numpy as np
from monai.data import MetaTensor
from torch import Tensor

MAX_SAMPLED_VOXELS = 100_000  # number of voxels per image in which unusual intensities are searched
MIN_PIXELS = 1000  # of a 2-D image whose percentiles are looked at
MIN_CONTRAST = 60  # of 255, between the percentiles 1 and 99 of a channel; below in all, a 2-D image is nearly blank
MIN_VARIANCE_RATIO = 0.02  # of the intensities within the labels of a mask to all; below, the image equals the mask


def outlier_notices(image: MetaTensor) -> list[str]:
    """Describe a lowest or highest value that is farther from all other values than these are from each other.

    Args:
        image: (C, H, W, D), a volume.
    """
    flat = image.numpy().reshape(-1)
    values = np.unique(np.append(flat[:: max(1, flat.size // MAX_SAMPLED_VOXELS)], (flat.min(), flat.max())))
    if len(values) < 4:
        return []
    notices = []
    if values[1] - values[0] > values[-1] - values[1]:
        notices.append("the lowest intensity is far below all others (padding?)")
    if values[-1] - values[-2] > values[-2] - values[0]:
        notices.append("the highest intensity is far above all others")
    return notices


def contrast_notices(image: MetaTensor) -> list[str]:
    """Describe an image that is nearly blank: its percentiles 1 and 99 are less than 60 of 255 apart in every channel.

    Each channel is looked at alone, because a dim colour photograph may be dark in two of them: a retina has about 110
    levels in red, and the mean of the channels only 55. A grey image stored as colour counts as grey. The percentiles
    leave out a small marker, so that an x-ray that shows only its letter is nearly blank. A black surround counts as
    content. Images of a single colour, of which grey ones have a notice already, and those of fewer than 1,000 pixels
    are not looked at.

    Args:
        image: (C, H, W, 1) in [0, 255].
    """
    channels = image.numpy().reshape(len(image), -1)
    if channels.shape[1] < MIN_PIXELS or (channels.min(1) == channels.max(1)).all():
        return []
    low, high = np.percentile(channels[:, :: max(1, channels.shape[1] // MAX_SAMPLED_VOXELS)], (1, 99), axis=1)
    if (high - low).max() >= MIN_CONTRAST:
        return []
    return [
        f"nearly blank image (98 % of the pixels lie within {MIN_CONTRAST} of 255 grey levels,"
        " data.ignored_names leaves it out)"
    ]


def equal_notices(image: MetaTensor, mask: Tensor) -> list[str]:
    """Describe an image that equals its mask: its intensities are nearly constant in each label of the mask.

    Args:
        image: (C, H, W, D).
        mask: (S, H, W, D) of 0 and 1.
    """
    grey = image.numpy().mean(0).reshape(-1).astype(np.float64)
    labels = (mask.numpy() * (1 << np.arange(len(mask)))[:, None, None, None]).sum(0).reshape(-1)
    step = max(1, grey.size // MAX_SAMPLED_VOXELS)
    grey, labels = grey[::step], labels[::step]
    within = sum(grey[labels == label].var() * np.mean(labels == label) for label in np.unique(labels))
    if within < MIN_VARIANCE_RATIO * grey.var():
        return [
            "the image equals its mask; give the folder or the name of the images (data.image_folders, data.image_name)"
        ]
    return []
