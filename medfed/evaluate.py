"""Compare methods: leave each site out in turn, for every method and seed, and make the papers' table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from medfed.config import Config, changed, load, resolved
from medfed.errors import UserError
from medfed.files import write_atomically
from medfed.metrics import classification_summary, summary
from medfed.metrics.classification_summary import ALL
from medfed.overrides import Override
from medfed.outputs.run_folder import RunFolder, RunIsBusy
from medfed.outputs.table import build_table, to_csv, to_json, to_markdown, to_text
from medfed.programs import add_common_flags, overrides, run_program
from medfed.resuming import open_run
from medfed.simulation import bar_over
from medfed.train import run


@dataclass(frozen=True)
class Fold:
    """One cell of the grid: one method, one unseen site, one seed."""

    method: str
    site: str
    config: Config
    folder: RunFolder


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when every fold is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.evaluate", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    parser.add_argument("--leave-one-site-out", action="store_true", help="each site is the unseen one in turn")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "elcfs"], metavar="NAME",
                        help="default: fedavg elcfs. With settings: ccst:k=1,style=single. Several at once: ccst+elcfs")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each fold: seed, seed + 1, ...")
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="leave out these sites only")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.evaluate", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    if not args.leave_one_site_out:
        raise UserError("say what to compare: --leave-one-site-out trains and tests every method on every unseen site")
    if args.seeds < 1:
        raise UserError(f"--seeds {args.seeds}: at least 1 is needed")
    config = load(args.config, overrides(args))
    out = args.out or Path("runs") / f"{Path(config.source).stem}-leave_one_site_out"
    names = config.data.ready(None if args.quiet else bar_over("making the phantom")).site_names()
    folds = plan(config, out, args.methods, args.seeds, names, args.sites)
    if out.exists() and not args.resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(f"{out}: holds runs of this comparison; go on with --resume, or start another with --out")
    left_out = run_folds(folds, args.quiet)
    print(write_table(folds, out))
    if left_out:
        print(f"\n{len(left_out)} of {len(folds)} runs are in the hands of another process; once it is done, --resume "
              "completes the table.")
    print(f"\nThe table is in {out}: table.md, table.csv, table.json; each run has its own folder below it.")
    return 1 if left_out else 0


def plan(
    config: Config, out: Path, methods: list[str], n_seeds: int, names: list[str], sites: list[str] | None
) -> list[Fold]:
    """The grid, seed by seed, so that a table is complete as early as it can be; `sites` narrows the found `names`."""
    for site in sites or []:
        if site not in names:
            raise UserError(f"--sites {site}: no such site in {config.data.root}; found {', '.join(names)}")
    if len(names) < 2:
        raise UserError(f"{config.data.root}: leaving one site out needs at least two sites, found {', '.join(names)}")
    return [
        Fold(method, site, _config_of(config, method, site, config.seed + index),
             RunFolder(out / method.replace(":", "-") / f"unseen_{site}" / f"seed_{config.seed + index}"))
        for index in range(n_seeds)
        for site in sites or names
        for method in methods
    ]


def _config_of(config: Config, method: str, site: str, seed: int) -> Config:
    """The given config with another method.

    Args:
        method: a name (its settings as in the config where it is the same, else its defaults), `name:key=value,...` to
            set some, or several of these joined by + to stack them.
    """
    changes: dict[str, object] = {"federation.unseen_site": site, "seed": seed}
    blocks = [_parsed(part, method) for part in method.split("+")]
    if len(blocks) > 1:
        own = {key: value for key, value in resolved(config)["method"].items() if key != "preset"}
        changes["method.name"] = "stack"
        changes["method.methods"] = [
            {**(own if name == config.method_name else {}), "name": name,
             **{".".join(one.path): one.value for one in settings}}
            for name, settings in blocks
        ]  # fmt: skip
    else:
        (name, settings), = blocks
        changes |= {} if name == config.method_name else {"method.name": name}
        changes |= {"method." + ".".join(one.path): one.value for one in settings}
    return changed(config, changes)


def _parsed(part: str, method: str) -> tuple[str, list[Override]]:
    """`ccst:k=1,style=single` as a name and its settings; values hold no comma and no plus."""
    name, _, settings = part.partition(":")
    try:
        found = [Override.parse(one) for one in settings.split(",") if one]
    except UserError as error:
        raise UserError(f"--methods {method}: {str(error).removeprefix('--set ')}") from error
    if any(one.path == ("name",) for one in found):
        raise UserError(f"--methods {method}: a name among the settings; expected it before the colon")
    return name, found


def run_folds(folds: list[Fold], quiet: bool) -> list[Fold]:
    """Run what is not done yet; folds that another process holds are left to it and returned."""
    busy = []
    with tqdm(total=len(folds), desc="folds", unit="fold", disable=quiet, dynamic_ncols=True, position=1) as bar:
        for fold in folds:
            bar.set_description_str(f"{fold.method}, unseen {fold.site}, seed {fold.config.seed}")
            try:
                with fold.folder.locked():
                    started = (fold.folder.path / "config.yaml").is_file()
                    open_run(fold.folder, fold.config, resume=started)
                    run(fold.config, fold.folder, quiet)
            except RunIsBusy:
                busy.append(fold)
            bar.update(1)
    return busy


def write_table(folds: list[Fold], out: Path) -> str:
    """`table.md`, `table.csv` and `table.json` from the folds that are finished; the table as text."""
    results = []
    for fold in folds:
        if fold.folder.is_finished():
            found = fold.folder.read_json("summary.json")
            task = found.get("task", "segmentation")
            read_cases = (classification_summary if task == "classification" else summary).read_cases
            rows = [row for row in read_cases(fold.folder.path / "cases.csv") if row["role"] == "unseen"]
            results.append({
                "method": fold.method,
                "unseen_site": fold.site,
                "seed": fold.config.seed,
                "rows": rows,
                "selection": found["selection"],
                "data": found["data"],
                "task": task,
            })
    structures = list(dict.fromkeys(row.get("structure", ALL) for result in results for row in result["rows"]))
    table = build_table(results, structures, baseline="fedavg")
    for name, render in (("table.md", to_markdown), ("table.csv", to_csv), ("table.json", to_json)):
        write_atomically(out / name, render(table))
    return to_text(table, isatty=sys.stdout.isatty())


if __name__ == "__main__":
    sys.exit(main())
