"""The Python interface: load a config, run it, compare methods, and export a model.

The names here are available as `medfed.load_config`, `medfed.run` and so on. The programs (`python -m medfed.train`,
`evaluate`, `export`) call the same functions. Nothing is printed unless `progress=True`; every mistake in a config, in
the data or in a folder raises `medfed.UserError` with one sentence per mistake. A sentence that names a flag of a
program, such as `--resume` or `--sites`, means the argument of that name.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from medfed.config import strict_yaml
from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, load, load_text
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.experiments.leave_one_out import ComparisonPlan, ComparisonTables, build_tables, plan_comparison, run_folds
from medfed.experiments.run import start_or_resume
from medfed.experiments.setup import build_network
from medfed.federation.method import Method
from medfed.outputs.bundle.export import export as export_bundle
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_table import closing_table
from medfed.tasks.factory import scoring_of, task_of_images
from medfed.tasks.task import Task

ConfigLike = Config | str | Path | Mapping[str, Any]
MethodLike = str | Mapping[str, Any] | type[Method]
NUMBERS = {"mean": float, "sd": float, "p": float, "n_seeds": int, "n_pairs": int, "n_missed": int, "n_cases": int}
BLOCKS = ("data", "network", "method", "training", "federation", "evaluation", "privacy")


def find_config(path_or_name: str | Path) -> Path:
    """Return the path of a config file, given its path or the name of a config that comes with medfed.

    Args:
        path_or_name: a path such as `configs/prostate.yaml`, or a name such as `prostate`. If a file with exactly this
            path exists, this file is used, even if a config of medfed has the same name.

    Returns:
        The path of the config. A path that has a suffix or a folder is returned unchanged, and the file may be missing.

    Raises:
        UserError: for a name without a suffix that is neither a file nor the name of a config.
    """
    path, name = Path(path_or_name), str(path_or_name)
    if path.exists() or path.suffix or path.name != name:
        return path
    shipped = registry.shipped_configs()
    if name not in shipped:
        raise UserError(f"no file '{name}' and no config of this name. {registry.suggestion(name, shipped)}")
    return shipped[name]


def load_config(
    config: ConfigLike, changes: Mapping[str, object] | None = None, /, **blocks: object
) -> Config:
    """Read and check a config, and change some of its settings.

    A config consists of top-level settings, such as `seed`, and of blocks: groups of settings, such as `federation`.
    Settings can be changed in two forms, which can be mixed; `blocks` apply after `changes`. Changing `method.name`,
    `method.preset`, `data.name` or `network.name` resets the other settings of that block to their defaults.

    Args:
        config: path of a YAML file, name of a config that comes with medfed (`"prostate"`), a dictionary with the same
            keys as a file, or a `Config`. A `Config` is not modified.
        changes: new values by dotted key, such as `{"federation.rounds": 2}` for the setting `rounds` of the block
            `federation`. None changes nothing.
        **blocks: top-level settings (`seed=3`), and blocks as dictionaries (`federation={"rounds": 2}`), of which only
            the given keys change.

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
        loaded = load_text(strict_yaml.dump(_as_plain(config, "config")), "config")
    else:
        loaded = load(find_config(config))
    values = {**_flatten(changes or {}), **_flatten(blocks)}
    overrides = [
        Override(tuple(key.split(".")), _as_plain(value, key), f"{key}={value!r}", "changed setting")
        for key, value in values.items()
    ]
    return changed(loaded, {}, overrides) if overrides else loaded


