"""Whether a run may start in a folder, or go on there: nothing is lost, and nothing is mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.config import strict_yaml
from medfed.config.schema import difference
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.checking import MAX_HASHED_CASES, file_sha256
from medfed.datasets.splits import Split
from medfed.federation.message import State
from medfed.functional.weights import check_same_entries
from medfed.networks.adain import codec_path
from medfed.outputs.run_folder import RunFolder

# What an accepted change may touch. All else would make the rounds so far those of another federation: other patients
# in training, a hospital that took part called unseen, a method without what it shares before round 1.
MAY_CHANGE = (
    "device",
    "evaluation.",
    "federation.reply_timeout_s",
    "federation.largest_change",
    "federation.on_bad_update",
    "federation.quorum",
    "federation.rounds",
    "federation.validate_every",
    "training.batch_size",
    "training.learning_rate",
)
REMAINS = ("states", "sites", "history.csv", "ledger.csv", "summary.json")


def check_run_folder(
    folder: RunFolder, settings: Mapping[str, Any], resume: bool, accept_change: bool = False
) -> None:
    """Check that a run may start in this folder, or resume the one that is there.

    Args:
        settings: every value of the config (`schema.resolved`).

    Raises:
        UserError: where going on, or starting over, could lose or mix results.
    """
    kept = folder.path / "config.yaml"
    if resume and not kept.is_file():
        raise UserError(f"{folder.path}: no run to resume here; leave --resume out to start one, or name it with --out")
    if not resume and kept.is_file():
        last = max(folder.rounds(), default=0)
        done = "a finished run" if folder.is_finished() else f"a run that has finished round {last}"
        raise UserError(f"{folder.path}: holds {done}; go on with --resume, or start another with --out")
    if not resume and (remains := [name for name in REMAINS if (folder.path / name).exists()]):
        raise UserError(
            f"{folder.path}: holds {', '.join(remains)} of a run, but no config.yaml; put that back and --resume, or "
            "start another run with --out"
        )
    if resume and not folder.rounds() and folder.history():
        raise UserError(
            f"{folder.path / 'states'}: holds no checkpoint, though history.csv goes to round "
            f"{folder.history()[-1]['round']}; put the checkpoints back, or start another run with --out"
        )
    if resume and (changed := changed_settings(folder, settings)):
        _check_changes(folder, changed, accept_change)


def _check_changes(folder: RunFolder, changed: list[str], accepted: bool) -> None:
    if fixed := [change for change in changed if not change.startswith(MAY_CHANGE)]:
        raise UserError(
            f"{folder.path}: this run was started with another config ({'; '.join(fixed[:5])}), and going on would mix "
            "two federations; undo the change, or start another run with --out"
        )
    if not accepted:
        raise UserError(
            f"{folder.path}: this run was started with another config ({'; '.join(changed[:5])}); undo the change, "
            "choose another folder with --out, or accept it with medfed.train --accept-config-change"
        )


def changed_settings(folder: RunFolder, settings: Mapping[str, Any]) -> list[str]:
    """How a config (`schema.resolved`) differs from the one that the run was started with."""
    file = folder.path / "config.yaml"
    return difference(strict_yaml.parse(strict_yaml.read(file), str(file)), settings)


def load_resume_state(folder: RunFolder, start: State) -> State:
    """The last checkpoint, or the start where there is none; UserError where it is of another network."""
    rounds = folder.rounds()
    if not rounds:
        return start
    state = folder.load_state(rounds[-1])
    try:
        check_same_entries(start.weights, state.weights)
    except ValueError as error:
        raise UserError(
            f"{folder.path}: round {state.round} does not fit the network of this config ({error}); start another run "
            "with --out"
        ) from error
    return state


def check_data(folder: RunFolder, dataset: Dataset, splits: Mapping[str, Split], codecs: Sequence[str]) -> None:
    """Record which files a run is made from, or refuse to resume it with others.

    Args:
        splits: the patients of the source sites and the validation site.
        codecs: files of the style codecs that the method uses.

    `data.json` holds the SHA-256 of every image and mask of the source sites, and of a codec that is not medfed's own.
    For more than MAX_HASHED_CASES images, it holds the file sizes only: hashing hundreds of thousands of files at every
    start would take too long.

    Raises:
        UserError: if files changed, came or went since the run was started, or phantoms gave way to real images.
    """
    cases = [case for patients in splits.values() for case in patients.all()]
    hashed = len(cases) <= MAX_HASHED_CASES
    origin = "phantom" if dataset.is_phantom else "real"
    codec_digests = {name: file_sha256(codec_path(name)) for name in codecs}
    files = {
        f"{case.site}/{case.patient}": [
            file_sha256(path) if hashed else path.stat().st_size for path in (case.image, case.mask) if path
        ]
        for case in cases
    }
    if not (folder.path / "data.json").is_file():
        folder.write_json("data.json", {"data": origin, "codecs": codec_digests, "files": files})
        return
    kept = folder.read_json("data.json")
    if kept["data"] != origin:
        raise UserError(
            f"{folder.path}: this run was started on {kept['data']} data, and now finds {origin} data in "
            f"{dataset.root}; start another run with --out"
        )
    before = kept.get("codecs", codec_digests)  # older runs did not record codecs
    if changed := [name for name in codec_digests if before.get(name) != codec_digests[name]]:
        raise UserError(
            f"{codec_path(changed[0])}: changed since the run in {folder.path} was started with it; put the codec of "
            "then back, or start another run with --out"
        )
    names = sorted(set(kept["files"]) | set(files))
    if changed := [name for name in names if kept["files"].get(name) != files.get(name)]:
        raise UserError(
            f"{dataset.root}: {len(changed)} of {len(names)} cases changed, came or went since the run in "
            f"{folder.path} was started, the first is {changed[0]}; put them back, or start another run with --out"
        )
