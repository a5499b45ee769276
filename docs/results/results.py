"""Collect the finished runs of the table of results, and make README.md and its figures from them.

python docs/results/results.py collect FOLDER...    # add the finished runs in these folders to runs/
python docs/results/results.py table                # write README.md and differences_*.png from runs/
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt

from medfed.results.comparison import Comparison, ScoredRun, compare_runs
from medfed.results.conclusions import CONCLUSIONS
from medfed.results.render import notes_and_conclusions
from medfed.results.row import row_of
from medfed.results.run_scores import run_scores_of
from medfed.results.scores import COLUMNS, GROUP, IDENTITY, VALUES, is_probability, predictions, read_scores
from medfed.results.statistics import AVERAGE, verdict_text
from medfed.results.text_tables import TextTable, interval, number, text_table, to_markdown

HERE = Path(__file__).parent
ROWS = {  # titles, and rows that a seed needs at each site before it is in the table
    "pacs": ("PACS", "fedavg stable_fdg dsu fedavg@steps=stable_fdg"),
    "breast_us": ("Breast ultrasound", "fedavg elcfs:ring_width=2 bigaug fedavg@steps=elcfs:ring_width=2"),
    "fundus_vessel": ("Retinal vessels", "fedavg elcfs:ring_width=2 gin fedavg@steps=elcfs:ring_width=2"),
}
FAILED = 20  # Dice in % below which the prediction has missed the structure
METRICS, COSTS = ("accuracy", "dice", "hd95"), ("n_steps", "n_images", "train")  # training in seconds
SHOWN = (*METRICS, "auroc")
SAMPLES = {"accuracy": "images", "dice": "patients"}  # over which the intervals are
AT_SOURCES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "dice": "Dice", "ece": "ECE"}
ROLE_TITLES = {"seen": "source sites", "unseen": "unseen site"}
DIFFERENCE = ("row", "minus", "difference [95 %]", "95 % over seeds", "each seed", "p (Holm)", "verdict")
DIFFERENCE += ("detectable", "minus fedavg of less effort")
MAX_TEXT = 1000  # images of a run whose scores are text; more are compressed, without those of the source sites


def collect(folders: Sequence[str]) -> None:
    """Add each finished run of a comparison below `folders` to runs/; a run that is there stays as it is.

    The collection is the name of a folder above the run.
    """
    for path in sorted(path for folder in folders for path in Path(folder).rglob("row.json")):
        run, data = path.parent, next((folder.name for folder in path.parents if folder.name in ROWS), "")
        if not data or not (run / "summary.json").is_file():
            continue
        summary, row = json.loads((run / "summary.json").read_text()), row_of(json.loads(path.read_text()))
        seed, unseen = summary["seed"], summary["unseen_site"]
        target = HERE / "runs" / data / row.folder / f"unseen_{unseen}-seed_{seed}"
        if target.exists():
            continue
        target.mkdir(parents=True)
        table = unseen_or_few(read_scores(run / "cases.csv")).round({"value": 3})
        content = table.to_csv(index=False, lineterminator="\n").encode()
        is_large = table.image.nunique() > MAX_TEXT
        name = "scores.csv.gz" if is_large else "scores.csv"
        (target / name).write_bytes(gzip.compress(content, mtime=0) if is_large else content)
        root = re.compile(r"^  root: .*/", re.MULTILINE)
        (target / "config.yaml").write_text(root.sub("  root: data/", (run / "config.yaml").read_text()))
        rounds = list(csv.DictReader((run / "timings.csv").read_text().splitlines()))
        summary["cost"] = {key: sum(float(entry[key]) for entry in rounds) for key in COSTS}
        summary["environment"] = json.loads((run / "environment.json").read_text())
        summary["row"] = json.loads(path.read_text())
        (target / "summary.json").write_text(json.dumps(summary, sort_keys=True) + "\n")


def unseen_or_few(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores that are kept of a run: of many images only those of the unseen site, and the accuracy of each image
    instead of its probabilities."""
    if is_probability(scores).any():
        first = scores.drop_duplicates(["role", "site", "image"])
        correct = predictions(scores).set_index(["role", "site", "image"]).correct
        own = pd.MultiIndex.from_frame(first[["role", "site", "image"]])
        scores = first.assign(metric="accuracy", value=100.0 * correct[own].to_numpy(), unit="%")
    scores = scores[scores.metric.isin(METRICS)].dropna(subset="value")
    return scores if scores.image.nunique() <= MAX_TEXT else scores[scores.role == "unseen"]


