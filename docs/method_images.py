"""Draw what a method does to an image: `python docs/method_images.py` writes `images/methods/NAME.png`.

The images are those of the fundus phantom, which is generated in a temporary folder.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from medfed import load_config
from medfed.core.batch import Batch
from medfed.core.registry import resolve
from medfed.core.seeds import stream
from medfed.experiments import method_figures
from medfed.experiments.setup import build_sites
from medfed.federation.local_round import SiteData
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.functional.feature_style import explore_styles, mix_styles
from medfed.functional.style import adain
from medfed.methods.jigen import shuffle_tiles, tile_permutations
from medfed.networks.parts import style_layers
from medfed.networks.parts.adain import load_codec

FOLDER = Path(__file__).with_name("images") / "methods"
SIDE, DPI = 128, 100
COLOURS, MAX_BYTES = (128, 96, 64, 48, 32), 60_000  # of a PNG: the most colours with which it is small enough
Panels = list[tuple[str, Tensor]]  # a title, and an image (C, H, W)
Lines = list[Panels]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help=f"some of {', '.join(DRAWN)}; by default, all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        images = images_by_site(Path(folder))
        for name in args.methods or DRAWN:
            (FOLDER / f"{name}.png").write_bytes(png(DRAWN[name](resolve("methods", name), images)))
    return 0


def images_by_site(folder: Path) -> dict[str, Site]:
    """The sites of the fundus phantom with their training images."""
    changes = {"data.root": str(folder / "fundus"), "data.image_size": SIDE, "federation.unseen_site": ""}
    config = load_config("fundus", changes, method="fedavg")
    names = config.data.ensure_available(None).site_names()
    return {site.name: site for site in build_sites(config, names)[0]}


def image_of(site: Site, index: int = 0) -> Tensor:
    """(1, C, H, W): an image of a site in [0, 1]."""
    return site.training.batch([index]).image


def shared_state(method: Method, sites: Mapping[str, Site]) -> State:
    """The coordinator's state after all sites shared their statistics."""
    state, shared = State(0, {}), {}
    for name, site in sites.items():
        data = SiteData(name, site.training, site.task, site.architecture, stream(0, name))
        shared[name] = method.share(data, site.network)
    return State(0, {}, method.combine(state, shared, stream(0, "combine")))


def in_other_styles(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    """An image of the first site in the styles of three others."""
    method = cls(min_patients=1)
    first, *others = sites
    image = image_of(sites[first])
    restyled = method_figures.restyled(method, shared_state(method, sites), image)
    return [[(f"image of {first}", image[0]), *((f"as at {name}", restyled[name][0]) for name in others)]]


def in_common_style(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    """An image of each site, and below it the same image in the style that is common to all sites."""
    method = cls(min_patients=1)
    state = shared_state(method, sites)
    images = {name: image_of(site) for name, site in sites.items()}
    changed = {name: method_figures.restyled(method, state, image)["all sites"] for name, image in images.items()}
    above = [(name, image[0]) for name, image in images.items()]
    return [above, [("", image[0]) for image in changed.values()]]


def augmented(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    """An image, and three results of the method's augmentation."""
    method, image = cls(), image_of(next(iter(sites.values())))
    local: Any = SimpleNamespace(rng=stream(3, cls.__name__))
    label = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8)
    copies = [method.augment(local, Batch(image, label)).image[0] for _ in range(3)]
    return [[("original", image[0]), *(("after one draw", copy) for copy in copies)]]


def puzzles(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    image = image_of(next(iter(sites.values())))
    orders = tile_permutations()[[1, 2, 3]]
    shuffled = shuffle_tiles(image.expand(3, -1, -1, -1), orders)
    return [[("original", image[0]), *((f"order {n}", one) for n, one in enumerate(shuffled, 1))]]


def decoded(change: Callable[[Tensor, int], Tensor], sites: Mapping[str, Site], titles: Sequence[str]) -> Lines:
    """An image, and copies whose features in medfed's style codec are changed and decoded.

    `change` maps features (4, D, h, w) of one image of each site, and the number of the copy, to the changed ones.
    """
    codec = load_codec("small")
    images = torch.cat([image_of(site) for site in sites.values()])
    features = codec.encode(images)
    copies = [codec.decode(change(features, n), (SIDE, SIDE))[0] for n in range(3)]
    return [[("original", images[0]), *zip(titles, copies, strict=True)]]


def mixed_moments(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    """Mean and standard deviation of the features, mixed in equal parts with those of three other sites' images."""

    def change(features: Tensor, n: int) -> Tensor:
        return mix_styles(features, torch.full((4,), RATIO), torch.arange(4).roll(-1 - n))

    return decoded(change, sites, [f"mixed with {name}" for name in list(sites)[1:]])


def mixed_histograms(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    def change(features: Tensor, n: int) -> Tensor:
        return style_layers.mix_histograms(features, torch.full((4,), RATIO), torch.arange(4).roll(-1 - n))

    return decoded(change, sites, [f"mixed with {name}" for name in list(sites)[1:]])


def noisy(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    layer, rng = style_layers.DSU(), stream(1, "dsu")
    return decoded(lambda features, n: layer.change_style(features, rng), sites, ["after one draw"] * 3)


def explored(cls: type[Method], sites: Mapping[str, Site]) -> Lines:
    """A style of another site (step 2), and styles away from the mean of the batch (step 4)."""

    def change(features: Tensor, n: int) -> Tensor:
        if n == 0:
            other = features[1]
            return adain(features, other.mean(dim=(1, 2)), other.std(dim=(1, 2)))
        return explore_styles(features, torch.arange(4), LEVELS[n - 1])

    return decoded(change, sites, ["style of another site", *(f"explored, level {level:g}" for level in LEVELS)])


RATIO, LEVELS = 0.3, (1.0, 3.0)  # weight of the own style; the method's default level is 3
DRAWN = {
    "bigaug": augmented,
    "ccst": in_other_styles,
    "dsu": noisy,
    "efdmix": mixed_histograms,
    "elcfs": in_other_styles,
    "fisc": in_common_style,
    "gin": augmented,
    "harmofl": in_common_style,
    "jigen": puzzles,
    "mixstyle": mixed_moments,
    "stable_fdg": explored,
}


def png(lines: Lines) -> bytes:
    """The images in lines, each with its title, on white."""
    columns = max(map(len, lines))
    figure = Figure(figsize=(1.75 * columns, 1.95 * len(lines)), dpi=DPI, layout="constrained", facecolor="white")
    for axes, (title, image) in zip(figure.subplots(len(lines), columns, squeeze=False).flat, sum(lines, [])):
        axes.imshow(np.moveaxis(image.clamp(0, 1).numpy(), 0, -1))
        axes.set_title(title, fontsize=9)
        axes.axis("off")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    for n_colours in COLOURS:
        file = io.BytesIO()
        pixels.quantize(n_colours, kmeans=2, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if len(file.getvalue()) <= MAX_BYTES:
            break
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main())
