"""The settings of a style codec's training, and the flags of `python -m medfed.codec train` that change them.

The program imports this module before it parses its flags, so nothing slow is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.core.errors import UserError

N_TEXTURES = 480  # default number of textures among the synthetic images


@dataclass(frozen=True)
class Recipe:
    """Settings of a style codec's training. A style codec redraws an image in another image's style.

    The defaults are those of the AdaIN paper for an encoder of VGG layers. `SMALL_RECIPE` has the settings for the
    small encoder.

    Args:
        encoder: "small", or the path of VGG weights.
        steps: number of training steps, including the warm-up.
        warm_up: number of these steps that train an autoencoder.
        batch_size: number of images per step.
        size: side of the crops in pixels, a multiple of 8, at least 16.
        learning_rate: learning rate of Adam, above 0.
        decay: the learning rate is divided by (1 + decay * step); steps are counted again from 0 after the warm-up.
        ramp: number of steps over which the learning rate rises from 0. Without it, the first steps spoil a decoder
            that is good at the start.
        content_weight: weight of the content loss, at least 0.
        style_weight: weight of the style loss, at least 0.
        pixel_weight: weight of the pixel error of images in their own style, at least 0.
        leak: fraction in [0, 1] of intensities outside [0, 1] that the losses see; the decoder's output is clamped.
        seed: seed of all random draws.
        decoder: path of a VGG decoder's weights to start from; "" starts from random weights.
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
        """Check all settings; a UserError names the flags of those that are not allowed."""
        if self.decoder and self.encoder == "small":
            raise UserError(f"--decoder {self.decoder} is for VGG; give VGG's weights with --encoder, too")
        if self.batch_size < 1 or not 0 <= self.warm_up <= self.steps:
            raise UserError(
                "--batch-size must be at least 1, --steps at least 0, and --warm-up from 0 to --steps, "
                f"got {self.batch_size}, {self.steps} and {self.warm_up}"
            )
        if self.size < 16 or self.size % 8:
            raise UserError(f"--size must be a multiple of 8 and at least 16, got {self.size}")
        not_negative = (self.decay, self.ramp, self.content_weight, self.style_weight, self.pixel_weight)
        if not (self.learning_rate > 0 and min(not_negative) >= 0 and 0 <= self.leak <= 1):
            raise UserError(
                "--learning-rate must be above 0, --decay, --ramp and all weights at least 0, and --leak from 0 to 1"
            )

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of one training step.

        In the first `ramp` steps, the learning rate rises linearly to `learning_rate`. In addition, it is divided by
        (1 + `decay` * step) in all steps.

        Args:
            step: number of the step, from 0. During the warm-up, steps are counted from the start of the training.
                After the warm-up, they are counted from the end of the warm-up.
        """
        return self.learning_rate * min(1, (step + 1) / max(self.ramp, 1)) / (1 + self.decay * step)


SMALL_RECIPE = Recipe(
    "small", steps=0, size=96, learning_rate=3e-6, ramp=50, style_weight=1.0, pixel_weight=50.0, leak=0.02
)
RECIPE_FLAGS = (
    ("steps", int, f"number of training steps (small: {SMALL_RECIPE.steps}; else the paper's 160000)"),
    ("warm_up", int, f"number of these steps that train an autoencoder (small: {SMALL_RECIPE.warm_up}; else 0)"),
    ("batch_size", int, "number of images per step (8)"),
    ("size", int, f"side of the crops in pixels (small: {SMALL_RECIPE.size}; else 256)"),
    ("learning_rate", float, f"learning rate of Adam (small: {SMALL_RECIPE.learning_rate:g}; else 1e-4)"),
    ("decay", float, f"learning rate / (1 + decay * step) (small: {SMALL_RECIPE.decay:g}; else 5e-5)"),
    ("ramp", int, f"steps over which the learning rate rises from 0 (small: {SMALL_RECIPE.ramp}; else 0)"),
    ("content_weight", float, "weight of the content loss (1)"),
    ("style_weight", float, f"weight of the style loss (small: {SMALL_RECIPE.style_weight:g}; else 10)"),
    ("pixel_weight", float, f"weight of the pixel error in own style (small: {SMALL_RECIPE.pixel_weight:g}; else 0)"),
    ("leak", float, f"fraction of values outside [0, 1] that the losses see (small: {SMALL_RECIPE.leak:g}; else 1)"),
    ("seed", int, "seed of all random draws (0)"),
)
