"""Synthetic versions (phantoms) of the datasets, for learning the toolkit and for tests.

Each site has its own simulated scanner or camera. `ProstatePhantom`, `FundusPhantom` and `Camelyon17Phantom` write
their images in the published file layout when they are first used. Scores on them say nothing about patients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.phantoms.camelyon17_phantom import Camelyon17Phantom as Camelyon17Phantom
    from medfed.phantoms.fundus_phantom import FundusPhantom as FundusPhantom
    from medfed.phantoms.prostate_phantom import ProstatePhantom as ProstatePhantom

__getattr__, __dir__, __all__ = lazy_names(__name__)
