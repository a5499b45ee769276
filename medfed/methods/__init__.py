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
    from medfed.federation.local_round import LocalRound, Output
    from medfed.federation.message import Message, State
    from medfed.federation.method import Method
    from medfed.methods.bigaug import BigAug
    from medfed.methods.ccst import CCST
    from medfed.methods.coordinate_median import CoordinateMedian
    from medfed.methods.copa import COPA
    from medfed.methods.dsu import DSU
    from medfed.methods.efdmix import EFDMix
    from medfed.methods.elcfs import ELCFS
    from medfed.methods.epi_fcr import EpiFCR
    from medfed.methods.fedavg import FedAvg
    from medfed.methods.fedbn import FedBN
    from medfed.methods.feddg_ga import FedDGGA
    from medfed.methods.feddyn import FedDyn
    from medfed.methods.fedgma import FedGMA
    from medfed.methods.fednova import FedNova
    from medfed.methods.fedprox import FedProx
    from medfed.methods.fedsr import FedSR
    from medfed.methods.fisc import FISC
    from medfed.methods.fpl import FPL
    from medfed.methods.gin import GIN
    from medfed.methods.harmofl import HarmoFL
    from medfed.methods.jigen import JiGen
    from medfed.methods.mixstyle import MixStyle
    from medfed.methods.norm_clipping import NormClipping
    from medfed.methods.rsc import RSC
    from medfed.methods.scaffold import SCAFFOLD
    from medfed.methods.stable_fdg import StableFDG
    from medfed.methods.stack import Stack
    from medfed.methods.swa import SWA
    from medfed.methods.trimmed_mean import TrimmedMean

__all__ = [
    "BigAug",
    "CCST",
    "COPA",
    "CoordinateMedian",
    "DSU",
    "EFDMix",
    "ELCFS",
    "EpiFCR",
    "FISC",
    "FPL",
    "FedAvg",
    "FedBN",
    "FedDGGA",
    "FedDyn",
    "FedGMA",
    "FedNova",
    "FedProx",
    "FedSR",
    "GIN",
    "HarmoFL",
    "JiGen",
    "LocalRound",
    "Message",
    "Method",
    "MixStyle",
    "NormClipping",
    "Output",
    "RSC",
    "SCAFFOLD",
    "SWA",
    "StableFDG",
    "Stack",
    "State",
    "TrimmedMean",
]

__getattr__, __dir__ = lazy_names(__name__)
