"""Run a prepared federation as its coordinator: start FLARE's server and train with the hospitals that joined."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from medfed.config.schema import Config, changed, load, resolved
from medfed.core.determinism import set_deterministic
from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum
from medfed.deployment.agreement import plan_checksum
from medfed.deployment.prepare import IMAGES, PLAN, START
from medfed.engines.flare.job import require_flare
from medfed.engines.flare.kit import server_process
from medfed.experiments.resume import changed_settings
from medfed.experiments.run import identity_of
from medfed.experiments.training import record_notices, selected_state, train
from medfed.federation import privacy_accounting
from medfed.federation.engine import Engine
from medfed.federation.ledger import sum_bytes
from medfed.federation.message import FAILED, Kind, Message, State
from medfed.outputs.callback import Callbacks
from medfed.outputs.environment import environment, versions
from medfed.outputs.run_folder import RunFolder
from medfed.results.notes import NOT_STATED
from medfed.results.scores import table_of, write_scores
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import task_of_images

RUN = "run"


def run_coordinator(args: argparse.Namespace) -> int:
    """Run `python -m medfed.coordinator run`: train with the hospitals, and write `run` in `args.folder`."""
    require_flare("a federation over a network")
    from medfed.engines.flare.engine import FlareEngine

    plan, start, sites = _read_federation(args.folder)
    privacy_accounting.require_accountant(plan.privacy)
    settings = plan.federation
    if args.reply_seconds is not None:  # only the coordinator waits, so that the plan of the hospitals stays the same
        settings = changed(plan, {"federation.reply_timeout_s": args.reply_seconds}).federation
    kits = args.kits or args.folder / "kits" / "medfed" / "prod_00"
    server_kit, admin = find_kits(kits)
    callbacks = Callbacks(plan.tracking, plan.source)
    set_deterministic(plan.training.threads)
    folder = RunFolder(args.folder / RUN)
    with folder.locked():
        done = folder.rounds()
        if done and not args.resume:
            raise UserError(f"{folder.path}: holds a run that has finished round {done[-1]}; continue with --resume")
        if done and (changes := changed_settings(folder, resolved(plan))):
            listed = "; ".join(changes[:5])
            raise UserError(
                f"{args.folder / PLAN}: the plan was changed after the run started ({listed}), but the "
                "hospitals still use the old plan; undo the change, or prepare another federation; for "
                "another time to wait for replies, use --reply-seconds"
            )
        folder.check()
        state = replace(folder.newest_state() or start, local_keys=frozenset())  # see `prepare`
        folder.write_json("environment.json", environment())
        folder.write_text("config.yaml", plan.yaml)
        server = server_process(server_kit)
        engine = FlareEngine(
            sites,
            server,
            admin,
            folder.path,
            settings,
            args.join_seconds,
            plan_checksum(args.folder / PLAN),
            args.quiet,
        )
        try:
            server.start(folder.path / "server.log")
            print(f"Training with the plan {engine.plan}; each hospital's own program shows this number, too.")
            with record_notices(folder, args.quiet) as notices:
                task = task_of_images(_images(folder), plan.data, plan.evaluation)
                last = train(
                    plan,
                    engine,
                    folder,
                    state,
                    task,
                    args.quiet,
                    finish=lambda end: _finish(plan, engine, folder, end, callbacks, notices),
                    callbacks=callbacks,
                )
        finally:
            server.stop()
        absent = [site for site in engine.sites() if not last.took_part.get(site)]
        print(
            f"Finished {last.round} rounds with {len(engine.sites()) - len(absent)} hospitals that trained"
            f"{', without ' * bool(absent)}{', '.join(absent)}. The results are in {folder.path}: model.safetensors, "
            "history.csv, ledger.csv."
        )
        print(f"To export a MONAI bundle: python -m medfed.export {shlex.quote(str(folder.path))}")
    return 0


def _images(folder: RunFolder) -> dict[str, Any]:
    """Return the description of the images that `prepare` wrote; the coordinator has no images."""
    images: dict[str, Any] = json.loads((folder.path.parent / IMAGES).read_text())
    return images


def _finish(
    plan: Config, engine: Engine, folder: RunFolder, last: State, callbacks: Callbacks, notices: list[str]
) -> None:
    """Save the selected model and the summary; then send the model to every connected hospital."""
    final = selected_state(folder, last, plan.federation.selection, plan.method)
    folder.save_model(final.weights)
    no_scores = table_of([], ())  # every run has the file
    write_scores(folder.path / "cases.csv", no_scores, identity_of(folder.path, plan))
    images = _images(folder)
    by_site = privacy_accounting.count_releases(folder.ledger(), plan.privacy)
    validation_site = plan.federation.validation_site
    summary = {
        **task_of_images(images, plan.data, Evaluation()).scoring.describe(),
        "scores": [],
        "data": NOT_STATED,
        "dataset": images.pop("dataset"),
        "images": images,
        "method": plan.method_name,
        "unseen_site": None,
        **({"validation_site": validation_site} if validation_site else {}),
        "source_sites": [site for site in engine.sites() if last.took_part.get(site)],
        "took_part": last.took_part,
        "selection": plan.federation.selection,
        "selected_round": final.round,
        "rounds": last.round,
        "seed": plan.seed,
        "precision": plan.training.precision,
        "deterministic": plan.deterministic,
        "config_sha256": hashlib.sha256(plan.yaml.encode()).hexdigest(),
        "versions": versions(),
        "method_summary": plan.method.summarise(final),
        "sent_bytes": sum_bytes(folder.ledger()),
        "privacy": privacy_accounting.format_budget(plan.privacy, by_site, is_simulation=False),
        "notices": notices,
    }
    callbacks.end(summary)
    folder.finish(summary)
    # Sending the model is the last step, because a hospital leaves when it has the model. A coordinator that is killed
    # before it sends the model when it is resumed.
    recipients = [*engine.sites(), *([validation_site] if validation_site else [])]
    requests = dict.fromkeys(recipients, Message(Kind.END, final.weights, {}, {"round": last.round}))
    for site, reply in engine.exchange(Kind.END, requests).items():
        if reply.kind == FAILED:
            why = reply.facts["why"]
            warnings.warn(
                f"{site}: did not receive the final model ({why}); send it the file model.safetensors", stacklevel=2
            )


def _read_federation(folder: Path) -> tuple[Config, State, list[str]]:
    """Read the plan, the state before the first round, and the names of the sites from a prepared folder."""
    if not ((folder / PLAN).is_file() and (folder / START).is_file()):
        raise UserError(
            f"{folder}: holds no federation; prepare one with python -m medfed.coordinator prepare CONFIG "
            f"--out {folder}"
        )
    plan = load(folder / PLAN)
    start = State.from_bytes(read_with_checksum(folder / START, "prepare the federation again"))
    folders = sorted((folder / "hospitals").glob("*"))
    if not (sites := [path.name for path in folders if (path / f"{path.name}.yaml").is_file()]):
        raise UserError(f"{folder / 'hospitals'}: has no folder SITE with SITE.yaml; prepare the federation again")
    return replace(plan, source=str(folder / PLAN)), start, sites


def find_kits(kits: Path) -> tuple[Path, Path]:
    """Return the folders of the kits of FLARE's server and of the admin console; UserError if any kit is missing."""
    folders = [path for path in sorted(kits.glob("*")) if (path / "startup").is_dir()]
    servers = [path for path in folders if (path / "startup" / "fed_server.json").is_file()]
    consoles = [path for path in folders if (path / "startup" / "fed_admin.json").is_file()]
    if len(servers) != 1 or not consoles:
        raise UserError(
            f"{kits}: expected the kits of one server and of an admin console, found "
            f"{', '.join(path.name for path in folders) or 'none'}; make them with nvflare provision, as "
            "the federation's README.md says"
        )
    return servers[0], consoles[0]
