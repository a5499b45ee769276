"""Compare methods: leave each site out in turn, or two, for every method and seed, and make the papers' table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from medfed.config import load, resolved
from medfed.errors import UserError
from medfed.files import write_atomically
from medfed.grid import Fold, check_rows, every_method, parse_varied, plan, validators
from medfed.metrics import classification_summary, summary
from medfed.metrics.classification_summary import ALL
from medfed.outputs.comparison import Table, build_table
from medfed.outputs.cost import NOTE, Cost, cost_csv, cost_lines, cost_of, mean_cost
from medfed.outputs.latex import to_latex
from medfed.outputs.published_section import Ran, to_published_markdown
from medfed.outputs.run_folder import RunIsBusy
from medfed.outputs.table import aligned, to_csv, to_json, to_markdown, to_text
from medfed.programs import add_common_flags, overrides, run_program
from medfed.resuming import open_run
from medfed.simulation import bar_over
from medfed.train import run


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when every fold is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.evaluate", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--leave-one-site-out", action="store_true", help="each site is the unseen one in turn")
    which.add_argument("--leave-two-sites-out", action="store_true",
                       help="each site is the unseen one in turn, and the next one the validation site")
    parser.add_argument("--pairs", nargs="+", metavar="UNSEEN/VALIDATION",
                        help="with --leave-two-sites-out: these pairs in place of all neighbours")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "elcfs"], metavar="NAME",
                        help="default: fedavg elcfs. With settings: ccst:k=1,style=single. Several at once: "
                             "ccst+elcfs. all: every method that works on this task, as it is by default")
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=V1,V2,...",
                        help="run every method with each of these values of a setting, as rows of their own; given "
                             "several times, with each combination: --vary federation.participating=1,2,3")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each fold: seed, seed + 1, ...")
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="leave out these sites only")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.evaluate", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    if not (args.leave_one_site_out or args.leave_two_sites_out):
        raise UserError("say what to compare: --leave-one-site-out trains and tests every method on every unseen site, "
                        "--leave-two-sites-out does so with a validation site beside it")
    if args.pairs and (args.sites or not args.leave_two_sites_out):
        raise UserError("--pairs is for --leave-two-sites-out, without --sites: each pair names its unseen site")
    if args.seeds < 1:
        raise UserError(f"--seeds {args.seeds}: at least 1 is needed")
    varied = parse_varied(args.vary)
    config = load(args.config, overrides(args))
    left = "two_sites" if args.leave_two_sites_out else "one_site"
    out = args.out or Path("runs") / f"{Path(config.source).stem}-leave_{left}_out"
    dataset = config.data.ready(None if args.quiet else bar_over("making the phantom"))
    names = dataset.site_names()
    methods, refused = args.methods, {}
    if methods == ["all"]:
        methods, refused = every_method(config, dataset)
    validates = validators(names, args.pairs or (), config.data.root) if args.leave_two_sites_out else {}
    chosen = args.sites or (args.pairs and list(validates))
    folds = plan(config, out, methods, args.seeds, names, chosen, validates, varied)
    if out.exists() and not args.resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(f"{out}: holds runs of this comparison; go on with --resume, or start another with --out")
    check_rows(folds)
    left_out = run_folds(folds, args.quiet)
    print(write_table(folds, out, args.leave_two_sites_out))
    if left_out:
        print(f"\n{len(left_out)} of {len(folds)} runs are in the hands of another process; once it is done, --resume "
              "completes the table.")
    for name, sentence in refused.items():
        print(f"\nnot compared: {name}: {sentence}")
    more = "; of the validation sites: validation.csv, validation.json" if args.leave_two_sites_out else ""
    print(f"\nThe table is in {out}: table.md, table.csv, table.json, table.tex{more}; costs: cost.csv; each run has "
          "its own folder below it.")
    return 1 if left_out else 0


def run_folds(folds: list[Fold], quiet: bool) -> list[Fold]:
    """Run what is not done yet; folds that another process holds are left to it and returned."""
    busy, done = [], [fold.folder.is_finished() for fold in folds]
    with tqdm(total=len(folds), initial=sum(done), desc="folds", unit="fold", disable=quiet, dynamic_ncols=True,
              position=1) as bar:  # the time left is that of the runs that are left
        for fold, was_done in zip(folds, done, strict=True):
            bar.set_description_str(f"{fold.row.label}, unseen {fold.site}, seed {fold.config.seed}")
            try:
                with fold.folder.locked():
                    started = (fold.folder.path / "config.yaml").is_file()
                    open_run(fold.folder, fold.config, resume=started)
                    fold.row.write(fold.folder.path)
                    run(fold.config, fold.folder, quiet)
            except RunIsBusy:
                busy.append(fold)
            bar.update(not was_done)
    return busy


def write_table(folds: list[Fold], out: Path, two_out: bool = False) -> str:
    """`table.md`, `.csv`, `.json`, `.tex` and `cost.csv` from the folds that are finished; the tables as text.

    `table.md` ends with what was published on the same data. With `two_out` a second table is of the validation sites:
    in `table.md` and the text below the first, and in `validation.csv` and `validation.json`.
    """
    finished = [fold for fold in folds if fold.folder.is_finished()]
    table = _table(finished, "unseen")
    markdown, text = to_markdown(table), to_text(table, isatty=sys.stdout.isatty())
    write_atomically(out / "table.csv", to_csv(table))
    write_atomically(out / "table.json", to_json(table))
    write_atomically(out / "table.tex", to_latex(table))
    if two_out:
        table = _table(finished, "validation")
        markdown = f"## Unseen sites\n\n{markdown}\n## Validation sites\n\n{to_markdown(table)}"
        text = f"UNSEEN SITES\n{text}\n\nVALIDATION SITES\n{to_text(table, isatty=sys.stdout.isatty())}"
        write_atomically(out / "validation.csv", to_csv(table, "validation"))
        write_atomically(out / "validation.json", to_json(table))
    costs = _costs(finished)
    write_atomically(out / "cost.csv", cost_csv(costs))
    head, *lines = cost_lines(costs)
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    written = "\n".join(f"| {' | '.join(line)} |" for line in ruled)
    published = to_published_markdown(resolved(finished[0].config)["data"], table.data, list(map(_ran, finished)))
    write_atomically(out / "table.md", f"{markdown}\n### Cost\n\n{written}\n\n- {NOTE}\n{published}")
    return f"{text}\n\ncost\n{aligned([[(word, '') for word in line] for line in (head, *lines)], False)}\nnote: {NOTE}"


def _ran(fold: Fold) -> Ran:
    return Ran(fold.config.method_name, fold.row.changes, resolved(fold.config)["method"])


def _costs(finished: list[Fold]) -> dict[str, Cost]:
    """By row, the mean over its runs."""
    found: dict[str, list[Cost]] = {}
    for fold in finished:
        found.setdefault(fold.row.label, []).append(cost_of(fold.folder))
    return {label: mean_cost(costs) for label, costs in found.items()}


def _table(finished: list[Fold], role: str) -> Table:
    """Over the sites of a role, from the cases of finished folds."""
    results = []
    for fold in finished:
        found = fold.folder.read_json("summary.json")
        task = found.get("task", "segmentation")
        read_cases = (classification_summary if task == "classification" else summary).read_cases
        results.append({
            "method": fold.row.label,
            "baseline": fold.row.baseline,
            f"{role}_site": getattr(fold.config.federation, f"{role}_site"),
            "seed": fold.config.seed,
            "rows": [row for row in read_cases(fold.folder.path / "cases.csv") if row["role"] == role],
            "selection": found["selection"],
            "data": found["data"],
            "task": task,
            "transductive_by": found.get("transductive_by") or ["tent"] * bool(found.get("transductive")),
        })
    structures = list(dict.fromkeys(row.get("structure", ALL) for result in results for row in result["rows"]))
    return build_table(results, structures, role=role)


if __name__ == "__main__":
    sys.exit(main())