class Run:
    """A finished run: its scores, its network and its folder. `medfed.run` and `medfed.load_run` return it.

    `print(run)` shows the table of scores that `medfed.train` prints at the end.

    Args:
        folder: folder of a finished run.

    Attributes:
        folder: folder that contains all files of the run. A temporary folder is deleted together with this object.
    """

    def __init__(self, folder: str | Path, *, _keep: _TemporaryFolder | None = None) -> None:
        self.folder = Path(folder)
        self._keep = _keep
        if not (self.folder / "config.yaml").is_file() or not RunFolder(self.folder).is_finished():
            raise UserError(f"{self.folder}: holds no finished run; name the folder of one")

    @cached_property
    def config(self) -> Config:
        """Return the config of this run, with the values of all settings, including those that have their default."""
        return load(self.folder / "config.yaml")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the content of the run's file `summary.json`, as a dictionary of plain JSON values.

        It contains, among others, the mean test scores of each site with confidence intervals, how many training,
        validation and test cases each site has (a case is a patient with a mask, or an image with a class), the
        selected round, the seed, and the versions of the libraries.
        """
        return RunFolder(self.folder).read_json("summary.json")

    @cached_property
    def scores(self) -> list[dict[str, Any]]:
        """Return the scores of all test images, as one dictionary for each row of the run's file `cases.csv`.

        In segmentation there is one row for each patient and structure, with a value for each metric (None if the value
        is unknown). In classification there is one row for each image, with the probability of each class and with
        `correct` (1 or 0). All rows have the keys `site`, `role` and `patient`; in classification `patient` is the name
        of the image and `subject` is the patient. `role` is "seen" for a site that took part in the training, "unseen"
        for the unseen site, and "validation" for a validation site.
        """
        path = self.folder / "cases.csv"
        return scoring_of(self.summary, self.folder / "summary.json").read_cases(path)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the training history, one row (a dictionary) per round.

        A row has the keys `round`, `train_loss` and `validation_score` (means over the sites), and the values of each
        site, such as `train_loss/BMC` and `validation_score/BMC` for a site named BMC. A value is None if it is
        unknown.
        """
        return RunFolder(self.folder).history()

    @property
    def notices(self) -> list[str]:
        """Return the notices of this run, a list of sentences about unusual images and settings. It may be empty."""
        return list(self.summary["notices"])

    @cached_property
    def task(self) -> Task:
        """Return the task of this run: segmentation or classification, with the names of its structures or classes.

        `run.task.standardise(image)` prepares images (B, C, H, W) in [0, 1] for the network.
        """
        return task_of_images(self.summary["images"], self.config.data.image_size, self.config.evaluation)

    @cached_property
    def network(self) -> nn.Module:
        """Return the trained network, on the CPU and in evaluation mode, with the weights of the selected round.

        The network maps images (B, C, H, W), standardised by `task.standardise`, to logits. The logits are (B, S, H, W)
        for the masks of S structures, or (B, K) for K classes.
        """
        settings = self.config.network.without_weights()
        network = build_network(settings, self.config.method, self.task, self.config.seed)
        network.load_state_dict(safetensors.torch.load_file(self.folder / "model.safetensors"))
        return network.eval()

    def __str__(self) -> str:
        """Return the table of scores by site that `medfed.train` prints at the end."""
        return closing_table(self.summary)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})\n{self}"


def run(
    config: ConfigLike, out: str | Path | None = None, *, resume: bool = False, accept_config_change: bool = False,
    progress: bool = False,
) -> Run:
    """Train a federation, test it on the unseen site, draw the figures, and return the finished run.

    The same config and seed give bit-identical weights on one machine. For this, the function switches PyTorch to
    deterministic algorithms, and the switch stays on after the call.

    Args:
        config: a `Config`, or anything that `load_config` reads.
        out: folder for all results. None uses a temporary folder, which is deleted with the returned object.
        resume: whether to continue an unfinished run in the folder `out` after its last finished round.
        accept_config_change: whether `resume` may continue a run although a setting, such as `federation.rounds`,
            differs from the one that the run was started with.
        progress: whether to draw progress bars and print notes to stderr.

    Returns:
        The finished run: its scores, its network and its folder.

    Raises:
        UserError: if the config, the data or the folder do not allow the run.
    """
    config = load_config(config)
    if resume and out is None:
        raise UserError("resume=True continues the run in a folder; name the folder with out=")
    folder, keep = _folder(out)
    start_or_resume(config, RunFolder(folder), resume, accept_config_change, quiet=not progress)
    return Run(folder, _keep=keep)


