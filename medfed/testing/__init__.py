"""Checks for methods, networks and metrics that you write, and toy federations of three sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.testing.checks import check_method as check_method
    from medfed.testing.checks import check_metric as check_metric
    from medfed.testing.checks import check_network as check_network
    from medfed.testing.checks import method_checks as method_checks
    from medfed.testing.rules import ContractError as ContractError
    from medfed.testing.toy import ToyClassification as ToyClassification
    from medfed.testing.toy import ToyFederation as ToyFederation
    from medfed.testing.toy import ToySegmentation as ToySegmentation
    from medfed.testing.toy import ToyVolumes as ToyVolumes

__getattr__, __dir__, __all__ = lazy_names(__name__)
