"""Convert the published encoder and decoder of AdaIN to a style codec, which restyles images (CCST, FISC)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import main_of, new_parser


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "codec",
        __doc__,
        ("--encoder vgg_normalised.pth --decoder decoder.pth --out codecs/vgg", "convert the two published files"),
        (
            "--encoder vgg19.pth --decoder decoder.pth --out data/weights/adain_vgg19",
            "for a config with method.codec: data/weights/adain_vgg19",
        ),
    )
    for flag, metavar, what in (
        ("--encoder", "FILE", "weights of VGG-19, such as vgg_normalised.pth"),
        ("--decoder", "FILE", "weights of the decoder that was trained for this encoder, such as decoder.pth"),
        ("--out", "FOLDER", "folder for the codec"),
    ):
        parser.add_argument(flag, type=Path, required=True, metavar=metavar, help=what)
    return parser


def _work(args: argparse.Namespace) -> int:
    from medfed.networks.parts.adain import convert_codec

    print(f"The codec is {convert_codec(args.encoder, args.decoder, args.out)}.")
    return 0


main = main_of("codec", parser, _work)

if __name__ == "__main__":
    sys.exit(main())
