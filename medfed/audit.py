"""Measure on a site's own images, before it joins, what the statistics that it would share reveal."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from medfed.auditing import linkage, membership, reconstruction, site_told
from medfed.auditing.page import build_page
from medfed.auditing.sharing import Sharing
from medfed.auditing.words import HOW, NOT_TRIED, to_text
from medfed.config import Config, load
from medfed.discovery import suggestion
from medfed.errors import UserError
from medfed.federation.local import Samples
from medfed.files import write_atomically
from medfed.outputs.environment import versions
from medfed.programs import overrides, run_program
from medfed.simulation import Simulation, prepare
from medfed.site_images import SiteImages

IMAGES, GALLERY = 3, 60


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when all was measured, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.audit", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    parser.add_argument("--site", metavar="NAME", help="whose images; default: the first source site")
    parser.add_argument("--images", type=int, default=IMAGES, metavar="N",
                        help=f"images to reconstruct (default {IMAGES}; some ten seconds each)")
    parser.add_argument("--gallery", type=int, default=GALLERY, metavar="N",
                        help=f"images to find a second look among (default {GALLERY})")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="for audit.json and audit.html (default: runs/audit_CONFIG)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change one value of the config")
    parser.add_argument("--seed", type=int, help="short for --set seed=...")
    parser.add_argument("--device", help="short for --set device=...: auto, cpu or cuda")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    args = parser.parse_args(argv)
    return run_program("medfed.audit", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    for flag, number, least in (("--images", args.images, 1), ("--gallery", args.gallery, 2)):
        if number < least:
            raise UserError(f"{flag}: expected at least {least}, got {number}")
    config = load(args.config, overrides(args))
    out = args.out or Path("runs") / f"audit_{args.config.stem}"
    out.mkdir(parents=True, exist_ok=True)
    simulation = prepare(config, None, args.quiet)
    result, found = audit(config, simulation, args.site, args.images, args.gallery, args.quiet)
    axes = None if simulation.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    write_atomically(out / "audit.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    write_atomically(out / "audit.html", build_page(result, found, axes))
    print(to_text(result))
    if not args.quiet:
        print(f"Pictures, and how the numbers were found: {out / 'audit.html'}; numbers alone: {out / 'audit.json'}")
    return 0


def audit(
    config: Config, simulation: Simulation, name: str | None = None, n_images: int = IMAGES, n_gallery: int = GALLERY,
    quiet: bool = True,
) -> tuple[dict, list[reconstruction.Found]]:
    """What the site's statistics reveal, as plain JSON values, and the images that were reconstructed.

    Raises:
        UserError: if there is no such site, or it would share no statistic.
    """
    members = sorted(simulation.engine.members, key=lambda member: member.name)
    known = [member.name for member in members]
    if name is not None and name not in known:
        raise UserError(f"--site {name}: takes no part in training. {suggestion(name, known)}")
    members.sort(key=lambda member: member.name != (name or known[0]))
    sites = [Sharing.of(member, simulation.start.weights) for member in members]
    own, others = sites[0], sites[1:]
    if not len(own.rows(own.sent)):
        raise UserError(
            f"{config.source}: method.name: at {own.site.name} '{config.method_name}' shares no statistics of images, "
            "so there is nothing to measure (weights are not measured here); choose another method, such as elcfs"
        )
    held_out = _held_out(simulation, own.site.name)
    steps = n_images + n_gallery + membership.n_people(own, held_out) + site_told.REPEATS + site_told.LEFT_OUT
    with warnings.catch_warnings(), tqdm(
        total=steps, desc="auditing", unit="step", disable=quiet, dynamic_ncols=True, leave=False
    ) as bar:
        warnings.simplefilter("ignore")  # of few images or blank ones; the site itself was asked above
        measured, found = _measure(own, others, held_out, n_images, n_gallery, _mirror_axis(simulation), bar.update)
    dataset = simulation.dataset
    return {
        "site": own.site.name,
        "method": config.method_name,
        "dataset": dataset.card.title,
        "data": "phantom" if dataset.is_phantom else "real",
        "seed": config.seed,
        "n_images": len(own.site.training),
        "n_people": own.site.training.n_patients,
        "sent": {"bytes": own.n_bytes, "entries": own.entries(), "row_for_each_image": bool(own.growing)},
        **measured,
        "how": list(HOW),
        "not_tried": list(NOT_TRIED),
        "versions": versions(),
    }, found


def _measure(
    own: Sharing, others: list[Sharing], held_out: Samples | None, n_images: int, n_gallery: int, mirror_axis: int,
    tick: Callable[[], object],
) -> tuple[dict, list[reconstruction.Found]]:
    found = reconstruction.reconstruct(own, n_images, tick=tick)
    return {
        "reconstruction": [one.scores for one in found],
        "reidentification": linkage.reidentify(own, n_gallery, mirror_axis, tick),
        "site_told": site_told.tell_sites([own, *others], tick),
        "one_left_out": site_told.leave_one_out(own, others, tick),
        "membership": membership.membership(own, held_out, tick),
    }, found


def _held_out(simulation: Simulation, name: str) -> Samples | None:
    """The site's people whose images are not in what it shares: those kept for validation and test."""
    split = (simulation.clients or simulation.splits)[name]
    with tqdm(disable=True) as bar:
        return SiteImages(simulation.dataset, simulation.task, bar).samples([*split.validation, *split.test])


def _mirror_axis(simulation: Simulation) -> int:
    """From left to right: the first of a scanner's slice, the second of a picture."""
    return -1 if simulation.dataset.intensity_range or simulation.dataset.classes else -2


if __name__ == "__main__":
    sys.exit(main())
