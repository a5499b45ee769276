"""A federation small enough to run in a second: discs of different brightness at three sites."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from medfed.core.batch import Batch
from medfed.core.seeds import seeded_layers, stream
from medfed.engines.in_process import InProcess
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_entries
from medfed.methods.fedavg import FedAvg
from medfed.networks.densenet import DenseNetwork
from medfed.networks.unet import UNet
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation, Slices

warnings.filterwarnings("ignore", message=".*always_return_as_numpy.*", category=FutureWarning)

SIDE = 32
BRIGHTNESS = {"north": 0.9, "south": 0.6, "west": 0.4}


def discs(site: str, n: int = 10) -> Slices:
    """Slices (n, 1, 32, 32): a disc on a textured ground, as bright as its site has it; two slices a patient."""
    rng = stream(0, "discs", site)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    draws = torch.rand(n, 3, generator=rng)
    centre = 10 + 12 * draws[:, :2]
    radius = 5 + 3 * draws[:, 2]
    distance = torch.hypot(rows - centre[:, :1, None], columns - centre[:, 1:, None])
    label = (distance < radius[:, None, None])[:, None]
    image = 0.2 + 0.1 * torch.rand(n, 1, SIDE, SIDE, generator=rng) + BRIGHTNESS.get(site, 0.7) * 0.5 * label
    return Slices(image.clamp(0, 1), label.to(torch.uint8), torch.arange(n) // 2)


class Toy:
    """Builds toy federations: `Toy().engine(method)`, `Toy().start(method)`."""

    settings = Training(batch_size=4)
    architecture = UNet(features=(4, 4, 4, 8, 8, 4))
    samples = staticmethod(discs)
    channels, n_logits = 1, 1

    def __init__(self, architecture: UNet | None = None, training: Training | None = None) -> None:
        self.architecture = architecture or self.architecture
        self.settings = training or self.settings
        self.task = Segmentation(("disc",), 1, SIDE, (0.0, 1.0))

    def network(self, method: Method, seed: int = 0) -> torch.nn.Module:
        with seeded_layers(seed, "initial weights"):
            return method.wrap_network(self.architecture.build(self.channels, self.n_logits), self.architecture)

    def start(self, method: Method, seed: int = 0) -> State:
        return State.of(self.network(method, seed))

    def engine(
        self,
        method: Method,
        sites=("north", "south", "west"),
        folder: Path | None = None,
        seed: int = 0,
        local_batch_norm: bool = False,
    ) -> InProcess:
        network = self.network(method, seed)
        local = batch_norm_entries(network) if local_batch_norm else method.local_keys(network)
        members = [
            Site(
                name, self.samples(name), self.samples(name + " validation", 4), self.task, method, network,
                self.architecture, self.settings, local, local_epochs=1, seed=seed,
            )
            for name in sites
        ]
        return InProcess(members, folder)


@dataclass(frozen=True)
class Blobs:
    """Images (n, 3, 32, 32) of small (class 0) and large (class 1) discs, as bright as their site has them."""

    images: torch.Tensor
    labels: torch.Tensor
    n_patients: int = 5

    @classmethod
    def of(cls, site: str, n: int = 10) -> Blobs:
        found = discs(site, n)
        return cls(found.images.expand(-1, 3, -1, -1).contiguous(), (found.labels.sum(dim=(1, 2, 3)) > 120).long())

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices) -> Batch:
        return Batch(self.images[list(indices)], self.labels[list(indices)])


class ToyOfClasses(Toy):
    """The same federation, telling large discs from small ones by a network with BatchNorm."""

    architecture = DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2))
    samples = staticmethod(Blobs.of)
    channels, n_logits = 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.task = Classification(("small", "large"), 3, SIDE)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture(params=[Toy, ToyOfClasses], ids=["masks", "classes"])
def any_toy(request) -> Toy:
    return request.param()


@pytest.fixture
def fedavg() -> FedAvg:
    return FedAvg()


@pytest.fixture
def two_rounds() -> Federation:
    return Federation(rounds=2)


@pytest.fixture(scope="session")
def tiny_phantom(tmp_path_factory) -> Path:
    """Six synthetic hospitals of four patients each, in the published layout, with few pixels."""
    from medfed.phantoms.synthesis.prostate import make_prostate_phantom

    root = tmp_path_factory.mktemp("data") / "prostate_phantom"
    make_prostate_phantom(root, cases_per_site=4, matrix=40, seed=0)
    return root


def tiny_yaml(root: Path) -> str:
    """A config that trains in a second or two on three sites of the tiny phantom."""
    return f"""
seed: 3
data: {{name: prostate, root: {root}, image_size: 32, sites: [BMC, HK, UCL], validation_ratio: 0.2}}
network: {{name: unet, features: [4, 4, 4, 8, 8, 4]}}
method: {{name: elcfs, alpha: 0.1, min_patients: 1}}
training: {{batch_size: 16, learning_rate: 0.01}}
federation: {{unseen_site: UCL, rounds: 2}}
"""


@pytest.fixture
def tiny_config(tmp_path, tiny_phantom) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_yaml(tiny_phantom))
    return path


class FileHandler(SimpleHTTPRequestHandler):
    """Serve a folder. `/short` sends 10 of the 1000 bytes that it announces."""

    def do_GET(self):
        if self.path != "/short":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(10 * b"x")

    def log_message(self, *arguments):
        """Print nothing."""


@dataclass(frozen=True)
class FileServer:
    """An HTTP server on this machine, and the folder whose files it serves."""

    address: str
    folder: Path


@pytest.fixture
def file_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(FileHandler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield FileServer(f"http://127.0.0.1:{server.server_port}", folder)
        server.shutdown()
