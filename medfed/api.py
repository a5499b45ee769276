"""The Python interface: load a config, run it, compare methods, and export a model.

The names here are available as `medfed.load_config`, `medfed.run` and so on. The programs (`python -m medfed.train`,
`evaluate`, `export`) call the same functions. Nothing is printed unless `progress=True`; every mistake in a config, in
the data, in a folder or in an argument raises `medfed.UserError` with one sentence per mistake.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame
from torch import nn

from medfed.config import strict_yaml
from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, load, load_text
from medfed.core import registry
from medfed.core.errors import UserError, UserErrors
from medfed.experiments.arguments import as_plain, check_arguments, flatten, varied_values
from medfed.experiments.comparison_tables import read_comparison, read_costs, write_tables
from medfed.experiments.leave_one_out import ComparisonPlan, plan_comparison
from medfed.experiments.method_text import MethodLike, method_text
from medfed.experiments.run import start_or_resume
from medfed.experiments.run_folds import LOCKED, run_folds
from medfed.experiments.setup import build_network
from medfed.outputs.bundle.export import export as export_bundle
from medfed.outputs.damaged_file import damaged_file
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_table import closing_table
from medfed.results.render import as_file, first_screen
from medfed.results.row import BASELINE
from medfed.results.scores import read_scores
from medfed.tasks.factory import scoring_of, task_of_images
from medfed.tasks.task import Task

ConfigLike = Config | str | Path | Mapping[str, Any]


def find_config(path_or_name: str | Path) -> Path:
    """Return the path of a config file, or of the config of this name that comes with medfed.

    A path with a suffix or a folder is returned unchanged, even if the file is missing. An existing file with exactly
    this path has priority. UserError for an unknown name, or one that could also mean a file such as `prostate.yaml`.
    """
    path, name = Path(path_or_name), str(path_or_name)
    if path.exists() or path.suffix or path.name != name:
        return path
    shipped = registry.shipped_configs()
    if name not in shipped:
        raise UserError(f"no file '{name}' and no config of this name. {registry.suggestion(name, shipped)}")
    for own in (path.with_suffix(suffix) for suffix in (".yaml", ".yml")):
        if own.exists() and not own.samefile(shipped[name]):
            raise UserError(
                f"'{name}' is the name of a config that comes with medfed, but {own} exists, too; expected one; "
                f"write {own} for this file, or {shipped[name]} for the other config"
            )
    return shipped[name]


def load_config(config: ConfigLike, changes: Mapping[str, object] | None = None, /, **blocks: object) -> Config:
    """Read and check a config, and change some of its settings.

    A config consists of top-level settings, such as `seed`, and of blocks: groups of settings, such as `federation`.
    `blocks` apply after `changes`. Changing `method.name`, `method.preset`, `data.name` or `network.name` resets the
    other settings of that block to their defaults.

    Args:
        config: path of a YAML file, name of a config that comes with medfed (`"prostate"`), a dictionary with the same
            keys as a file, or a `Config`, which is not modified.
        changes: new values by dotted key, such as `{"federation.rounds": 2}`.
        **blocks: top-level settings (`seed=3`), and blocks as dictionaries (`federation={"rounds": 2}`), of which only
            the given keys change. A method, network or dataset can also be a name (`method="fedprox"`) or a class, and
            each block can be an object (`method=FedProx(mu=0.3)`), which sets all settings of the block.

    Returns:
        An immutable `Config`. `dataclasses.replace` works on it and on its blocks.

    Raises:
        UserError: if the file is missing or not valid YAML, or a key or value is wrong.

    >>> config = load_config("prostate", {"federation.rounds": 2}, seed=3, method={"name": "fedprox", "mu": 0.1})
    >>> config.federation.rounds, config.seed, config.method
    (2, 3, FedProx(mu=0.1))
    """
    if isinstance(config, Config):
        loaded = config
    elif isinstance(config, Mapping):
        loaded = load_text(strict_yaml.dump(as_plain(config, "config")), "config")
    else:
        check_arguments(config=config)
        loaded = load(find_config(config))
    check_arguments(changes=changes or {})
    values = {**flatten(loaded, changes or {}), **flatten(loaded, blocks)}
    overrides = [
        Override(tuple(key.split(".")), value, f"{key}={value!r}", "changed setting") for key, value in values.items()
    ]
    if overrides:
        loaded = changed(loaded, {}, overrides)
    return loaded


class Run:
    """A finished run: its scores, its network and its folder. `medfed.run` and `medfed.load_run` return it.

    `print(run)` shows the table of scores that `medfed.train` prints at the end. The attribute `folder` is the run's
    folder; a temporary folder is deleted together with this object.
    """

    def __init__(self, folder: str | Path, *, _keep: _TemporaryFolder | None = None) -> None:
        check_arguments(folder=folder)
        self.folder = Path(folder)
        self._keep = _keep
        if not (self.folder / "config.yaml").is_file() or not RunFolder(self.folder).is_finished():
            raise UserError(f"{self.folder}: holds no finished run; name the folder of one")
        RunFolder(self.folder).check()

    @cached_property
    def config(self) -> Config:
        """Return the config of this run, with the values of all settings."""
        return load(self.folder / "config.yaml")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the content of the run's file `summary.json`.

        It contains, among others, the mean test scores of each site with confidence intervals, the numbers of patients,
        the selected round, the seed, and the versions of the libraries.
        """
        with damaged_file(self.folder / "summary.json") as path:
            return dict(RunFolder(self.folder).read_json(path.name))

    @cached_property
    def scores(self) -> DataFrame:
        """Return the scores of all test images, one row for each value, as in the run's file `cases.csv`.

        Columns: `method`, `preset`, `seed`, `unseen`, `trained_at` of the run, then `role` ("seen" for a site that
        trained, "unseen" or "validation"), `site`, `patient`, `image`, `structure`, `metric`, `value` (NaN if it is
        unknown; fractions in percent), `unit`, and `status` ("ok", "missed", "false_alarm" or "absent"). In
        classification, the metrics are `p_CLASS`, predicted probabilities in [0, 1], and `status` is the true class.
        """
        scoring = scoring_of(self.summary, self.folder / "summary.json")
        with damaged_file(self.folder / "cases.csv") as path:
            return read_scores(path, scoring.metrics)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the training history, one row (a dictionary) per round.

        A row has the keys `round`, `train_loss` and `validation_score` (means over the sites), and the values of each
        site, such as `train_loss/BMC`. A value is None if it is unknown.
        """
        return RunFolder(self.folder).history()

    @property
    def notices(self) -> list[str]:
        """Return sentences about unusual images and settings of this run."""
        with damaged_file(self.folder / "summary.json"):
            return list(self.summary["notices"])

    @cached_property
    def task(self) -> Task:
        """Return the task of this run: segmentation or classification, with the names of its structures or classes.

        `run.task.standardise(image, run.task.moments_of(image))` prepares images (B, C, H, W) in [0, 1], which are the
        slices of one volume, for the network.
        """
        config = self.config
        with damaged_file(self.folder / "summary.json"):
            return task_of_images(self.summary["images"], config.data.image_size, config.evaluation)

    @cached_property
    def network(self) -> nn.Module:
        """Return the trained network, on the CPU and in evaluation mode, with the weights of the selected round.

        The network maps images (B, C, H, W), standardised by `task.standardise`, to logits. The logits are (B, S, H, W)
        for the masks of S structures, or (B, K) for K classes.
        """
        settings = self.config.network.without_weights()
        network = build_network(settings, self.config.method, self.task, self.config.seed)
        RunFolder(self.folder).load_model(network)
        return network.eval()

    def __str__(self) -> str:
        with damaged_file(self.folder / "summary.json"):
            return closing_table(self.summary)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})\n{self}"


def run(
    config: ConfigLike,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    accept_config_change: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Run:
    """Train a federation, test it on the unseen site, draw the figures, and return the finished run.

    The same config and seed give bit-identical weights on one machine, with any number of `jobs`. For this, the
    function switches PyTorch to deterministic algorithms, and the switch stays on after the call.

    Args:
        config: a `Config`, or anything that `load_config` reads.
        out: folder for all results. None uses a temporary folder, which is deleted with the returned object.
        resume: whether to continue an unfinished run in the folder `out` after its last finished round.
        accept_config_change: whether `resume` may continue a run although a setting, such as `federation.rounds`,
            differs from the one that the run was started with.
        jobs: how many sites train at the same time, in processes of their own. With 1, all sites train in this
            process, one after another. None starts processes if they are expected to save time: as many as CPU cores,
            memory and sites allow, and none on a GPU.
        progress: whether to draw progress bars and print notes to stderr.

    Raises:
        UserError: if the config, the data or the folder do not allow the run.
    """
    check_arguments(out=out, resume=resume, accept_config_change=accept_config_change, jobs=jobs, progress=progress)
    config = load_config(config)
    with _folder(out, resume) as (folder, keep):
        start_or_resume(config, RunFolder(folder), resume, accept_config_change, not progress, jobs)
    return Run(folder, _keep=keep)


def load_run(folder: str | Path) -> Run:
    """Return the finished run that `medfed.run` or `medfed.train` wrote to a folder.

    Raises:
        UserError: if the folder does not contain a finished run.
    """
    return Run(folder)


class Comparison:
    """A comparison of methods: its tables and its runs. `medfed.leave_one_site_out` returns it.

    `print(comparison)` shows the tables that `medfed.evaluate` prints.

    Attributes:
        folder: folder that contains the tables, the list of the runs (`comparison.json`), and all runs.
        n_locked: number of runs that were left out because another process has locked them.
        failed: why each failed run could not be done, by the run's name, such as "elcfs, unseen UCL, seed 3". The
            tables are without these runs.
        incompatible: for `methods="all"`, the methods that do not work on the task, each with the reason.
    """

    def __init__(
        self, plan: ComparisonPlan, unfinished: Mapping[str, str], *, _keep: _TemporaryFolder | None = None
    ) -> None:
        self.folder, self.incompatible = plan.out, dict(plan.incompatible)
        self.n_locked = list(unfinished.values()).count(LOCKED)
        self.failed = {name: why for name, why in unfinished.items() if why != LOCKED}
        self.plan, self._keep = plan, _keep
        self.tables, self.costs = read_comparison(plan), read_costs(plan)
        write_tables(self.tables, self.costs, plan, self.folder)

    @property
    def scores(self) -> DataFrame:
        """Return the scores of all methods as a pandas DataFrame, which is also the file `table.csv`.

        There is one row for each method (`row`), role of the site, structure, metric, unit and site; the site "average"
        is the mean over the sites. `mean` and `sd` are over the seeds, `low` and `high` are the ends of the 95 %
        interval over patients, and `rank` is that of the average. Fractions such as Dice are in percent. Unknown
        numbers are NaN.
        """
        return self.tables.scores

    @property
    def differences(self) -> DataFrame:
        """Return the paired differences of rows as a pandas DataFrame, which is also the file `differences.csv`.

        Each row is the `difference` of two methods (`row` minus `minus`) at one site, with its 95 % interval. `kind` is
        "method" (from the baseline, or FedAvg of equal effort), "effort" (from the baseline of less effort), "gain from
        joining" or "cost of not pooling". Differences of the kind "method" have the p value of a paired test before
        (`p`) and after (`p_holm`) the correction for the number of tests, and a `verdict`.
        """
        return as_file(self.tables.differences)

    @cached_property
    def runs(self) -> list[Run]:
        """Return the finished runs of the comparison, in the order in which they were trained."""
        folders = (fold.folder for fold in self.plan.folds)
        return [Run(folder.path, _keep=self._keep) for folder in folders if folder.is_finished()]

    @property
    def table(self) -> str:
        """Return the main tables and the conclusions as text, as `medfed.evaluate` prints them."""
        return first_screen(self.tables)

    def __str__(self) -> str:
        return self.table

    def __repr__(self) -> str:
        return f"Comparison({str(self.folder)!r}, {len(self.runs)} runs)\n{self}"


def leave_one_site_out(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike = ("fedavg", "elcfs"),
    *,
    seeds: int = 1,
    sites: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[object]] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> Comparison:
    """Train and test every method once for each unseen site and seed, and compare their scores.

    Each run trains on all sites except one, the unseen site, and is tested on it.

    Args:
        config: the base config, or anything that `load_config` reads. The unseen site and the seed change in each run.
        methods: the methods to compare. Each is a name (`"fedavg"`), a name with settings (`"ccst:k=1,style=single"`),
            several methods that are applied together (`"ccst+elcfs"`), a dictionary (`{"name": "ccst", "k": 1}`), a
            class that inherits from `Method`, or an object of one (`FedProx(mu=0.3)`). The text `"all"` takes every
            method that works on the task. `"pooled"` trains on all images in one place, `"local"` at each source site
            alone, and `"fedavg@steps=ccst"` is FedAvg with as many optimiser steps and images as CCST.
        seeds: number of runs of each method and unseen site. The runs use the config's seed, seed + 1, ...
        sites: names of the sites to leave out in turn; None takes every site.
        vary: lists of values by dotted key, such as `{"federation.participating": [1, 2]}`. Every method is run with
            each combination of the values. None varies nothing.
        out: folder for tables and runs. None uses a temporary folder, which is deleted with the returned object.
        resume: whether to continue the comparison in `out`: finished runs are not repeated.
        jobs: how many runs work at the same time, each in a process of its own. With 1, all runs work in this process,
            one after another. None starts processes if they are expected to save time: as many as CPU cores and memory
            allow, and none on a GPU. The results do not depend on `jobs`.
        progress: whether to draw progress bars and print notes to stderr.
        baseline: the method with which all other methods are compared, written as in `methods`.
        equal_effort: whether to add FedAvg with as many steps and images as each method that takes more than FedAvg,
            and to compare the method with it.

    Returns:
        The comparison: its tables and its runs. A run that fails does not stop the others: a warning names it, and it
        is in `Comparison.failed`.

    Raises:
        UserError: if a method, a site or a setting is unknown, or if a method or a setting cannot be used with the
            data; nothing has been trained then.
    """
    return _compare(
        config, methods, False, None, seeds, sites, vary, out, resume, jobs, progress, baseline, equal_effort
    )


def leave_two_sites_out(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike = ("fedavg", "elcfs"),
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    seeds: int = 1,
    sites: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[object]] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> Comparison:
    """Train and test every method for each pair of an unseen site and a validation site, and compare their scores.

    Neither site of a pair takes part in the training. The run is tested on the unseen site; the validation site only
    computes validation scores, which can select the best round. Otherwise this function does the same as
    `leave_one_site_out`.

    Args:
        config, methods: as in `leave_one_site_out`.
        pairs: (name of the unseen site, name of the validation site) of each run; None pairs each site with the next
            one.
        seeds: number of runs of each method and pair. The runs use the config's seed, seed + 1, ...
        sites: names of the unseen sites; None takes every site. `sites` cannot be given together with `pairs`.
        vary, out, resume, jobs, progress, baseline, equal_effort: as in `leave_one_site_out`.

    Returns:
        The comparison, as `leave_one_site_out` returns it.

    Raises:
        UserError: as in `leave_one_site_out`, and if a pair is unknown or there are fewer than three sites.
    """
    return _compare(
        config, methods, True, pairs, seeds, sites, vary, out, resume, jobs, progress, baseline, equal_effort
    )


def export(run: Run | str | Path, out: str | Path | None = None, *, force: bool = False) -> Path:
    """Write the network of a finished run as a MONAI bundle.

    A bundle is a folder of weights, configs and documentation that MONAI can run without medfed.

    Args:
        run: a `Run`, or the folder of one.
        out: folder of the bundle; None writes it to a folder in `bundle/` in the run's folder, named after the task.
        force: True exports the model although it did not learn: a trivial prediction or the initial weights are as good
            (`learning` in `summary.json`). The bundle's README then says so.

    Returns:
        The folder of the bundle.

    Raises:
        UserError: if the run is not finished or damaged, or if the model did not learn and `force` is false.
    """
    source = run.folder if isinstance(run, Run) else run
    check_arguments(run=source, out=out)
    return export_bundle(Path(source), None if out is None else Path(out), force)


def compare(
    config: Config,
    methods: Sequence[str],
    out: str | Path | None = None,
    *,
    leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    seeds: int = 1,
    sites: Sequence[str] | None = None,
    varied: Sequence[Sequence[Override]] = (),
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> Comparison:
    """Train, test and compare methods, and write the tables; the program `medfed.evaluate` calls this function.

    The arguments are those of `leave_one_site_out` and `leave_two_sites_out`.
    """
    check_arguments(jobs=jobs)
    with _folder(out, resume) as (folder, keep):
        plan = plan_comparison(
            config,
            folder,
            methods,
            seeds,
            sites,
            varied,
            leave_two_out,
            pairs,
            resume,
            not progress,
            baseline,
            equal_effort,
        )
        plan.folder.write()
        if progress and plan.effort_note:
            print(plan.effort_note, file=sys.stderr)
        unfinished = run_folds(plan.folds, jobs, quiet=not progress)
        if unfinished and not any(fold.folder.is_finished() for fold in plan.folds):
            raise UserErrors(f"{name}: {why}" for name, why in unfinished.items())
        return Comparison(plan, unfinished, _keep=keep)


def _compare(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike,
    leave_two_out: bool,
    pairs: Sequence[tuple[str, str]] | None,
    seeds: int,
    sites: Sequence[str] | None,
    vary: Mapping[str, Sequence[object]] | None,
    out: str | Path | None,
    resume: bool,
    jobs: int | None,
    progress: bool,
    baseline: str,
    equal_effort: bool,
) -> Comparison:
    """Check the arguments of a comparison from Python, convert them, and compare the methods."""
    base = load_config(config)
    chosen: list[Any] = list(methods) if isinstance(methods, list | tuple) else [methods]
    given = {"seeds": seeds, "sites": sites, "pairs": pairs, "vary": {} if vary is None else vary}
    values = {name: as_plain(value, name) for name, value in given.items()}
    check_arguments(**values, methods=chosen, out=out, resume=resume, progress=progress)
    comparison = compare(
        base,
        [method_text(method, base) for method in chosen],
        out,
        leave_two_out=leave_two_out,
        pairs=values["pairs"],
        seeds=values["seeds"],
        sites=values["sites"],
        varied=varied_values(values["vary"]),
        resume=resume,
        jobs=jobs,
        progress=progress,
        baseline=baseline,
        equal_effort=equal_effort,
    )
    for name, why in comparison.failed.items():
        warnings.warn(f"{name}: this run failed and is not in the tables: {why}", UserWarning, stacklevel=3)
    return comparison


class _TemporaryFolder:
    """A folder that is deleted when the last object that refers to it is gone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="medfed-"))
        self.delete = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def _folder(out: str | Path | None, resume: bool) -> Iterator[tuple[Path, _TemporaryFolder | None]]:
    """Yield the folder for results; without `out` a temporary one, of which an interrupt says that it is deleted."""
    if out is not None:
        yield Path(out), None
        return
    if resume:
        raise UserError("--resume continues in a folder that exists; name the folder with --out")
    temporary = _TemporaryFolder()
    try:
        yield temporary.path, temporary
    except KeyboardInterrupt as stop:
        temporary.delete()
        raise type(stop)(
            "stopped; the results were in a temporary folder, which is deleted; give a folder with --out to be able to "
            "continue with --resume"
        ) from None
