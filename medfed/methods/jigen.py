"""JiGen (Carlucci et al., CVPR 2019): learn, beside the task, how the parts of an image belong together.

F. M. Carlucci, A. D'Innocente, S. Bucci, B. Caputo, T. Tommasi: "Domain Generalization by Solving Jigsaw Puzzles", CVPR
2019, https://arxiv.org/abs/1903.06864. Idea: a second head learns in which order the tiles of an image were shuffled.
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
from medfed.federation.method import Method
from medfed.functional.hooks import add_submodule, input_output_widths, output_channels
from medfed.functional.jigsaw import draw_puzzles

NAME = "jigsaw"  # as a part of the network, and so in its state dict
SIDE = 3


@dataclass(frozen=True)
class JiGen(Method):
    """Jigsaw puzzles as a second task, which knows no domain: which of 31 orders are the tiles of an image in?

        L = L_task(x) + weight * CE(g(f(x_p)), p)

    with p = 0 (the identity) for a share `ordered` of the images and one of 30 orders of 3 x 3 tiles for the others,
    x_p the image with its tiles in order p, f the embedding, and g a linear head to `n_orders` logits. The orders are
    chosen greedily to differ in as many places as possible (`functional.jigsaw`; not the authors' table). The paper's
    own setting is central; here every site does this, and g is averaged with the network. Nothing but weights is
    shared.

    Args:
        weight: of the puzzle; 0 is FedAvg.
        ordered: chance in [0, 1] that an image of the puzzle keeps its order.
        grey: chance in [0, 1] that a tile loses its colours, which might solve the puzzle; ordered images, too.
            Nothing on greyscale images.
        n_orders: how many there are, the identity among them; at most 100, as it takes seconds to find more.

    Where we depart: the public code shuffles the images that it classifies, so the task's loss is of puzzles, too, or,
    by an option, of the ordered images only. Here the puzzles make a pass of their own, which leaves BatchNorm's
    statistics alone, and the task sees all images as they are; hence it can be stacked with other methods, and costs a
    second pass. The labels of the puzzle's orders are not those of the public weights.

    A side that is no multiple of 3 is cut by one or two pixels, and the edge repeated after shuffling.

    Segmentation (ours): the embedding is the mean over the deepest stage of the encoder; the pass runs through the
    decoder, too, for nothing.

    Predictions do not use the head, so a bundle leaves it out.

    Defaults are those of the authors' script for the paper; "released" has its program's own weight, 0.1. CCST compares
    with weight 0.7 and ordered 0.9.
    """

    weight: NonNegativeFloat = 0.9
    ordered: Ratio = 0.7
    grey: Ratio = 0.1
    n_orders: Annotated[int, Field(ge=2, le=100)] = 31

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {"weight": 0.1}}

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse images that are smaller than the 3 x 3 tiles."""
        if image_size < SIDE:
            raise UserError(
                f"data.image_size is {image_size}, but JiGen cuts images into 3 x 3 tiles: choose at least 3"
            )

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with the puzzle's head as a part that its own forward pass does not run."""
        part = network.get_submodule(architecture.head if architecture.embedding else architecture.encoder_stages[-1])
        width = input_output_widths(part)[0] if architecture.embedding else output_channels(part)
        add_submodule(network, nn.Linear(width, self.n_orders), NAME)
        return network

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """weight * CE(g(f(x_p)), p), for puzzles of the batch's images; this pass moves no statistics of BatchNorm."""
        if not self.weight:
            return super().regulariser(local, output)
        image, order = draw_puzzles(output.image, SIDE, self.n_orders, self.ordered, self.grey, local.rng)
        place = local.architecture.embedding or local.architecture.encoder_stages[-1]
        features = local.forward(Batch(image, output.label), (place,), local.parameters()).features[place]
        embedding = features.flatten(1) if local.architecture.embedding else features.mean(dim=(2, 3))
        return self.weight * F.cross_entropy(local.network.get_submodule(NAME)(embedding), order)
