"""Train a federation, test it on the site that took no part, draw and keep the result."""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from medfed import strict_yaml
from medfed.config import Config, difference, load, resolved, to_yaml
from medfed.datasets import reading
from medfed.errors import UserError
from medfed.evaluator import evaluate, is_transductive
from medfed.federation.coordinator import federate
from medfed.federation.message import State
from medfed.federation.selection import RULES
from medfed.metrics.summary import summarise, write_cases
from medfed.outputs.environment import environment, versions
from medfed.outputs.progress import RoundProgress
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.table import closing_table
from medfed.programs import add_common_flags, overrides, run_program
from medfed.run_pictures import draw_all
from medfed.simulation import Simulation, prepare


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the work is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.train", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    parser.add_argument("--accept-config-change", action="store_true", help="resume although the config differs")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.train", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    config = load(args.config, overrides(args))
    folder = RunFolder(args.out or default_folder(config))
    with folder.locked():
        open_run(folder, config, args.resume, args.accept_config_change)
        summary = run(config, folder, args.quiet)
    print(closing_table(summary))
    print(f"\nEverything is in {folder.path}: cases.csv, summary.json, pictures/, model.safetensors, ledger.csv.")
    print(f"A MONAI bundle for a hospital: python -m medfed.export {folder.path}")
    return 0


def default_folder(config: Config) -> Path:
    """runs/CONFIG-METHOD-unseen_SITE-seedN, so that two different runs do not meet."""
    unseen = config.federation.unseen_site or "none"
    return Path("runs") / f"{Path(config.source).stem}-{config.method_name}-unseen_{unseen}-seed{config.seed}"


def open_run(folder: RunFolder, config: Config, resume: bool, accept_change: bool = False) -> None:
    """Start a run in an empty folder, or go on with the one that is there if that was asked for.

    Raises:
        UserError: where going on, or starting over, could lose or mix results.
    """
    kept = folder.path / "config.yaml"
    if resume and not kept.is_file():
        raise UserError(f"{folder.path}: no run to resume here; leave --resume out to start one, or name it with --out")
    if not resume and kept.is_file():
        done = "a finished run" if folder.is_finished() else f"a run that has finished round {max(folder.rounds(), default=0)}"
        raise UserError(f"{folder.path}: holds {done}; go on with --resume, or start another with --out")
    if resume and not accept_change:
        changed = difference(strict_yaml.parse(strict_yaml.read(kept), str(kept)), resolved(config))
        if changed:
            raise UserError(
                f"{folder.path}: this run was started with another config ({'; '.join(changed[:5])}); undo the change, "
                "choose another folder with --out, or --accept-config-change"
            )
    folder.write_text("config.yaml", to_yaml(config))
    folder.write_json("environment.json", environment())


def run(config: Config, folder: RunFolder, quiet: bool = False) -> dict[str, object]:
    """Do whatever of a run is not done yet; the folder is locked and open. Returns the content of summary.json."""
    if folder.is_finished() and (folder.path / "model.safetensors").is_file():
        return folder.read_json("summary.json")
    torch.use_deterministic_algorithms(True, warn_only=True)
    with notices(quiet) as said:
        simulation = prepare(config, folder.path / "sites", quiet)
        last = train(config, simulation, folder, quiet)
        chosen = RULES[config.federation.selection](folder.history())
        final = last if chosen == last.round else folder.load_state(chosen)
        rows = evaluate(simulation, final.weights, quiet)
        write_cases(folder.path / "cases.csv", rows)
        folder.save_model(final.weights)
        draw_all(simulation, config.method, final, rows, folder)
    summary = _summary(config, simulation, rows, chosen, said)
    folder.write_json("summary.json", summary)
    return summary


def train(config: Config, simulation: Simulation, folder: RunFolder, quiet: bool) -> State:
    """Run the rounds that are missing, each committed to the folder; the state after the last one."""
    rounds, settings = folder.rounds(), config.federation
    state = folder.load_state(rounds[-1]) if rounds else simulation.start
    if not rounds:
        folder.save_state(state)
    folder.truncate(state.round)
    engine = simulation.engine
    engine.restore(state.round)
    n_sites = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
    with RoundProgress(state.round, settings.rounds, n_sites, quiet) as progress:
        engine.on_answer = progress.answered
        for site in engine.members:
            site.progress = progress.step
        try:
            for done in federate(config.method, engine, state, settings, config.seed):
                best = RULES[settings.selection]([*folder.history(), done.history])
                folder.save_round(done, best)
                progress.round_done(done.history)
                state = done.state
        except KeyboardInterrupt as stop:
            raise type(stop)(
                f"stopped in round {folder.rounds()[-1] + 1} of {settings.rounds}; {folder.path} holds all before it, "
                "and the sites that had finished. Go on with the same command and --resume"
            ) from stop
    return state


def _summary(config: Config, simulation: Simulation, rows: list, chosen: int, said: list[str]) -> dict[str, object]:
    unseen = config.federation.unseen_site
    return {
        **summarise(rows, config.seed),
        "data": "phantom" if simulation.dataset.is_phantom else "real",
        "dataset": simulation.dataset.card.title,
        "method": config.method_name,
        "unseen_site": unseen or None,
        "source_sites": sorted(simulation.splits),
        "patients": {
            site: {"train": len(s.train), "validation": len(s.validation), "test": len(s.test)}
            for site, s in simulation.splits.items()
        },
        "images": _images(simulation),
        "selection": config.federation.selection,
        "selected_round": chosen,
        "rounds": config.federation.rounds,
        "seed": config.seed,
        "config_sha256": hashlib.sha256(to_yaml(config).encode()).hexdigest(),
        "versions": versions(),
        "transductive": is_transductive(simulation),
        "notices": said,
    }


def _images(simulation: Simulation) -> dict[str, object]:
    """What a bundle must know of the images, so that exporting needs none of them."""
    task, first = simulation.task, next(iter(simulation.splits.values())).train[0]
    return {
        "channels": task.channels,
        "structures": list(task.structures),
        "intensity_range": task.intensity_range and list(task.intensity_range),
        "pictures": reading.is_picture(first.image),
    }


@contextmanager
def notices(quiet: bool) -> Iterator[list[str]]:
    """Show medfed's own warnings as one-line notes among the progress bars, once each, and keep their texts."""
    said: list[str] = []

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        text = str(message)
        if category is not UserWarning or "medfed" not in Path(filename).parts or text in said:
            return
        said.append(text)
        if not quiet:
            tqdm.write(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield said


if __name__ == "__main__":
    sys.exit(main())
