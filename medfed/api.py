"""The Python interface: what the programs do, as functions.

The names here are available as `medfed.load_config`, `medfed.run` and so on; the programs (`python -m medfed.train`,
`evaluate`, `score`, ...) call them. Every mistake in a config, in the data, in a folder or in an argument raises
`medfed.UserError` with one sentence per mistake.

Arguments of several functions:

* `settings`: new values by dotted key, such as `{"data.image_size": 128}`, or texts as after `--set` of a program.
* `dataset`: name of the dataset in a config; None recognises it by the names of the files.
* `out`: None writes to a temporary folder, which is deleted together with the object that the function returns.
* `progress`: whether to draw progress bars and print notes to stderr. None does so in a terminal and in a notebook.
"""

from __future__ import annotations

import base64
import html
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from monai.data import MetaTensor
from pandas import DataFrame
from torch import Tensor, nn

from medfed.cli.defaults import METHOD
from medfed.cli.progress import ProgressBar, case_bar, is_live
from medfed.config import strict_yaml
from medfed.config.early import find_config
from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, load, load_dataset, load_text
from medfed.core.errors import UserError, UserErrors
from medfed.core.files import write_atomically
from medfed.datasets.case import Case, Volume
from medfed.engines.parts.worker_process import check_can_be_imported
from medfed.experiments.arguments import (
    MethodLike,
    as_plain,
    as_text,
    check_arguments,
    flatten,
    method_text,
    varied_texts,
)
from medfed.experiments.comparison import ComparisonPlan, plan_comparison, write_tables
from medfed.experiments.run import run as run_in_folder
from medfed.experiments.run_folds import LOCKED, run_folds
from medfed.experiments.setup import build_network
from medfed.images import dicom
from medfed.images.reading import check_image, read_image
from medfed.outputs.run_folder import FIGURES, RunFolder
from medfed.outputs.tables.run_table import closing_table
from medfed.results.render import as_file, first_screen
from medfed.results.row import BASELINE
from medfed.results.scores import read_scores
from medfed.tasks.classification import Classification
from medfed.tasks.factory import task_of_images
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Task

if TYPE_CHECKING:
    from medfed.datasets.check_report import DatasetReport
    from medfed.planning.initialise import Written
    from medfed.scoring.score import Scores

ConfigLike = Config | str | Path | Mapping[str, Any]
Settings = Mapping[str, object] | Sequence[str]
PRE = '<pre style="white-space: pre-wrap">{}</pre>'


def load_config(config: ConfigLike, changes: Settings | None = None, /, **blocks: object) -> Config:
    """Read and check a config, and change some of its settings.

    A config has top-level settings, such as `seed`, and blocks of settings, such as `federation`. Changing
    `method.name`, `method.preset`, `data.name` or `network.name` resets the other settings of that block.

    Args:
        config: path of a YAML file, name of a config that comes with medfed (`"prostate"`), a dictionary with the same
            keys as a file, or a `Config`, which is not modified.
        changes: `settings` (see `medfed.api`), such as `{"federation.rounds": 2}`.
        **blocks: applied after `changes`: top-level settings (`seed=3`), and blocks as dictionaries
            (`federation={"rounds": 2}`), of which only the given keys change. A method, network or dataset can also be
            a name (`method="fedprox"`) or a class, and each block can be an object (`method=FedProx(mu=0.3)`).

    Returns:
        An immutable `Config`. `dataclasses.replace` works on it and on its blocks.

    >>> config = load_config("prostate", {"federation.rounds": 2}, seed=3, method={"name": "fedprox", "mu": 0.1})
    >>> config.federation.rounds, config.seed, config.method
    (2, 3, FedProx(mu=0.1))
    """
    check_arguments(changes=changes or {})
    texts = [] if isinstance(changes, Mapping) else list(changes or ())
    if isinstance(config, Config):
        loaded = changed(config, {}, [Override.parse(text) for text in texts]) if texts else config
    elif isinstance(config, Mapping):
        loaded = load_text(strict_yaml.dump(as_plain(config, "config")), "config", texts)
    else:
        check_arguments(config=config)
        loaded = load(find_config(config), texts)
    values = flatten(loaded, changes) if isinstance(changes, Mapping) else {}
    values |= flatten(loaded, blocks)
    overrides = [
        Override(tuple(key.split(".")), value, f"{key}={value!r}", "changed setting") for key, value in values.items()
    ]
    return changed(loaded, {}, overrides) if overrides else loaded


