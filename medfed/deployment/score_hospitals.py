"""Ask the hospitals of a prepared federation over NVIDIA FLARE to score a bundle, as their coordinator."""

from __future__ import annotations

import argparse
import importlib.util
import warnings

from medfed.core.device import pick_device
from medfed.core.errors import UserError, argument
from medfed.deployment.coordinate import find_kits, site_folders
from medfed.engines.flare.kit import server_process
from medfed.federation.message import FAILED, Message
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.bundle_tasks import task_of_outputs
from medfed.scoring.federated import SETTINGS, SiteScores, collect_scores

NETWORK = "nvflare"  # the name of the engine
SCORING = "scoring"  # folder of FLARE's log and job


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
            raise UserError(f"{argument(name)}: has no effect with {argument('engine', NETWORK)}, because each "
                            "hospital sets its own in its file; remove it")
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("scoring over a network needs NVIDIA FLARE, which is not installed; run pip install -e "
                        "'.[nvflare]' in medfed's folder")
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
                warnings.warn(f"{site}: does not know that the scoring is over ({reply.facts['why']}); ask it to end "
                              "its program", stacklevel=2)  # fmt: skip
        return scores
    finally:
        engine.close()
        server.stop()
