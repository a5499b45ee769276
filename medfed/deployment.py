"""A coordinator's side: prepare a federation of real hospitals, and run it over NVIDIA FLARE."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from medfed import codecs_of_plan, privacy_budget, site_names, strict_yaml
from medfed.config import Config, changed, load, resolved, to_yaml
from medfed.deployment_files import README, hospital_file, project_file
from medfed.determinism import fix_bits
from medfed.engines.flare.job import RELAY, check_names
from medfed.engines.flare.kit import Kit
from medfed.errors import UserError
from medfed.federation.message import Message, State
from medfed.federation.selection import RULES
from medfed.files import read_sealed, seal, write_atomically
from medfed.metrics import classification_summary, summary
from medfed.outputs.environment import environment, versions
from medfed.outputs.run_folder import RunFolder
from medfed.programs import add_common_flags, overrides, run_program
from medfed.resuming import changes
from medfed.run_summary import images_told
from medfed.simulation import build_network, task_of
from medfed.train import notices, train

PLAN, START, IMAGES, RUN = "plan.yaml", "start.state", "images.json", "run"


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the work is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.federation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepares = commands.add_parser("prepare", help="write the plan, a file for each hospital, and what FLARE needs")
    prepares.add_argument("config", type=Path, help="a YAML file, as for medfed.train")
    prepares.add_argument("--sites", nargs="+", metavar="SITE", help="the hospitals; those in data.root, if not given")
    prepares.add_argument("--host", default="localhost", help="the name under which hospitals reach the coordinator")
    prepares.add_argument("--port", type=int, default=8002,
                          help="the port for that; the next one is for FLARE's console")
    add_common_flags(prepares)
    runs = commands.add_parser("run", help="be the coordinator: start FLARE's server and train with whoever joined")
    runs.add_argument("folder", type=Path, help="what prepare wrote")
    runs.add_argument("--kits", type=Path, help="what `nvflare provision` wrote (the folder with one kit each)")
    runs.add_argument("--join-seconds", type=float, default=600.0, help="how long to wait for the hospitals")
    runs.add_argument("--resume", action="store_true", help="go on after the last finished round")
    runs.add_argument("--quiet", action="store_true", help="no progress, only the result")
    args = parser.parse_args(argv)
    work = {"prepare": _prepare, "run": _run}[args.command]
    return run_program("medfed.federation", lambda: work(args))


def _prepare(args: argparse.Namespace) -> int:
    config = load(args.config, overrides(args))
    out = args.out or Path("federations") / Path(config.source).stem
    if (out / PLAN).exists():
        raise UserError(f"{out}: holds a federation already; choose another folder with --out")
    dataset = config.data.ready(None)
    privacy_budget.check(config.privacy)
    sites = args.sites or [name for name in dataset.site_names() if name != config.federation.unseen_site]
    plan = _plan(config, sites)
    task = task_of(plan, dataset)
    plan.network.check_image_size(dataset.image_size)
    plan.method.check(dataset.image_size, dataset.channels, dataset.standardise)
    network = build_network(config, task)
    if plan.federation.batch_norm == "local" or plan.method.local_keys(network):
        raise UserError(f"{config.source}: {plan.method_name} keeps entries of the network at each site, so that no "
                        "site's letter has the whole model, and there is none to hand out at the end; choose another "
                        "method for hospitals, with federation.batch_norm: average")
    start = State(0, {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()}).to_bytes()
    places = {site: out / "hospitals" / site for site in sites}
    for place in places.values():  # with what each hospital is sent
        place.mkdir(parents=True, exist_ok=True)
        named = codecs_of_plan.sent_along(plan, place)
        write_atomically(place / PLAN, to_yaml(named))
    plan = named
    write_atomically(out / START, seal(start), start)
    images = images_told(task, dataset, dataset.cases(dataset.site_names()[0])[0])
    write_atomically(out / IMAGES, json.dumps({**images, "dataset": dataset.card.title}, indent=2))
    for site, place in places.items():
        write_atomically(place / f"{site}.yaml", hospital_file(site, plan))
    write_atomically(out / "project.yml", strict_yaml.dump(project_file(sites, args.host, args.port)))
    write_atomically(out / "README.md", README.format(
        folder=out, host=args.host, sites=_sites_told(sites, plan), first=sites[0], method=plan.method_name,
        rounds=plan.federation.rounds,
    ))
    write_atomically(out / PLAN, to_yaml(plan))
    print(f"The federation of {len(sites)} hospitals is in {out}; {out / 'README.md'} has the commands for both sides.")
    return 0


def _sites_told(sites: list[str], plan: Config) -> str:
    onlooker = plan.federation.validation_site
    return ", ".join(f"{site} (which only validates)" if site == onlooker else site for site in sites)


def _plan(config: Config, sites: list[str]) -> Config:
    """The config as all hospitals agree on it: nobody is unseen, and each puts its own folder in place of data.root."""
    federation = config.federation
    for key in ("clients", "participating"):
        if getattr(federation, key):
            raise UserError(f"{config.source}: federation.{key}: {getattr(federation, key)} is for simulations; leave "
                            "it out of a federation of hospitals")
    onlooker = federation.validation_site
    if onlooker not in ["", *sites]:
        raise UserError(f"{config.source}: federation.validation_site: '{onlooker}' is not among --sites "
                        f"({', '.join(sites)}); name it there as well")
    if federation.selection == "validation_site" and not onlooker:
        raise UserError(f"{config.source}: federation.selection: 'validation_site' needs federation.validation_site; "
                        "name one")
    if len(sites) < 2 + bool(onlooker):
        alone = f", and {onlooker} only validates" if onlooker else ""
        raise UserError(f"--sites: a federation has at least two hospitals, got {', '.join(sites) or 'none'}{alone}")
    try:
        site_names.check(sites)
    except ValueError as error:
        raise UserError(f"--sites: {error}") from error
    check_names(sites)
    if "plan" in sites:
        raise UserError(f"--sites: a hospital called plan would have its file where {PLAN} is; rename it")
    values = {"federation.unseen_site": "", "data.sites": [], "data.root": "data", "data.if_missing": "error"}
    known = resolved(config)["data"]
    config = replace(config, network=config.network.without_weights())
    kept = {key: value for key, value in values.items() if not key.startswith("data.") or key[5:] in known}
    return changed(config, kept)


def _run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("a federation over a network needs NVIDIA FLARE, which is not installed; pip install -e "
                        "'.[nvflare]' in medfed's folder")
    from medfed.engines.flare.hospitals import Hospitals

    plan, start, sites = _read(args.folder)
    privacy_budget.check(plan.privacy)
    kits = args.kits or args.folder / "kits" / "medfed" / "prod_00"
    server, admin = _kits(kits, sites)
    fix_bits()
    folder = RunFolder(args.folder / RUN)
    with folder.locked():
        done = folder.rounds()
        if done and not args.resume:
            raise UserError(f"{folder.path}: holds a run that has finished round {done[-1]}; go on with --resume")
        if done and (other := changes(folder, plan)):
            raise UserError(f"{args.folder / PLAN}: is not the plan that the run began with ({'; '.join(other[:5])}), "
                            "and the hospitals go by that; undo the change, or prepare another federation")
        state = folder.load_state(done[-1]) if done else start
        folder.write_json("environment.json", environment())
        folder.write_text("config.yaml", to_yaml(plan))
        engine = Hospitals(sites, server, admin, folder.path, plan.federation, args.join_seconds)
        try:
            server.start(folder.path / "server.log")
            with notices(folder, args.quiet):
                last = train(plan, engine, folder, state, args.quiet,
                             whole=lambda end: _say_goodbye(plan, engine, folder, end))
        finally:
            server.stop()
        print(f"{last.round} rounds with {len(sites)} hospitals are in {folder.path}: model.safetensors, history.csv, "
              "ledger.csv.")
        print(f"A MONAI bundle for a hospital: python -m medfed.export {shlex.quote(str(folder.path))}")
    return 0


def _say_goodbye(plan: Config, engine: object, folder: RunFolder, last: State) -> None:
    """The model of the round that the rule chooses, for the coordinator and every hospital that still listens."""
    chosen = RULES[plan.federation.selection](folder.history())
    final = last if chosen == last.round else folder.load_state(chosen)
    folder.save_model(final.weights)
    images = json.loads((folder.path.parent / IMAGES).read_text())
    by_site = privacy_budget.releases(folder.ledger(), final.weights)
    onlooker = plan.federation.validation_site
    folder.write_json("summary.json", {
        **(classification_summary if images["classes"] else summary).summarise([], plan.seed),
        "data": "not stated",  # a coordinator sees none
        "dataset": images.pop("dataset"),
        "images": images,
        "method": plan.method_name,
        "unseen_site": None,
        **({"validation_site": onlooker} if onlooker else {}),
        "source_sites": engine.sites(),
        "took_part": last.took_part,
        "selection": plan.federation.selection,
        "selected_round": final.round,
        "rounds": last.round,
        "seed": plan.seed,
        "config_sha256": hashlib.sha256(to_yaml(plan).encode()).hexdigest(),
        "versions": versions(),
        "method_facts": plan.method.facts(final),
        "privacy": privacy_budget.told(plan.privacy, by_site),
    })
    # Last, as hospitals leave with it: a coordinator that is killed before this is gone on with, and says it then.
    everyone = [*engine.sites(), *([onlooker] if onlooker else [])]
    letters = dict.fromkeys(everyone, Message("end", final.weights, {}, {"round": last.round}))
    for site, answer in engine.exchange("end", letters).items():
        if answer.kind == "failed":
            why = answer.facts["why"]
            warnings.warn(f"{site}: did not get the final model ({why}); send it model.safetensors", stacklevel=2)


def _read(folder: Path) -> tuple[Config, State, list[str]]:
    if not ((folder / PLAN).is_file() and (folder / START).is_file()):
        raise UserError(f"{folder}: holds no federation; make one with python -m medfed.federation prepare CONFIG "
                        f"--out {folder}")
    plan = load(folder / PLAN)
    start = State.from_bytes(read_sealed(folder / START, "prepare the federation again"))
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
    return Kit(servers[0], (RELAY,)), consoles[0]


if __name__ == "__main__":
    sys.exit(main())
