"""The work of `medfed site`: a hospital checks its data, shows what would leave, agrees, and joins the federation."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

from medfed.cli.progress import case_bar
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.check_report import to_text
from medfed.datasets.checking import check_dataset
from medfed.deployment.agreement import plan_checksum
from medfed.deployment.dry_run import agreed_replies, format_report
from medfed.deployment.guard import Guard
from medfed.deployment.guarded_site import LEDGER, MODEL, build_local_site, describe_participation
from medfed.deployment.hospital_state import read_replies
from medfed.deployment.join import check_output_folder, join_federation, read_site_file
from medfed.engines.flare.job import has_flare, require_flare
from medfed.engines.flare.kit import check_kit


def run_site(args: argparse.Namespace) -> int:
    """Run `medfed site`: check the data, show what would leave, ask for agreement, and join the federation."""
    site_file, config = read_site_file(args.file)
    plan = plan_checksum(Path(site_file.plan))
    check_output_folder(folder := Path(site_file.folder), config.source)
    if not args.dry_run:
        require_flare("joining a federation")
    if not args.dry_run or (Path(site_file.kit).is_dir() and has_flare()):
        check_kit(Path(site_file.kit), site_file.site)
    set_deterministic(config.training.threads)
    dataset = config.data.ensure_available(None)
    _check_folder(dataset, site_file.site)
    _check_data(dataset, args.quiet)
    with warnings.catch_warnings():
        # The data check has already reported its warnings, and that there is only one site is expected here.
        warnings.simplefilter("ignore", UserWarning)
        site = build_local_site(config, site_file.site)
    sent = agreed_replies(site, site_file.agrees)
    guard = Guard(site_file.agrees, site, read_replies(folder) or [])
    print(format_report(sent, guard, config.method_name, config.federation.rounds))
    guard.check_plan(sent, config.source)
    if args.dry_run:
        return 0
    if not args.yes and not _yes("\nDo you agree that this leaves your hospital? [yes/no] "):
        print("Nothing was sent.")
        return 0
    join_federation(site_file, config, plan, args.quiet)
    print(
        f"The federation is over. The model is {folder / MODEL}; everything that was sent and received is listed in "
        f"{folder / LEDGER}.\n{describe_participation(folder, site_file.agrees)}"
    )
    return 0


def _check_folder(dataset: Dataset, site: str) -> None:
    """Raise UserError if `data.root` is the folder of the site itself, or its images are of sites with other names."""
    root = Path(dataset.root)
    if site in (names := _site_names(dataset)):
        return
    if root.resolve().name == site and site in _site_names(replace(dataset, root=str(root.resolve().parent))):
        raise UserError(
            f"data.root: {root} is the folder of the site {site} itself; expected the folder that contains it; remove "
            "the last part of the path"
        )
    if names:
        raise UserError(
            f"{root}: has no images of the site {site}, but of {', '.join(names)}; your files must name your site as "
            "the federation does"
        )


def _site_names(dataset: Dataset) -> list[str]:
    """The names of the sites; none if something is wrong with the files, which the check of the data then names."""
    try:
        return dataset.site_names()
    except UserError:
        return []


def _check_data(dataset: Dataset, quiet: bool) -> None:
    """Print the report of `medfed.data check`; raise UserError if it has a problem."""
    report = check_dataset(dataset, case_bar("checking the data", quiet), others_take_part=True)
    print(to_text(report, "Write a setting under data in the site file."))
    if report.problems:
        raise UserError(
            f"{dataset.root}: number of problems in the data: {len(report.problems)}; correct them and "
            "repeat the command (nothing was sent)"
        )


def _yes(question: str) -> bool:
    """Return whether the user types "yes"; false if there is no terminal to ask at."""
    try:
        return input(question).strip().lower() == "yes"
    except EOFError:
        return False
