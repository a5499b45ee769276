"""The rules that every method keeps: each function checks one rule, and raises ContractError if it is broken."""

from __future__ import annotations

import dataclasses
import difflib
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from medfed.core.bounds import DEFAULT_PRESET
from medfed.core.seeds import stream
from medfed.engines.in_process import InProcess
from medfed.federation.checks import REPLY_FACTS
from medfed.federation.ledger import FACT, statistic_name
from medfed.federation.local_round import SiteData
from medfed.federation.message import Kind, State, digest
from medfed.federation.method import EVERY_ROUND, NEVER, ONCE, Method
from medfed.federation.rounds import Round
from medfed.testing.toy import SITES
from medfed.testing.trial import Trial, snapshot

DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8)  # that a message may hold
MAX_ROUNDING = 0.5  # of a number of steps, in multiples of FedAvg's: the last batch of an epoch may be smaller
ORDER = (
    "the result depends on the order of the sites: combine what they send in the order of the dictionary, which is "
    "sorted by name, or with an operation whose result does not depend on the order"
)


class ContractError(AssertionError):
    """A method breaks a rule of the base class `Method`. The message says which rule and how."""


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ContractError(sentence)


def check_settings(method: Method | type[Method]) -> None:
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
    # A round of two of the three sites, with another seed, overwrites what the method keeps outside of its state: other
    # weights, and statistics of fewer images.
    trial.first_round(_one_step_per_round(trial.toy.engine(trial.method, SITES[:2], seed=1)), seed=1)
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
    _require(
        not random,
        "the same seed gives other initial weights: `wrap_network` may draw random numbers only from "
        f"torch's default generator ({', '.join(random[:3])})",
    )
    missing = sorted(plain.keys() - wrapped.keys())
    _require(not missing, f"`wrap_network` renames or removes entries of the network: {', '.join(missing[:3])}")
    changed = [name for name in plain if plain[name].shape != wrapped[name].shape]
    _require(not changed, f"`wrap_network` changes the shape of entries of the network: {', '.join(changed[:3])}")
    strange = sorted(trial.method.local_keys(toy.network(trial.method)) - wrapped.keys())
    _require(not strange, f"`local_keys` names entries that the network does not have: {', '.join(strange[:3])}")


def _check_messages(trial: Trial) -> None:
    """Messages hold tensors of common types and plain facts; losses are finite."""
    groups = [trial.method.broadcast(done.state, SITES[0]) for done in trial.run.rounds]
    groups += [group for reply, _ in trial.outgoing for group in (reply.weights, reply.tensors)]
    tensors = [(name, tensor.dtype) for group in groups for name, tensor in group.items()]
    strange = {str(dtype).removeprefix("torch."): name for name, dtype in tensors if dtype not in DTYPES}
    _require(
        not strange,
        "a message holds tensors of another type than float32, float16, int64 and uint8: "
        + ", ".join(f"{name} is {dtype}" for dtype, name in strange.items()),
    )
    facts = {
        name
        for done in trial.run.rounds
        for row in done.ledger
        if (row["direction"], row["kind"], row["content"]) == ("up", "train", FACT)
        for name in str(row["name"]).split("; ")
    }
    unknown = sorted(facts - REPLY_FACTS[Kind.TRAIN] - trial.method.fact_names)
    _require(
        not unknown,
        f"`local.facts` has facts that `fact_names` lacks, so that no hospital sends them: {', '.join(unknown)}",
    )
    for done in trial.run.rounds:
        losses = [value for key, value in done.history.items() if key.startswith("train_loss")]
        finite = all(isinstance(loss, float) and math.isfinite(loss) for loss in losses)
        _require(finite, "the training loss is not finite")


def _check_effort(trial: Trial) -> None:
    """A site takes as many optimiser steps as `effort` declares, up to the last batch of an epoch."""
    n, size = len(trial.run.batch_before.image), trial.toy.settings.batch_size
    taken = (trial.run.rounds[0].n_steps or 0) / (len(SITES) * math.ceil(n / size))
    declared = trial.method.effort(len(SITES)).steps
    _require(
        abs(taken - declared) < MAX_ROUNDING,
        f"a site takes {taken:.3g} times the optimiser steps of FedAvg, but `effort` declares {declared:g} times: "
        "override `effort`, so that comparisons show the steps and can run FedAvg with as many",
    )


