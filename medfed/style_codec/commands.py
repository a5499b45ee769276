"""The commands of `python -m medfed.codec`: train a codec with checkpoints, and show how a codec redraws images."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medfed.cli.progress import ProgressBar
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum, sha256_digest, write_atomically
from medfed.functional.style import adain
from medfed.networks.adain import CODEC_FILE_NAME, StyleCodec, load_codec, serialise_codec
from medfed.outputs.environment import versions
from medfed.outputs.figures.codec_examples import save_codec_examples
from medfed.outputs.run_folder import RunFolder
from medfed.style_codec.images import ImagePool, Progress, crop_rng, folder_pool, read_image, synthetic_pool
from medfed.style_codec.recipe import N_TEXTURES, RECIPE_FLAGS, SMALL_RECIPE, Recipe
from medfed.style_codec.training import CodecTraining, check_weights

CHECKPOINT, SETTINGS = "checkpoint.state", "settings.json"
N_SAMPLE_IMAGES = 5
PROGRESS_INTERVAL = 20  # steps between two updates of the text of the progress bar


def train_codec(args: argparse.Namespace) -> int:
    """Train a style codec, or continue a training, and write the results to a folder.

    A style codec is an encoder and a decoder that redraw an image in another style. The folder receives the codec, a
    JSON file that describes it, sample images, and checkpoints of the training.

    Args:
        args: the flags of `python -m medfed.codec train`.

    Returns:
        The exit code, which is always 0.

    Raises:
        UserError: if a flag is out of range, or a file or folder cannot be used.
    """
    start = _default_recipe(args)
    given = {name: getattr(args, name) for name, _, _ in RECIPE_FLAGS if getattr(args, name) is not None}
    recipe = replace(start, **given)
    if args.save_every < 1:
        raise UserError(f"--save-every must be at least 1, got {args.save_every}")
    check_weights(recipe)
    with RunFolder(args.out).locked() as folder:
        content = _load_pool(args.content, recipe, args)
        style = _load_pool(args.style, recipe, args) if args.style else content
        training = CodecTraining(recipe, content, style, pick_device(args.device))
        _start_or_resume(folder, training, args.resume)
        _train(folder.path, training, args)
        _write_codec(folder.path, training, args)
    return 0


def _default_recipe(args: argparse.Namespace) -> Recipe:
    """Return the default recipe of the codec to train; a given decoder is kept as it is (0 steps)."""
    if args.encoder == "small" and not args.decoder:
        return SMALL_RECIPE
    return Recipe(args.encoder, steps=0, decoder=args.decoder) if args.decoder else Recipe(args.encoder)


def _start_or_resume(folder: RunFolder, training: CodecTraining, resume: bool) -> None:
    """Save the settings of a new training, or restore the checkpoint of one; only --steps may change."""
    settings = {**asdict(training.recipe), "content": training.content.digest(), "style": training.style.digest()}
    settings_file = folder.path / SETTINGS
    if not resume:
        if settings_file.exists():
            raise UserError(
                f"{folder.path}: contains a codec's training; continue it with --resume, or name another folder "
                "with --out"
            )
        folder.write_json(SETTINGS, settings)
        return
    if not settings_file.is_file():
        raise UserError(f"{folder.path}: contains no training; leave out --resume, or name another folder with --out")
    before = {"decoder": "", **folder.read_json(SETTINGS)}  # older versions did not save a decoder
    changed = [name for name in settings if name != "steps" and settings[name] != before.get(name)]
    if changed:
        raise UserError(
            f"{folder.path}: was started with a different {', '.join(changed)}; undo the change, or start another "
            "training with --out"
        )
    if (folder.path / CHECKPOINT).is_file():
        training.restore(read_with_checksum(folder.path / CHECKPOINT, "start another training with --out"))


def _train(folder: Path, training: CodecTraining, args: argparse.Namespace) -> None:
    """Do the remaining training steps, with a progress bar and checkpoints."""
    steps = training.recipe.steps
    with ProgressBar(total=steps, initial=training.step, unit="step", disable=args.quiet) as bar:
        while training.step < steps:
            losses = training.train_step()
            bar.update(1)
            if training.step % PROGRESS_INTERVAL == 0:
                bar.set_description_str(", ".join(f"{name} {loss:.3f}" for name, loss in losses.items()), refresh=False)
            if training.step % args.save_every == 0 or training.step == steps:
                data = training.to_bytes()
                write_atomically(folder / CHECKPOINT, sha256_digest(data), data)


def _write_codec(folder: Path, training: CodecTraining, args: argparse.Namespace) -> None:
    """Write the trained codec, its description and sample images to the folder, and print its reconstruction error."""
    facts = {**training.facts(), "command": _command(training.recipe, args), "versions": versions()}
    training.codec.requires_grad_(False)
    training.codec.facts = facts
    data = serialise_codec(training.codec, training.settings)
    write_atomically(folder / CODEC_FILE_NAME, data)
    card = {**training.settings, "bytes": len(data), **facts}
    write_atomically(folder / "codec.json", json.dumps(card, indent=2, sort_keys=True) + "\n")
    rng = crop_rng(training.recipe.seed, "samples")
    pools = training.content, training.style
    contents, styles = (pool.batch(N_SAMPLE_IMAGES, training.recipe.size, rng) for pool in pools)
    _draw_figure(
        training.codec, list(contents), list(styles), 1.0, folder / "samples.png", training.content.description
    )
    error = facts["reconstruction_error"]
    print(
        f"{folder / CODEC_FILE_NAME}: {len(data) / 1e6:.2f} MB; encoding and decoding changes the "
        f"intensity of a pixel by {error['mean_absolute_error']:.4f} on average (RMSE {error['rmse']:.4f}); see "
        f"{folder / 'samples.png'}"
    )


def show_codec(args: argparse.Namespace) -> int:
    """Redraw images in the styles of other images with a style codec, save the result as a figure, and print errors.

    A style codec is an encoder and a decoder that redraw an image in another style. For each image, the error of
    encoding and decoding the image without a change of style is printed.

    Args:
        args: the flags of `python -m medfed.codec show`.

    Returns:
        The exit code, which is always 0.

    Raises:
        UserError: if a flag is out of range, the codec cannot be loaded, or an image is damaged or too small.
    """
    if not 0 <= args.alpha <= 1:
        raise UserError(f"--alpha must be from 0 to 1, got {args.alpha:g}")
    codec = load_codec(args.codec).to(pick_device(args.device))
    contents, styles = (
        [torch.from_numpy(read_image(path, args.size).copy()) for path in paths]
        for paths in (args.images, args.styles or args.images)
    )
    for path, image in zip([*args.images, *(args.styles or [])], [*contents, *(styles if args.styles else [])]):
        if min(image.shape[1:]) < codec.min_side:
            size = f"{image.shape[2]} x {image.shape[1]}"
            raise UserError(f"{path}: is {size} pixels; expected at least {codec.min_side} on each side")
    _draw_figure(codec, contents, styles, args.alpha, args.out, f"codec {args.codec}, alpha {args.alpha:g}")
    for path, image in zip(args.images, contents):
        error = codec.reconstruction_error(image[None])
        print(f"{path}: mean absolute error {error['mean_absolute_error']:.4f}, RMSE {error['rmse']:.4f} at alpha = 0")
    print(f"The figure is {args.out}.")
    return 0


def _draw_figure(
    codec: StyleCodec, contents: Sequence[Tensor], styles: Sequence[Tensor], alpha: float, path: Path, label: str
) -> None:
    """Draw the figure: each image (3, H, W) is encoded once and decoded in its own and in every other style."""
    target_styles = [codec.style(style[None]) for style in styles]
    decoded, styled = [], []
    for image in contents:
        features, size = codec.encode(image[None]), tuple(image.shape[1:])
        decoded.append(codec.decode(features, size)[0].cpu())
        styled.append([codec.decode(adain(features, *style, alpha), size)[0].cpu() for style in target_styles])
    save_codec_examples(contents, decoded, styles, styled, path, label)


def _load_pool(folders: Sequence[Path], recipe: Recipe, args: argparse.Namespace) -> ImagePool:
    """Read the images of folders, or generate synthetic ones if no folder is given."""
    if folders:
        return folder_pool(folders, recipe.size, _progress_bar("reading images", args.quiet))
    return synthetic_pool(recipe.size, recipe.seed, _progress_bar("generating images", args.quiet), args.textures)


def _command(recipe: Recipe, args: argparse.Namespace) -> str:
    """Return the command that trains the same codec, with every setting that is not the default."""
    start = _default_recipe(args)
    parts = ["python -m medfed.codec train", f"--encoder {recipe.encoder}"]
    parts += [f"--decoder {recipe.decoder}"] if recipe.decoder else []
    folders = {"content": args.content, "style": args.style}
    parts += [f"--{name} {' '.join(map(str, paths))}" for name, paths in folders.items() if paths]
    changed = {
        entry.name: getattr(recipe, entry.name)
        for entry in fields(Recipe)
        if getattr(recipe, entry.name) != getattr(start, entry.name)
    }
    parts += [f"--textures {args.textures}"] if args.textures != N_TEXTURES else []
    return " ".join(parts + [f"--{name.replace('_', '-')} {value}" for name, value in changed.items()])


def _progress_bar(text: str, quiet: bool) -> Progress:
    """Return a function that wraps an iterable with a progress bar."""

    def wrap(items: Any) -> Any:
        return ProgressBar(items, desc=text, unit="image", disable=quiet, leave=False)

    return wrap
