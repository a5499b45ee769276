"""Collect the finished runs of the table of results, and make README.md and its figures from them.

python docs/results/results.py collect FOLDER...    # add the finished runs in these folders to runs/
python docs/results/results.py table                # write README.md and differences_*.png from runs/
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot as plt

from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.comparison_data import Block, Line
from medfed.outputs.tables.comparison_row import ComparisonRow
from medfed.tasks.factory import scoring_of

HERE = Path(__file__).parent
ROWS = {  # titles, and rows that a seed needs at each site before it is in the table
    "pacs": ("PACS", "fedavg stable_fdg dsu fedavg@steps=stable_fdg"),
    "breast_us": ("Breast ultrasound", "fedavg elcfs:ring_width=2 bigaug fedavg@steps=elcfs:ring_width=2"),
    "fundus_vessel": ("Retinal vessels", "fedavg elcfs:ring_width=2 gin fedavg@steps=elcfs:ring_width=2"),
}
METRICS, COSTS = ("accuracy", "dice", "hd95"), ("n_steps", "n_images", "train")
COLUMNS = ("method", "seed", "unseen", "role", "site", "patient", "image", "structure", "metric", "value")
DIFFERENCE = ("row", "minus", "difference [95 %, patients]", "95 % over seeds", "each seed", "p (Holm)", "verdict")
DIFFERENCE += ("detectable", "minus `fedavg` of less effort")
MAX_TEXT = 1000  # images of a run whose scores are text; more are compressed, without those of the source sites


def collect(folders: Sequence[str]) -> None:
    """Add each finished run of a comparison below `folders` to runs/; a run that is there stays as it is."""
    for path in sorted(path for folder in folders for path in Path(folder).rglob("row.json")):
        run, data = path.parent, path.parents[3].name
        if data not in ROWS or not (run / "summary.json").is_file():
            continue
        summary, row = json.loads((run / "summary.json").read_text()), ComparisonRow.of(json.loads(path.read_text()))
        seed, unseen = summary["seed"], summary["unseen_site"]
        target = HERE / "runs" / data / row.folder / f"unseen_{unseen}-seed_{seed}"
        if target.exists():
            continue
        target.mkdir(parents=True)
        scoring = scoring_of(summary)
        cases = scoring.read_cases(run / "cases.csv")
        is_large = len(cases) > MAX_TEXT
        rows = [COLUMNS]
        for case in cases:
            for column in scoring.columns if case["role"] == "unseen" or not is_large else ():
                value = case.get("correct" if column.key == "accuracy" else column.key)
                if column.metric.name in METRICS and value is not None:
                    names = (case["role"], case["site"], case["patient"], case["image"], scoring.structure_of(case))
                    rows.append((row.run_label, seed, unseen, *names, column.key, round(value, 5)))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode()
        name = "scores.csv.gz" if is_large else "scores.csv"
        (target / name).write_bytes(gzip.compress(content, mtime=0) if is_large else content)
        root = re.compile(r"^  root: .*/", re.MULTILINE)
        (target / "config.yaml").write_text(root.sub("  root: data/", (run / "config.yaml").read_text()))
        rounds = list(csv.DictReader((run / "timings.csv").read_text().splitlines()))
        summary["cost"] = {key: sum(float(entry[key]) for entry in rounds) for key in COSTS}
        summary["environment"] = json.loads((run / "environment.json").read_text())
        summary["row"] = json.loads(path.read_text())
        (target / "summary.json").write_text(json.dumps(summary, sort_keys=True) + "\n")


def read(data: str) -> list[dict]:
    """The runs of a collection, as `build_table` reads them."""
    results = []
    for path in sorted((HERE / "runs" / data).glob("*/*/summary.json")):
        summary = json.loads(path.read_text())
        file = next(path.parent.glob("scores.csv*"))
        text = (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode()
        cases: dict[tuple, dict] = {}
        for row in filter(lambda row: row["role"] == "unseen", csv.DictReader(io.StringIO(text))):
            names, value = {key: row[key] for key in COLUMNS[3:8]}, float(row["value"])
            if row["metric"] == "accuracy":  # two classes, right and wrong, have the same accuracy as all classes
                names |= {"label": "right", "p_right": value, "p_wrong": 1 - value, "correct": int(value)}
            else:
                names = {column.key: None for column in scoring_of(summary).columns} | names | {"status": "ok"}
            cases.setdefault(tuple(row[key] for key in ("image", "structure")), names)[row["metric"]] = value
        row = ComparisonRow.of(summary["row"])
        keys = {"method": row.label, "row": row, "unseen_site": summary["unseen_site"], "seed": summary["seed"]}
        results.append(keys | {"rows": list(cases.values()), "selection": "last", "data": "real", "summary": summary})
    return results


def complete(results: list[dict], data: str) -> list[dict]:
    """The runs of the seeds whose first rows are complete, without a row that lacks a site in one of its seeds."""
    sites = {site for r in results for site in (r["unseen_site"], *r["summary"]["source_sites"])}
    done: dict[tuple, set] = {}
    for r in results:
        done.setdefault((r["method"], r["seed"]), set()).add((r["unseen_site"], r["row"].trained_at))
    n = {key: len(folds) for key, folds in done.items()}
    whole = {key for key in n if n[key] == len(sites) * (len(sites) - 1 if key[0] == "local" else 1)}
    seeds = {seed for _, seed in n if all((method, seed) in whole for method in ROWS[data][1].split())}
    return [r for r in results if (r["method"], r["seed"]) in whole and r["seed"] in seeds]


def _number(value: float | None, low: float | None = None, high: float | None = None, sign: str = "") -> str:
    ends = "" if low is None or high is None else f" [{low:{sign}.1f}, {high:{sign}.1f}]"
    return "-" if value is None else f"{value:{sign}.1f}{ends}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _score_table(block: Block, sites: Sequence[str]) -> list[str]:
    rows = []
    for line in filter(None, (*block.lines, block.trivial)):
        cells = [_number(cell.mean, cell.low, cell.high) if cell else "-" for cell in (line.average, *line.cells)]
        rows.append([line.method, *cells])
    return _table(["row", "average", *sites], rows)


def _difference_row(line: Line) -> list[str]:
    d, less = line.difference, line.from_baseline
    over_seeds = f"{_number(d.seeds_low, sign='+')} to {_number(d.seeds_high, sign='+')}"
    p = "-" if d.p_holm is None else f"{d.p_holm:.2g}"
    seeds = ", ".join(f"{value:+.1f}" for value in d.of_seeds)
    cells = [_number(d.mean, d.low, d.high, "+"), over_seeds, seeds, p, d.verdict_text, _number(d.detectable)]
    from_less = _number(less.mean, less.low, less.high, "+") if less else ""
    return [line.method, line.against, *cells, from_less]


def _draw(block: Block, sites: Sequence[str], title: str, path: Path) -> None:
    """Differences at each unseen site and on average: a line is the interval over patients, a tick is a seed."""
    lines = [line for line in block.lines if line.difference is not None and line.differences]
    figure, axes = plt.subplots(1, len(lines), sharex=True, sharey=True, squeeze=False, layout="tight")
    figure.set_size_inches(3.2 * len(lines) + 1, 0.45 * len(sites) + 1.6)
    for axis, line in zip(axes.ravel(), lines, strict=True):
        for place, d in enumerate((*line.differences, line.difference)):
            colour = "black" if place < len(sites) else "tab:red"
            axis.plot([d.low, d.high], [place, place], color=colour)
            axis.plot(d.mean, place, "o", color=colour, markersize=4)
            axis.plot(d.of_seeds, [place + 0.22] * len(d.of_seeds), "|", color=colour, markersize=7)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_title(f"{line.method}\nminus {line.against}", fontsize=8)
        axis.set_yticks(range(len(sites) + 1), [*sites, "average"])
        axis.set_ylim(len(sites) + 0.5, -0.5)
        axis.tick_params(labelsize=8)
    figure.suptitle(f"{title}, {block.name}, points: line = 95 % over patients, | = one seed", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def section(data: str) -> list[str]:
    """The part of README.md about one collection; empty before its first complete seed."""
    results = complete(read(data), data)
    if not results:
        return []
    structures = sorted({row["structure"] for result in results for row in result["rows"]})
    methods = [result for result in results if result["row"].arrangement == "federated"]
    table = build_table(methods, structures)
    main = table.blocks[0]
    seeds = {str(r["seed"]): r["summary"]["environment"]["cuda"] or "CPU" for r in methods}
    devices = ", ".join(f"seed {seed} on {device}" for seed, device in sorted(seeds.items()))
    text = [f"## {ROWS[data][0]}", "", f"{main.name} ({main.unit}); {devices}. In brackets: 95 % over patients."]
    for block in table.blocks:
        if any(line.average for line in block.lines):
            text += [] if block is main else [f"{block.name} ({block.unit}), not tested:"]
            text += _score_table(block, table.sites)
    text += _table(DIFFERENCE, [_difference_row(line) for line in main.lines if line.difference])
    text += [f"![Differences by fold](differences_{data}.png)", ""]
    _draw(main, table.sites, ROWS[data][0], HERE / f"differences_{data}.png")
    first = [r for r in results if r["seed"] == 1 and r["method"] in ("fedavg", "pooled", "local")]
    if first:
        text += ["References, seed 1 only; `local` is the mean over the models of the sites that train:"]
        text += _score_table(build_table(first, structures).blocks[0], table.sites)
    text += ["Cost of a run, all sites together, mean over folds and seeds (seconds: other runs shared the machine):"]
    rows = []
    for line in main.lines:
        costs = [r["summary"]["cost"] for r in methods if r["method"] == line.method]
        rows.append([line.method, *(f"{fmean(cost[key] for cost in costs):.0f}" for key in COSTS)])
    text += _table(["row", "steps", "images", "training, s"], rows)
    return text + ["What can and what cannot be concluded:", "", *(f"* {line}" for line in table.conclusions), ""]


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["collect"] and len(arguments) > 1:
        collect(arguments[1:])
    elif arguments == ["table"]:
        parts = [(HERE / "discussion.md").read_text().rstrip().splitlines(), *map(section, ROWS)]
        (HERE / "README.md").write_text("\n".join("\n".join(part).strip("\n") + "\n" for part in parts if part))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