def read(data: str) -> list[ScoredRun]:
    """The runs of a collection with the values of their unseen patients; AUROC is one value of the site.

    The protocol says which method is compared with FedAvg of equal effort, because each row is a comparison of its own.
    """
    runs, protocol = [], ROWS[data][1].split()
    for path in sorted((HERE / "runs" / data).glob("*/*/summary.json")):
        summary = json.loads(path.read_text())
        names = {name: str for name in (*IDENTITY, *COLUMNS) if name != "value"}
        table = pd.read_csv(next(path.parent.glob("scores.csv*")), dtype=names, keep_default_na=False)
        values = table[table.role == "unseen"].groupby([*GROUP, "metric", "unit", "patient"]).value.mean().reset_index()
        of_sites = run_scores_of(summary)
        auroc = of_sites[(of_sites.metric == "auroc") & (of_sites.role == "unseen") & (of_sites.site != AVERAGE)]
        auroc = auroc.assign(value=auroc["mean"], patient="")[VALUES[:-1]]
        scored = pd.concat([values.assign(score=values.value), auroc], ignore_index=True)
        row = row_of(summary["row"])
        if (equal_effort := f"fedavg@steps={row.label}") in protocol:
            row = replace(row, equal_effort=equal_effort)
        runs.append(ScoredRun(row, summary, scored))
    return runs


def complete(runs: list[ScoredRun], data: str) -> list[ScoredRun]:
    """The runs of the seeds whose first rows are complete, without a row that lacks a site in one of its seeds."""
    sites = {site for run in runs for site in (run.summary["unseen_site"], *run.summary["source_sites"])}
    done: dict[tuple, set] = {}
    for run in runs:
        label, site, seed = run.key
        done.setdefault((label, seed), set()).add((site, run.row.trained_at))
    n = {key: len(folds) for key, folds in done.items()}
    whole = {key for key in n if n[key] == len(sites) * (len(sites) - 1 if key[0] == "local" else 1)}
    seeds = {seed for _, seed in n if all((method, seed) in whole for method in ROWS[data][1].split())}
    return [run for run in runs if (run.key[0], run.key[2]) in whole and run.key[2] in seeds]


def _score_table(comparison: Comparison, metric: str, unit: str) -> TextTable:
    """The average and the sites of each row."""
    table = comparison.scores
    own = table[(table.metric == metric) & (table.unit == unit)]
    sites = comparison.sites()
    rows = []
    for label in dict.fromkeys([*comparison.rows, *own.row]):
        cells = {
            line.site: number(line.mean, 1) + interval(line.low, line.high)
            for line in own[own.row == label].itertuples()
        }
        rows.append([label, *(cells.get(site, "-") for site in (AVERAGE, *sites))])
    return text_table("", ["row", AVERAGE, *sites], rows)


def _difference_table(differences: pd.DataFrame) -> TextTable:
    """The average differences of the compared methods."""
    own = differences[differences.site == AVERAGE]
    rows = []
    for line in own[own.kind == "method"].itertuples():
        less = [_signed(other) for other in own[(own.kind == "effort") & (own.row == line.row)].itertuples()]
        has_seeds = not pd.isna(line.seeds_low)
        over_seeds = f"{number(line.seeds_low, 2, '+')} to {number(line.seeds_high, 2, '+')}" if has_seeds else "-"
        seeds = ", ".join(f"{value:+.1f}" for value in line.of_seeds)
        p = "-" if pd.isna(line.p_holm) else "< 0.001" if line.p_holm < 0.001 else f"{line.p_holm:.2g}"
        end = [over_seeds, seeds, p, verdict_text(line), number(line.detectable, 1), *less, *[""] * (not less)]
        rows.append([line.row, line.minus, _signed(line), *end])
    return text_table("", DIFFERENCE, rows)


def _source_table(methods: list[ScoredRun], labels: Sequence[str]) -> TextTable:
    """Averages over folds and seeds at the source sites (test images) and at the unseen site."""
    scores = pd.concat(run_scores_of(run.summary).assign(row=run.row.label) for run in methods)
    means = scores[scores.site == AVERAGE].groupby(["metric", "role", "row"])["mean"].mean()
    metrics = [metric for metric in AT_SOURCES if metric in means]
    columns = [(metric, role) for metric in metrics for role in ROLE_TITLES]
    titles = [f"{AT_SOURCES[metric]}, {ROLE_TITLES[role]}" for metric, role in columns]
    rows = [[row, *(number(means[metric, role, row], 1) for metric, role in columns)] for row in labels]
    return text_table("", ["row", *titles], rows)


def _failure_table(methods: list[ScoredRun], labels: Sequence[str], sites: Sequence[str]) -> TextTable:
    """The share of unseen patients in % whose structure was missed, mean over seeds; the average is over sites."""
    scores = pd.concat(run.values.assign(row=run.row.label) for run in methods)
    scores = scores[scores.metric == "dice"].assign(failed=lambda own: 100.0 * (own.value < FAILED))
    shares = scores.groupby(["row", "site"]).failed.mean()
    rows = [
        [row, number(shares[row].mean(), 1), *(number(shares[row, site], 1) for site in sites)] for row in labels
    ]
    return text_table("", ["row", AVERAGE, *sites], rows)