class Run:
    """A finished run: its scores, its network and its folder. `medfed.run` and `medfed.load_run` return it.

    `print(run)` shows the table of scores that `medfed.train` prints at the end. The attribute `folder` is the run's
    folder; a temporary folder is deleted together with this object.
    """

    def __init__(self, folder: str | Path, *, _keep: TemporaryDirectory | None = None) -> None:
        check_arguments(folder=folder)
        self.folder = Path(folder)
        self._files, self._keep = RunFolder(self.folder), _keep
        self._files.check_finished()

    @cached_property
    def config(self) -> Config:
        """Return the config of this run, with the values of all settings."""
        return load(self.folder / "config.yaml")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the content of the run's file `summary.json`.

        It contains, among others, the mean `scores` of each site with intervals, the numbers of patients, the selected
        round, and `notices`: sentences about unusual images and settings.
        """
        return self._files.read_summary()

    @cached_property
    def scores(self) -> DataFrame:
        """Return the scores of all test images, one row for each value, as in the run's file `cases.csv`.

        Columns: `method`, `preset`, `seed`, `unseen`, `trained_at` of the run, then `role` ("seen" for a site that
        trained, "unseen" or "validation"), `site`, `patient`, `image`, `structure`, `metric`, `value` (NaN if it is
        unknown; fractions in percent), `unit`, and `status` ("ok", "missed", "false_alarm" or "absent"). In
        classification, the metrics are `p_CLASS`, predicted probabilities in [0, 1], and `status` is the true class.
        """
        return read_scores(self.folder / "cases.csv")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the training history, one row (a dictionary) per round.

        A row has the keys `round`, `train_loss` and `validation_score` (means over the sites), and the values of each
        site, such as `train_loss/BMC`. A value is None if it is unknown.
        """
        return self._files.history()

    @cached_property
    def task(self) -> Task:
        """Return the task of this run: segmentation or classification, with the names of its structures or classes.

        `run.task.standardise(image, run.task.moments_of(image))` prepares images (B, C, H, W) in [0, 1], which are the
        slices of one volume, for the network.
        """
        return task_of_images(self.summary["images"], self.config.data, self.config.evaluation)

    @cached_property
    def network(self) -> nn.Module:
        """Return the trained network, on the CPU and in evaluation mode, with the weights of the selected round.

        The network maps images (B, C, H, W), standardised by `task.standardise`, to logits. The logits are (B, S, H, W)
        for the masks of S structures, or (B, K) for K classes.
        """
        settings = self.config.network.without_weights()
        network = build_network(settings, self.config.method, self.task, self.config.seed)
        self._files.load_model(network)
        return network.eval()

    def predict(self, image: str | Path | Tensor | Any) -> Tensor:
        """Predict the masks or the class probabilities of one image, as `medfed score` does with the exported bundle.

        Args:
            image: path of an image file of any format that medfed reads, or of a folder with one DICOM series, or with
                the run's `data.dicom_series`; or a tensor or array (C, H, W) of a 2-D image with intensities in
                [0, 255], or (C, H, W, D) of a volume with its stored intensities. A MetaTensor has the affine of its
                axes; without one, they lead to the right, the front and the head.

        Returns:
            Segmentation: masks of the S structures (`run.task.labels`), uint8 of 0 and 1, on the grid of the image:
            (S, H, W, D), or (S, H, W) for a tensor or array (C, H, W). Classification: (K,), probabilities of the K
            classes in float64. `evaluation.tent`, `evaluation.match` and `unseen_bn: batch_stats` do not apply.

        Raises:
            UserError: if the file cannot be read, or the image has another number of channels than the network.
        """
        if is_file := isinstance(image, str | Path):
            path = Path(image)
            if path.is_dir():
                own = self.config.data
                volume = check_image(
                    path,
                    dicom.read_series(path, getattr(own, "dicom_series", None), getattr(own, "ignored_names", ())),
                    self.task.channels,
                    [],
                )
            else:
                volume = read_image(path, self.task.channels, [])
        else:
            tensor = (
                image.float() if isinstance(image, Tensor) else torch.as_tensor(np.ascontiguousarray(image, np.float32))
            )
            volume = MetaTensor(tensor[..., None] if tensor.ndim == 3 else tensor)
        if volume.ndim != 4 or len(volume) != self.task.channels:
            raise UserError(
                f"image: expected the shape ({self.task.channels}, H, W) or ({self.task.channels}, H, W, D), got "
                f"{tuple(getattr(image, 'shape', volume.shape))}"
            )
        if isinstance(self.task, Classification):
            case = Case("", "image", Path(), label=0)
            return self.task.probabilities(self.network, self.task.prepare([case], lambda _: volume))[0]
        assert isinstance(self.task, Segmentation)
        masks = self.task.predict(self.network, Volume(volume, volume, None))
        return masks if is_file or tensor.ndim == 4 else masks[..., 0]

    def explain(self) -> str:
        """Return the table of scores with calibration, failures and definitions, as `medfed train --explain` prints it.

        `print(run.explain())` shows it.
        """
        return closing_table(self.summary, explain=True)

    def _repr_html_(self) -> str:
        figures = [self.folder / FIGURES / name for name in ("site_boxes.png", "roc.png")]
        images = [base64.b64encode(path.read_bytes()).decode() for path in figures if path.is_file()]
        shown = "".join(f'<img style="max-width: 100%" src="data:image/png;base64,{image}">' for image in images[:1])
        return PRE.format(html.escape(repr(self))) + shown

    def __str__(self) -> str:
        return closing_table(self.summary, how_to_explain="print(run.explain())")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})\n{self}"


