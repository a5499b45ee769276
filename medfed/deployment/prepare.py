"""Prepare a federation of hospitals: write the plan, a folder for each hospital, and the project file for FLARE."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from medfed.cli.program import overrides
from medfed.config import strict_yaml
from medfed.config.early import find_config
from medfed.config.schema import Config, changed, load, resolved
from medfed.core import site_names
from medfed.core.errors import UserError
from medfed.core.files import sha256_digest, write_atomically
from medfed.deployment import codec_files
from medfed.deployment.templates import README, certificate_files, project_file, site_file_text
from medfed.engines.flare.job import check_names
from medfed.experiments.setup import build_network, check_config, describe_images
from medfed.federation import privacy_accounting
from medfed.federation.message import State
from medfed.federation.settings import Cache

PLAN, START, IMAGES = "plan.yaml", "start.state", "images.json"


def prepare_federation(args: argparse.Namespace) -> int:
    """Run `python -m medfed.coordinator prepare`: write the folder from which a federation is started.

    The folder holds the plan (the config for all hospitals), the network's first weights, the project file for `nvflare
    provision`, a README.md with the commands for both sides, and one folder for each hospital.
    """
    config = load(find_config(args.config), overrides(args))
    out = args.out or Path("federations") / Path(config.source).stem
    if (out / PLAN).exists():
        raise UserError(f"{out}: already holds a federation; choose another folder with --out")
    dataset, by_site = config.data.ensure_available(None), getattr(config.data, "by_site", {})
    privacy_accounting.require_accountant(config.privacy)
    sites = args.sites or [name for name in dataset.site_names() if name != config.federation.unseen_site]
    plan = _plan(config, sites)
    task = check_config(plan, dataset)
    task.check_metrics(config.source)
    network = build_network(config.network, config.method, task, config.seed)
    if plan.federation.batch_norm == "local" or plan.method.local_keys(network):
        raise UserError(
            f"{config.source}: {plan.method_name} keeps entries of the network at each site, so that there "
            "is no whole model to send to the hospitals at the end; choose a method without such entries "
            "and federation.batch_norm: average"
        )
    start = State.of(network).to_bytes()
    folders = {site: out / "hospitals" / site for site in sites}
    for folder in folders.values():  # each is sent to its hospital
        folder.mkdir(parents=True, exist_ok=True)
        exported = codec_files.export_codecs(plan, folder)
        write_atomically(folder / PLAN, exported.yaml)
    plan = exported
    write_atomically(out / START, sha256_digest(start), start)
    images = describe_images(task, dataset, dataset.cases(dataset.site_names()[0])[0])
    write_atomically(out / IMAGES, json.dumps({**images, "dataset": config.data.card.title}, indent=2))
    for site, folder in folders.items():
        write_atomically(folder / f"{site}.yaml", site_file_text(site, plan.federation.rounds, by_site.get(site, {})))
    write_atomically(out / "project.yml", strict_yaml.dump(project_file(sites, args.host, args.port)))
    for name, content in certificate_files(sites, args.host, args.port).items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomically(out / name, strict_yaml.dump(content))
    write_atomically(
        out / "README.md",
        README.format(
            folder=out,
            host=args.host,
            sites=", ".join(
                f"{site} (which only validates)" if site == plan.federation.validation_site else site for site in sites
            ),
            first=sites[0],
            method=plan.method_name,
            rounds=plan.federation.rounds,
        ),
    )
    write_atomically(out / PLAN, plan.yaml)
    if dataset is not config.data:
        print(
            f"{config.data.root} does not exist, so a synthetic image has shown how the hospitals' images are stored: "
            "channels, structures, file format."
        )
    print(f"Prepared a federation of {len(sites)} hospitals in {out}. Next: follow {out / 'README.md'}.")
    return 0


def _plan(config: Config, sites: list[str]) -> Config:
    """Return the plan, which is the config for all hospitals: without an unseen site and without paths of folders.

    Each hospital sets `data.root` and `cache` to its own folders, and gets its part of `data.by_site` in its own file.
    """
    federation = config.federation
    for key in ("clients", "participating"):
        if getattr(federation, key):
            raise UserError(
                f"{config.source}: federation.{key}: {getattr(federation, key)} is for simulations; remove "
                "it for a federation of hospitals"
            )
    validation_site = federation.validation_site
    if validation_site not in ["", *sites]:
        raise UserError(
            f"{config.source}: federation.validation_site: '{validation_site}' is not among --sites "
            f"({', '.join(sites)}); add it there"
        )
    if federation.selection == "validation_site" and not validation_site:
        raise UserError(
            f"{config.source}: federation.selection: 'validation_site' needs federation.validation_site; set it"
        )
    if len(sites) < 2 + bool(validation_site):
        note = f", of which {validation_site} only validates" if validation_site else ""
        raise UserError(
            f"--sites: a federation needs at least two hospitals that train, got {', '.join(sites) or 'none'}{note}"
        )
    try:
        site_names.check(sites)
    except ValueError as error:
        raise UserError(f"--sites: {error}") from error
    check_names(sites)
    if "plan" in sites:
        raise UserError(
            f"--sites: a hospital cannot be named 'plan', because the hospital's file would replace "
            f"{PLAN}; rename the hospital"
        )
    survey = "warn" if federation.survey == "auto" else federation.survey
    values: dict[str, object] = {
        "federation.survey": survey,
        "federation.unseen_site": "",
        "federation.unseen_ratio": 1.0,
        "evaluation.match": "none",
        "evaluation.match_ratio": 1.0,
        "evaluation.unseen_every": 0,
        "data.sites": [],
        "data.by_site": {},
        "data.root": "data",
        "data.if_missing": "error",
    }
    data_keys = resolved(config)["data"]
    config = replace(config, network=config.network.without_weights(), cache=Cache())
    values = {key: value for key, value in values.items() if not key.startswith("data.") or key[5:] in data_keys}
    return changed(config, values)
