"""JiGen (Carlucci et al., CVPR 2019): solve jigsaw puzzles of the images as a second task.

F. M. Carlucci, A. D'Innocente, S. Bucci, B. Caputo, T. Tommasi: "Domain Generalization by Solving Jigsaw Puzzles", CVPR
2019, https://arxiv.org/abs/1903.06864.

Idea: a second head predicts in which order the tiles of an image were shuffled. This needs no labels and teaches
features how the parts of an object belong together, in every domain. Sites send the messages of FedAvg; the weights
include the puzzle's head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, Ratio
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.method import Effort, Method
from medfed.functional.hooks import add_submodule, input_output_widths, output_channels

LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green and blue in the brightness of a pixel (ITU-R BT.601)
NAME = "jigsaw"  # name of the puzzle's head as a submodule, and so of its state-dict entries
SIDE = 3  # number of tiles along a side of the image


@dataclass(frozen=True)
class JiGen(Method):
    """FedAvg with jigsaw puzzles as a second task: predict which permutation the tiles of an image have.

        L = L_task(x) + weight * CE(g(f(x_p)), p)                                                  (eq. 1)

    x_p is the image with its 3 x 3 tiles in order p, f the embedding, and g a linear head with `n_orders` outputs. p is
    0 (the original order) for a fraction `ordered` of the images and random for the others. The permutations are chosen
    greedily so that they differ in as many positions as possible. Predictions do not use g, and a
    bundle does not contain it. If the image's side is not a multiple of 3, one or two pixels are cut off, and the edge
    is repeated after shuffling.

    Segmentation (ours): the embedding is the mean over the deepest stage of the encoder. The pass also runs through the
    decoder, whose output is not used.

    Departures: the paper trains on pooled data; here each site does this, and the head is averaged with the network.
    The public code shuffles the images that it also classifies, so that the task's loss is computed on puzzles, or by
    an option only on ordered images. Here the puzzles have a forward pass of their own, which does not update
    BatchNorm's statistics, and the task sees all images unshuffled. The method can therefore be stacked with others,
    but needs a second pass. The permutations are not those of the authors' table, so their weights do not fit the
    puzzle's head.

    Args:
        weight: weight of the puzzle's loss (alpha in the paper), at least 0. 0.9 in the authors' script for the paper;
            CCST compares with 0.7, the authors' program has 0.1 without the script. 0 is FedAvg.
        ordered: probability in [0, 1] that an image of the puzzle keeps its order. 0.7 in the authors' script; CCST
            compares with 0.9.
        grey: probability in [0, 1] that a tile is converted to greyscale, so that colours do not solve the puzzle;
            ordered images included. 0.1 in the authors' script. No effect on greyscale images.
        n_orders: number of permutations, the original order included, from 2 to 100. 31 in the paper. More than 100
            would take long to find.
    """

    weight: NonNegativeFloat = 0.9
    ordered: Ratio = 0.7
    grey: Ratio = 0.1
    n_orders: Annotated[int, Field(ge=2, le=100)] = 31

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {"weight": 0.1}}

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """UserError if the image is too small for 3 x 3 tiles."""
        if image_size < SIDE:
            raise UserError(
                f"data.image_size: is {image_size}, but JiGen cuts images into 3 x 3 tiles; choose at least 3"
            )

    def effort(self, n_sites: int) -> Effort:
        """A step has the images and their puzzles."""
        return Effort(images=2 if self.weight else 1)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the puzzle's head g."""
        module = network.get_submodule(architecture.head if architecture.embedding else architecture.encoder_stages[-1])
        width = input_output_widths(module)[0] if architecture.embedding else output_channels(module)
        add_submodule(network, nn.Linear(width, self.n_orders), NAME)
        return network

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Return the weighted cross-entropy of the puzzles."""
        if not self.weight:
            return super().regulariser(local, output)
        image, order = draw_puzzles(output.image, SIDE, self.n_orders, self.ordered, self.grey, local.rng)
        place = local.architecture.embedding or local.architecture.encoder_stages[-1]
        puzzles = Batch(image, output.label, moments=output.moments)
        features = local.forward(puzzles, (place,), local.parameters()).features[place]
        embedding = features.flatten(1) if local.architecture.embedding else features.mean(dim=(2, 3))
        return self.weight * F.cross_entropy(local.network.get_submodule(NAME)(embedding), order)  # eq. 1


def draw_puzzles(
    image: Tensor, side: int, n_orders: int, ordered_ratio: float, grey_ratio: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return puzzles of images (B, C, H, W), and the number (B,) in 0..n_orders-1 of each one's permutation, p.

    An image stays in order (p = 0) with probability `ordered_ratio`; a tile turns grey with probability `grey_ratio`.
    """
    n = len(image)
    is_ordered = torch.rand(n, generator=rng) < ordered_ratio
    order = torch.randint(1, n_orders, (n,), generator=rng).masked_fill(is_ordered, 0)
    grey = torch.rand(n, side * side, generator=rng) < grey_ratio
    puzzles = shuffle_tiles(turn_tiles_grey(image, grey), tile_permutations(side, n_orders)[order])
    return puzzles, order.to(image.device)


@lru_cache(maxsize=8)
def tile_permutations(side: int = 3, n: int = 31) -> Tensor:
    """Return n permutations (n, side * side) of the tiles of a grid, counted row by row, the identity first.

    Each further one has the largest smallest Hamming distance to those before it; of equals, the one with the largest
    sum of distances, then the first in lexicographic order. Entry j is the tile that moves to place j.
    """
    n_tiles = side * side
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
    """Put the n x n tiles of images (B, C, H, W) together in other orders, (B, n * n).

    H and W are cropped to multiples of n, as evenly on both sides as possible, and the margin is filled by repeating
    the pixels at the edge, so that it does not reveal the original order.
    """
    side = math.isqrt(order.shape[-1])
    (top, bottom), (left, right) = (_margins(n, side) for n in image.shape[2:])
    cropped = image[..., top : image.shape[2] - bottom, left : image.shape[3] - right]
    batch, channels, height, width = cropped.shape
    grid = cropped.reshape(batch, channels, side, height // side, side, width // side)
    tiles = grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, n * n, C, h, w)
    rows = torch.arange(len(image), device=image.device)[:, None]
    moved = tiles[rows, order.to(image.device)].unflatten(1, (side, side)).permute(0, 3, 1, 4, 2, 5)
    moved = moved.reshape(batch, channels, height, width)
    return moved if moved.shape == image.shape else F.pad(moved, (left, right, top, bottom), mode="replicate")


def turn_tiles_grey(image: Tensor, grey: Tensor) -> Tensor:
    """Turn marked tiles, (B, n * n) bool, of RGB images grey. Pixels of the margin belong to the nearest tile."""
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
