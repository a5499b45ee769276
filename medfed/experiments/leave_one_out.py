"""Plan the runs of a comparison of methods that leaves one or two sites out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfed.config.schema import Config
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.experiments.grid import Fold, Varied, check_varied, config_of, folds_of, rows_of, with_equal_effort
from medfed.experiments.resume import check_cache_folder, check_no_other_files, check_outside_data
from medfed.experiments.setup import build_task, check_earlier_rounds, check_match, progress_bar
from medfed.outputs.comparison_folder import ComparisonFolder
from medfed.results.row import BASELINE, ComparisonRow, is_federated


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, before any of them is trained."""

    out: Path
    folds: list[Fold]
    incompatible: Mapping[str, str]  # why a method or a row of equal effort is left out
    baseline: str  # the method with which all other methods are compared
    effort_note: str  # which rows of equal effort are added, to show before the first run

    @property
    def folder(self) -> ComparisonFolder:
        return ComparisonFolder(self.out, {fold.folder.path: fold.key for fold in self.folds}, self.baseline)


def plan_comparison(
    config: Config,
    out: Path,
    methods: Sequence[str],
    n_seeds: int = 1,
    sites: Sequence[str] | None = None,
    varied: Varied = (),
    leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    resume: bool = False,
    quiet: bool = True,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> ComparisonPlan:
    """Plan all runs of a comparison, and refuse before the first training what could not be trained. The arguments are
    those of `medfed.leave_two_sites_out`, as text; `equal_effort` has an effect only if FedAvg is the baseline."""
    if pairs and (sites or not leave_two_out):
        raise UserError(
            "use --pairs only if two sites are left out and without --sites, because each pair names its unseen site"
        )
    if n_seeds < 1:
        raise UserError(f"--seeds {n_seeds}: at least 1 is needed")
    if not is_federated(baseline):
        raise UserError(
            f"--baseline {baseline}: this row has no federation, so no method is compared with it; name a federated "
            "method of this comparison"
        )
    check_varied(varied)
    dataset = config.data.ensure_available(None if quiet else progress_bar("making the phantom"))
    names, root = dataset.site_names(), config.data.root
    every, incompatible = compatible_methods(config, dataset) if "all" in methods else ([], {})
    methods = [name for method in methods for name in (every if method == "all" else [method])]
    validates = validation_sites(names, pairs or (), root) if leave_two_out else {}
    unseen_sites = sites or (list(validates) if pairs else names)
    if unknown := [site for site in unseen_sites if site not in names]:
        raise UserError(f"--sites {unknown[0]}: no such site in {root}; found {', '.join(names)}")
    if len(names) < 2:
        raise UserError(f"{root}: leaving one site out needs at least two sites, found {', '.join(names)}")
    rows = rows_of(config, methods, varied)
    given = [row.label for row in rows]
    if equal_effort and baseline == BASELINE and BASELINE in methods:
        site = unseen_sites[0]
        rows, refused = with_equal_effort(config, rows, names, site, validates.get(site))
        incompatible |= refused
    if baseline != BASELINE and not any(row.baseline_label(baseline) in given for row in rows):
        raise UserError(
            f"--baseline {baseline}: no row of this name; found {'; '.join(given)}; name one of --methods, without "
            "varied settings"
        )
    folds = folds_of(config, out, rows, n_seeds, names, unseen_sites, validates)
    if not resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(
            f"{out}: holds runs of this comparison; continue it with --resume, or choose another folder with --out"
        )
    if not resume:
        check_outside_data(out, dataset)
        check_no_other_files(out)
    for cache in {fold.config.cache for fold in folds}:
        check_cache_folder(cache, dataset, out, config.source)
    check_rows(folds)
    added, note = [row.label for row in rows if row.label not in given], ""
    if added:
        n_added = sum(fold.row.label in added for fold in folds)
        note = (
            f"Equal effort: FedAvg with as many steps and images as other methods ({'; '.join(added)}) adds {n_added} "
            f"to {len(folds) - n_added} runs; --no-equal-effort leaves them out."
        )
    return ComparisonPlan(out, folds, incompatible, baseline, note)


def compatible_methods(base: Config, dataset: Dataset) -> tuple[list[str], dict[str, str]]:
    """Return the methods that work on a dataset with default settings, and why each other one does not."""
    refused: dict[str, str] = {}
    site = next((name for name in dataset.site_names() if name != base.federation.validation_site), "")
    names = [BASELINE, *(name for name in registry.known_names("methods") if name not in (BASELINE, "stack"))]
    for name in names:
        try:
            _check_fits(config_of(base, ComparisonRow(name), site, base.seed), dataset)
        except UserError as error:
            if name == BASELINE:
                raise
            refused[name] = str(error)
    return [name for name in names if name not in refused], refused


def validation_sites(names: Sequence[str], pairs: Sequence[tuple[str, str]], root: str) -> dict[str, str]:
    """Return the validation site of each unseen site; without `pairs`, it is the next site in `names`, in a circle."""
    if len(names) < 3:
        raise UserError(f"{root}: leaving two sites out needs at least three sites, found {', '.join(names)}")
    if not pairs:
        return dict(zip(names, [*names[1:], names[0]], strict=True))
    validates: dict[str, str] = {}
    for unseen, validation in pairs:
        source = f"--pairs {unseen}/{validation}"
        for name in (unseen, validation):
            if name not in names:
                raise UserError(
                    f"{source}: no site '{name}'; expected UNSEEN/VALIDATION. {registry.suggestion(name, names)}"
                )
        if unseen == validation or unseen in validates:
            mistake = "the unseen site cannot validate" if unseen == validation else f"{unseen} is unseen twice"
            raise UserError(f"{source}: {mistake}; name another site")
        validates[unseen] = validation
    return validates


def check_rows(folds: Sequence[Fold]) -> None:
    """Check that each row can train on its dataset; otherwise a wrong row would end the comparison hours later."""
    for fold in {fold.row: fold for fold in reversed(folds)}.values():
        try:
            _check_fits(fold.config, fold.config.data.ensure_available())
        except UserError as error:
            raise UserError(f"{fold.row.label}: {error}; or remove this row. Nothing was trained") from error


def _check_fits(config: Config, dataset: Dataset) -> None:
    """Raise UserError if the method does not work with the task, the network, or the size of the images."""
    task = build_task(config, dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each run shows its own warnings
        config.network.check_image_size(dataset.image_size)
        config.method.check(dataset.image_size, dataset.channels, dataset.standardise != "none")
        check_match(config)
        network = config.network.build(task.channels, task.out_channels)
        wrapped = config.method.wrap_network(network, config.network)
        check_earlier_rounds(config, wrapped)
