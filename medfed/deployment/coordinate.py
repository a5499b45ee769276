"""Be the coordinator: start FLARE's server and train with the hospitals that joined."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

from medfed.config.schema import Config, load, resolved, to_yaml
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum
from medfed.deployment.prepare import IMAGES, PLAN, START
from medfed.engines.flare.job import CONTROLLER
from medfed.engines.flare.kit import Kit
from medfed.experiments.notices import record_notices
from medfed.experiments.resume import changed_settings
from medfed.experiments.training import selected_state, train
from medfed.federation import privacy_accounting
from medfed.federation.engine import Engine
from medfed.federation.message import FAILED, Message, State
from medfed.outputs.environment import environment, versions
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import task_of_images

RUN = "run"


def run_coordinator(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("a federation over a network needs NVIDIA FLARE, which is not installed; pip install -e "
                        "'.[nvflare]' in medfed's folder")
    from medfed.engines.flare.engine import FlareEngine

    plan, start, sites = _read(args.folder)
    privacy_accounting.require_accountant(plan.privacy)
    kits = args.kits or args.folder / "kits" / "medfed" / "prod_00"
    server, admin = _kits(kits, sites)
    set_deterministic()
    folder = RunFolder(args.folder / RUN)
    with folder.locked():
        done = folder.rounds()
        if done and not args.resume:
            raise UserError(f"{folder.path}: holds a run that has finished round {done[-1]}; go on with --resume")
        if done and (other := changed_settings(folder, resolved(plan))):
            raise UserError(f"{args.folder / PLAN}: is not the plan that the run began with ({'; '.join(other[:5])}), "
                            "and the hospitals go by that; undo the change, or prepare another federation")
        state = folder.load_state(done[-1]) if done else start
        folder.write_json("environment.json", environment())
        folder.write_text("config.yaml", to_yaml(plan))
        engine = FlareEngine(sites, server, admin, folder.path, plan.federation, args.join_seconds)
        try:
            server.start(folder.path / "server.log")
            with record_notices(folder, args.quiet):
                last = train(plan, engine, folder, state, args.quiet,
                             finish=lambda end: _finish(plan, engine, folder, end))
        finally:
            server.stop()
        print(f"{last.round} rounds with {len(sites)} hospitals are in {folder.path}: model.safetensors, history.csv, "
              "ledger.csv.")
        print(f"A MONAI bundle for a hospital: python -m medfed.export {shlex.quote(str(folder.path))}")
    return 0


def _finish(plan: Config, engine: Engine, folder: RunFolder, last: State) -> None:
    """Save the selected model and the summary; then send the model to every hospital that still listens."""
    final = selected_state(folder, last, plan.federation.selection)
    folder.save_model(final.weights)
    images = json.loads((folder.path.parent / IMAGES).read_text())
    by_site = privacy_accounting.count_releases(folder.ledger(), final.weights)
    validation_site = plan.federation.validation_site
    folder.write_json("summary.json", {
        **task_of_images(images, plan.data.image_size, Evaluation()).scoring.summarise([], plan.seed),
        "data": "not stated",  # a coordinator sees none
        "dataset": images.pop("dataset"),
        "images": images,
        "method": plan.method_name,
        "unseen_site": None,
        **({"validation_site": validation_site} if validation_site else {}),
        "source_sites": engine.sites(),
        "took_part": last.took_part,
        "selection": plan.federation.selection,
        "selected_round": final.round,
        "rounds": last.round,
        "seed": plan.seed,
        "config_sha256": hashlib.sha256(to_yaml(plan).encode()).hexdigest(),
        "versions": versions(),
        "method_facts": plan.method.facts(final),
        "privacy": privacy_accounting.format_budget(plan.privacy, by_site),
    })
    # Last, since hospitals leave with it: a coordinator that is killed before this sends the model when it resumes.
    everyone = [*engine.sites(), *([validation_site] if validation_site else [])]
    requests = dict.fromkeys(everyone, Message("end", final.weights, {}, {"round": last.round}))
    for site, reply in engine.exchange("end", requests).items():
        if reply.kind == FAILED:
            why = reply.facts["why"]
            warnings.warn(f"{site}: did not get the final model ({why}); send it model.safetensors", stacklevel=2)


def _read(folder: Path) -> tuple[Config, State, list[str]]:
    if not ((folder / PLAN).is_file() and (folder / START).is_file()):
        raise UserError(f"{folder}: holds no federation; make one with python -m medfed.coordinator prepare CONFIG "
                        f"--out {folder}")
    plan = load(folder / PLAN)
    start = State.from_bytes(read_with_checksum(folder / START, "prepare the federation again"))
    places = sorted((folder / "hospitals").glob("*"))
    if not (sites := [place.name for place in places if (place / f"{place.name}.yaml").is_file()]):
        raise UserError(f"{folder / 'hospitals'}: has no folder SITE with SITE.yaml; prepare the federation again")
    return replace(plan, source=str(folder / PLAN)), start, sites


def _kits(kits: Path, sites: list[str]) -> tuple[Kit, Path]:
    """The server's kit and the console's, among those of the hospitals."""
    found = [path for path in sorted(kits.glob("*")) if (path / "startup").is_dir()]
    servers = [path for path in found if (path / "startup" / "fed_server.json").is_file()]
    consoles = [path for path in found if (path / "startup" / "fed_admin.json").is_file()]
    if len(servers) != 1 or not consoles:
        raise UserError(f"{kits}: expected the kits of one server and of a console, found "
                        f"{', '.join(p.name for p in found) or 'none'}; make them with nvflare provision, as the "
                        "federation's README says")
    return Kit(servers[0], (CONTROLLER,)), consoles[0]
