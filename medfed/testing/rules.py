"""The rules that every method keeps: each function checks one rule, and raises ContractError if it is broken."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import torch

from medfed.core.bounds import DEFAULT_PRESET
from medfed.core.seeds import stream
from medfed.federation.checks.expected import REPLY_FACTS
from medfed.federation.ledger import FACT
from medfed.federation.local_round import SiteData
from medfed.federation.message import Kind
from medfed.federation.method import EVERY_ROUND, NEVER, ONCE, Method
from medfed.federation.sent import UNKNOWN, describe
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import SITES
from medfed.testing.trial import HOOKS, Trial, attributes, watched_hooks

DTYPES = ("float32", "float16", "int64", "uint8")  # that a message may hold
MAX_ROUNDING = 0.5  # of a number of steps, in multiples of FedAvg's: the last batch of an epoch may be smaller


class ContractError(AssertionError):
    """A method breaks a rule of the base class `Method`. The message says which rule and how."""


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ContractError(sentence)


def check_settings(method: Method | type[Method]) -> None:
    """The class is a frozen dataclass on Method, and can be built with its defaults and with each preset."""
    cls = method if isinstance(method, type) else type(method)
    require(issubclass(cls, Method), "the class must inherit from medfed.federation.method.Method")
    parameters = vars(cls).get("__dataclass_params__")
    require(
        parameters is not None and parameters.frozen,
        "the class must be a frozen dataclass: put @dataclass(frozen=True) above it",
    )
    for name in [name for name, value in vars(cls).items() if callable(value) and not hasattr(Method, name)]:
        similar = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.85)
        require(
            not similar,
            f"`{name}` is not a hook of Method, so no federation calls it; did you mean `{''.join(similar)}`? Give a "
            "function of your own a name that is not similar to the name of a hook",
        )
    require(DEFAULT_PRESET in cls.presets, f"`presets` must contain '{DEFAULT_PRESET}', the default of every config")
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
    """The order in which sites train changes no bit of the result of a round, nor does a second run."""
    require(
        trial.rounds[0].state.to_bytes() == trial.interrupted_rounds[0].state.to_bytes(),
        "two runs with the same seed, one with the sites in reverse order, differ: draw random numbers from the "
        "generator that a hook receives (`rng`, `local.rng`), and keep nothing between sites and runs",
    )


def _check_restart(trial: Trial) -> None:
    """A run that is continued from the saved state of round 1 gives the bits of a run that was not interrupted."""
    names, restored = (list(rounds[1].state.memory) for rounds in (trial.rounds, trial.interrupted_rounds))
    require(
        names == restored or set(names) != set(restored),
        "the tensors that `remember` returns have another order after a restart: a set has no fixed order, so iterate "
        "over `sorted(state.parameters)`",
    )
    require(
        trial.rounds[1].state.to_bytes() == trial.interrupted_rounds[1].state.to_bytes(),
        "a run that is continued after round 1 gives other weights than one that was not interrupted: what is needed "
        "later must be in the tensors that `remember` or `combine` return, or in `local.memory`",
    )


def _check_wrap_network(trial: Trial) -> None:
    """`wrap_network` renames, reshapes and removes no entry, and `local_keys` names entries that exist."""
    toy, wrapped, again = trial.toy, trial.start.weights, trial.toy.start(trial.method).weights
    plain = toy.network(FedAvg()).state_dict()
    wrong = [name for name in plain if name not in wrapped or plain[name].shape != wrapped[name].shape]
    require(not wrong, f"`wrap_network` renames, removes or reshapes entries of the network: {', '.join(wrong[:3])}")
    is_same = all(torch.equal(wrapped[name], again[name]) for name in wrapped)
    require(is_same, "the same seed gives other initial weights: `wrap_network` may only use torch's default generator")
    wrong = sorted(trial.method.local_keys(toy.network(trial.method)) - wrapped.keys())
    require(not wrong, f"`local_keys` names entries that the network does not have: {', '.join(wrong[:3])}")


def _check_messages(trial: Trial) -> None:
    """Messages hold tensors of common types, and what leaves a site is declared."""
    groups = [trial.method.broadcast(done.state, SITES[0]) for done in trial.rounds]
    groups += [group for reply, _ in trial.outgoing for group in (reply.weights, reply.tensors)]
    dtypes = [(name, str(tensor.dtype).removeprefix("torch.")) for group in groups for name, tensor in group.items()]
    wrong = [f"{name} is {dtype}" for name, dtype in dtypes if dtype not in DTYPES]
    require(
        not wrong,
        "a message holds tensors of another type than float32, float16, int64 and uint8: " + ", ".join(wrong[:3]),
    )
    rows = [row for done in trial.rounds for row in done.ledger]
    sent = [row for row in rows if (row["direction"], row["kind"], row["content"]) == ("up", Kind.TRAIN, FACT)]
    facts = {name for row in sent for name in str(row["name"]).split("; ")}
    unknown = sorted(facts - REPLY_FACTS[Kind.TRAIN] - trial.method.fact_names)
    require(not unknown, f"`fact_names` lacks facts of `local.facts`, so no hospital sends them: {', '.join(unknown)}")
    left = [cast(Mapping[str, str], row) for row in rows if row["direction"] == "up"]
    names = sorted({row["name"] for row in left if UNKNOWN in describe(row, trial.method.sent)})
    require(
        not names,
        f"`sent` lacks what leaves a site: {', '.join(names)}; describe what it is and what it could reveal about "
        "patients, because reports and model cards say it",
    )


def _check_effort(trial: Trial) -> None:
    """A site takes as many optimiser steps as `effort` declares, up to the last batch of an epoch."""
    of_fedavg = len(SITES) * math.ceil(trial.toy.n_images / trial.toy.settings.batch_size)
    taken = (trial.rounds[0].n_steps or 0) / of_fedavg
    declared = trial.method.effort(len(SITES)).steps
    require(
        abs(taken - declared) < MAX_ROUNDING,
        f"a site takes {taken:.3g} times the optimiser steps of FedAvg, but `effort` declares {declared:g} times: "
        "override `effort`, so that comparisons show the steps and can run FedAvg with as many",
    )


def _check_sharing(trial: Trial) -> None:
    """`shares`, `share_reads_network` and the numbers of patients fit what `share` does."""
    method, toy = trial.method, trial.toy
    known = (NEVER, ONCE, EVERY_ROUND)
    require(method.shares in known, f"`shares` is {method.shares!r}; expected NEVER, ONCE or EVERY_ROUND")
    site = toy.engine(method, SITES[:1]).local_sites[0]
    n_patients = max(samples.n_patients for samples in (site.training, site.validation) if samples)
    wrong = [name for _, own in trial.outgoing for name, n in own.items() if not 1 <= n <= n_patients]
    require(not wrong, f"`n_patients` must be from 1 to the site's {n_patients} patients: {', '.join(wrong[:3])}")
    if method.shares == NEVER or method.share_reads_network:
        return
    shared = []
    for seed in (0, 1):
        data = SiteData(site.name, site.training, site.task, site.architecture, stream(0, "share"), site.validation)
        statistics = method.share(data, toy.network(method, seed).eval())
        shared.append({name: statistic.tolist() for name, statistic in statistics.items()})
    require(
        shared[0] == shared[1],
        "`share_reads_network` is False, but `share` returns other statistics for a network with other weights: set it "
        "to True, so that the coordinator sends the weights",
    )


def _check_unchanged(trial: Trial) -> None:
    """Training changes neither the method object, nor the site's data, nor a tensor that a hook receives."""
    engine, untouched = (trial.toy.engine(trial.method) for _ in range(2))
    with watched_hooks(type(trial.method)) as changes:
        trial.train(engine)
    require(not changes, "".join(changes[:1]))
    samples = [one.local_sites[0].training for one in (engine, untouched)]
    after, before = (one.batch(range(len(one))) for one in samples)
    for name in ("image", "label"):
        is_same = torch.equal(getattr(after, name), getattr(before, name))
        require(is_same, f"training changed the site's {name}s in place: return a new batch from `augment`")
    is_same = attributes(trial.method) == trial.first_attributes
    require(is_same, "the method object changed while it trained: use `remember` or `local.memory` instead")