def run(
    config: ConfigLike,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    accept_config_change: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Train a federation, test it on the unseen site, draw the figures, and return the finished run.

    The same config and seed give bit-identical weights on one machine, with any number of `jobs`. For this, the
    function switches PyTorch to deterministic algorithms, and the switch stays on after the call.

    Args:
        config: a `Config`, or anything that `load_config` reads.
        out: folder for all results; see `medfed.api`, also for `progress`.
        resume: whether to continue an unfinished run in the folder `out` after its last finished round.
        accept_config_change: whether `resume` may continue a run although a setting, such as `federation.rounds`,
            differs from the one that the run was started with.
        jobs: how many sites train at the same time, in processes of their own. With 1, all sites train in this
            process, one after another. None starts processes if they are expected to save time: as many as CPU cores,
            memory and sites allow, and none on a GPU.
    """
    check_arguments(out=out, resume=resume, accept_config_change=accept_config_change, jobs=jobs, progress=progress)
    config = load_config(config)
    with _folder(out, resume) as (folder, keep):
        run_in_folder(config, RunFolder(folder), resume, accept_config_change, not _is_shown(progress), jobs)
    return Run(folder, _keep=keep)


def load_run(folder: str | Path) -> Run:
    """Return the finished run that `medfed.run` or `medfed.train` wrote to a folder."""
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
        self, plan: ComparisonPlan, unfinished: Mapping[str, str], *, _keep: TemporaryDirectory | None = None
    ) -> None:
        self.folder, self.incompatible = plan.folder.path, dict(plan.incompatible)
        self.n_locked = list(unfinished.values()).count(LOCKED)
        self.failed = {name: why for name, why in unfinished.items() if why != LOCKED}
        self.plan, self._keep = plan, _keep
        self.tables, self.costs = write_tables(plan)

    @property
    def scores(self) -> DataFrame:
        """Return the scores of all methods as a pandas DataFrame, which is also the file `table.csv`.

        There is one row for each method (`row`), role of the site, structure, metric, unit and site; the site "average"
        is the mean over the sites. `mean` and `sd` are over the seeds, `low` and `high` are the ends of the 95 %
        interval over patients. Fractions such as Dice are in percent. Unknown
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

    def __str__(self) -> str:
        return first_screen(self.tables)

    def __repr__(self) -> str:
        return f"Comparison({str(self.folder)!r}, {len(self.runs)} runs)\n{self}"

    def _repr_html_(self) -> str:
        return PRE.format(html.escape(repr(self)))


def leave_one_site_out(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike = ("fedavg", "elcfs"),
    *,
    seeds: int = 1,
    sites: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[object]] | Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
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
        vary: lists of values by dotted key, such as `{"federation.participating": [1, 2]}`, or texts as after
            `--vary`. Every method is run with each combination of the values. None varies nothing.
        out: folder for tables and runs; see `medfed.api`, also for `progress`.
        resume: whether to continue the comparison in `out`: finished runs are not repeated.
        jobs: how many runs work at the same time, as in `run`. The results do not depend on it.
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
    options: dict[str, Any] = {"seeds": seeds, "sites": sites, "vary": vary, "out": out, "resume": resume, "jobs": jobs}
    options |= {"progress": progress, "baseline": baseline, "equal_effort": equal_effort}
    return _warned_of_failures(compare(config, methods, **options))


def leave_two_sites_out(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike = ("fedavg", "elcfs"),
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    **options: Any,
) -> Comparison:
    """Train and test every method for each pair of an unseen site and a validation site, and compare their scores.

    Neither site of a pair takes part in the training. The run is tested on the unseen site; the validation site only
    computes validation scores, which can select the best round. For the rest, see `leave_one_site_out`.

    Args:
        config, methods: as in `leave_one_site_out`.
        pairs: (name of the unseen site, name of the validation site) of each run; None pairs each site with the next
            one. `sites` cannot be given together with `pairs`.
        **options: the other arguments of `leave_one_site_out`.

    Raises:
        UserError: also if a pair is unknown or there are fewer than three sites.
    """
    return _warned_of_failures(compare(config, methods, leave_two_out=True, pairs=pairs, **options))


def write_report(
    runs: Run | Comparison | str | Path | Iterable[Run | Comparison | str | Path],
    out: str | Path | None = None,
    *,
    progress: bool | None = None,
) -> Path:
    """Write one HTML page about finished runs and comparisons, as `medfed report` does, and return its path.

    Args:
        runs: a `Run`, a `Comparison` or the folder of one, or a list of these.
        out: file of the page; an older page is replaced. None writes `report.html` to the folder of the run or
            comparison, and to the current folder for several.
        progress: see `medfed.api`.

    Raises:
        UserError: for an unfinished or damaged run, or if `out` is not an HTML file in a folder that exists.
    """
    from medfed.outputs.report.page import build_page
    from medfed.outputs.report.read import read_runs

    each = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    sources = [run.folder if isinstance(run, Run | Comparison) else run for run in each]
    check_arguments(runs=sources, out=out, progress=progress)
    folders = [Path(source) for source in sources]
    page = Path(out or (folders[0] if len(folders) == 1 else Path()) / "report.html")
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: not a folder; name a folder that medfed.train or medfed.evaluate wrote")
    if page.suffix.lower() not in (".html", ".htm") or not page.parent.is_dir():
        raise UserError(f"{page}: expected a file whose name ends in .html, in a folder that exists")
    options: dict[str, Any] = {"desc": "reading", "unit": "run", "leave": False, "disable": not _is_shown(progress)}
    write_atomically(page, build_page(*read_runs(folders, lambda jobs: ProgressBar(jobs, **options))))
    return page


def export(run: Run | str | Path, out: str | Path | None = None, *, force: bool = False) -> Path:
    """Write the network of a finished run as a MONAI bundle: a folder that MONAI can run without medfed.

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
    from medfed.outputs.bundle.write import export_run

    return export_run(Path(source), None if out is None else Path(out), force)


def check_data(
    path: str | Path,
    dataset: str | None = None,
    settings: Settings = (),
    *,
    patients: str | Path | None = None,
    progress: bool | None = None,
) -> DatasetReport:
    """Read all images of a folder and report every problem, as `medfed data check` does.

    Args:
        path: a folder with images of two or more sites, a table of images (CSV), or the path of a config.
        settings: settings of the block `data`; see `medfed.api`, also for `dataset` and `progress`.
        patients: file to which a table with the files of each patient and case is written; None writes none.

    Returns:
        What was found: `problems` must be corrected before training, `warnings` should be looked at, `sites` has the
        measures of every case, and `data_block` the settings as YAML. `print` shows the report.
    """
    from medfed.datasets import table
    from medfed.datasets.case_table import write_case_table
    from medfed.datasets.checking import check_dataset
    from medfed.outputs.dataset_cards import format_data_block

    check_arguments(path=path)
    path, quiet, texts = Path(path), not _is_shown(progress), _texts(settings)
    if path.is_file() and path.suffix.lower() not in table.SUFFIXES:
        data = load(path, texts).data.ensure_available(case_bar("making the phantom", quiet))
    else:
        data = load_dataset(path, dataset, [Override.parse(text) for text in texts])
    if patients is not None:
        write_case_table(data, Path(patients))
    return replace(check_dataset(data, case_bar("reading", quiet)), data_block=format_data_block(data))


def make_plan(
    folder: str | Path,
    out: str | Path = "my.yaml",
    *,
    unseen: str | None = None,
    method: str = METHOD,
    dataset: str | None = None,
    settings: Settings = (),
    progress: bool | None = None,
) -> Written:
    """Plan a run for your own images, and write its config with a reason for every value, as `medfed init` does.

    Args:
        folder: a folder with images of two or more sites, or a table of images (CSV).
        out: the config to write; an existing file is not overwritten.
        unseen: the site that does not train and is tested; None takes the last one in alphabetical order.
        method: name of the federated method.
        settings: values that you choose yourself, from which the plan follows; see `medfed.api`, also for `dataset` and
            `progress`.

    Returns:
        The plan: `config`, which `medfed.run` takes, a `summary` of the sites that train, and `notes`.
    """
    from medfed.planning.initialise import write_config

    bar = case_bar("reading", not _is_shown(progress))
    return write_config(Path(folder), Path(out), unseen, method, _texts(settings), dataset, bar)


def score_bundle(
    bundle: str | Path,
    folder: str | Path,
    out: str | Path | None = None,
    *,
    names: Mapping[str, str] | None = None,
    dataset: str | None = None,
    settings: Settings = (),
    device: str = "auto",
    progress: bool | None = None,
) -> Scores:
    """Score a MONAI bundle on your own labelled images, as `medfed score` does. No code of the bundle runs.

    Args:
        bundle: folder of an unpacked MONAI bundle, from `export` or from others.
        folder: a folder with images of one or more sites, or a table of images (CSV).
        out: new folder for summary.json, cases.csv, figures and an HTML page; None writes nothing.
        names: the bundle's names of your structures or classes, such as `{"gland": "prostate"}`.
        settings: settings of the block `data`; see `medfed.api`, also for `dataset` and `progress`.
        device: "auto" (CUDA if it is available), "cpu" or "cuda".

    Returns:
        The scores: `table` is a DataFrame with one row for each value, `summary` the content of summary.json. `print`
        shows the table of scores.

    Raises:
        UserError: if the bundle may run code or cannot be built, if the images do not fit it, or if `out` exists.
    """
    from medfed.scoring import score

    check_arguments(bundle=bundle, folder=folder, out=out, names=names)
    data = load_dataset(Path(folder), dataset, [Override.parse(text) for text in _texts(settings)])
    if out is not None:
        score.check_output(Path(out), data)
    scores = score.score_bundle(Path(bundle), data, names, device, quiet=not _is_shown(progress))
    if out is not None:
        score.write_results(scores, Path(out))
    return scores


def compare(
    config: ConfigLike,
    methods: Sequence[MethodLike] | MethodLike,
    out: str | Path | None = None,
    *,
    leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    seeds: int = 1,
    sites: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[object]] | Sequence[str] | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> Comparison:
    """Train, test and compare methods, and write the tables, for both ways to leave sites out and for the programs."""
    base = load_config(config)
    chosen: list[Any] = list(methods) if isinstance(methods, list | tuple) else [methods]
    given = {"seeds": seeds, "sites": sites, "pairs": pairs, "vary": {} if vary is None else vary}
    values = {name: as_plain(value, name) for name, value in given.items()}
    check_arguments(**values, methods=chosen, out=out, resume=resume, jobs=jobs, progress=progress)
    with _folder(out, resume) as (folder, keep):
        plan = plan_comparison(
            base,
            folder,
            [method_text(method, base) for method in chosen],
            values["seeds"],
            values["sites"],
            varied_texts(values["vary"]),
            leave_two_out,
            values["pairs"],
            resume,
            not _is_shown(progress),
            baseline,
            equal_effort,
        )
        for fold in plan.folds:
            if not fold.folder.is_finished():
                check_can_be_imported(fold.config.yaml, jobs)
        plan.folder.write()
        unfinished = run_folds(plan.folds, jobs, quiet=not _is_shown(progress))
        if unfinished and not any(fold.folder.is_finished() for fold in plan.folds):
            raise UserErrors(f"{name}: {why}" for name, why in unfinished.items())
        return Comparison(plan, unfinished, _keep=keep)


def _warned_of_failures(comparison: Comparison) -> Comparison:
    for name, why in comparison.failed.items():
        warnings.warn(f"{name}: this run failed and is not in the tables: {why}", UserWarning, stacklevel=3)
    return comparison


def _is_shown(progress: bool | None) -> bool:
    return is_live() if progress is None else progress


def _texts(settings: Settings) -> list[str]:
    """Return settings as texts such as "data.image_size=128"."""
    check_arguments(settings=settings)
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={as_text(as_plain(value, key))}" for key, value in settings.items()]


@contextmanager
def _folder(out: str | Path | None, resume: bool) -> Iterator[tuple[Path, TemporaryDirectory | None]]:
    """Yield the folder for results; without `out` a temporary one, of which an interrupt says that it is deleted."""
    if out is None and resume:
        raise UserError("--resume continues in a folder that exists; name the folder with --out")
    temporary = TemporaryDirectory(prefix="medfed-", ignore_cleanup_errors=True) if out is None else None
    folder = Path(temporary.name if temporary else out or "")
    try:
        yield folder, temporary
    except KeyboardInterrupt as stop:
        if temporary:
            raise type(stop)(
                "stopped; the results were in a temporary folder, which is deleted; --out keeps them"
            ) from None
        raise
