"""Write the model of a finished run as a MONAI bundle that runs without medfed, or check a bundle before running it."""

from __future__ import annotations

import argparse
import sys
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfed.cli.program import add_code_flag, main_of, new_parser, require_paths
from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.api import export as export

# With `__all__`, help(medfed.export) shows the function, although `medfed.export` is this module.
__getattr__, __dir__, __all__ = lazy_names(__name__)


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "export",
        __doc__,
        ("runs/prostate-elcfs-unseen_UCL-seed1337", "write the bundle below the run's folder"),
        ("--check received/prostate_segmentation", "check a bundle of somebody else before it is used"),
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run; with --check, of a bundle")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the bundle (default: in RUN/bundle, named after the anatomy and the task); MONAI Label "
        "reads the task from the end of this name, _segmentation or _classification",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check that a bundle is complete, that its weights fit and that its configs run no code",
    )
    parser.add_argument("--force", action="store_true", help="export the model although it did not learn")
    add_code_flag(parser)
    return parser


def _work(args: argparse.Namespace) -> int:
    return _check(args) if args.check else _export(args)


def _check(args: argparse.Namespace) -> int:
    require_paths("a bundle", args.run)
    from medfed.outputs.bundle.check import check_bundle

    check_bundle(args.run)
    if not args.quiet:
        print(
            f"{args.run}: the bundle is complete; its weights fit, and its configs name only known classes and no code"
        )
    return 0


def _export(args: argparse.Namespace) -> int:
    require_paths("the folder of a finished run", args.run)
    from medfed.api import export
    from medfed.outputs.bundle.program import PROGRAM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of methods that build their network once more
        out = export(args.run, args.out, force=args.force)
    if not args.quiet:
        print(f"The bundle is {out}.")
        print("It runs with MONAI alone, without medfed; docs/README.md explains how, and which images it reads.")
        if (out / PROGRAM).is_file():
            print(f"It contains a program ({PROGRAM}), because MONAI lacks the network, so --check refuses it.")
    return 0


class _CallableModule(types.ModuleType):
    """A module that can be called as `medfed.api.export`, because `medfed.export` is both a program and a function."""

    def __call__(self, *args: Any, **options: Any) -> Path:
        from medfed.api import export

        return export(*args, **options)


sys.modules[__name__].__class__ = _CallableModule

main = main_of("export", parser, _work)

if __name__ == "__main__":
    sys.exit(main())
