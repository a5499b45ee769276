"""Write the plan of a federation of hospitals, a file for each hospital, and what FLARE needs."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from medfed.cli.program import overrides
from medfed.config import strict_yaml
from medfed.config.schema import Config, changed, load, resolved, to_yaml
from medfed.core import site_names
from medfed.core.errors import UserError
from medfed.core.files import sha256_digest, write_atomically
from medfed.deployment import codec_files
from medfed.deployment.templates import README, project_file, site_file_text
from medfed.engines.flare.job import check_names
from medfed.experiments.setup import build_network, build_task
from medfed.experiments.summary import describe_images
from medfed.federation import privacy_accounting
from medfed.federation.message import State

PLAN, START, IMAGES = "plan.yaml", "start.state", "images.json"


def prepare_federation(args: argparse.Namespace) -> int:
    config = load(args.config, overrides(args))
    out = args.out or Path("federations") / Path(config.source).stem
    if (out / PLAN).exists():
        raise UserError(f"{out}: holds a federation already; choose another folder with --out")
    dataset = config.data.ensure_available(None)
    privacy_accounting.require_accountant(config.privacy)
    sites = args.sites or [name for name in dataset.site_names() if name != config.federation.unseen_site]
    plan = _plan(config, sites)
    task = build_task(plan, dataset)
    task.check_metrics(config.source)
    plan.network.check_image_size(dataset.image_size)
    plan.method.check(dataset.image_size, dataset.channels, dataset.standardise)
    network = build_network(config.network, config.method, task, config.seed)
    if plan.federation.batch_norm == "local" or plan.method.local_keys(network):
        raise UserError(f"{config.source}: {plan.method_name} keeps entries of the network at each site, so that no "
                        "site's letter has the whole model, and there is none to hand out at the end; choose another "
                        "method for hospitals, with federation.batch_norm: average")
    start = State.of(network).to_bytes()
    places = {site: out / "hospitals" / site for site in sites}
    for place in places.values():  # with what each hospital is sent
        place.mkdir(parents=True, exist_ok=True)
        named = codec_files.export_codecs(plan, place)
        write_atomically(place / PLAN, to_yaml(named))
    plan = named
    write_atomically(out / START, sha256_digest(start), start)
    images = describe_images(task, dataset, dataset.cases(dataset.site_names()[0])[0])
    write_atomically(out / IMAGES, json.dumps({**images, "dataset": dataset.card.title}, indent=2))
    for site, place in places.items():
        write_atomically(place / f"{site}.yaml", site_file_text(site, plan.federation.rounds))
    write_atomically(out / "project.yml", strict_yaml.dump(project_file(sites, args.host, args.port)))
    write_atomically(out / "README.md", README.format(
        folder=out, host=args.host, sites=_site_list(sites, plan.federation.validation_site), first=sites[0],
        method=plan.method_name, rounds=plan.federation.rounds,
    ))
    write_atomically(out / PLAN, to_yaml(plan))
    print(f"The federation of {len(sites)} hospitals is in {out}; {out / 'README.md'} has the commands for both sides.")
    return 0


def _site_list(sites: list[str], validation_site: str) -> str:
    return ", ".join(f"{site} (which only validates)" if site == validation_site else site for site in sites)


def _plan(config: Config, sites: list[str]) -> Config:
    """The config as all hospitals agree on it: nobody is unseen, and each puts its own folder in place of data.root."""
    federation = config.federation
    for key in ("clients", "participating"):
        if getattr(federation, key):
            raise UserError(f"{config.source}: federation.{key}: {getattr(federation, key)} is for simulations; leave "
                            "it out of a federation of hospitals")
    validation_site = federation.validation_site
    if validation_site not in ["", *sites]:
        raise UserError(f"{config.source}: federation.validation_site: '{validation_site}' is not among --sites "
                        f"({', '.join(sites)}); name it there as well")
    if federation.selection == "validation_site" and not validation_site:
        raise UserError(f"{config.source}: federation.selection: 'validation_site' needs federation.validation_site; "
                        "name one")
    if len(sites) < 2 + bool(validation_site):
        alone = f", and {validation_site} only validates" if validation_site else ""
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
