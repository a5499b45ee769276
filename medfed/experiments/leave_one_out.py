"""Leave-one-site-out comparisons: run every fold and write the tables."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from medfed.config.schema import resolved
from medfed.core.files import write_atomically
from medfed.experiments.grid import Fold
from medfed.experiments.resume import check_run_folder
from medfed.experiments.run import run
from medfed.outputs.published.section import CompletedRun, to_published_markdown
from medfed.outputs.run_folder import RunFolderLockedError
from medfed.outputs.tables.comparison import Table, build_table
from medfed.outputs.tables.cost import NOTE, Cost, cost_csv, cost_rows, mean_cost, read_cost
from medfed.outputs.tables.latex import to_latex
from medfed.outputs.tables.table import align_columns, to_csv, to_json, to_markdown, to_text
from medfed.tasks.factory import scoring_of


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
                    check_run_folder(fold.folder, resolved(fold.config), resume=started)
                    fold.row.write(fold.folder.path)
                    run(fold.config, fold.folder, quiet)
            except RunFolderLockedError:
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
    head, *lines = cost_rows(costs)
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    written = "\n".join(f"| {' | '.join(line)} |" for line in ruled)
    published = to_published_markdown(resolved(finished[0].config)["data"], table.data, list(map(_ran, finished)))
    write_atomically(out / "table.md", f"{markdown}\n### Cost\n\n{written}\n\n- {NOTE}\n{published}")
    cost_table = align_columns([[(word, "") for word in line] for line in (head, *lines)], False)
    return f"{text}\n\ncost\n{cost_table}\nnote: {NOTE}"


def _ran(fold: Fold) -> CompletedRun:
    return CompletedRun(fold.config.method_name, fold.row.changes, resolved(fold.config)["method"])


def _costs(finished: list[Fold]) -> dict[str, Cost]:
    """By row, the mean over its runs."""
    found: dict[str, list[Cost]] = {}
    for fold in finished:
        found.setdefault(fold.row.label, []).append(read_cost(fold.folder))
    return {label: mean_cost(costs) for label, costs in found.items()}


def _table(finished: list[Fold], role: str) -> Table:
    """Over the sites of a role, from the cases of finished folds."""
    results: list[dict] = []
    structures: dict[str, None] = {}
    for fold in finished:
        path, found = fold.folder.path, fold.folder.read_json("summary.json")
        scoring = scoring_of(found, path / "summary.json")
        rows = [row for row in scoring.read_cases(path / "cases.csv") if row["role"] == role]
        structures |= dict.fromkeys(map(scoring.structure_of, rows))
        results.append({
            "method": fold.row.label,
            "baseline": fold.row.baseline,
            f"{role}_site": getattr(fold.config.federation, f"{role}_site"),
            "seed": fold.config.seed,
            "rows": rows,
            "selection": found["selection"],
            "data": found["data"],
            "summary": found,
            "transductive_by": found.get("transductive_by") or ["tent"] * bool(found.get("transductive")),
        })
    return build_table(results, list(structures), role=role)
