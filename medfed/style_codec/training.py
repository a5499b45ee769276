"""Training a style codec, step by step; it can stop after any step and go on with the same bits.

Only the decoder is trained. The small codec starts as a wavelet and its inverse (`networks.lossless_start`), its
channels scaled to activations of size 1 on the content images, and by default stays that: it loses nothing at
alpha = 0. In trials of some hundred steps the pixel error rose to 0.01 (rate 3e-6) and 0.06 (1e-4), and the style loss
within [0, 1] fell by a tenth. First, if asked for, a warm-up as an autoencoder (mean absolute error of pixels); then
the losses of AdaIN:

    t = adain(E(c), E(s)),  g = D(t)
    content = MSE(E(g), t)                                                               eq. 12
    style = sum over taps of MSE(mean(g), mean(s)) + MSE(std(g), std(s))                 eq. 13
    loss = content_weight * content + style_weight * style + pixel_weight * MAE(D(E(c)), c)   eq. 11, and a pixel term

The paper has no pixel term. Where it has a weight, a quarter of each batch is its own style and pays it, so that small
structures survive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers
from medfed.federation.message import pack, unpack
from medfed.functional.style import adain, channel_mean_std
from medfed.networks.adain import StyleCodec
from medfed.networks.identity_init import init_identity
from medfed.networks.small_codec import SmallDecoder, SmallEncoder
from medfed.networks.vgg import Decoder, VGGEncoder, load_decoder, load_encoder
from medfed.style_codec.images import ImagePool, crop_rng

N_NORMALISATION_CROPS = 256  # crops that the scale of the small encoder's channels is taken from


@dataclass(frozen=True)
class Recipe:
    """How a codec is trained. The defaults are the paper's for its VGG; `SMALL` is ours for the small codec.

    encoder: "small", or the file of VGG weights.
    decoder: the file of a decoder's weights to start from, as published beside the encoder's; empty starts afresh.
    steps: in all, warm-up among them.
    size: side of the crops in pixels, a multiple of 8.
    learning_rate, decay: of Adam; learning_rate / (1 + decay * step), counted anew after the warm-up.
    ramp: steps over which the learning rate rises to that from 0. Without it, the first steps spoil a decoder that is
        good at the start.
    leak: how much of what is darker than black or brighter than white the losses see; a user sees nothing of it.
    """

    encoder: str
    steps: int = 160_000
    warm_up: int = 0
    batch_size: int = 8
    size: int = 256
    learning_rate: float = 1e-4
    decay: float = 5e-5
    ramp: int = 0
    content_weight: float = 1.0
    style_weight: float = 10.0
    pixel_weight: float = 0.0
    leak: float = 1.0
    seed: int = 0
    decoder: str = ""

    def __post_init__(self) -> None:
        if self.decoder and self.encoder == "small":
            raise UserError(f"--decoder {self.decoder} belongs to VGG; name its weights with --encoder too")
        if self.batch_size < 1 or not 0 <= self.warm_up <= self.steps:
            raise UserError("--batch-size must be at least 1, --steps at least 0, and --warm-up from 0 to --steps, "
                            f"got {self.batch_size}, {self.steps} and {self.warm_up}")
        if self.size < 16 or self.size % 8:
            raise UserError(f"--size must be a multiple of 8 from 16, got {self.size}")
        not_negative = (self.decay, self.ramp, self.content_weight, self.style_weight, self.pixel_weight)
        if not (self.learning_rate > 0 and min(not_negative) >= 0 and 0 <= self.leak <= 1):
            raise UserError("--learning-rate must be above 0, --decay, --ramp and the weights not below 0, and --leak "
                            "from 0 to 1")

    def learning_rate_at(self, step: int) -> float:
        """Of the steps 0, 1, ... after the last start."""
        return self.learning_rate * min(1, (step + 1) / max(self.ramp, 1)) / (1 + self.decay * step)


SMALL_RECIPE = Recipe(
    "small", steps=0, size=96, learning_rate=3e-6, ramp=50, style_weight=1.0, pixel_weight=50.0, leak=0.02
)


class CodecTraining:
    """A codec on its way.

    Args:
        recipe: how.
        content, style: the images.
        device: where the networks are; images are drawn on the CPU.
    """

    def __init__(
        self, recipe: Recipe, content: ImagePool, style: ImagePool, device: str | torch.device = "cpu"
    ) -> None:
        self.recipe, self.content, self.style, self.device = recipe, content, style, torch.device(device)
        with seeded_layers(recipe.seed, "codec"):
            self.codec, self.settings = _build_codec(recipe)
        encoder, decoder = self.codec.encoder, self.codec.decoder
        if isinstance(encoder, SmallEncoder) and isinstance(decoder, SmallDecoder):
            crops = content.batch(N_NORMALISATION_CROPS, recipe.size, crop_rng(recipe.seed, "normalise"))
            decoder.rescale_inputs(encoder.normalise_activations(crops)[-1])
        elif (
            isinstance(encoder, VGGEncoder) and encoder.architecture == "vgg16" and not recipe.decoder
        ):  # vgg19 is normalised
            crops = content.batch(N_NORMALISATION_CROPS // 8, recipe.size, crop_rng(recipe.seed, "normalise"))
            encoder.normalise_activations(crops)
        self.codec.to(self.device)
        self.step = 0
        self._start()

    def train_step(self) -> dict[str, float]:
        """One step; returns the losses by name, unweighted.

        Raises:
            UserError: if the loss is no longer finite.
        """
        if self.step == self.recipe.warm_up:
            self._start()
        rng = crop_rng(self.recipe.seed, "step", self.step)
        warming_up = self.step < self.recipe.warm_up
        losses = self._reconstruction(rng) if warming_up else self._adain(rng)
        weights = {"content": self.recipe.content_weight, "style": self.recipe.style_weight,
                   "pixel": 1.0 if warming_up else self.recipe.pixel_weight}
        total = sum((weights[name] * loss for name, loss in losses.items()), start=torch.zeros(()))
        if not torch.isfinite(total):
            rate = self.recipe.learning_rate
            raise UserError(f"the loss is not finite at step {self.step + 1}; lower --learning-rate, now {rate:g}")
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        past = self.step if warming_up else self.step - self.recipe.warm_up
        self.optimiser.param_groups[0]["lr"] = self.recipe.learning_rate_at(past)
        self.optimiser.step()
        self.step += 1
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def to_bytes(self) -> bytes:
        """Everything that going on needs."""
        moments = {f"{index}/{name}": value for index, state in self.optimiser.state_dict()["state"].items()
                   for name, value in state.items()}
        return pack({"codec": self.codec.state_dict(), "adam": moments}, {"step": self.step})

    def restore(self, data: bytes) -> None:
        """Go on from `to_bytes` of a training of this recipe; ValueError if these are other bytes."""
        groups, header = unpack(data)
        self.step = header["step"]
        self.codec.load_state_dict(groups["codec"])
        self._start()
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in groups.get("adam", {}).items():
            index, _, name = key.partition("/")
            state.setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})

    def facts(self) -> dict[str, Any]:
        """For people and result files: recipe, images, and the error at alpha = 0 on crops of the content."""
        crops = self.content.batch(64, self.recipe.size, crop_rng(self.recipe.seed, "examination"))
        error = self.codec.reconstruction_error(crops.to(self.device))
        return {
            "recipe": asdict(self.recipe),
            "steps": self.step,
            "data": {"content": self.content.description, "style": self.style.description},
            "reconstruction_error": {**error, "on": f"64 crops of content, {self.recipe.size} pixels a side"},
        }

    def _start(self) -> None:
        """A new optimiser; the end of the warm-up has another loss."""
        parameters = list(self.codec.decoder.requires_grad_(True).parameters())
        self.optimiser = torch.optim.Adam(parameters, lr=self.recipe.learning_rate)

    def _reconstruction(self, rng: torch.Generator) -> dict[str, Tensor]:
        images = self._batch(self.content, rng)
        return {"pixel": (self.codec.decoder(self.codec.encoder(images)[-1]) - images).abs().mean()}

    def _adain(self, rng: torch.Generator) -> dict[str, Tensor]:
        content, style = self._batch(self.content, rng), self._batch(self.style, rng)
        own = -(-len(content) // 4) if self.recipe.pixel_weight else 0
        style[:own] = content[:own]
        with torch.no_grad():
            wanted = [channel_mean_std(found) for found in self.codec.encoder(style)]
            target = adain(self.codec.encoder(content)[-1], *wanted[-1])
        image = self.codec.decoder(target)
        image = torch.lerp(image.clamp(0, 1), image, self.recipe.leak)
        found = self.codec.encoder(image)
        losses = {"content": nn.functional.mse_loss(found[-1], target), "style": _style_loss(found, wanted)}
        if own:
            losses["pixel"] = (image[:own] - content[:own]).abs().mean()
        return losses

    def _batch(self, pool: ImagePool, rng: torch.Generator) -> Tensor:
        return pool.batch(self.recipe.batch_size, self.recipe.size, rng).to(self.device)


def _style_loss(found: Iterable[Tensor], wanted: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """eq. 13: over images and channels the mean square, over the taps the sum."""
    both = ((channel_mean_std(maps), theirs) for maps, theirs in zip(found, wanted, strict=True))
    terms = (nn.functional.mse_loss(a, b) for ours, theirs in both for a, b in zip(ours, theirs, strict=True))
    return sum(terms, start=torch.zeros(()))


def check_weights(recipe: Recipe) -> None:
    """UserError if a file of weights is none, which is better known before images are read or made."""
    if recipe.encoder != "small":
        architecture = load_encoder(recipe.encoder).architecture
        if recipe.decoder:
            load_decoder(recipe.decoder, architecture)


def _build_codec(recipe: Recipe) -> tuple[StyleCodec, dict[str, Any]]:
    """The codec to train, and what its file tells of its shape."""
    if recipe.encoder == "small":
        small, small_decoder = SmallEncoder(), SmallDecoder()
        init_identity(small, small_decoder)
        return StyleCodec(small, small_decoder), {"architecture": "small", "channels": list(small.channels)}
    encoder = load_encoder(recipe.encoder)
    if recipe.decoder:
        return StyleCodec(encoder, load_decoder(recipe.decoder, encoder.architecture)), {
            "architecture": encoder.architecture
        }
    codec = StyleCodec(encoder, Decoder(encoder.architecture))
    for layer in codec.decoder.layers:
        if isinstance(layer, nn.Conv2d):  # PyTorch's own start shrinks what passes nine layers to nothing
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))
    return codec, {"architecture": encoder.architecture}