def load_run(folder: str | Path) -> Run:
    """Return the finished run that `medfed.run` or `medfed.train` wrote to a folder.

    Args:
        folder: the run's folder.

    Raises:
        UserError: if the folder does not contain a finished run.
    """
    return Run(folder)


class Comparison:
    """A comparison of methods: its tables and its runs. `medfed.leave_one_site_out` returns it.

    `print(comparison)` shows the tables that `medfed.evaluate` prints.

    Attributes:
        folder: folder that contains the tables (`table.md`, `table.csv`, `table.json`, `table.tex`, `cost.csv`) and all
            runs.
        n_locked: number of runs that were left out because another process has locked them.
        incompatible: for `methods="all"`, the methods that do not work on the task, each with the reason.
    """

    def __init__(
        self, plan: ComparisonPlan, tables: ComparisonTables, n_locked: int = 0, *,
        _keep: _TemporaryFolder | None = None,
    ) -> None:
        self.folder, self.n_locked, self.incompatible = plan.out, n_locked, dict(plan.incompatible)
        self.plan, self.tables, self._keep = plan, tables, _keep

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the file `table.csv` as dictionaries: one per structure, metric, method and unseen site.

        `mean` and `sd` are the mean and the standard deviation of the score over the seeds; `sd` is None for a single
        seed. In the row whose `unseen_site` is "average", they are those of the average over all unseen sites, and `p`
        is the p value of a paired test of the method against FedAvg. Other values that are unknown are None, too.
        """
        with open(self.folder / "table.csv", newline="", encoding="utf-8") as file:
            return [
                {name: _number(name, text) for name, text in row.items()} for row in csv.DictReader(file)
            ]

    @cached_property
    def runs(self) -> list[Run]:
        """Return the finished runs of the comparison as `Run` objects, in the order in which they were trained."""
        folders = (fold.folder for fold in self.plan.folds)
        return [Run(folder.path, _keep=self._keep) for folder in folders if folder.is_finished()]

    @property
    def table(self) -> str:
        """Return the tables of the comparison as one text, in the form in which `medfed.evaluate` prints them."""
        return self.tables.to_text()

    def __str__(self) -> str:
        return self.table

    def __repr__(self) -> str:
        return f"Comparison({str(self.folder)!r}, {len(self.runs)} runs)\n{self}"


def leave_one_site_out(
    config: ConfigLike, methods: Sequence[MethodLike] | str = ("fedavg", "elcfs"), *, seeds: int = 1,
    sites: Sequence[str] | None = None, vary: Mapping[str, Sequence[object]] | None = None,
    out: str | Path | None = None, resume: bool = False, progress: bool = False,
) -> Comparison:
    """Train and test every method once for each unseen site and seed, and compare their scores.

    Each run trains on all sites except one, the unseen site, and is tested on it.

    Args:
        config: the base config, or anything that `load_config` reads. The unseen site and the seed change in each run.
        methods: the methods to compare. Each is a name (`"fedavg"`), a name with settings (`"ccst:k=1,style=single"`),
            several methods that are applied together (`"ccst+elcfs"`), a dictionary (`{"name": "ccst", "k": 1}`), or a
            class that inherits from `Method`. The text `"all"` takes every method that works on the task.
        seeds: number of runs of each method and unseen site. They use the config's seed, seed + 1, ...
        sites: names of the sites to leave out in turn; None takes every site.
        vary: lists of values by dotted key, such as `{"federation.participating": [1, 2]}`. Every method is run with
            each combination of the values. None varies nothing.
        out: folder for tables and runs. None uses a temporary folder, which is deleted with the returned object.
        resume: whether to continue the comparison in `out`: finished runs are not repeated.
        progress: whether to draw progress bars and print notes to stderr.

    Returns:
        The comparison: its tables and its runs.

    Raises:
        UserError: if a method, a site or a setting is unknown, or if a method or a setting cannot be used with the
            data; nothing has been trained then.
    """
    return compare(
        load_config(config), _method_texts(methods), out, seeds=seeds, sites=sites, vary=_varied_texts(vary),
        resume=resume, progress=progress,
    )


def leave_two_sites_out(
    config: ConfigLike, methods: Sequence[MethodLike] | str = ("fedavg", "elcfs"), *,
    pairs: Sequence[tuple[str, str]] | None = None, seeds: int = 1, sites: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[object]] | None = None, out: str | Path | None = None, resume: bool = False,
    progress: bool = False,
) -> Comparison:
    """Train and test every method for each pair of an unseen site and a validation site, and compare their scores.

    Neither site of a pair takes part in the training. The run is tested on the unseen site; the validation site only
    computes validation scores, which can select the best round. Otherwise this function does the same as
    `leave_one_site_out`.

    Args:
        config: the base config, or anything that `load_config` reads. The sites and the seed change in each run.
        methods: the methods to compare, each a name (`"fedavg"`), a name with settings (`"ccst:k=1,style=single"`),
            several methods that are applied together (`"ccst+elcfs"`), a dictionary (`{"name": "ccst", "k": 1}`), or a
            class that inherits from `Method`. The text `"all"` takes every method that works on the task.
        pairs: (name of the unseen site, name of the validation site) of each run; None pairs each site with the next
            one.
        seeds: number of runs of each method and pair. They use the config's seed, seed + 1, ...
        sites: names of the unseen sites; None takes every site. It cannot be given together with `pairs`.
        vary: lists of values by dotted key, such as `{"federation.participating": [1, 2]}`. Every method is run with
            each combination of the values. None varies nothing.
        out: folder for tables and runs. None uses a temporary folder, which is deleted with the returned object.
        resume: whether to continue the comparison in `out`: finished runs are not repeated.
        progress: whether to draw progress bars and print notes to stderr.

    Returns:
        The comparison: its tables and its runs.

    Raises:
        UserError: if a method, a site, a pair or a setting is unknown, if a method or a setting cannot be used with the
            data, or if there are fewer than three sites; nothing has been trained then.
    """
    return compare(
        load_config(config), _method_texts(methods), out, leave_two_out=True,
        pairs=["/".join(pair) for pair in pairs] if pairs else None, seeds=seeds, sites=sites,
        vary=_varied_texts(vary), resume=resume, progress=progress,
    )


def export(run: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write the network of a finished run as a MONAI bundle.

    A bundle is a folder of weights, configs and documentation that MONAI can run without medfed.

    Args:
        run: a `Run`, or the folder of one.
        out: folder of the bundle; None writes it to a folder in `bundle/` in the run's folder, named after the task.

    Returns:
        The folder of the bundle.

    Raises:
        UserError: if the run is not finished or damaged.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    return export_bundle(folder, None if out is None else Path(out))


def compare(
    config: Config, methods: Sequence[str], out: str | Path | None = None, *, leave_two_out: bool = False,
    pairs: Sequence[str] | None = None, seeds: int = 1, sites: Sequence[str] | None = None, vary: Sequence[str] = (),
    resume: bool = False, progress: bool = False,
) -> Comparison:
    """Train, test and compare methods, and write the tables; the arguments have the form of command-line flags.

    The program `medfed.evaluate` calls this function, and so do `leave_one_site_out` and `leave_two_sites_out`.

    Args:
        config: the base config. The unseen site and the seed change in each run.
        methods: texts such as `fedavg`, `ccst:k=1,style=single` or `ccst+elcfs`, or one text `all`.
        out: folder for tables and runs; None uses a temporary folder, which is deleted with the returned object.
        leave_two_out: whether each run also has a validation site. Like the unseen site, the validation site does not
            train.
        pairs: with `leave_two_out`, texts of the form `UNSEEN/VALIDATION` with the names of two sites; None pairs each
            site with the next one.
        seeds: number of runs of each method and unseen site. They use the config's seed, seed + 1, ...
        sites: names of the unseen sites; None takes every site. It cannot be given together with `pairs`.
        vary: texts of the form `KEY=V1,V2`; every method is run with each combination of these values.
        resume: whether to continue the comparison in `out`: finished runs are not repeated.
        progress: whether to draw progress bars and print notes to stderr.

    Returns:
        The comparison: its tables and its runs.

    Raises:
        UserError: if a method, a site, a pair or a setting is unknown, or if a method or a setting cannot be used with
            the data.
    """
    if resume and out is None:
        raise UserError("resume=True continues the comparison in a folder; name the folder with out=")
    folder, keep = _folder(out)
    plan = plan_comparison(config, folder, methods, seeds, sites, vary, leave_two_out, pairs, resume, not progress)
    locked = run_folds(plan.folds, quiet=not progress)
    tables = build_tables(plan)
    tables.write(folder)
    return Comparison(plan, tables, len(locked), _keep=keep)


class _TemporaryFolder:
    """A folder that is deleted when the last object that refers to it is gone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="medfed-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _folder(out: str | Path | None) -> tuple[Path, _TemporaryFolder | None]:
    if out is not None:
        return Path(out), None
    temporary = _TemporaryFolder()
    return temporary.path, temporary


