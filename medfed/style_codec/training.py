"""The training of a style codec, step by step; it can stop after any step and continue with bit-identical results.

Only the decoder is trained. The small codec starts as a wavelet transform and its inverse (`networks.identity_init`),
with its channels scaled to activations of size 1 on the content images, and by default it stays so: it loses nothing at
alpha = 0. In trials of some hundred steps, the error of the pixels rose to 0.01 (learning rate 3e-6) and 0.06 (1e-4),
while the style loss within [0, 1] fell by a tenth. The training starts with an optional warm-up as an autoencoder (mean
absolute error of the pixels); then it minimises the losses of AdaIN:

    t = adain(E(c), E(s)),  g = D(t)
    content = MSE(E(g), t)                                                               eq. 12
    style = sum over levels of MSE(mean(g), mean(s)) + MSE(std(g), std(s))               eq. 13
    loss = content_weight * content + style_weight * style + pixel_weight * MAE(D(E(c)), c)   eq. 11, and a pixel term

E and D are the encoder and the decoder, c a content image and s a style image. Equations of Huang & Belongie,
"Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. The paper has no pixel term. If its weight is above 0, a quarter of each batch is
redrawn in its own style, and the pixel error is computed on it, so that small structures survive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers
from medfed.federation.encoding import pack, unpack
from medfed.functional.style import adain, channel_mean_std
from medfed.networks.adain import StyleCodec
from medfed.networks.identity_init import init_identity
from medfed.networks.small_codec import SmallDecoder, SmallEncoder
from medfed.networks.vgg import Decoder, VGGEncoder, load_decoder, load_encoder
from medfed.style_codec.images import ImagePool, crop_rng
from medfed.style_codec.recipe import Recipe

N_NORMALISATION_CROPS = 256  # from which the scale of the small encoder's channels is computed


class CodecTraining:
    """The training of a style codec: an encoder and a decoder that redraw an image in the style of another image.

    Args:
        recipe: the settings.
        content: the images that are redrawn.
        style: the images whose style is used.
        device: device of the networks; the crops of the images are drawn on the CPU.

    Raises:
        UserError: if the weights of the encoder or the decoder cannot be read.
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
        """Do one step of the training: draw a batch of images, compute the loss, and update the decoder's weights.

        In the warm-up, the codec learns to reproduce images. Afterwards, it learns to redraw images in the style of
        other images.

        Returns:
            The losses by name, before they are multiplied by their weights. In the warm-up, this is only "pixel", the
            mean absolute error of the pixels. Afterwards, these are "content" and "style", and also "pixel" if the
            setting `pixel_weight` is above 0.

        Raises:
            UserError: if the loss is not finite.
        """
        if self.step == self.recipe.warm_up:
            self._start()
        rng = crop_rng(self.recipe.seed, "step", self.step)
        warming_up = self.step < self.recipe.warm_up
        losses = self._reconstruction(rng) if warming_up else self._adain(rng)
        weights = {
            "content": self.recipe.content_weight,
            "style": self.recipe.style_weight,
            "pixel": 1.0 if warming_up else self.recipe.pixel_weight,
        }
        total = sum((weights[name] * loss for name, loss in losses.items()), start=torch.zeros(()))
        if not torch.isfinite(total):
            rate = self.recipe.learning_rate
            raise UserError(f"the loss is not finite at step {self.step + 1}; lower --learning-rate, now {rate:g}")
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        steps_done = self.step if warming_up else self.step - self.recipe.warm_up
        self.optimiser.param_groups[0]["lr"] = self.recipe.learning_rate_at(steps_done)
        self.optimiser.step()
        self.step += 1
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def to_bytes(self) -> bytes:
        """Return the state of the training as bytes, from which `restore` continues it.

        The state consists of the codec's weights, the state of the optimiser Adam, and the number of finished steps.
        """
        moments = {
            f"{index}/{name}": value
            for index, state in self.optimiser.state_dict()["state"].items()
            for name, value in state.items()
        }
        return pack({"codec": self.codec.state_dict(), "adam": moments}, {"step": self.step})

    def restore(self, data: bytes) -> None:
        """Continue an earlier training with the same settings: replace the state of this training by the saved state.

        Args:
            data: the saved state, which `to_bytes` returned. The state must be from a training with the same settings.
                Only the shapes of the codec's weights are checked: a different learning rate, for example, is not
                noticed.

        Raises:
            ValueError: if the bytes are damaged.
            RuntimeError: if the saved weights do not fit the codec, for example because the codec has another encoder.
        """
        groups, header = unpack(data, ("codec", "adam"))
        self.step = header["step"]
        self.codec.load_state_dict(groups["codec"])
        self._start()
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in groups.get("adam", {}).items():
            index, _, name = key.partition("/")
            state.setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})

    def facts(self) -> dict[str, Any]:
        """Return a description of the training as JSON values: settings, images, and the codec's reconstruction error.

        The reconstruction error is the error of encoding and decoding images without a change of style. This error is
        measured on 64 random crops of the content images (the images that the training redraws).

        Returns:
            A dict with the keys `recipe` (the settings), `steps` (the number of finished steps), `data` (a description
            of the images) and `reconstruction_error` (`mean_absolute_error` and `rmse` of intensities in [0, 1]).
        """
        crops = self.content.batch(64, self.recipe.size, crop_rng(self.recipe.seed, "examination"))
        error = self.codec.reconstruction_error(crops.to(self.device))
        return {
            "recipe": asdict(self.recipe),
            "steps": self.step,
            "data": {"content": self.content.description, "style": self.style.description},
            "reconstruction_error": {**error, "on": f"64 crops of content, {self.recipe.size} pixels a side"},
        }

    def _start(self) -> None:
        """Create a new optimiser, at the start and after the warm-up, whose loss differs."""
        parameters = list(self.codec.decoder.requires_grad_(True).parameters())
        self.optimiser = torch.optim.Adam(parameters, lr=self.recipe.learning_rate)

    def _reconstruction(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of the warm-up: the mean absolute error of the decoded pixels."""
        images = self._batch(self.content, rng)
        return {"pixel": (self.codec.decoder(self.codec.encoder(images)[-1]) - images).abs().mean()}

    def _adain(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of AdaIN and, if it has a weight, the pixel error."""
        content, style = self._batch(self.content, rng), self._batch(self.style, rng)
        n_own = -(-len(content) // 4) if self.recipe.pixel_weight else 0  # images redrawn in their own style
        style[:n_own] = content[:n_own]
        with torch.no_grad():
            styles = [channel_mean_std(level) for level in self.codec.encoder(style)]
            target = adain(self.codec.encoder(content)[-1], *styles[-1])
        image = self.codec.decoder(target)
        image = torch.lerp(image.clamp(0, 1), image, self.recipe.leak)
        levels = self.codec.encoder(image)
        content_loss = nn.functional.mse_loss(levels[-1], target)  # eq. 12
        losses = {"content": content_loss, "style": _style_loss(levels, styles)}
        if n_own:
            losses["pixel"] = (image[:n_own] - content[:n_own]).abs().mean()
        return losses

    def _batch(self, pool: ImagePool, rng: torch.Generator) -> Tensor:
        """Draw a batch of crops, on the device of the networks."""
        return pool.batch(self.recipe.batch_size, self.recipe.size, rng).to(self.device)


def _style_loss(levels: Iterable[Tensor], styles: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the style loss, eq. 13: mean square over images and channels, summed over the encoder's levels."""
    pairs = ((channel_mean_std(level), style) for level, style in zip(levels, styles, strict=True))
    terms = (nn.functional.mse_loss(a, b) for own, style in pairs for a, b in zip(own, style, strict=True))
    return sum(terms, start=torch.zeros(()))


def check_weights(recipe: Recipe) -> None:
    """Check that the weight files in the settings can be read, before a training reads or generates images.

    Args:
        recipe: settings of the training. Only the VGG encoder and its decoder have weight files (`encoder`, `decoder`).

    Raises:
        UserError: if a file is missing, damaged or of another network.
    """
    if recipe.encoder != "small":
        architecture = load_encoder(recipe.encoder).architecture
        if recipe.decoder:
            load_decoder(recipe.decoder, architecture)


def _build_codec(recipe: Recipe) -> tuple[StyleCodec, dict[str, Any]]:
    """Build the codec to train; return it with the settings that its file will have."""
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
        if isinstance(layer, nn.Conv2d):  # PyTorch's default initialisation lets activations vanish over nine layers
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.get_parameter("bias"))
    return codec, {"architecture": encoder.architecture}
