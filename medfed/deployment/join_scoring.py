"""A hospital that scores a bundle on its own images over a network, and sends aggregates only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from medfed.config import strict_yaml, validation
from medfed.core.errors import UserError
from medfed.deployment.agreement import Agreement
from medfed.deployment.guarded_site import LEDGER, describe_participation
from medfed.deployment.join import SiteFile, check_output_folder, join_federation
from medfed.federation.ledger import format_sums, message_rows, sum_bytes
from medfed.federation.message import Message, State
from medfed.federation.privacy import Privacy
from medfed.federation.rounds import requests_with_last_round
from medfed.outputs.tables.table import align_columns
from medfed.scoring.arguments import DEFAULT_MIN_PATIENTS, ScoringInputs
from medfed.scoring.federated import build_scoring_sites, outputs_of
from medfed.scoring.site import SCORE, ScoringSite


def scores_bundle(path: Path) -> bool:
    """Return whether a hospital's file names a bundle to score, and no plan of a training.

    Args:
        path: the hospital's YAML file.
    """
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    return isinstance(document, dict) and bool(document.get("bundle"))


def read_scoring_file(path: Path) -> tuple[SiteFile, ScoringInputs]:
    """Read a hospital's YAML file that names a bundle to score.

    Args:
        path: the hospital's file. Its paths are relative to its folder. The block `data` has `root` (the folder that
            contains the folder of the site), and may have `name` (of the dataset in a config) and further settings of
            the images.

    Returns:
        The content of the file, with the default minimum group size if it names none; and the bundle and the images.

    Raises:
        UserError: if the file is wrong, the bundle is missing, or the hospital did not agree to score.
    """
    document: Any = strict_yaml.parse(strict_yaml.read(path), str(path))
    data, device = document.pop("data", None) or {}, document.pop("device", "auto")
    if not isinstance(data, dict) or not isinstance(data.get("root"), str):
        raise UserError(f"{path}: data.root: is missing; name the folder that contains the folder of your site")
    if not isinstance(data.get("name"), str | None):
        raise UserError(
            f"{path}: data.name: is {data['name']!r}; expected the name of a dataset, such as folder, or remove it"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"{path}: device: is {device!r}; expected auto, cpu or cuda")
    site_file = validation.load_settings(SiteFile, document, str(path))
    if "min_patients" not in (document.get("agrees") or {}):
        site_file = replace(site_file, agrees=replace(site_file.agrees, min_patients=DEFAULT_MIN_PATIENTS))
    paths: dict[str, Any] = {name: str(path.parent / getattr(site_file, name)) for name in ("bundle", "kit", "folder")}
    site_file = replace(site_file, **paths)
    if not Path(site_file.bundle).is_dir():
        raise UserError(
            f"{path}: bundle: {site_file.bundle} is missing; copy the bundle from the coordinator to this "
            "path, unpacked"
        )
    if SCORE not in site_file.agrees.requests:
        raise UserError(
            f"{path}: agrees.requests: lacks 'score', so that every request would be refused; add it if "
            "you agree that the scores leave the hospital"
        )
    root, dataset = str(path.parent / data.pop("root")), data.pop("name", None)
    settings = tuple(f"data.{key}={json.dumps(value, default=str)}" for key, value in data.items())
    return site_file, ScoringInputs(site_file.bundle, root, dict(site_file.names), dataset, settings, device)


def take_part_in_scoring(path: Path, is_dry_run: bool, agrees: Callable[[str], bool], quiet: bool) -> int:
    """Score the bundle, show the numbers that would leave, ask for agreement, and join the federation.

    Args:
        path: the hospital's file.
        is_dry_run: True shows the numbers and sends nothing.
        agrees: function that asks a question and returns whether the hospital agrees.
        quiet: True shows no progress.

    Returns:
        The exit code 0.

    Raises:
        UserError: if the file, the bundle or the images cannot be used, or the federation ends early.
    """
    site_file, inputs = read_scoring_file(path)
    check_output_folder(Path(site_file.folder), str(path))
    min_patients = {site_file.site: site_file.agrees.min_patients}
    (site,) = build_scoring_sites(inputs, [site_file.site], min_patients)
    print(format_scoring(site, own_scores(site)))
    if is_dry_run:
        return 0
    if not agrees("\nDo you agree that these numbers leave your hospital? [yes/no] "):
        print("Nothing was sent.")
        return 0
    work = {"scoring": asdict(inputs), "min_patients": min_patients}
    join_federation(site_file, work, f"the bundle {site.model.facts['name']}", str(path), quiet)
    print(
        f"The scoring is over. Everything that was sent and received is listed in {Path(site_file.folder) / LEDGER}."
        f"\n{describe_participation(Path(site_file.folder), Agreement(), Privacy())}"
    )
    return 0


def own_scores(site: ScoringSite) -> Message:
    """Return the site's reply to the request that a coordinator would send; nothing is sent.

    Args:
        site: the site.
    """
    return site.reply(requests_with_last_round(SCORE, State.of(site.network), [site.name], 1)[site.name])


def format_scoring(site: ScoringSite, reply: Message) -> str:
    """Return a text that shows everything that would leave a site.

    Args:
        site: the site.
        reply: its reply.
    """
    lines = [[(name, ""), (f"{number:.6g}", "")] for name, number in reply.facts.items()]
    outputs = ", ".join(f"{key} is {name}" for key, name in outputs_of(site.task).items())
    sums = format_sums(sum_bytes(message_rows(1, "up", {site.name: reply}))["up"])
    return "\n".join(
        [
            f"What would leave {site.name} ({len(site.cases)} images do not leave):",
            "",
            align_columns(lines, False),
            "",
            f"Outputs of the bundle: {outputs}. Numbers of fewer than {site.min_patients} patients are left out. In "
            f"total {sums} leave.",
        ]
    )
