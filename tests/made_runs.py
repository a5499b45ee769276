"""Folders as `medfed.train` leaves them, made in milliseconds: for the tests of what reads them."""

import hashlib
import json
import struct
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from medfed.federation.ledger import COLUMNS, message_rows
from medfed.federation.message import Message, State
from medfed.federation.rounds import Round
from medfed.metrics.metric import metric_columns
from medfed.outputs.comparison_folder import RUNS, ComparisonFolder
from medfed.outputs.run_files import format_rows
from medfed.outputs.run_folder import FIGURES, RunFolder
from medfed.results.row import ROW_FILE, ComparisonRow, read_row
from medfed.results.run_scores import n_absent, run_scores
from medfed.results.scores import IDENTITY, table_of, write_scores
from medfed.tasks.scoring import CLASS_METRICS, MASK_METRICS, Scoring

MASKS = Scoring("segmentation", MASK_METRICS, failure_dice=0.7)
CLASSES = Scoring("classification", CLASS_METRICS)
METRICS = [column for metric in MASK_METRICS for column in metric_columns(metric)]
WEIGHTS = {"conv.weight": torch.zeros(2, 3), "norm.running_mean": torch.zeros(2)}  # 24 and 8 bytes
FIRST_DISTANCES = {"hd95_percent_of_diagonal": 4.0, "hd_percent_of_diagonal": 5.0, "assd_percent_of_diagonal": 2.0}
FIRST_DISTANCES["hd95_pooled_vx"] = 4.0
CONFIG = "method: {name: METHOD}\nfederation: {engine: in_process}\n"


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_head(width: int, height: int) -> bytes:
    """The beginning of a grey image, without any pixel."""
    return b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def png(width: int = 3, height: int = 2) -> bytes:
    """A grey image."""
    pixels = _png_chunk(b"IDAT", zlib.compress(b"\0" * height * (width + 1)))
    return png_head(width, height) + pixels + _png_chunk(b"IEND", b"")


def mask_row(site: str, patient: str, dice: float | None, status: str = "ok", role: str = "unseen", **others) -> dict:
    """A row of cases.csv whose further scores are unknown, unless `others` give them."""
    names = {"site": site, "role": role, "patient": patient, "image": patient, "structure": "disc", "status": status}
    return names | dict.fromkeys(METRICS) | {"dice": dice} | others


def mask_rows(sites: list[str], unseen: str, shift: float = 0.0, n: int = 7, structure: str = "disc") -> list[dict]:
    """n cases a site; Dice falls by 1 % a case and by the place of the site; the last of the unseen site is missed."""
    rows = []
    for place, site in enumerate([*sites, unseen]):
        for k in range(n):
            missed = site == unseen and k == n - 1
            dice = 0.0 if missed else round(0.9 - 0.05 * place - 0.01 * k + shift, 4)
            distances = {name: 90.0 if missed else first + k for name, first in FIRST_DISTANCES.items()}
            role, status = "unseen" if site == unseen else "seen", "missed" if missed else "ok"
            others = distances | {"structure": structure, "ece": 0.02 + 0.01 * k}
            rows.append(mask_row(site, f"p{k}", dice, status, role, **others))
    return rows


def class_rows(sites: list[str], unseen: str) -> list[dict]:
    """Ten images a site of classes a and b, of five patients."""
    rng, rows = np.random.default_rng(0), []
    for site in [*sites, unseen]:
        role = "unseen" if site == unseen else "seen"
        for k in range(10):
            p = float(rng.uniform(0.05, 0.95))
            names = {"site": site, "role": role, "patient": f"s{k % 5}", "image": f"i{k}", "label": "ab"[k % 2]}
            rows.append(names | {"p_a": p, "p_b": 1 - p})
    return rows


def scoring_of_rows(rows: list[dict]) -> Scoring:
    return CLASSES if rows and "label" in rows[0] else MASKS


def scores_of(rows: list[dict], scoring: Scoring | None = None) -> dict:
    """The entries of `summary.json` about the scores of these rows."""
    scoring = scoring or scoring_of_rows(rows)
    table = table_of(rows, scoring.metrics)
    return scoring.describe() | {"scores": run_scores(table, scoring), "n_absent": n_absent(table)}


def write_rows(path: Path, rows: list[dict], scoring: Scoring | None = None) -> None:
    """Write rows of scores as a `cases.csv`."""
    write_scores(path, table_of(rows, (scoring or scoring_of_rows(rows)).metrics), dict.fromkeys(IDENTITY, ""))


NOT_LEARNED = {"learned": False, "images": "validation", "score": 0.2, "start": 0.1, "trivial": 0.25}
NOT_LEARNED["trivial_prediction"] = "every pixel is foreground"


