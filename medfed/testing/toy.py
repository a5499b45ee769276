"""Toy federations of three sites with images of discs, one brightness per site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import Samples
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.settings import Training
from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_entries
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.base import NetworkSettings
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task
from medfed.testing.small_unet import SmallUNet

IMAGE_SIDE = 32  # pixels: the default
BRIGHTNESS = {"north": 0.9, "south": 0.6, "west": 0.4}  # of the disc, by site; 0.7 for any other name
SITES = tuple(BRIGHTNESS)
MIN_LARGE_AREA = 120  # pixels, in images of 32 x 32 pixels: a disc with more of them belongs to the class "large"


def disc_slices(site: str, n_slices: int = 10, side: int = IMAGE_SIDE) -> Slices:
    """Return images (n_slices, 1, side, side) in [0, 1] of one bright disc each, the discs' masks, and the patients.

    The site's name determines the brightness, and the random positions and sizes. Each patient has two slices.
    """
    rng, scale = stream(0, "discs", site), side / IMAGE_SIDE
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    draws = torch.rand(n_slices, 3, generator=rng)
    centre = scale * (10 + 12 * draws[:, :2])
    radius = scale * (5 + 3 * draws[:, 2])
    distance = torch.hypot(rows - centre[:, :1, None], columns - centre[:, 1:, None])
    label = (distance < radius[:, None, None])[:, None]
    background = 0.2 + 0.1 * torch.rand(n_slices, 1, side, side, generator=rng)
    image = background + BRIGHTNESS.get(site, 0.7) * 0.5 * label
    return Slices(image.clamp(0, 1), label.to(torch.uint8), torch.arange(n_slices) // 2)


@dataclass(frozen=True)
class DiscImages:
    """Colour images (N, 3, H, W) in [0, 1] of small discs (label 0) and large discs (label 1)."""

    images: Tensor
    labels: Tensor
    n_patients: int = 5

    @property
    def patient(self) -> Tensor:
        """The patient of each image: (N,) int64; all patients have about the same number of images."""
        return torch.arange(len(self)) * self.n_patients // len(self)

    @classmethod
    def of_site(cls, site: str, n_images: int = 10, side: int = IMAGE_SIDE) -> DiscImages:
        """Return the discs of `disc_slices` in three equal channels; a disc above 120 / 1024 of the image is large."""
        slices = disc_slices(site, n_images, side)
        is_large = slices.labels.sum(dim=(1, 2, 3)) > MIN_LARGE_AREA * (side / IMAGE_SIDE) ** 2
        return cls(slices.images.expand(-1, 3, -1, -1).contiguous(), is_large.long(), (n_images + 1) // 2)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(self.images[list(indices)], self.labels[list(indices)])


class ToyFederation:
    """Base class of small simulated federations of three sites; use `ToySegmentation` or `ToyClassification`.

    Attributes:
        architecture: settings of the network.
        settings: optimiser, learning rate and batch size at each site.
        task: what the network learns.
        image_side: height and width of the images in pixels.
        n_images: number of training images at each site.
        samples: function that returns a site's images, given the site's name, the number of images and their side.
        channels: number of image channels.
        n_logits: number of output channels of the network.
    """

    architecture: NetworkSettings
    settings = Training(batch_size=4)
    task: Task
    image_side: int
    n_images: int
    samples: Callable[..., Samples]
    channels: int
    n_logits: int

    def network(self, method: Method, seed: int = 0) -> nn.Module:
        """Return the network with random initial weights, including the layers that the method adds."""
        with seeded_layers(seed, "initial weights"):
            return method.wrap_network(self.architecture.build(self.channels, self.n_logits), self.architecture)

    def start(self, method: Method, seed: int = 0) -> State:
        """Return the coordinator's state before the first round, which contains the initial weights of the network.

        If the method keeps no entry of the network at the sites, the state leaves open which entries stay there,
        because `engine` decides.
        """
        network = self.network(method, seed)
        return State.of(network, method.local_keys(network) or None)

    def engine(
        self,
        method: Method,
        sites: Sequence[str] = SITES,
        folder: Path | None = None,
        seed: int = 0,
        local_batch_norm: bool = False,
    ) -> InProcess:
        """Return an engine that trains the given sites in this process, without a network connection.

        Args:
            sites: names of the sites; a name determines the images of the site.
            folder: folder in which the sites store their checkpoints; None stores none.
            seed: seed of the initial weights and of all random draws.
            local_batch_norm: whether each site keeps its own BatchNorm parameters and statistics instead of sending
                them, as with the setting `federation.batch_norm: local`.
        """
        network = self.network(method, seed)
        local_keys = batch_norm_entries(network) if local_batch_norm else method.local_keys(network)
        training_sites = [
            Site(
                name,
                self.samples(name, self.n_images, self.image_side),
                self.samples(name + " validation", self.n_images // 2 - 1, self.image_side),
                self.task,
                method,
                network,
                self.architecture,
                self.settings,
                local_keys,
                local_epochs=1,
                seed=seed,
            )
            for name in sites
        ]
        return InProcess(training_sites, folder)


class ToySegmentation(ToyFederation):
    """A small simulated federation that learns to segment discs in grey images with a small U-Net.

    Args:
        architecture: settings of the network; None uses `SmallUNet`.
        training: optimiser, learning rate and batch size; None uses batches of four images.
        image_side: height and width of the images in pixels, as the network needs it.
        n_images: number of training images at each site, at least 4. A site has n_images / 2 - 1 validation images.
    """

    architecture: NetworkSettings = SmallUNet()
    samples = staticmethod(disc_slices)
    channels, n_logits = 1, 1

    def __init__(
        self,
        architecture: NetworkSettings | None = None,
        training: Training | None = None,
        image_side: int = IMAGE_SIDE,
        n_images: int = 10,
    ) -> None:
        self.architecture = architecture or self.architecture
        self.settings = training or self.settings
        self.image_side, self.n_images = image_side, n_images
        self.task = Segmentation(("disc",), 1, image_side, (0.0, 1.0), standardised="slice")


class ToyClassification(ToyFederation):
    """A small simulated federation that learns to distinguish large discs from small ones in RGB images.

    Args:
        architecture: settings of the network; None uses a DenseNet with two dense blocks, which has BatchNorm layers.
        training: as in `ToySegmentation`.
        image_side: as in `ToySegmentation`.
        n_images: as in `ToySegmentation`.
    """

    architecture: NetworkSettings = DenseNetwork(init_features=8, growth_rate=4, blocks=(1, 1))
    samples = staticmethod(DiscImages.of_site)
    channels, n_logits = 3, 2

    def __init__(
        self,
        architecture: NetworkSettings | None = None,
        training: Training | None = None,
        image_side: int = IMAGE_SIDE,
        n_images: int = 10,
    ) -> None:
        self.architecture = architecture or self.architecture
        self.settings = training or self.settings
        self.image_side, self.n_images = image_side, n_images
        self.task = Classification(("small", "large"), 3, image_side)
