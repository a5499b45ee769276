"""The pairs that papers combine, and those that cannot be."""

import warnings

import pytest
import torch

from medfed.discovery import find
from medfed.federation.coordinator import federate
from medfed.federation.settings import Federation

FEW = {"min_patients": 1}
RUN = {
    "ccst+jigen": [("ccst", FEW), ("jigen", {})],
    "ccst+rsc": [("ccst", FEW), ("rsc", {})],
    "ccst+mixstyle": [("ccst", FEW), ("mixstyle", {"stages": (1,)})],
    "feddg_ga+fedprox": [("feddg_ga", {}), ("fedprox", {})],
    "fedgma+jigen": [("fedgma", {}), ("jigen", {})],
    "fedgma+elcfs": [("fedgma", {}), ("elcfs", {"alpha": 0.1})],
    "mixstyle+fedprox+feddg_ga": [("mixstyle", {"stages": (1,)}), ("fedprox", {}), ("feddg_ga", {})],
}
REFUSED = {
    "two aggregations": ([("fedgma", {}), ("feddg_ga", {})], "FedGMA and FedDGGA each define 'aggregate'"),
    "two losses": ([("rsc", {}), ("elcfs", {})], "RSC and ELCFS each define 'loss'"),
    "two times to share": ([("elcfs", {}), ("feddg_ga", {})], "share at different times"),
}


def stack(parts):
    return find("methods", "stack")(tuple(find("methods", name)(**settings) for name, settings in parts))


@pytest.mark.parametrize("parts", RUN.values(), ids=RUN.keys())
def test_what_papers_combine_runs(any_toy, parts):
    method = stack(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        *_, last = federate(method, any_toy.engine(method), any_toy.start(method), Federation(rounds=2), 0)
    assert all(torch.isfinite(entry).all() for entry in last.state.weights.values())


@pytest.mark.parametrize(("parts", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_combined_says_why(parts, why):
    with pytest.raises(ValueError, match=why):
        stack(parts)
