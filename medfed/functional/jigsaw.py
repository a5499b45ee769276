"""Jigsaw puzzles of images (JiGen): which orders of tiles there are, and tiles put into them."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LUMA_WEIGHTS = (0.299, 0.587, 0.114)


@lru_cache(maxsize=8)
def tile_permutations(side: int = 3, n: int = 31) -> Tensor:
    """n orders of side * side tiles that differ in as many places as can be had greedily; the first is the identity.

    Each further one has the largest smallest Hamming distance to those before it; of equals the largest sum of
    distances; of equals again the first in the order of a dictionary. So they are the same everywhere, and the first m
    of n are those that a call with m gives. A table of all orders is searched once, 9! of 9 tiles.

    Args:
        side: tiles along a side, 2 or 3.
        n: how many, 1..(side * side)!.

    Returns:
        (n, side * side) int64 on the CPU; entry j of an order is the tile that goes to place j, counted along rows.

    Raises:
        ValueError: if side or n is not as above.
    """
    if side not in (2, 3):
        raise ValueError(f"side must be 2 or 3, as all orders are looked at, got {side}")
    n_tiles = side * side
    if not 1 <= n <= math.factorial(n_tiles):
        raise ValueError(f"n must be in 1..{math.factorial(n_tiles)}, got {n}")
    known = np.array(list(permutations(range(n_tiles))), dtype=np.int8)
    nearest, total = np.full(len(known), n_tiles, dtype=np.int64), np.zeros(len(known), dtype=np.int64)
    chosen = [0]
    while len(chosen) < n:
        distance = (known != known[chosen[-1]]).sum(axis=1)
        nearest, total = np.minimum(nearest, distance), total + distance
        chosen.append(int((nearest * (n * n_tiles + 1) + total).argmax()))     # the first of the largest
    return torch.from_numpy(known[chosen].astype(np.int64))


def shuffle_tiles(image: Tensor, order: Tensor) -> Tensor:
    """Images with their tiles in another order.

    A side that is no multiple of the number of tiles is cut to one, as evenly at both ends as can be, and what was cut
    is filled by repeating the edge after shuffling: no pixel is interpolated, the size stays, and the edge of the image
    does not tell which tile was beside it.

    Args:
        image: (B, C, H, W), at least one pixel a tile.
        order: (B, side * side), an order of tiles each, as `orders` gives them.

    Returns:
        (B, C, H, W). The identity returns an image of fitting size as it is.

    Raises:
        ValueError: if the shapes do not belong together.
    """
    side = math.isqrt(order.shape[-1])
    if image.ndim != 4 or order.shape != (len(image), side * side) or min(image.shape[2:]) < side:
        raise ValueError(
            f"images (B, C, H, W) need orders (B, side * side), got {tuple(image.shape)} and {tuple(order.shape)}"
        )
    (top, bottom), (left, right) = (_margins(n, side) for n in image.shape[2:])
    whole = image[..., top : image.shape[2] - bottom, left : image.shape[3] - right]
    tiles = _split_tiles(whole, side)
    rows = torch.arange(len(image), device=image.device)[:, None]
    moved = _join_tiles(tiles[rows, order.to(image.device)], side)
    return moved if moved.shape == image.shape else F.pad(moved, (left, right, top, bottom), mode="replicate")


def turn_tiles_grey(image: Tensor, grey: Tensor) -> Tensor:
    """The marked tiles without colour (luma 0.299 R + 0.587 G + 0.114 B), which a puzzle could be solved by.

    Args:
        image: (B, C, H, W); images of other than three channels come back as they are.
        grey: (B, side * side), bool; the tiles are those of `shuffled`, and what is cut goes with its neighbour.
    """
    if image.shape[1] != len(LUMA_WEIGHTS):
        return image
    side = math.isqrt(grey.shape[1])
    places = [_tile_of_each_pixel(n, side).to(image.device) for n in image.shape[2:]]
    marked = grey.to(image.device).unflatten(1, (side, side))[:, places[0]][:, :, places[1]]
    luma = torch.einsum("bchw,c->bhw", image, image.new_tensor(LUMA_WEIGHTS))
    return torch.where(marked[:, None], luma[:, None], image)


def _margins(n: int, side: int) -> tuple[int, int]:
    """How many of n pixels are left out before and after `side` equal tiles."""
    return (n % side) // 2, n % side - (n % side) // 2


def _tile_of_each_pixel(n: int, side: int) -> Tensor:
    """(n,), the tile along its axis that each pixel belongs to."""
    return ((torch.arange(n) - _margins(n, side)[0]) // (n // side)).clamp(0, side - 1)


def _split_tiles(image: Tensor, side: int) -> Tensor:
    """(B, C, side * h, side * w) to (B, side * side, C, h, w), along rows."""
    batch, channels, height, width = image.shape
    tiles = image.reshape(batch, channels, side, height // side, side, width // side)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def _join_tiles(tiles: Tensor, side: int) -> Tensor:
    """The opposite of `_tiles`."""
    batch, _, channels, height, width = tiles.shape
    grid = tiles.reshape(batch, side, side, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return grid.reshape(batch, channels, side * height, side * width)


def draw_puzzles(
    image: Tensor, side: int, n_orders: int, ordered_ratio: float, grey_ratio: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Make a puzzle of each image: its tiles in a random order, some of them without colour.

    Args:
        image: (B, C, H, W).
        side: tiles a side.
        n_orders: size of the set of orders (`orders`); 0 is the identity.
        ordered_ratio: probability in [0, 1] that an image keeps its order.
        grey_ratio: probability in [0, 1] that a tile becomes grey.

    Returns:
        The puzzles (B, C, H, W) and the numbers of their orders (B,), int64, on the device of `image`.
    """
    n = len(image)
    keep = torch.rand(n, generator=rng) < ordered_ratio
    order = torch.randint(1, n_orders, (n,), generator=rng).masked_fill(keep, 0)
    grey = torch.rand(n, side * side, generator=rng) < grey_ratio
    return shuffle_tiles(turn_tiles_grey(image, grey), tile_permutations(side, n_orders)[order]), order.to(image.device)
