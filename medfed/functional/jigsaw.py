"""Jigsaw puzzles of images, as JiGen uses them: a set of tile permutations, and images with permuted tiles.

See Carlucci et al., "Domain Generalization by Solving Jigsaw Puzzles", CVPR 2019, https://arxiv.org/abs/1903.06864.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain, permutations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green and blue in the brightness of a pixel (ITU-R BT.601)


@lru_cache(maxsize=8)
def tile_permutations(side: int = 3, n: int = 31) -> Tensor:
    """Return n permutations of the tiles of a square grid that differ from each other in as many places as possible.

    The first permutation is the identity. Each further one is the permutation whose smallest Hamming distance to those
    before it is largest; ties are broken by the largest sum of the distances, then by lexicographic order. The result
    is therefore the same on every machine, and a smaller n gives the first n of the same sequence.

    Args:
        side: tiles along each side of the image, 2 or 3 (more would give too many permutations to compare).
        n: number of permutations, 1..(side * side)!. JiGen uses 31: 30 permutations and the identity.

    Returns:
        (n, side * side) int64 on the CPU. Entry j of a permutation is the tile that moves to place j; tiles and places
        are counted row by row.

    Raises:
        ValueError: if side or n is out of range.
    """
    if side not in (2, 3):
        raise ValueError(f"side must be 2 or 3, as all permutations are compared, got {side}")
    n_tiles = side * side
    if not 1 <= n <= math.factorial(n_tiles):
        raise ValueError(f"n must be in 1..{math.factorial(n_tiles)}, got {n}")
    known = np.fromiter(chain.from_iterable(permutations(range(n_tiles))), np.int8).reshape(-1, n_tiles)
    columns = np.ascontiguousarray(known.T)  # one long row per place, which NumPy adds much faster than short rows
    nearest, total = np.full(len(known), n_tiles, dtype=np.int64), np.zeros(len(known), dtype=np.int64)
    chosen = [0]
    while len(chosen) < n:
        distance = (columns != columns[:, chosen[-1], None]).sum(axis=0, dtype=np.int8)
        nearest, total = np.minimum(nearest, distance), total + distance
        chosen.append(int((nearest * (n * n_tiles + 1) + total).argmax()))  # argmax takes the first of equals
    return torch.from_numpy(known[chosen].astype(np.int64))


def shuffle_tiles(image: Tensor, order: Tensor) -> Tensor:
    """Cut each image into a grid of n x n tiles, and put the tiles together in another order.

    If H or W is not a multiple of n, the image is first cropped to the next smaller multiple, as evenly on both sides
    as possible, and the margin is filled after the permutation by repeating the pixels at the edge. No pixel is
    interpolated, and the margin does not reveal the original order.

    Args:
        image: (B, C, H, W), H and W at least n.
        order: (B, n * n) int64: one permutation for each image, as in the rows of `tile_permutations`.

    Returns:
        (B, C, H, W) in the dtype of `image`.

    Raises:
        ValueError: if the shapes do not fit each other.
    """
    side = math.isqrt(order.shape[-1])
    if image.ndim != 4 or order.shape != (len(image), side * side) or min(image.shape[2:]) < side:
        raise ValueError(
            f"image must be (B, C, H, W) and order (B, side * side), got {tuple(image.shape)} and {tuple(order.shape)}"
        )
    (top, bottom), (left, right) = (_margins(n, side) for n in image.shape[2:])
    cropped = image[..., top : image.shape[2] - bottom, left : image.shape[3] - right]
    tiles = _split_tiles(cropped, side)
    rows = torch.arange(len(image), device=image.device)[:, None]
    moved = _join_tiles(tiles[rows, order.to(image.device)], side)
    return moved if moved.shape == image.shape else F.pad(moved, (left, right, top, bottom), mode="replicate")


def turn_tiles_grey(image: Tensor, grey: Tensor) -> Tensor:
    """Turn marked tiles of RGB images grey, so that a network cannot solve a jigsaw puzzle by colour alone.

    `grey` is (B, n * n) bool for the n x n tiles of each image, row by row. Pixels of the margin belong to the nearest
    tile. Images without exactly three channels are returned as they are.
    """
    if image.shape[1] != len(LUMA_WEIGHTS):
        return image
    side = math.isqrt(grey.shape[1])
    places = [_tile_of_each_pixel(n, side).to(image.device) for n in image.shape[2:]]
    marked = grey.to(image.device).unflatten(1, (side, side))[:, places[0]][:, :, places[1]]
    luma = torch.einsum("bchw,c->bhw", image, image.new_tensor(LUMA_WEIGHTS))
    return torch.where(marked[:, None], luma[:, None], image)


def _margins(n: int, side: int) -> tuple[int, int]:
    """Return how many of n pixels are cropped before and after `side` equal tiles."""
    return (n % side) // 2, n % side - (n % side) // 2


def _tile_of_each_pixel(n: int, side: int) -> Tensor:
    """Return (n,) int64: the number of the tile, along one axis, to which each of n pixels belongs."""
    return ((torch.arange(n) - _margins(n, side)[0]) // (n // side)).clamp(0, side - 1)


def _split_tiles(image: Tensor, side: int) -> Tensor:
    """Split images (B, C, side * h, side * w) into tiles (B, side * side, C, h, w), row by row."""
    batch, channels, height, width = image.shape
    tiles = image.reshape(batch, channels, side, height // side, side, width // side)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def _join_tiles(tiles: Tensor, side: int) -> Tensor:
    """Join tiles (B, side * side, C, h, w) to images (B, C, side * h, side * w); the inverse of `_split_tiles`."""
    batch, _, channels, height, width = tiles.shape
    grid = tiles.reshape(batch, side, side, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return grid.reshape(batch, channels, side * height, side * width)


def draw_puzzles(
    image: Tensor, side: int, n_orders: int, ordered_ratio: float, grey_ratio: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Permute the tiles of images (B, C, H, W) at random, and turn some tiles grey.

    Returns the puzzles, and the number (B,) int64 in 0..n_orders-1 of each image's row in `tile_permutations`. An image
    stays in order (number 0) with probability `ordered_ratio`; a tile turns grey with probability `grey_ratio`.
    """
    n = len(image)
    is_ordered = torch.rand(n, generator=rng) < ordered_ratio
    order = torch.randint(1, n_orders, (n,), generator=rng).masked_fill(is_ordered, 0)
    grey = torch.rand(n, side * side, generator=rng) < grey_ratio
    puzzles = shuffle_tiles(turn_tiles_grey(image, grey), tile_permutations(side, n_orders)[order])
    return puzzles, order.to(image.device)
