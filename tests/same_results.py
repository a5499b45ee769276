"""Compare what two checkouts of medfed compute: the bits of all weights, and all scores.

    python tests/same_results.py OLD NEW [--only PART] [--work FOLDER]

Each checkout trains the same runs in a folder of its own: every method on a small prostate MRI phantom and on a small
Camelyon17 phantom, the five shipped configs that run on a laptop (one round), three stacks, a run that is killed and
resumed, and a run in two processes. A run that equals another one inside a checkout (killed, two jobs) is compared with
it as well. About 20 minutes for each checkout on two cores; exit code 1 if anything differs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ON_BOTH_TASKS = (
    "bigaug ccst coordinate_median dsu efdmix elcfs epi_fcr fedavg fedbn feddg_ga feddyn fedgma fednova fedprox fisc"
    " gin harmofl mixstyle norm_clipping scaffold swa trimmed_mean"
).split()
ON_CLASSES = "copa fedsr fpl jigen rsc stable_fdg".split()
STACKS = ("ccst+elcfs", "fedprox+mixstyle", "dsu+feddg_ga")
PROSTATE = {
    "data.image_size": 48,
    "data.sites": ["BIDMC", "HK", "RUNMC", "UCL"],
    "training.batch_size": 8,
    "federation.rounds": 2,
}
CAMELYON17 = {
    "data.image_size": 32,
    "data.sites": ["hospital_1", "hospital_2", "hospital_3", "hospital_5"],
    "federation.rounds": 2,
    "federation.unseen_site": "hospital_5",
}
ONE_ROUND = {"federation.rounds": 1}
SAME_INSIDE = {"killed and resumed": "prostate ccst", "two jobs": "prostate ccst"}


def runs() -> dict[str, tuple[str, dict[str, Any]]]:
    """Config and changed settings by the name of a run."""
    result: dict[str, tuple[str, dict[str, Any]]] = {}
    for method in ON_BOTH_TASKS:
        result[f"prostate {method}"] = "prostate", {**PROSTATE, "method.name": method}
    for stack in STACKS:
        methods = [{"name": name} for name in stack.split("+")]
        result[f"prostate {stack}"] = "prostate", {**PROSTATE, "method.name": "stack", "method.methods": methods}
    for method in (*ON_BOTH_TASKS, *ON_CLASSES):
        result[f"camelyon17 {method}"] = "camelyon17", {**CAMELYON17, "method.name": method}
    result["camelyon17 harmofl"][1]["data.standardise"] = "none"  # it reads non-negative images
    for config in ("prostate", "fundus", "camelyon17", "camelyon17_fisc", "camelyon17_stablefdg"):
        result[f"configs/{config}.yaml"] = config, ONE_ROUND
    return result


def train_all(only: str) -> None:
    """Train all runs of the checkout that PYTHONPATH names, each in a folder of the current folder."""
    import medfed
    from medfed.experiments import run as module

    module.draw_all = lambda *args, **kwargs: None  # figures take longer than such a training
    chosen = {name: run for name, run in runs().items() if only in name}
    for number, (name, (config, changes)) in enumerate(chosen.items(), 1):
        start, folder = time.monotonic(), Path(name.replace("/", "_"))
        if (folder / "summary.json").exists():  # of a comparison that was interrupted
            continue
        medfed.run(medfed.load_config(config, changes), folder, jobs=1, resume=folder.exists())
        print(f"  {number:3}/{len(chosen)}  {name:40}{time.monotonic() - start:7.1f} s", flush=True)
    config, changes = runs()["prostate ccst"]
    if only in "two jobs" and not Path("two jobs/summary.json").exists():
        medfed.run(medfed.load_config(config, changes), "two jobs", jobs=2)
    if only in "killed and resumed" and not Path("killed and resumed/summary.json").exists():
        _kill_and_resume("killed and resumed", config, changes)


def _kill_and_resume(folder: str, config: str, changes: dict[str, Any]) -> None:
    """Kill a run as soon as it has stored its first round, and continue it."""
    import medfed

    command = [sys.executable, "-m", "medfed.train", config, "--out", folder, "--quiet", "--jobs", "1"]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not any(Path(folder).rglob("round_00001*")):
        time.sleep(0.02)
    if process.poll() is not None:
        raise SystemExit(f"{folder}: the run ended with code {process.returncode} before it was killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if (Path(folder) / "summary.json").exists():
        raise SystemExit(f"{folder}: the run was over before it was killed")
    medfed.run(medfed.load_config(config, changes), folder, jobs=1, resume=True)


def scores_of(folder: Path) -> dict[str, str]:
    """The lines of the `cases.csv` of a run, which has all digits, by file and number."""
    files = sorted(folder.glob("cases*.csv"))
    lines = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in files}
    return {f"{name} {number}": line for name, own in lines.items() for number, line in enumerate(own, 1)}


def differences(old: Path, new: Path) -> list[str]:
    """Everything in which two runs differ, one sentence each."""
    result, before, after = [], scores_of(old), scores_of(new)
    if not before:
        result.append(f"{old}: the run wrote no scores")
    if (old / "model.safetensors").read_bytes() != (new / "model.safetensors").read_bytes():
        result.append("model.safetensors: the weights differ")
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            result.append(f"{key}: {before.get(key)} before, {after.get(key)} after")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--only", default="", metavar="PART", help="only the runs whose name contains this text")
    parser.add_argument("--work", type=Path, default=Path("same_results"), help="folder for the runs of both checkouts")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train_all(args.only)
        return 0
    if not (args.old and args.new):
        parser.error("name two checkouts: OLD NEW")
    folders = [args.work / side for side in ("old", "new")]
    for folder, checkout in zip(folders, (args.old, args.new), strict=True):
        if (folder / "finished").exists():  # delete the folder to train again
            continue
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        print(f"{checkout}", flush=True)
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        command = [sys.executable, str(Path(__file__).resolve()), "--train", "--only", args.only]
        subprocess.run(command, check=True, cwd=folder, env=environment)
        (folder / "finished").write_text(f"{time.monotonic() - start:.0f} s\n")
    names = [name for name in (*runs(), *SAME_INSIDE) if args.only in name]
    n_scores, failed = 0, 0
    for name in names:
        old, new = (folder / name.replace("/", "_") for folder in folders)
        found = differences(old, new)
        if name in SAME_INSIDE and not args.only:
            found += [
                f"unlike {SAME_INSIDE[name]!r}: {text}" for text in differences(new.parent / SAME_INSIDE[name], new)
            ]
        n_scores += len(scores_of(old))
        failed += bool(found)
        print(f"{name:40}{'equal' if not found else 'DIFFERENT'}")
        for text in found[:5]:
            print(f"    {text}")
    times = " and ".join((folder / "finished").read_text().strip() for folder in folders)
    print(f"{len(names) - failed} of {len(names)} runs equal, {n_scores} scores compared ({times})")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
