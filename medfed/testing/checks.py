"""The rules that every method keeps, as checks that need no test framework.

`check_method` runs all of them; `method_checks` lists them, so that pytest can show each as a test of its own:

    @pytest.mark.parametrize("name, check", medfed.testing.method_checks(MyMethod))
    def test_contract(name, check):
        check()

The checks train toy federations of three sites for two rounds (`medfed.testing.toy`). The checks say whether a method
works in a federation: whether results depend on the order of the sites, whether a run can be continued after a restart,
whether only tensors leave a site. The checks do NOT test

- the method's mathematics: a method whose penalty has the wrong sign, or that averages the wrong tensors, passes.
  Compare one step with numbers that you computed by hand or with the authors' code;
- privacy: what the shared tensors reveal about the images (`python -m medfed.audit` measures it);
- a GPU: the checks run on the CPU. Random numbers from torch's global generator are reproducible there, but differ on
  a GPU; only the generator that a hook receives gives the same numbers on both;
- in-place changes through NumPy or `tensor.data`, which torch does not count, or of the statistics that `share` reads;
- rounds without some of the sites, large images, memory and time.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from medfed.config.overrides import DEFAULT_PRESET
from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.core.seeds import stream
from medfed.deployment.dry_run import dry_run
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import LocalRound, Output, SiteData
from medfed.federation.message import Message, State, digest
from medfed.federation.method import EVERY_ROUND, NEVER, ONCE, Method
from medfed.federation.rounds import Round, federate
from medfed.federation.settings import Federation
from medfed.methods.stack import Stack
from medfed.networks.base import NetworkSettings
from medfed.testing.toy import IMAGE_SIDE, SITES, ToyClassification, ToyFederation, ToySegmentation

SETTINGS = Federation(rounds=2)
IMAGE_SIDES = (IMAGE_SIDE, 64, 128, 256)  # pixels; the smallest that fits the network is used
HOOKS = (  # that receive tensors which they must not change in place
    "combine", "broadcast", "expand", "on_round_start", "augment", "loss", "regulariser", "on_round_end", "remember",
    "aggregate",
)  # fmt: skip
TOYS: dict[str, type[ToySegmentation] | type[ToyClassification]] = {
    "segmentation": ToySegmentation,
    "classification": ToyClassification,
}
DTYPES = {"float32", "float16", "int64", "uint8", "fact"}  # that a message may hold; facts are numbers and texts
N_IMAGES = 8  # two training steps per round
ORDER = (
    "the result depends on the order of the sites: combine what they send in the order of the dictionary, which is "
    "sorted by name, or with an operation whose result does not depend on the order"
)
Check = Callable[[], None]


class ContractError(AssertionError):
    """A method breaks a rule of the base class `Method`. The message says which rule and how."""


def check_method(
    method: Method | type[Method], *, network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str = tuple(TOYS),
) -> None:
    """Check that a method obeys the rules of the base class `Method`, by training it in small simulated federations.

    The rules concern the behaviour in a federation, for example that the order of the sites does not change the result.
    The method's mathematics, privacy and the use of a GPU are not checked; the docstring of the module
    `medfed.testing.checks` has the complete list. Each rule is checked for the method alone and for the method inside a
    stack (a combination of several methods). All checks together take about ten seconds on a CPU.

    Args:
        method: the class, which must be usable with its default settings, or an object with the settings to check.
        network: settings of the network to train, its class or its name, such as "unet". The network decides the task:
            a network with a decoder segments, any other classifies. The images have the smallest side of 32, 64, 128 or
            256 pixels that fits the network. None takes a small U-Net for segmentation and a small DenseNet for
            classification.
        tasks: what the method is made for: "segmentation", "classification" or a list of both. If `network` is given,
            only the task of this network is checked, and `tasks` must contain it.

    Raises:
        ContractError: if the method breaks a rule; the first such rule is reported. ContractError is a kind of
            AssertionError.
        ValueError: if `tasks` is empty, names an unknown task or does not fit `network`, or if `network` is no network,
            needs settings without a default, or does not fit images of any of these sides.

    Example::

        medfed.testing.check_method(MyMethod, tasks=["segmentation"])
    """
    for _, check in method_checks(method, network=network, tasks=tasks):
        check()


def method_checks(
    method: Method | type[Method], *, network: NetworkSettings | type[NetworkSettings] | str | None = None,
    tasks: Sequence[str] | str = tuple(TOYS),
) -> Iterator[tuple[str, Check]]:
    """Yield the name and the function of every check that `check_method` runs, so that pytest can run each as a test.

    Args:
        method: the class of the method, which must be usable with its default settings, or an object with settings.
        network: settings, class or name of the network to train; None takes a small network for each task.
        tasks: "segmentation", "classification" or a list of both. If `network` is given, only the task of this network
            is checked, and `tasks` must contain it.

    Yields:
        (name, check): a name such as `restart-segmentation-stack`, and a function without arguments that raises
        ContractError if the rule is broken. The checks of one task use the same training run, which starts when the
        first of these checks is called.

    Raises:
        ValueError: if `tasks` or `network` is wrong, as for `check_method`.

    >>> from medfed.methods import FedProx
    >>> [name for name, _ in method_checks(FedProx, tasks=["segmentation"])][:3]
    ['settings', 'wrap_network-segmentation', 'messages-segmentation']
    """
    tasks = [tasks] if isinstance(tasks, str) else list(tasks)
    if not tasks or not set(tasks) <= set(TOYS):
        raise ValueError(f"tasks must be some of {', '.join(TOYS)}, got {tasks}")
    settings, side = None, IMAGE_SIDE
    if network is not None:
        settings = _network_settings(network)
        side = _image_side(settings)
        task = "segmentation" if settings.decoder_levels else "classification"
        if task not in tasks:
            raise ValueError(f"tasks is {tasks}, but {type(settings).__name__} is a network for {task}")
        tasks = [task]
    name = getattr(method, "__name__", type(method).__name__)
    yield "settings", partial(_checked, name, "settings", _check_settings, method)
    for task in tasks:
        for is_stacked in (False, True):
            trial = Trial(method, TOYS[task](settings, image_side=side, n_images=N_IMAGES), is_stacked)
            is_first = task == tasks[0]
            for rule, check in {
                **RULES, **(FIRST_TASK_RULES if is_first else {}), **(MASK_RULES if task == "segmentation" else {}),
            }.items():
                full = f"{rule}-{task}" + ("-stack" if is_stacked else "")
                yield full, partial(_checked, name, full, check, trial)


def _network_settings(network: NetworkSettings | type[NetworkSettings] | str) -> NetworkSettings:
    """Return the settings of a network, given the settings, their class or their name; ValueError otherwise."""
    cls = resolve("networks", network) if isinstance(network, str) else network
    if isinstance(cls, type) and issubclass(cls, NetworkSettings):
        try:
            return cls()
        except (TypeError, ValueError) as error:
            raise ValueError(f"network: {cls.__name__} needs settings ({error}); pass an object with them") from None
    if not isinstance(cls, NetworkSettings):
        raise ValueError(f"network must be a name such as 'unet' or the settings of a network, got {network!r}")
    return cls


def _image_side(settings: NetworkSettings) -> int:
    """Return the smallest of some image sides in pixels that fits a network; ValueError if none does."""
    for side in IMAGE_SIDES:
        try:
            settings.check_image_size(side)
            return side
        except UserError as error:
            reason = error
    raise ValueError(f"network: no image side of {', '.join(map(str, IMAGE_SIDES))} pixels fits: {reason}")


@dataclass
class Trial:
    """One method in one small simulated federation, with a training run whose result several checks use.

    Args:
        definition: the method, or its class, which is used with default settings.
        toy: the federation.
        is_stacked: whether the method runs inside a stack (a combination of several methods).
    """

    definition: Method | type[Method]
    toy: ToyFederation
    is_stacked: bool

    @cached_property
    def method(self) -> Method:
        """Return the method that the trial trains: the given method itself, or a stack that contains only this method.

        A stack is a method that combines several methods.
        """
        method = self.definition() if isinstance(self.definition, type) else self.definition
        return Stack((method,)) if self.is_stacked else method

    @cached_property
    def start(self) -> State:
        """Return the coordinator's state before the first round, which contains the initial weights of the network."""
        task = self.toy.task
        self.toy.architecture.check_image_size(task.image_size)
        self.method.check(task.image_size, self.toy.channels, False)  # the images lie in [0, 1]
        return self.toy.start(self.method)

    def first_round(self, engine: InProcess) -> Round:
        """Train one round with all sites of an engine, from new weights, and return its result.

        Args:
            engine: the simulated sites.
        """
        return next(federate(self.method, engine, self.start, SETTINGS, 0))

    def train(self, engine: InProcess, state: State | None = None) -> list[Round]:
        """Train with all sites of an engine until round 2, and return the result of each round.

        Args:
            engine: the simulated sites.
            state: state of the coordinator to continue from; None starts with new weights before round 1.
        """
        return list(federate(self.method, engine, state or self.start, SETTINGS, 0))

    @cached_property
    def run(self) -> CompleteRun:
        """Return the result of training all sites for two rounds without interruption.

        The first access trains; later accesses return the same result, because several checks need it.
        """
        folder = Path(tempfile.mkdtemp(prefix="medfed-check-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        settings = _snapshot(self.method)
        engine = self.toy.engine(self.method, folder=folder / "sites")
        samples = engine.local_sites[0].training
        before = copy.deepcopy(samples.batch(range(len(samples))))
        with _watched_hooks(type(self.method)) as changes:
            rounds = []
            for done in federate(self.method, engine, self.start, SETTINGS, 0):
                rounds.append(done)
                if len(rounds) == 1 and (folder / "sites").is_dir():
                    shutil.copytree(folder / "sites", folder / "sites_after_round_1")
        after = samples.batch(range(len(samples)))
        return CompleteRun(rounds, folder / "sites_after_round_1", settings, before, after, changes)


@dataclass(frozen=True)
class CompleteRun:
    """The result of a training run that was not interrupted.

    Args:
        rounds: result of each round.
        sites_folder: folder with a copy of what the sites stored in round 1.
        settings: the attributes of the method before the run, as text.
        batch_before, batch_after: all training images and labels of one site, before and after the run.
        changes: tensors that hooks changed in place although they only received them, such as "`loss` changes label".
    """

    rounds: list[Round]
    sites_folder: Path
    settings: str
    batch_before: Batch
    batch_after: Batch
    changes: list[str]


@contextmanager
def _watched_hooks(cls: type[Method]) -> Iterator[list[str]]:
    """Context manager that lists which hooks of a class change a tensor in place that they received.

    torch counts the in-place changes of every tensor (`_version`), so nothing is copied.
    """
    changes: list[str] = []

    def watch(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            before = [(part, tensor, tensor._version) for part, tensor in _tensors([*arguments, *keywords.values()])]
            result = hook(*arguments, **keywords)
            changes.extend(f"`{name}` changes {part}" for part, tensor, version in before if tensor._version > version)
            return result

        return watched

    with ExitStack() as patches:
        for name in HOOKS:
            if (hook := getattr(cls, name)) is not getattr(Method, name):
                patches.enter_context(mock.patch.object(cls, name, watch(name, hook)))
        yield changes


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a hook must not change in place, each with the name of its attribute or entry."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Batch | Output | State | Message):
        for part, entry in vars(value).items():
            yield from _tensors(entry, part)
    elif isinstance(value, LocalRound):
        yield from _tensors(value.message)
        yield from _tensors(value.start_weights, "start_weights")
    elif isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(entry, name)


def _checked(method: str, name: str, check: Callable[[Any], None], subject: object) -> None:
    """Run one check; turn whatever it raises into a ContractError that names the method and the check."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(subject)
    except ContractError as error:
        raise ContractError(f"{method}: {name}: {error}") from None
    except Exception as error:  # code from outside medfed may raise anything
        raise ContractError(f"{method}: {name}: the method raised {type(error).__name__}: {error}") from error


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ContractError(sentence)


def _snapshot(method: Method) -> str:
    """Return the attributes of a method object as text, without the values that a `cached_property` stores."""
    attributes = {entry.name: getattr(method, entry.name) for entry in dataclasses.fields(method)}
    attributes |= getattr(method, "__dict__", {})
    cached = [name for name in attributes if isinstance(getattr(type(method), name, None), cached_property)]
    return repr(sorted((name, value) for name, value in attributes.items() if name not in cached))


def _check_settings(method: Method | type[Method]) -> None:
    """The class is a frozen dataclass on Method, and can be built with its defaults and with each preset."""
    cls = method if isinstance(method, type) else type(method)
    _require(issubclass(cls, Method), "the class must inherit from medfed.federation.method.Method")
    parameters = vars(cls).get("__dataclass_params__")
    _require(
        parameters is not None and parameters.frozen,
        "the class must be a frozen dataclass: put @dataclass(frozen=True) above it",
    )
    hooks = [name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")]
    for name in [name for name, value in vars(cls).items() if callable(value) and not hasattr(Method, name)]:
        similar = difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)
        _require(
            not similar,
            f"`{name}` is not a hook of Method, so no federation calls it; did you mean `{''.join(similar)}`? Give a "
            "function of your own a name that is not similar to the name of a hook",
        )
    _require(DEFAULT_PRESET in cls.presets, f"`presets` must contain '{DEFAULT_PRESET}', the default of every config")
    if isinstance(method, type):
        try:
            method = method()
        except TypeError as error:
            raise ContractError(f"every setting needs a default value ({error})") from error
    for name, preset in cls.presets.items():
        try:
            replace(method, **preset)
        except (TypeError, ValueError) as error:
            raise ContractError(f"the preset '{name}' does not fit the settings ({error})") from error


def _check_order_of_sites(trial: Trial) -> None:
    """The order in which sites reply changes no bit of the result of a round."""
    in_order = _digest(trial.run.rounds[0])
    if in_order == _digest(trial.first_round(trial.toy.engine(trial.method, SITES[::-1]))):
        return
    _require(
        in_order == _digest(trial.first_round(trial.toy.engine(trial.method))),
        "two runs with the same seed differ: draw random numbers from the generator that a hook receives (`rng`, "
        "`local.rng`), and keep nothing between runs",
    )
    raise ContractError(ORDER)


def _check_restart(trial: Trial) -> None:
    """A run that is continued from the saved state of round 1 gives the bits of a run that was not interrupted.

    The continued run has the sites in reversed order, so this check also finds a round 2 that depends on their order.
    """
    other = trial.toy.engine(trial.method, seed=1)  # overwrites what the method keeps outside of its state
    next(federate(trial.method, other, trial.toy.start(trial.method, seed=1), SETTINGS, 1))
    expected = _digest(trial.run.rounds[-1])
    if expected == _digest(_continued(trial, SITES[::-1])):
        return
    _require(expected != _digest(_continued(trial, SITES)), ORDER)
    raise ContractError(
        "a run that is continued after round 1 gives other weights than one that was not interrupted: what is needed "
        "later must be in the tensors that `remember` or `combine` return, or in `local.memory`"
    )


def _continued(trial: Trial, sites: Sequence[str]) -> Round:
    """Return the result of round 2 of a run that is continued from what was saved after round 1."""
    state = State.from_bytes(trial.run.rounds[0].state.to_bytes())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "sites"
        if trial.run.sites_folder.is_dir():
            shutil.copytree(trial.run.sites_folder, folder)
        engine = trial.toy.engine(trial.method, sites, folder)
        engine.restore(state.took_part)
        return trial.train(engine, state)[-1]


def _check_wrap_network(trial: Trial) -> None:
    """`wrap_network` renames and removes no entry of the state dict."""
    toy = trial.toy
    plain, wrapped = toy.architecture.build(toy.channels, toy.n_logits).state_dict(), trial.start.weights
    again = toy.start(trial.method).weights
    random = [name for name in wrapped if not torch.equal(wrapped[name], again[name])]
    _require(not random, "the same seed gives other initial weights: `wrap_network` may draw random numbers only from "
             f"torch's default generator ({', '.join(random[:3])})")  # fmt: skip
    missing = sorted(plain.keys() - wrapped.keys())
    _require(not missing, f"`wrap_network` renames or removes entries of the network: {', '.join(missing[:3])}")
    changed = [name for name in plain if plain[name].shape != wrapped[name].shape]
    _require(not changed, f"`wrap_network` changes the shape of entries of the network: {', '.join(changed[:3])}")
    strange = sorted(trial.method.local_keys(toy.network(trial.method)) - wrapped.keys())
    _require(not strange, f"`local_keys` names entries that the network does not have: {', '.join(strange[:3])}")


def _check_messages(trial: Trial) -> None:
    """Messages hold tensors of common types and plain facts; losses are finite."""
    ledger = [row for done in trial.run.rounds for row in done.ledger]
    strange = {row["dtype"]: row["name"] for row in ledger if row["dtype"] not in DTYPES}
    _require(
        not strange,
        "a message holds tensors of another type than float32, float16, int64 and uint8: "
        + ", ".join(f"{name} is {dtype}" for dtype, name in strange.items()),
    )
    for done in trial.run.rounds:
        losses = [value for key, value in done.history.items() if key.startswith("train_loss")]
        finite = all(isinstance(loss, float) and math.isfinite(loss) for loss in losses)
        _require(finite, "the training loss is not finite")


def _check_sharing(trial: Trial) -> None:
    """Sites share statistics in exactly the rounds that `shares` names, and a dry run shows them."""
    rows = [row for done in trial.run.rounds for row in done.ledger if row["kind"] == "share"]
    expected = {NEVER: set(), ONCE: {1}, EVERY_ROUND: {1, 2}}.get(trial.method.shares)
    _require(expected is not None, f"`shares` is {trial.method.shares!r}; expected NEVER, ONCE or EVERY_ROUND")
    rounds = {row["round"] for row in rows}
    _require(
        rounds == expected,
        f"`shares` is '{trial.method.shares}', but sites were asked to share in rounds {sorted(map(str, rounds))}",
    )
    sent = {row["name"] for row in rows if row["direction"] == "up"}
    site = trial.toy.engine(trial.method).local_sites[0]
    shown = {row["name"] for row in dry_run(site, trial.start, 0) if row["kind"] == "share"}
    unsent = sorted(shown - sent)
    _require(not unsent, f"a dry run shows statistics that a run does not send: {', '.join(unsent[:3])}")


def _check_share_without_network(trial: Trial) -> None:
    """A method whose `share_reads_network` is False shares the same statistics, whatever the network's weights are."""
    method = trial.method
    if method.shares == NEVER or method.share_reads_network:
        return
    site = trial.toy.engine(method).local_sites[0]
    shared = []
    for seed in (0, 1):
        data = SiteData(site.name, site.training, site.task, site.architecture, stream(0, "share"), site.validation)
        shared.append(method.share(data, trial.toy.network(method, seed).eval()))
    same = shared[0].keys() == shared[1].keys() and all(torch.equal(shared[0][n], shared[1][n]) for n in shared[0])
    _require(
        same,
        "`share_reads_network` is False, but `share` returns other statistics for a network with other weights: set it "
        "to True, so that the coordinator sends the weights",
    )


def _check_no_state(trial: Trial) -> None:
    """The method object does not change while it trains."""
    _require(
        _snapshot(trial.method) == trial.run.settings,
        "the method object changed while it trained: return what must be kept from `remember`, or put it into "
        "`local.memory`",
    )
    try:
        trial.method.anything = 1  # type: ignore[attr-defined]
    except (AttributeError, TypeError, dataclasses.FrozenInstanceError):  # TypeError: a class with __slots__
        return
    raise ContractError("attributes can be set on the method object: the class must be a frozen dataclass")


def _check_batches(trial: Trial) -> None:
    """The site's images and labels are the same after training, and hooks change no tensor that they receive."""
    before, after = trial.run.batch_before, trial.run.batch_after
    for name, first, last in (("images", before.image, after.image), ("labels", before.label, after.label)):
        _require(
            torch.equal(first, last),
            f"training changed the site's {name} in place: return a new batch from `augment` instead",
        )
    changes = list(dict.fromkeys(trial.run.changes))
    _require(not changes, f"{', '.join(changes[:3])} in place: compute a new tensor instead")


def _check_small_federation(trial: Trial) -> None:
    """One site that has a single image trains, and its weights stay finite."""
    engine = trial.toy.engine(trial.method, SITES[:1])
    site = engine.local_sites[0]
    site.training = _first_sample(site.training)
    _check_finite(trial.train(engine), "with one site that has a single image")


def _check_empty_masks(trial: Trial) -> None:
    """Sites whose masks are all empty train, and their weights stay finite."""
    engine = trial.toy.engine(trial.method, SITES[:2])
    for site in engine.local_sites:
        site.training.labels.zero_()  # type: ignore[attr-defined]
    _check_finite(trial.train(engine), "with empty masks")


def _check_finite(rounds: Sequence[Round], situation: str) -> None:
    for name, entry in rounds[-1].state.weights.items():
        finite = bool(torch.isfinite(entry).all())
        _require(finite, f"training {situation} gives weights that are not finite ('{name}')")


def _first_sample(samples: Any) -> Any:
    """Return samples of the same class that hold the first image only."""
    parts = vars(samples).values()  # tensors with one row per image; None; the number of patients
    return type(samples)(*(1 if isinstance(part, int) else part if part is None else part[:1] for part in parts))


def _digest(done: Round) -> str:
    return digest(done.state.to_bytes())


RULES: dict[str, Callable[[Trial], None]] = {
    "wrap_network": _check_wrap_network,
    "messages": _check_messages,
    "batches_unchanged": _check_batches,
    "sharing": _check_sharing,
    "share_without_network": _check_share_without_network,
    "order_of_sites": _check_order_of_sites,
    "restart": _check_restart,
}
FIRST_TASK_RULES: dict[str, Callable[[Trial], None]] = {
    "no_state": _check_no_state,
    "small_federation": _check_small_federation,
}
MASK_RULES: dict[str, Callable[[Trial], None]] = {"empty_masks": _check_empty_masks}