def _signed(line: Any) -> str:
    ends = "" if pd.isna(line.low) else f" [{line.low:+.1f}, {line.high:+.1f}]"
    return f"{line.difference:+.1f}{ends}"


def _draw(differences: pd.DataFrame, sites: Sequence[str], title: str, path: Path) -> None:
    """Differences at each unseen site and on average: a line is the interval over patients, a tick is a seed."""
    own = differences[differences.kind == "method"]
    methods = list(dict.fromkeys(own.row))
    figure, axes = plt.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False, layout="tight")
    figure.set_size_inches(3.2 * len(methods) + 1, 0.45 * len(sites) + 1.6)
    places = [*sites, AVERAGE]
    for axis, method in zip(axes.ravel(), methods, strict=True):
        for line in own[own.row == method].itertuples():
            place, colour = places.index(line.site), "tab:red" if line.site == AVERAGE else "black"
            axis.plot([line.low, line.high], [place, place], color=colour)
            axis.plot(line.difference, place, "o", color=colour, markersize=4)
            axis.plot(line.of_seeds, [place + 0.22] * len(line.of_seeds), "|", color=colour, markersize=7)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_title(f"{method}\nminus {own[own.row == method].minus.iloc[0]}", fontsize=8)
        axis.set_yticks(range(len(places)), places)
        axis.set_ylim(len(sites) + 0.5, -0.5)
        axis.tick_params(labelsize=8)
    figure.suptitle(f"{title}, points, right of 0 = better: line = 95 %, | = one seed", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def section(data: str) -> list[str]:
    """The part of README.md about one collection; empty before its first complete seed."""
    runs = complete(read(data), data)
    if not runs:
        return []
    keys = {run.key for run in runs}
    seeds_of = {label: {seed for other, _, seed in keys if other == label} for label, *_ in keys}
    methods = [run for run in runs if run.row.arrangement == "federated" and seeds_of[run.key[0]] == seeds_of["fedavg"]]
    comparison = compare_runs(methods)
    main = comparison.metrics[comparison.shown[0]]
    seeds = {run.key[2]: run.summary["environment"]["cuda"] or "CPU" for run in methods}
    devices = ", ".join(f"seed {seed} on {device}" for seed, device in sorted(seeds.items()))
    text = [f"## {ROWS[data][0]}", "", f"{main.label} (%); {devices}. In brackets: 95 % over {SAMPLES[main.name]}.", ""]
    blocks = comparison.scores[comparison.scores.metric.isin(SHOWN) & (comparison.scores.site == AVERAGE)]
    for metric, unit in dict.fromkeys(zip(blocks.metric, blocks.unit)):
        text += [] if metric == main.name else [f"{comparison.metrics[metric].label} ({unit}), not tested:", ""]
        text += [to_markdown(_score_table(comparison, metric, unit)), ""]
    own = comparison.differences
    own = own[own.metric == main.name]
    text += [to_markdown(_difference_table(own)), "", f"![Differences by fold](differences_{data}.png)", ""]
    _draw(own, comparison.sites(), f"{ROWS[data][0]}, {main.label}", HERE / f"differences_{data}.png")
    text += ["At the source sites (test images) and at the unseen site, mean over folds and seeds (%), not tested:", ""]
    text += [to_markdown(_source_table(methods, comparison.rows)), ""]
    if main.name == "dice" and any(run.values[run.values.metric == "dice"].value.lt(FAILED).any() for run in methods):
        text += [f"Patients whose Dice is below {FAILED} %, in %, mean over seeds, not tested:", ""]
        text += [to_markdown(_failure_table(methods, comparison.rows, comparison.sites())), ""]
    shown = {run.key[0] for run in methods}
    for seed in sorted({run.key[2] for run in runs if run.key[0] not in shown}):
        part = [run for run in runs if run.key[2] == seed and run.key[0] not in shown - {"fedavg"}]
        has_local = any(run.row.arrangement == "local" for run in part)
        local = "; `local` is the mean over the models of the sites that train" if has_local else ""
        text += [f"Rows with seed {seed} only, and FedAvg with this seed, not tested{local}:", ""]
        text += [to_markdown(_score_table(compare_runs(part), main.name, "%")), ""]
    text += ["Cost of a run, all sites together, mean over folds and seeds:", ""]
    rows = []
    for label in comparison.rows:
        summaries = [run.summary for run in methods if run.row.label == label]
        means = [fmean(summary["cost"][key] for summary in summaries) for key in COSTS[:2]]
        n_bytes = [sum(sum(way.values()) for way in summary["sent_bytes"].values()) for summary in summaries]
        means.append(fmean(n_bytes) / 1e6)
        rows.append([label, *(f"{mean:.0f}" for mean in means)])
    text += [to_markdown(text_table("", ["row", "steps", "images", "MB sent"], rows)), ""]
    return text + [f"{CONCLUSIONS}:", "", *(f"* {line}" for line in notes_and_conclusions(comparison)), ""]


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