def _flatten(block: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested dictionaries by dotted key; an empty dictionary changes nothing."""
    flat: dict[str, object] = {}
    for name, value in block.items():
        key = f"{prefix}{name}"
        if value is None and key in BLOCKS:
            raise UserError(f"{key}: expected settings by name, got None; leave the block out to change nothing")
        flat |= _flatten(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return flat


def _as_plain(value: object, key: str) -> Any:
    """Return a value as YAML knows it: paths as text, tuples as lists, numbers of NumPy as Python's."""
    if isinstance(value, Mapping):
        return {str(name): _as_plain(entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(entry, key) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise UserError(f"{key}: a config holds numbers, texts, lists and dictionaries, got {type(value).__name__}")


def _as_text(value: object) -> str:
    """Return a value as it is written after `=` in `--vary` and `--methods`."""
    return value if isinstance(value, str) and not set(value) & set(",+\"'[]{}") else json.dumps(value)


def _varied_texts(vary: Mapping[str, Sequence[object]] | None) -> list[str]:
    return [f"{key}={','.join(map(_as_text, values))}" for key, values in (vary or {}).items()]


def _method_texts(methods: Sequence[MethodLike] | str) -> list[str]:
    return [methods] if isinstance(methods, str) else [_method_text(method) for method in methods]


def _method_text(method: MethodLike) -> str:
    """Return a method as `--methods` names it: `ccst:k=1,style=single`."""
    if isinstance(method, str):
        return method
    if isinstance(method, Mapping):
        settings = {key: value for key, value in method.items() if key != "name"}
        if "name" not in method:
            raise UserError(f"methods: expected a name in {dict(method)}")
        name = str(method["name"])
        return f"{name}:{','.join(f'{key}={_as_text(value)}' for key, value in settings.items())}" if settings else name
    if isinstance(method, type) and issubclass(method, Method):
        return registry.name_of("methods", method)
    raise UserError(
        "methods: expected a name, a dictionary with a name, or a subclass of Method, got "
        f"{type(method).__name__}; instead of an object, give a dictionary with the class's name and the settings"
    )


def _number(column: str, text: str) -> Any:
    kind = NUMBERS.get(column, str)
    return None if kind is not str and text == "" else kind(text)