def ledger_row(
    number: int, site: str, direction: str, name: str, n_bytes: int, kind="train", content="statistic"
) -> dict:
    """A row of the ledger about one tensor."""
    values = (number, site, direction, kind, content, name, 1, "2x3", n_bytes)
    return dict(zip(COLUMNS, values, strict=True))


def ledger_rows(sites: list[str], rounds: int, extra: str = "windows") -> list[dict]:
    """The rows of a ledger: a tensor shared once, weights both ways each round, a score at the end."""
    rows = []
    for number in range(1, rounds + 1):
        if number == 1:
            shared = Message("share", tensors={extra: torch.zeros(4, 5)})
            rows += message_rows(number, "up", dict.fromkeys(sites, shared))
        bank = {f"bank/{site}": torch.zeros(4, 5) for site in sites}
        down = {
            site: Message("train", WEIGHTS, {k: v for k, v in bank.items() if k != f"bank/{site}"}, {"round": number})
            for site in sites
        }
        up = Message("train", WEIGHTS, {}, {"examples": 12, "loss": 0.5})
        rows += message_rows(number, "down", down) + message_rows(number, "up", dict.fromkeys(sites, up))
    return rows


def done(number: int, value: float = 0.0) -> Round:
    """A finished round without training; each round adds a row to the ledger and a column to the history."""
    ledger = [ledger_row(number, "a", "up", "w", 8, content="weight") | {"shape": "2"}]
    history = {"round": number, "train_loss": 0.1 + value, "validation_score": None, f"train_loss/{number}": 1.0}
    return Round(State(number, {"w": torch.full((2,), value)}), history, ledger)


def made_run(
    path: Path,
    method: str = "elcfs",
    unseen: str = "C",
    seed: int = 0,
    sites: tuple[str, ...] = ("A", "B"),
    rows: list[dict] | None = None,
    rounds: int = 2,
    data: str = "phantom",
    **others: object,
) -> Path:
    """A finished run in `path`; `others` go into its summary, over what is there. A test that changes a file calls
    `finish_again`."""
    sites = list(sites)
    rows = mask_rows(sites, unseen) if rows is None else rows
    folder, config = RunFolder(path), CONFIG.replace("METHOD", json.dumps(method))
    (path / FIGURES).mkdir(parents=True)
    write_rows(path / "cases.csv", rows)
    folder.write_text("config.yaml", config)
    folder.write_text("ledger.csv", format_rows(COLUMNS, ledger_rows(sites, rounds)))
    history = [
        {"round": k, "train_loss": 1 / k, "validation_score": 0.5 + 0.1 * k} | {f"train_loss/{s}": 1 / k for s in sites}
        for k in range(1, rounds + 1)
    ]
    folder.write_text("history.csv", format_rows(history[0], history))
    for name in ("unseen_cases", "training_curves"):
        (path / FIGURES / f"{name}.png").write_bytes(png())
    save_file({name: entry.numpy() for name, entry in WEIGHTS.items()}, path / "model.safetensors")
    summary = scores_of(rows) | {"data": data, "dataset": "Discs", "method": method, "unseen_site": unseen}
    summary |= {"source_sites": sites, "patients": {site: {"train": 5} for site in sites}, "seed": seed}
    summary |= {"selection": "last", "selected_round": rounds, "rounds": rounds, "notices": ["a notice"]}
    summary |= {"versions": {"torch": "2"}, "config_sha256": hashlib.sha256(config.encode()).hexdigest()}
    folder.finish(summary | others)
    return path


def finish_again(path: Path, **others: object) -> None:
    """Write the checksums of a run whose files a test has changed; `others` go into its summary."""
    folder = RunFolder(path)
    folder.finish(folder.read_summary() | others)


def made_comparison(path: Path, methods: tuple[str, ...] = ("fedavg", "elcfs"), seeds: tuple = (0, 1)) -> Path:
    """Every method on every site left out, as `medfed.evaluate` lays it out; each method is better than the last."""
    for shift, method in enumerate(methods):
        for seed in seeds:
            for unseen in "ABC":
                sites = [site for site in "ABC" if site != unseen]
                where = path / method.replace(":", "-") / f"unseen_{unseen}" / f"seed_{seed}"
                rows = mask_rows(sites, unseen, 0.02 * shift + 0.001 * seed)
                made_run(where, method.partition(":")[0], unseen, seed, tuple(sites), rows)
                RunFolder(where).write_json(ROW_FILE, asdict(ComparisonRow(method)))
    return with_plan(path)


def with_plan(path: Path, baseline: str = "fedavg") -> Path:
    """Write `comparison.json` with the runs in the folder of a comparison; return the folder."""
    planned = {}
    for run in sorted(path.glob(RUNS)):
        summary = json.loads((run / "summary.json").read_text())
        row = read_row(run, summary["method"])
        planned[run] = (row.label, summary["unseen_site"], summary["seed"])
    ComparisonFolder(path, planned, baseline).write()
    return path