def _check_sharing(trial: Trial) -> None:
    """Sites share statistics in exactly the rounds that `shares` names, and a dry run shows them."""
    rows = [row for done in trial.run.rounds for row in done.ledger if row["kind"] == Kind.SHARE]
    expected = {NEVER: set(), ONCE: {1}, EVERY_ROUND: {1, 2}}.get(trial.method.shares)
    _require(expected is not None, f"`shares` is {trial.method.shares!r}; expected NEVER, ONCE or EVERY_ROUND")
    rounds = {row["round"] for row in rows}
    _require(
        rounds == expected,
        f"`shares` is '{trial.method.shares}', but sites were asked to share in rounds {sorted(map(str, rounds))}",
    )
    sent = {row["name"] for row in rows if row["direction"] == "up"}
    shown = {statistic_name(name) for reply, _ in trial.outgoing if reply.kind == Kind.SHARE for name in reply.tensors}
    unsent = sorted(shown - sent)
    _require(not unsent, f"a dry run shows statistics that a run does not send: {', '.join(unsent[:3])}")
    site = trial.toy.engine(trial.method, SITES[:1]).local_sites[0]
    n_patients = max(samples.n_patients for samples in (site.training, site.validation) if samples)
    wrong = [name for _, own in trial.outgoing for name, n in own.items() if not 1 <= n <= n_patients]
    _require(not wrong, f"`n_patients` must be from 1 to the site's {n_patients} patients: {', '.join(wrong[:3])}")


def _check_share_without_network(trial: Trial) -> None:
    """A method whose `share_reads_network` is False shares the same statistics, whatever the network's weights are."""
    method = trial.method
    if method.shares == NEVER or method.share_reads_network:
        return
    site = trial.toy.engine(method, SITES[:1]).local_sites[0]
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
        snapshot(trial.method) == trial.run.settings,
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
    engine = _one_step_per_round(trial.toy.engine(trial.method, SITES[:2]))
    for site in engine.local_sites:
        site.training.labels.zero_()  # type: ignore[attr-defined]
    _check_finite(trial.train(engine), "with empty masks")


def _check_matching(trial: Trial) -> None:
    """For each of `match_kinds`, `matcher` returns a function that changes every image on its own."""
    state, images = trial.run.rounds[-1].state, trial.run.batch_before.image
    for kind in sorted(trial.method.match_kinds):
        match = trial.method.matcher(state, kind, 1.0)
        if match is None:
            raise ContractError(f"`match_kinds` has '{kind}', but `matcher` returns None after the sites shared")
        together, single = match(images), torch.cat([match(image[None]) for image in images])
        in_range = together.shape == images.shape and bool(((together >= 0) & (together <= 1)).all())
        _require(in_range, f"the function of `matcher` for '{kind}' must return images of the same shape in [0, 1]")
        _require(
            torch.allclose(together, single, atol=1e-4),
            f"the function of `matcher` for '{kind}' changes an image differently in a batch: use no other image",
        )


def _check_finite(rounds: Sequence[Round], situation: str) -> None:
    for name, entry in rounds[-1].state.weights.items():
        finite = bool(torch.isfinite(entry).all())
        _require(finite, f"training {situation} gives weights that are not finite ('{name}')")


def _one_step_per_round(engine: InProcess) -> InProcess:
    """Let every site of an engine train one batch per round; return the engine."""
    for site in engine.local_sites:
        site.max_steps = 1
    return engine


def _first_sample(samples: Any) -> Any:
    """Samples with only the first one."""
    parts = vars(samples).values()  # tensors with one row per image; None; the number of patients
    return type(samples)(*(1 if isinstance(part, int) else part if part is None else part[:1] for part in parts))


def _digest(done: Round) -> str:
    """SHA-256 of the state after a round."""
    return digest(done.state.to_bytes())


RULES: dict[str, Callable[[Trial], None]] = {
    "wrap_network": _check_wrap_network,
    "messages": _check_messages,
    "effort": _check_effort,
    "batches_unchanged": _check_batches,
    "sharing": _check_sharing,
    "share_without_network": _check_share_without_network,
    "order_of_sites": _check_order_of_sites,
    "restart": _check_restart,
}
FIRST_TASK_RULES: dict[str, Callable[[Trial], None]] = {
    "no_state": _check_no_state,
    "small_federation": _check_small_federation,
    "matching": _check_matching,
}
MASK_RULES: dict[str, Callable[[Trial], None]] = {"empty_masks": _check_empty_masks}
