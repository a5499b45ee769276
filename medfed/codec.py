"""Train a style codec, which redraws images in another site's style (CCST, FISC), or show what a codec does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import run_program
from medfed.style_codec.recipe import N_TEXTURES, RECIPE_FLAGS


def main(argv: list[str] | None = None) -> int:
    """Run the program `medfed codec`, which trains a style codec, or draws images in the style of other images.

    A style codec is an encoder and a decoder that redraw an image in another site's style.

    Args:
        argv: the command-line arguments; None reads `sys.argv`.

    Returns:
        The exit code: 0 on success, 2 after an error that the user can correct.
    """
    parser = argparse.ArgumentParser(prog="python -m medfed.codec", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    train = commands.add_parser("train", help="train the small codec, or a decoder for VGG")
    train.add_argument(
        "--encoder", default="small", metavar="small|PATH", help="the small encoder, or a file of VGG weights"
    )
    train.add_argument(
        "--decoder", metavar="PATH", help="weights of VGG's decoder to start from; --steps is then 0 by default"
    )
    for flag, what in (
        ("--content", "folders of images to redraw (default: synthetic images)"),
        ("--style", "folders of images whose style is used (default: those of --content)"),
    ):
        train.add_argument(flag, type=Path, nargs="+", default=[], metavar="FOLDER", help=what)
    for name, kind, what in RECIPE_FLAGS:
        train.add_argument(f"--{name.replace('_', '-')}", type=kind, help=what)
    train.add_argument(
        "--textures", type=int, default=N_TEXTURES, metavar="N", help="number of textures among the synthetic images"
    )
    train.add_argument(
        "--save-every", type=int, default=500, metavar="STEPS", help="number of steps between two checkpoints"
    )
    train.add_argument("--out", type=Path, default=Path("runs/codec"), metavar="FOLDER", help="folder for the codec")
    train.add_argument("--resume", action="store_true", help="continue from the checkpoint in that folder")
    show = commands.add_parser("show", help="redraw images in each other's styles, and print the reconstruction error")
    show.add_argument("codec", metavar="CODEC", help="small, or a file or folder that `train` wrote")
    show.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="PNG, JPEG, BMP or TIFF")
    show.add_argument(
        "--styles",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="images whose style is used (default: the images themselves)",
    )
    show.add_argument("--alpha", type=float, default=1.0, help="strength of the style in [0, 1]")
    show.add_argument("--size", type=int, help="pixels of the shorter side after resizing (default: as stored)")
    show.add_argument("--out", type=Path, default=Path("styles.png"), metavar="PNG", help="file of the figure")
    for command in (train, show):
        command.add_argument("--device", default="auto", help="auto, cpu or cuda")
        command.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.codec", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    from medfed.style_codec.commands import show_codec, train_codec

    return {"train": train_codec, "show": show_codec}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
