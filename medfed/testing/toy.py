"""Toy federations of three sites with images of discs, one brightness per site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import LocalRound
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_entries
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.base import NetworkSettings
from medfed.tasks.classification import Classification
from medfed.tasks.patch_segmentation import PatchSegmentation
from medfed.tasks.patches import Patches
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices
from medfed.testing.small_unet import SmallUNet

IMAGE_SIDE = 32  # pixels: the default
BRIGHTNESS = {"north": 0.9, "south": 0.6, "west": 0.4}  # of the disc, by site; 0.7 for any other name
SITES = tuple(BRIGHTNESS)
MIN_LARGE_AREA = 120  # pixels, in images of 32 x 32 pixels: a disc with more of them belongs to the class "large"


def disc_slices(site: str, n_slices: int = 10, side: int = IMAGE_SIDE) -> Slices:
    """Return images (n_slices, 1, side, side) of a disc each, whose look the site's name decides; two per patient."""
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


def disc_images(site: str, n_images: int = 10, side: int = IMAGE_SIDE) -> Slices:
    """Return the discs of `disc_slices` in three equal channels, with class 1 for large discs and 0 for small ones."""
    slices = disc_slices(site, n_images, side)
    is_large = slices.labels.sum(dim=(1, 2, 3)) > MIN_LARGE_AREA * (side / IMAGE_SIDE) ** 2
    return Slices(slices.images.expand(-1, 3, -1, -1).contiguous(), is_large.long(), slices.volume)


def ball_patches(site: str, n_patches: int = 10, side: int = IMAGE_SIDE) -> Patches:
    """Return one patch (1, side / 2, side / 2, side / 4) in [0, 1] of each volume, with a bright ball in it."""
    rng, size = stream(0, "balls", site), (side // 2, side // 2, side // 4)
    axes = torch.meshgrid(*[torch.arange(length) for length in size], indexing="ij")
    images, labels = [], []
    for draws in torch.rand(n_patches, 4, generator=rng):
        centre = [length * (0.3 + 0.4 * draw) for length, draw in zip(size, draws, strict=False)]
        squares = [(axis - middle) ** 2 for axis, middle in zip(axes, centre, strict=True)]
        label = (sum(squares) < (side / 10 * (1 + draws[3])) ** 2)[None]
        background = 0.2 + 0.1 * torch.rand(1, *size, generator=rng)
        images.append(background + BRIGHTNESS.get(site, 0.7) * 0.5 * label)
        labels.append(label.to(torch.uint8))
    n_volumes = torch.arange(n_patches)
    return Patches(
        tuple(images),
        tuple(labels),
        size,
        torch.zeros(n_patches, 3, dtype=torch.int64),
        n_volumes,
        None,
        n_volumes // 2,
    )


class ToyFederation:
    """Base class of small simulated federations of three sites; use `ToySegmentation` or `ToyClassification`.

    Args:
        architecture: settings of the network; None uses a small one.
        training: optimiser, learning rate and batch size; None uses batches of four images.
        image_side: height and width of the images in pixels, as the network needs it.
        n_images: number of training images at each site, at least 4. A site has n_images / 2 - 1 validation images.

    Attributes:
        settings: optimiser, learning rate and batch size at each site.
        task: what the network learns.
        samples: function that returns a site's images, given the site's name, the number of images and their side.
    """

    architecture: NetworkSettings
    task: Segmentation | PatchSegmentation | Classification
    samples: Callable[..., Slices | Patches]

    def __init__(
        self,
        architecture: NetworkSettings | None = None,
        training: Training | None = None,
        image_side: int = IMAGE_SIDE,
        n_images: int = 10,
    ) -> None:
        self.architecture = architecture or self.architecture
        self.settings = training or Training(batch_size=4)
        self.task = replace(self.task, image_size=image_side)
        self.image_side, self.n_images = image_side, n_images

    def network(self, method: Method, seed: int = 0) -> nn.Module:
        """Return the network with random initial weights, including the layers that the method adds."""
        with seeded_layers(seed, "initial weights"):
            network = self.architecture.build(self.task.channels, self.task.out_channels)
            return method.wrap_network(network, self.architecture)

    def start(self, method: Method, seed: int = 0) -> State:
        """Return the coordinator's state before the first round, which contains the initial weights of the network."""
        network = self.network(method, seed)
        return State.of(network, method.local_keys(network) or None)  # None: `engine` decides which entries are local

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

    def train(self, method: Method, rounds: int = 1, seed: int = 0) -> State:
        """Train a new federation of the three sites, and return the coordinator's state after the last round.

        >>> from medfed.methods import FedAvg, FedProx
        >>> toy = ToySegmentation()
        >>> toy.train(FedProx(mu=0)).to_bytes() == toy.train(FedAvg()).to_bytes()
        True
        """
        settings, start = Federation(rounds=rounds), self.start(method, seed)
        *_, last = federate(method, self.engine(method, seed=seed), start, settings, seed, self.settings)
        return last.state

    def local_round(
        self, method: Method, site: str = SITES[0], tensors: Mapping[str, Tensor] | None = None, seed: int = 0
    ) -> LocalRound:
        """Return the first round of a site before `Method.on_round_start`, to call the hooks of a method one by one.

        Args:
            site: name of the site, which determines its images (`local.training`).
            tensors: what the site receives together with the weights, as `Method.broadcast` returns it.
            seed: seed of the initial weights and of `local.rng`.
        """
        start = self.start(method, seed)
        return LocalRound(
            site=site,
            round=1,
            network=self.network(method, seed).train(),
            architecture=self.architecture,
            task=self.task,
            message=Message(Kind.TRAIN, start.weights, dict(tensors or {}), {"round": 1}),
            memory={},
            rng=stream(seed, "method", site, 1),
            device=torch.device("cpu"),
            training=self.samples(site, self.n_images, self.image_side),
            start_weights=start.weights,
            settings=self.settings,
            learning_rate=self.settings.learning_rate,
            rounds=1,
        )


class ToySegmentation(ToyFederation):
    """A small simulated federation that learns to segment discs in grey images, by default with a small U-Net."""

    architecture = SmallUNet()
    task = Segmentation(("disc",), 1, IMAGE_SIDE, (0.0, 1.0), standardised="slice")
    samples = staticmethod(disc_slices)


class ToyVolumes(ToyFederation):
    """A small simulated federation that learns to segment balls in patches of volumes, with a small 3-D U-Net."""

    architecture = SmallUNet(dimensions=3)
    task = PatchSegmentation(("ball",), 1, IMAGE_SIDE, (0.0, 1.0), patch_size=(16, 16, 8))
    samples = staticmethod(ball_patches)


class ToyClassification(ToyFederation):
    """A small simulated federation that learns to tell large discs from small ones, by default with a DenseNet."""

    architecture = DenseNetwork(init_features=8, growth_rate=4, blocks=(1, 1))
    task = Classification(("small", "large"), 3, IMAGE_SIDE)
    samples = staticmethod(disc_images)
