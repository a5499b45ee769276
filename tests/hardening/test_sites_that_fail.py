"""R5: sites that do not reply, die, are late, reply twice or with an old round. R7: sites that send bad updates."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from fault_table import FAULTS, SUBSETS, deviation
from poisoned_updates import (
    ANY_SIZE,
    BAD,
    FINITE,
    INVALID,
    METHODS,
    ROBUST,
    SITES,
    all_finite,
    learned,
    one_round,
    poisoned,
    recorded,
)

from medfed.core.errors import UserError
from medfed.federation.settings import Federation
from medfed.methods.fedavg import FedAvg

pytestmark = pytest.mark.hardening


def without_checks():
    """Patch the coordinator so that it uses whatever the sites reply."""
    return patch("medfed.federation.exchange.validate_replies", lambda messages, replies, expected: (dict(replies), []))


def deviates(case) -> bool:
    try:
        return bool(deviation(*case))
    except Exception:  # what a coordinator without checks may raise
        return True


def test_r5_dropped_sites(measurement):
    cases = [(faulty, fault, stops) for faulty in SUBSETS for fault in FAULTS for stops in (False, True)]
    cases = measurement.some(cases, 20)
    n = len(cases)
    wrong = [f"{case}: {why}" for case in cases if (why := deviation(*case))]
    with without_checks():
        n_control = sum(map(deviates, cases))
    measurement.report(
        "sites of 4 that never start, die, are late, reply twice or to an old round; replies dropped or fatal",
        (f"{n} of {n} cases end as the round loop promises", f"{n - len(wrong)} of {n}", not wrong),
        (f"without checks of replies {n - n_control} of {n}", n_control > 0),
        wrong,
    )


def outcome(method, change) -> tuple[bool, bool, bool]:
    """Return, for a poisoned round: whether a model is not finite, the bad site is named, and an honest one is."""
    done, warned = one_round(method, poisoned(change))
    named = {site for site in SITES if any(text.startswith(f"{site}: ") for text in warned)}
    try:
        one_round(method, poisoned(change), Federation(rounds=1))
        stopped = ""
    except UserError as error:
        stopped = str(error).partition(":")[0]
    named |= {stopped} - {""}
    return not all_finite(done), BAD in named and stopped == BAD, bool(named - {BAD})


def is_finite_without_checks(method, change) -> bool:
    try:
        done, _ = one_round(method, poisoned(change), replace(ANY_SIZE, on_bad_update="stop"))
    except Exception:  # also the last check, of the weights after the round
        return True
    return all_finite(done)


def test_r7_invalid_updates(measurement):
    cases = [(method, kind) for method in METHODS for kind in INVALID]
    cases = measurement.some(cases, 30)
    outcomes = [outcome(method, INVALID[kind][0]) for method, kind in cases]
    n_not_finite, n_named, n_honest = (sum(column) for column in zip(*outcomes))
    with without_checks(), patch("medfed.federation.rounds._check_finite"):
        n_control = sum(not is_finite_without_checks(method, INVALID[kind][0]) for method, kind in cases)
    n = len(cases)
    measurement.report(
        f"invalid updates of 1 of 4 sites: {len(INVALID)} kinds x {len(METHODS)} methods and aggregators",
        (
            f"0 of {n} models not finite, {n} of {n} rejected by name, 0 honest sites named",
            f"{n_not_finite} of {n} not finite, {n_named} of {n} rejected by name, {n_honest} honest sites named",
            n_not_finite == n_honest == 0 and n_named == n,
        ),
        (f"without checks {n_control} of {n} not finite", n_control > 0),
    )


def distance_ratio(method, change) -> float:
    """Return how far the poisoned model is from the mean of the honest updates, relative to the farthest of them."""
    _, replies = recorded(method)
    honest = [learned(replies["train"][site].weights) for site in SITES if site != BAD]
    done, _ = one_round(method, poisoned(change), ANY_SIZE)
    centre = {name: torch.stack([one[name].double() for one in honest]).mean(0) for name in honest[0]}

    def distance(weights) -> float:
        return float(sum(((weights[name].double() - entry) ** 2).sum() for name, entry in centre.items()) ** 0.5)

    return distance(done.state.weights) / max(map(distance, honest))


def test_r7_finite_attacks(measurement):
    cases = [(method, kind, FINITE[kind](recorded(method)[0].weights)) for method in ROBUST for kind in FINITE]
    ratios = {f"{type(method).__name__} {kind}": distance_ratio(method, change) for method, kind, change in cases}
    start = recorded(FedAvg())[0].weights
    control = max(distance_ratio(FedAvg(), make(start)) for make in FINITE.values())
    worst = max(ratios, key=ratios.get)
    measurement.report(
        f"finite attacks ({', '.join(FINITE)}) on the {len(ROBUST)} robust rules, sizes not compared",
        (
            "distance from the honest mean at most 2 times that of the farthest honest site",
            f"at most {ratios[worst]:.2f} times ({worst})",
            ratios[worst] <= 2,
        ),
        (f"FedAvg {control:.3g} times", control > 2),
    )
