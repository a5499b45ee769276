"""Find images that look nearly equal although the bytes of their files differ, such as a resized copy.

Two images look nearly equal if their difference hashes differ in at most `MAX_BITS` of 64 bits and their details
correlate. The difference hash says for each of 8 x 8 places whether the image becomes brighter to the right. The
details are the differences from the local mean in an image of 32 x 32 pixels, clipped, so that the edge of the field of
view, which different eyes share, counts little. Between 76 photographs of retinas, the correlation of different eyes
was at most 0.86. Between 43 images of several kinds and their copies of half the size, saved as JPEG of quality 40, it
was above 0.9 for all but one.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.datasets.case import Case

MAX_COMPARED_IMAGES = 50_000  # more are not compared: 50,000 take 55 MB
MAX_NEIGHBOURS = 32  # images with the same part of the hash to which an image is compared
MAX_BITS = 6
MIN_CORRELATION = 0.9
MIN_SIDE = 32  # of an image in pixels; smaller images have too few details
_SIDE, _CLIP, _SCALE = 32, 4.0, 31.0  # of the details: pixels, grey levels, steps per grey level in int8
_PARTS = 4  # of 16 bits of the hash; two hashes that differ in up to 3 bits have an equal part


class NearDuplicates:
    """Collect a small copy of each image, and compare all of them at the end. The images themselves are not kept."""

    def __init__(self) -> None:
        self._cases: list[tuple[Case, str]] = []
        self._hashes: list[int] = []
        self._details: list[np.ndarray] = []
        self._n_skipped = 0

    def add(self, case: Case, image: Tensor, sha256: str) -> None:
        """Keep the hash and the details of an image; of a volume, those of the middle slice.

        Args:
            case: the case of the image.
            image: (C, H, W, D). Images with fewer than 32 pixels along an axis are not compared.
            sha256: SHA-256 of the image file. Files of equal bytes are not called nearly equal.
        """
        if min(image.shape[1:3]) < MIN_SIDE:
            return
        if len(self._cases) >= MAX_COMPARED_IMAGES:
            self._n_skipped += 1
            return
        difference_hash, details = _look(image)
        if details.any():
            self._cases.append((case, sha256))
            self._hashes.append(difference_hash)
            self._details.append(details)

    def warnings(self) -> list[str]:
        """Return one sentence about nearly equal images in two sites, and one for each site that has some.

        Nearly equal images of the same patient are left out, because a split does not separate them.
        """
        across, within = [], defaultdict(list)
        for first, second in self._pairs():
            (a, sha_a), (b, sha_b) = self._cases[first], self._cases[second]
            if a.site != b.site and sha_a != sha_b:
                across.append(f"{a.site}/{a.image.name} and {b.site}/{b.image.name}")
            elif a.site == b.site and a.patient != b.patient and sha_a != sha_b:
                within[a.site].append(f"{a.image.name} and {b.image.name}")
        sentences = (
            [
                f"{_count(across)} of nearly equal images {'lie' if len(across) > 1 else 'lies'} in two sites, such as "
                f"{_examples(across)}; an unseen site must have no image that was trained on; remove one of each pair"
            ]
            if across
            else []
        )
        sentences += [
            f"{site}: {_count(pairs)} of nearly equal images count as different patients, such as {_examples(pairs)}; "
            "a split can separate them, so that scores are too good; give them the same patient with "
            "data.patient_pattern, or remove one of each pair"
            for site, pairs in within.items()
        ]
        if self._n_skipped:
            sentences.append(
                f"{self._n_skipped:,} images were not compared with the others; the check for nearly "
                f"equal images takes the first {MAX_COMPARED_IMAGES:,}"
            )
        return sentences

    def _pairs(self) -> list[tuple[int, int]]:
        """Return the pairs of images that look nearly equal, in ascending order.

        Images are sorted by a part of their hash, then by the whole hash. Each is compared only with the next
        `MAX_NEIGHBOURS` of the same part, so that the time grows as the number of images.
        """
        hashes = np.array(self._hashes, dtype=np.uint64)
        found: set[tuple[int, int]] = set()
        for part in range(_PARTS):
            keys = (hashes >> np.uint64(16 * part)) & np.uint64(0xFFFF)
            order = np.lexsort((hashes, keys))
            for step in range(1, min(MAX_NEIGHBOURS, len(order) - 1) + 1):
                a, b = order[:-step], order[step:]
                differing = np.unpackbits((hashes[a] ^ hashes[b]).view(np.uint8).reshape(-1, 8), axis=1).sum(1)
                near = (keys[a] == keys[b]) & (differing <= MAX_BITS)
                found |= {(min(i, j), max(i, j)) for i, j in zip(a[near].tolist(), b[near].tolist())}
        return sorted(pair for pair in found if self._correlation(*pair) >= MIN_CORRELATION)

    def _correlation(self, first: int, second: int) -> float:
        a, b = (self._details[index].astype(np.float32) for index in (first, second))
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def _look(image: Tensor) -> tuple[int, np.ndarray]:
    """Return the difference hash of an image (64 bits), and its details as int8."""
    grey = image.as_subclass(torch.Tensor)[..., image.shape[-1] // 2].float().mean(0)[None, None]
    low, high = grey.aminmax()
    if low < 0 or high > 255 or image.shape[-1] > 1:  # a volume has another scale
        grey = (grey - low) * (255 / max(float(high - low), 1e-12))
    coarse = F.adaptive_avg_pool2d(grey, (8, 9))[0, 0]
    bits = (coarse[:, 1:] > coarse[:, :-1] + 1).flatten().numpy()  # a flat background has no noise in its bits
    small = F.adaptive_avg_pool2d(grey, (_SIDE, _SIDE))
    details = small - F.avg_pool2d(F.pad(small, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    details = (details.clamp(-_CLIP, _CLIP) * _SCALE).round().to(torch.int8).flatten()
    return int.from_bytes(np.packbits(bits).tobytes(), "big"), details.numpy()


def _examples(pairs: list[str]) -> str:
    return ", ".join(pairs[:2])


def _count(pairs: list[str]) -> str:
    return f"{len(pairs):,} pair{'' if len(pairs) == 1 else 's'}"