def _check_small_federation(trial: Trial) -> None:
    """One site that has a single image trains."""
    engine = trial.toy.engine(trial.method, SITES[:1])
    engine.local_sites[0].training = trial.toy.samples(SITES[0], 1, trial.toy.image_side)
    trial.train(engine)


def _check_equal_labels(trial: Trial) -> None:
    """Sites train whose labels are all 0: empty masks, or images of one class."""
    engine = trial.toy.engine(trial.method, SITES[:2])
    for site in engine.local_sites:
        for label in site.training.labels:  # type: ignore[attr-defined]
            label.zero_()
    trial.train(engine, 1)


def _check_matching(trial: Trial) -> None:
    """For each of `match_kinds`, `matcher` returns a function that changes every image on its own."""
    state, samples = trial.rounds[-1].state, trial.toy.samples(SITES[0], side=trial.toy.image_side)
    images = samples.batch(range(len(samples))).image
    for kind in sorted(trial.method.match_kinds):
        match = trial.method.matcher(state, kind, 1.0)
        if match is None:
            raise ContractError(f"`match_kinds` has '{kind}', but `matcher` returns None after the sites shared")
        together, single = match(images), torch.cat([match(image[None]) for image in images])
        in_range = together.shape == images.shape and bool(((together >= 0) & (together <= 1)).all())
        require(in_range, f"the function of `matcher` for '{kind}' must return images of the same shape in [0, 1]")
        require(
            torch.allclose(together, single, atol=1e-4),
            f"the function of `matcher` for '{kind}' changes an image differently in a batch: use no other image",
        )


RULES: dict[str, Callable[[Trial], None]] = {
    "wrap_network": _check_wrap_network,
    "messages": _check_messages,
    "effort": _check_effort,
    "unchanged": _check_unchanged,
    "sharing": _check_sharing,
    "order_of_sites": _check_order_of_sites,
    "restart": _check_restart,
    "small_federation": _check_small_federation,
    "equal_labels": _check_equal_labels,
    "matching": _check_matching,
}
