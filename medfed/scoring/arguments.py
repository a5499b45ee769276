"""The command-line arguments of the programs that score a bundle, and the inputs that they name.

The programs import this module before they parse their flags, so nothing slow is imported at its top.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import UserError, argument

if TYPE_CHECKING:
    from medfed.datasets.base import Dataset

ENGINES = ("in_process", "processes")  # of this machine, for `medfed.coordinator score`
NETWORK = "nvflare"  # the name of its engine that asks the hospitals of a federation
DEFAULT_MIN_PATIENTS = 5  # a site with fewer patients returns no score


@dataclass(frozen=True)
class ScoringInputs:
    """A bundle and labelled images, as plain values that another process can read.

    Args:
        bundle: folder of the unpacked bundle.
        folder: folder with the labelled images, or a datalist.
        named: the bundle's name of structures or classes whose names differ.
        dataset: name of the dataset in a config; None recognises it by the layout of the folder.
        settings: settings of the images as "KEY=VALUE".
        device: "auto", "cpu" or "cuda".
    """

    bundle: str
    folder: str
    named: Mapping[str, str]
    dataset: str | None = None
    settings: tuple[str, ...] = ()
    device: str = "auto"

    def load_dataset(self) -> Dataset:
        """Return the dataset of the labelled images.

        Raises:
            UserError: if the folder has no layout that medfed recognises, or a setting is wrong.
        """
        from medfed.config.overrides import Override
        from medfed.config.schema import load_dataset

        return load_dataset(Path(self.folder), self.dataset, [Override.parse(text) for text in self.settings])

    def default_out(self) -> Path:
        """Return the folder for the results if the user names none."""
        return Path("scores") / f"{Path(self.bundle).resolve().name}-{Path(self.folder).resolve().stem}"


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the bundle, the images and the folder for the results.

    Args:
        parser: the parser of a program; changed in place.
    """
    parser.add_argument("bundle", type=Path, help="folder of an unpacked MONAI bundle, from medfed.export or others")
    parser.add_argument(
        "folder", type=Path, help="a folder with one folder per site, or a datalist, as for medfed.data check"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for the results (default: scores/BUNDLE-FOLDER)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="OWN=BUNDLE",
        help="the bundle's name of one of your structures or classes: --name gland=prostate",
    )
    parser.add_argument("--dataset", metavar="NAME", help="name in a config (default: recognised by the folder layout)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the images: data.sites=[A, B]"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")


def scoring_inputs(args: argparse.Namespace) -> ScoringInputs:
    """Return the bundle and the images that the arguments of `add_scoring_arguments` name.

    Args:
        args: the parsed arguments.

    Raises:
        UserError: if an argument `--name` is not a pair of names.
    """
    named = dict(_pair(text) for text in args.name)
    return ScoringInputs(str(args.bundle), str(args.folder), named, args.dataset, tuple(args.set), args.device)


def minimum_of_sites(texts: Sequence[str], sites: Sequence[str]) -> dict[str, int]:
    """Return the minimum group size of each site that the arguments `--min-patients` name.

    Args:
        texts: "N" for all sites, or "SITE=N" for one, which comes before "N".
        sites: the names of all sites.

    Raises:
        UserError: if a text has another form, the number is not above 0, or there is no such site.
    """
    of_all: dict[str, int] = {}
    of_one: dict[str, int] = {}
    for text in texts:
        site, sign, number = text.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or (sign and site not in sites):
            raise UserError(
                f"{argument('min_patients', text)}: expected a whole number above 0, or SITE=N with one of "
                f"the sites {', '.join(sites)}"
            )
        (of_one if sign else of_all).update(dict.fromkeys([site] if sign else sites, int(number)))
    return of_all | of_one


def _pair(text: str) -> tuple[str, str]:
    own, sign, predicted = text.partition("=")
    if not (own and sign and predicted):
        raise UserError(f"--name {text}: expected YOUR_NAME=NAME_IN_THE_BUNDLE, such as --name gland=prostate")
    return own, predicted
