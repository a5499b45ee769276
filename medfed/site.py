"""A hospital's side: check the data, show what would leave, agree, join the federation, and leave when it is over."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from medfed.cli.program import run_program
from medfed.config.schema import to_yaml
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.check_report import to_text
from medfed.datasets.checking import check_dataset
from medfed.deployment.dry_run import check_agreement, format_report, outgoing_rows
from medfed.deployment.guarded_site import LEDGER, MODEL, build_local_site
from medfed.deployment.join import join_federation, read_site_file
from medfed.experiments.setup import progress_bar


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the federation is over, or after --dry-run; 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.site", description=__doc__)
    parser.add_argument(
        "file", type=Path, help="this hospital's YAML; medfed.coordinator prepare writes one to fill in"
    )
    parser.add_argument("--yes", action="store_true", help="agree to what is shown, without being asked")
    parser.add_argument("--dry-run", action="store_true", help="show what would leave, and stop there")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.site", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    hospital, config = read_site_file(args.file)
    set_deterministic()
    _check_data(config.data.ensure_available(None), args.quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report has said it; and one site is no federation yet
        site = build_local_site(config, hospital.site)
    rows = outgoing_rows(site)
    print(format_report(rows, site, config.method_name, config.federation.rounds))
    check_agreement(rows, site, hospital.agrees, config.source)
    if args.dry_run:
        return 0
    if not args.yes and not _yes("\nDo you agree that this leaves, every round? [yes/no] "):
        print("Nothing was sent.")
        return 0
    join_federation(hospital, to_yaml(config), config.source, args.quiet)
    folder = Path(hospital.folder)
    print(f"The federation is over. The model is {folder / MODEL}; what crossed the border is in {folder / LEDGER}.")
    return 0


def _check_data(dataset: Dataset, quiet: bool) -> None:
    """The report of `medfed.data check`; UserError if anything is wrong, as nothing was sent yet."""
    report = check_dataset(dataset, dataset.allow_duplicates, None if quiet else progress_bar("checking the data"))
    print(to_text(report))
    if report.problems:
        raise UserError(f"{dataset.root}: {len(report.problems)} problems in the data; mend them and come back, "
                        "nothing was sent")


def _yes(question: str) -> bool:
    """Whether a person says so; where nobody can be asked, nobody does."""
    try:
        return input(question).strip().lower() == "yes"
    except EOFError:
        return False


if __name__ == "__main__":
    sys.exit(main())
