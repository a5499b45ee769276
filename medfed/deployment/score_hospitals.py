"""Score a bundle at several sites as their coordinator: on this machine, or at hospitals over NVIDIA FLARE."""

from __future__ import annotations

import argparse
import importlib.util
import warnings

from medfed.core.device import pick_device
from medfed.core.errors import UserError, argument
from medfed.deployment.coordinate import find_kits, site_folders
from medfed.engines.flare.kit import server_process
from medfed.experiments.resume import check_no_other_files
from medfed.federation.message import FAILED, Message
from medfed.scoring.arguments import NETWORK, minimum_of_sites, scoring_inputs
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.bundle_tasks import task_of_outputs
from medfed.scoring.federated import (
    SCORES,
    SETTINGS,
    SiteScores,
    collect_scores,
    score_at_sites,
    write_site_scores,
)
from medfed.scoring.score import check_output

SCORING = "scoring"  # folder of FLARE's log and job


def run_scoring(args: argparse.Namespace) -> int:
    """Run `python -m medfed.coordinator score`: score a bundle at several sites, and print and write the aggregates.

    Args:
        args: the parsed arguments: those of `add_scoring_arguments`, `engine` (where the sites work), `min_patients`
            (texts for `minimum_of_sites`), and for the engine `NETWORK` those of `score_at_hospitals`.

    Returns:
        The exit code 0.

    Raises:
        UserError: if an argument, the bundle or the images cannot be used, or the folder for the results holds other
            files.
    """
    inputs = scoring_inputs(args)
    out = args.out or inputs.default_out()
    if args.engine == NETWORK:
        check_no_other_files(out)
        scores = score_at_hospitals(args)
    else:
        check_output(out, dataset := inputs.load_dataset())
        scores = score_at_sites(inputs, minimum_of_sites(args.min_patients, dataset.site_names()), args.engine)
    write_site_scores(scores, out)
    print(scores.to_text())
    print(f"\nThe results are in {out}: {SCORES}, summary.json and ledger.csv.")
    return 0


def score_at_hospitals(args: argparse.Namespace) -> SiteScores:
    """Score a bundle at the hospitals of a federation; each hospital returns aggregates only.

    Args:
        args: the parsed arguments: `bundle` (folder of the bundle, of which each hospital has a copy), `folder` (the
            folder that `medfed.coordinator prepare` wrote), `kits` (the folder with the startup kits; None takes
            `kits/medfed/prod_00` in `folder`) and `join_seconds` (for how many seconds to wait for the hospitals to
            join). The arguments about images must have their defaults, because each hospital has its own.

    Raises:
        UserError: if an argument about images is set, if FLARE is not installed, a file or a startup kit is missing,
            the bundle cannot be used, or no hospital has a valid reply.
    """
    for name in ("name", "dataset", "set", "min_patients"):
        if getattr(args, name):
            raise UserError(
                f"{argument(name)}: has no effect with {argument('engine', NETWORK)}, because each "
                "hospital sets its own in its file; remove it"
            )
    if importlib.util.find_spec("nvflare") is None:
        raise UserError(
            "scoring over a network needs NVIDIA FLARE, which is not installed; run pip install -e "
            "'.[nvflare]' in medfed's folder"
        )
    from medfed.engines.flare.engine import FlareEngine

    task = task_of_outputs(load_bundle(args.bundle, pick_device("cpu")))
    sites = site_folders(args.folder)
    server_kit, admin = find_kits(args.kits or args.folder / "kits" / "medfed" / "prod_00", sites)
    (work := args.folder / SCORING).mkdir(exist_ok=True)
    server = server_process(server_kit)
    engine = FlareEngine(sites, server, admin, work, SETTINGS, args.join_seconds)
    try:
        server.start(work / "server.log")
        scores = collect_scores(engine, task, {"data": "not stated", "dataset": "at the hospitals"})
        # A hospital leaves with the model that it has scored, so that a lost reply can be asked for again until then.
        end = Message("end", dict(task.model.network.state_dict()), {}, {"round": 1})
        for site, reply in engine.exchange("end", dict.fromkeys(sites, end)).items():
            if reply.kind == FAILED and site in scores.facts:
                warnings.warn(
                    f"{site}: does not know that the scoring is over ({reply.facts['why']}); ask it to end its program",
                    stacklevel=2,
                )
        return scores
    finally:
        engine.close()
        server.stop()
