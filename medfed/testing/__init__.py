"""Checks for methods, networks and metrics that you write, and toy federations of three sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.testing.checks import check_method, check_metric, check_network, method_checks
    from medfed.testing.rules import ContractError
    from medfed.testing.toy import ToyClassification, ToyFederation, ToySegmentation, ToyVolumes

__all__ = [
    "ContractError",
    "ToyClassification",
    "ToyFederation",
    "ToySegmentation",
    "ToyVolumes",
    "check_method",
    "check_metric",
    "check_network",
    "method_checks",
]

__getattr__, __dir__ = lazy_names(__name__)
