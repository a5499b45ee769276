"""Federated methods, one file per paper; the module's docstring names the paper and its equations.

Aggregation and optimisation: `FedAvg`, `FedProx`, `SCAFFOLD`, `FedNova`, `FedDyn`, `FedGMA`, `FedDGGA`. Sharing of
styles or spectra: `ELCFS` (FedDG), `CCST`, `FISC`, `StableFDG`. Normalisation: `FedBN`, `HarmoFL`. Augmentation at each
site: `MixStyle`, `DSU`, `EFDMix`, `BigAug`, `GIN`. Training at each site: `JiGen`, `RSC`, `EpiFCR`, `FedSR`, `FPL`,
`COPA`. Averages over rounds: `SWA`. Robust aggregation: `CoordinateMedian`, `TrimmedMean`, `NormClipping`. `Stack`
combines several methods.

To write a method, inherit from `Method` in a file of your own; `medfed.testing.check_method` checks it. The name of the
method in a config is `package.module.Class`.

>>> from medfed.methods import FedProx, Stack, FedBN
>>> FedProx(mu=0.1)
FedProx(mu=0.1)
>>> Stack((FedProx(mu=0.1), FedBN())).methods[0].mu
0.1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.federation.local_round import LocalRound as LocalRound
    from medfed.federation.local_round import Output as Output
    from medfed.federation.message import Message as Message
    from medfed.federation.message import State as State
    from medfed.federation.method import Method as Method
    from medfed.methods.bigaug import BigAug as BigAug
    from medfed.methods.ccst import CCST as CCST
    from medfed.methods.coordinate_median import CoordinateMedian as CoordinateMedian
    from medfed.methods.copa import COPA as COPA
    from medfed.methods.dsu import DSU as DSU
    from medfed.methods.efdmix import EFDMix as EFDMix
    from medfed.methods.elcfs import ELCFS as ELCFS
    from medfed.methods.epi_fcr import EpiFCR as EpiFCR
    from medfed.methods.fedavg import FedAvg as FedAvg
    from medfed.methods.fedbn import FedBN as FedBN
    from medfed.methods.feddg_ga import FedDGGA as FedDGGA
    from medfed.methods.feddyn import FedDyn as FedDyn
    from medfed.methods.fedgma import FedGMA as FedGMA
    from medfed.methods.fednova import FedNova as FedNova
    from medfed.methods.fedprox import FedProx as FedProx
    from medfed.methods.fedsr import FedSR as FedSR
    from medfed.methods.fisc import FISC as FISC
    from medfed.methods.fpl import FPL as FPL
    from medfed.methods.gin import GIN as GIN
    from medfed.methods.harmofl import HarmoFL as HarmoFL
    from medfed.methods.jigen import JiGen as JiGen
    from medfed.methods.mixstyle import MixStyle as MixStyle
    from medfed.methods.norm_clipping import NormClipping as NormClipping
    from medfed.methods.rsc import RSC as RSC
    from medfed.methods.scaffold import SCAFFOLD as SCAFFOLD
    from medfed.methods.stable_fdg import StableFDG as StableFDG
    from medfed.methods.stack import Stack as Stack
    from medfed.methods.swa import SWA as SWA
    from medfed.methods.trimmed_mean import TrimmedMean as TrimmedMean

__getattr__, __dir__, __all__ = lazy_names(__name__)
