"""Check whether a run may start in a folder or continue there, so that no results are lost or mixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfed.config import strict_yaml
from medfed.config.schema import difference
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.duplicates import MAX_HASHED_CASES, file_sha256
from medfed.datasets.splits import PARTS, Split
from medfed.federation.settings import Cache
from medfed.networks.parts.adain import codec_path
from medfed.outputs.run_files import check_may_start
from medfed.outputs.run_folder import BEGINNINGS, RunFolder

# Settings that --accept-config-change may change. With any other change the finished rounds would belong to another
# federation: other patients in training, an unseen site that has trained, or a method without its shared statistics.
MAY_CHANGE = (
    "cache. device evaluation. federation.engine federation.reply_timeout_s federation.largest_change "
    "federation.largest_count federation.on_bad_update federation.quorum federation.rounds federation.survey "
    "federation.validate_every training.batch_size training.learning_rate training.threads"
).split()
LOG = "run.log"  # in the folder of a run that a worker process does


def check_no_other_files(path: Path, own: Collection[str] = ()) -> None:
    """Raise UserError if the folder has files other than `own` and hidden ones, which results would mix with."""
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    if other := [name for name in names if name not in own and not name.startswith(".")]:
        raise UserError(
            f"{path}: contains other files ({', '.join(other[:5])}); choose a new or an empty folder with --out"
        )


def check_outside_data(path: Path, dataset: Dataset) -> None:
    """Raise UserError if results, which show patients' images, would lie in the folder of a real dataset."""
    if _lies_in_data(path, dataset):
        raise UserError(
            f"{path}: lies in {dataset.root}, the folder with the images (data.root), and would mix results with data; "
            "choose a folder outside with --out"
        )


def check_cache_folder(cache: Cache, dataset: Dataset, results: Path, source: str) -> None:
    """Raise UserError if `cache.folder` lies among the results or among the images of a real dataset."""
    cache.check_outside(results, source)
    if cache.folder and _lies_in_data(Path(cache.folder), dataset):
        raise UserError(
            f"{source}: cache.folder: {cache.folder} lies in {dataset.root}, the folder with the images (data.root), "
            "and would mix restyled images with the originals; choose a folder outside"
        )


def _lies_in_data(path: Path, dataset: Dataset) -> bool:
    root = Path(dataset.root)
    return root.is_dir() and not dataset.is_phantom and path.resolve().is_relative_to(root.resolve())


def check_new_run(folder: RunFolder) -> None:
    """Raise UserError unless a new run may start in the folder."""
    check_may_start(folder.path, resume=False)
    check_no_other_files(folder.path, (*BEGINNINGS, "run.lock", LOG))


def check_resumed_run(folder: RunFolder, settings: Mapping[str, Any], accept_change: bool = False) -> None:
    """UserError unless the run may be continued with these settings; `accept_change` allows those in MAY_CHANGE."""
    check_may_start(folder.path, resume=True)
    changed = changed_settings(folder, settings)
    if not folder.rounds() and folder.history() and (changed or not folder.is_finished()):
        raise UserError(
            f"{folder.path / 'states'}: holds no checkpoint, though history.csv goes to round "
            f"{folder.history()[-1]['round']}; restore the checkpoints, or choose another folder with --out"
        )
    folder.check()
    fixed = [change for change in changed if not change.startswith(tuple(MAY_CHANGE))]
    if fixed or changed and not accept_change:
        mixing = "continuing would mix the results of two configs"
        raise UserError(
            f"{folder.path}: this run was started with another config ({'; '.join((fixed or changed)[:5])}); undo the "
            f"change, or choose another folder with --out; "
            f"{mixing if fixed else '--accept-config-change continues this run'}"
        )


def changed_settings(folder: RunFolder, settings: Mapping[str, Any]) -> list[str]:
    """List how settings differ from `config.yaml`, such as `seed: 1 -> 2`; `tracking` changes no result."""
    file = folder.path / "config.yaml"
    changes = difference(strict_yaml.parse(strict_yaml.read(file), str(file)), settings)
    return [change for change in changes if not change.startswith("tracking: ")]


def check_data(folder: RunFolder, dataset: Dataset, splits: Mapping[str, Split], codecs: Sequence[str]) -> None:
    """Record the cases of a run (patient, class, part, files) in `data.json`; later, UserError if any changed."""
    hashed = sum(len(patients.all()) for patients in splits.values()) <= MAX_HASHED_CASES
    cases = {
        f"{case.site}/{case.name}": {
            "patient": case.patient,
            "class": case.label,
            "part": part,
            "files": [file_sha256(path) if hashed else path.stat().st_size for path in case.files],
        }
        for patients in splits.values()
        for part in PARTS
        for case in getattr(patients, part)
    }
    digests = {name: file_sha256(codec_path(name)) for name in codecs}
    if not (folder.path / "data.json").is_file():
        folder.write_json("data.json", {"codecs": digests, "cases": cases})
        return
    recorded = folder.read_json("data.json")
    if not isinstance(recorded, dict) or not {"codecs", "cases"} <= recorded.keys():
        raise UserError(
            f"{folder.path / 'data.json'}: is of another version of medfed; start the run again in another folder"
        )
    before, now = {**recorded["codecs"], **recorded["cases"]}, {**digests, **cases}
    if changed := sorted(name for name in before | now if before.get(name) != now.get(name)):
        raise UserError(
            f"{dataset.root}: {len(changed)} of {len(before | now)} cases or codecs changed (files, patient, class or "
            f"part of the split), appeared or disappeared since the run in {folder.path} was started, the first is "
            f"{changed[0]}; restore them, or choose another folder with --out"
        )
