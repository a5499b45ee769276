"""JiGen (Carlucci et al., CVPR 2019): solve jigsaw puzzles of the images as a second task.

F. M. Carlucci, A. D'Innocente, S. Bucci, B. Caputo, T. Tommasi: "Domain Generalization by Solving Jigsaw Puzzles", CVPR
2019, https://arxiv.org/abs/1903.06864.

Idea: a second head predicts in which order the tiles of an image were shuffled. This needs no labels and teaches
features how the parts of an object belong together, in every domain. Sites send the messages of FedAvg; the weights
include the puzzle's head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, Ratio
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.method import Effort, Method
from medfed.functional.hooks import add_submodule, input_output_widths, output_channels
from medfed.functional.jigsaw import draw_puzzles

NAME = "jigsaw"  # name of the puzzle's head as a submodule, and so of its state-dict entries
SIDE = 3  # number of tiles along a side of the image


@dataclass(frozen=True)
class JiGen(Method):
    """FedAvg with jigsaw puzzles as a second task: predict which permutation the tiles of an image have.

        L = L_task(x) + weight * CE(g(f(x_p)), p)                                                  (eq. 1)

    x_p is the image with its 3 x 3 tiles in order p, f the embedding, and g a linear head with `n_orders` outputs. p is
    0 (the original order) for a fraction `ordered` of the images and random for the others. The permutations are chosen
    greedily so that they differ in as many positions as possible (`functional.jigsaw`). Predictions do not use g, and a
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
            CCST compares with 0.7. 0 is FedAvg.
        ordered: probability in [0, 1] that an image of the puzzle keeps its order. 0.7 in the authors' script; CCST
            compares with 0.9.
        grey: probability in [0, 1] that a tile is converted to greyscale, so that colours do not solve the puzzle;
            ordered images included. 0.1 in the authors' script. No effect on greyscale images.
        n_orders: number of permutations, the original order included, from 2 to 100. 31 in the paper. More than 100
            would take long to find.

    Presets: "medfed" and "paper" are the defaults. "released" has the default weight of the authors' program, 0.1.
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
