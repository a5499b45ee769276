"""Federated domain generalisation for medical imaging, on MONAI and PyTorch.

A researcher's session: `check_data` and `make_plan` look at your images, `load_config` reads a config, `run` trains and
tests it and returns a `Run`, `leave_one_site_out` compares methods and returns a `Comparison`, `write_report` makes a
page of both, `export` writes a MONAI bundle, and `score_bundle` tests one. The parts are useful alone:
`medfed.transforms`, `medfed.networks`, `medfed.metrics`, `medfed.losses`, `medfed.functional`, `medfed.methods`,
`medfed.datasets`. `medfed.plot` draws runs and comparisons. `medfed.testing.check_method` checks a method that you
wrote, and `Callback` reports runs to a tracker. A mistake in a config or in data raises `UserError`.

Every name is imported when it is first used.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # `python -m medfed...`: no file in the current folder may take the place of an installed module

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed import datasets as datasets
    from medfed import functional as functional
    from medfed import losses as losses
    from medfed import methods as methods
    from medfed import metrics as metrics
    from medfed import networks as networks
    from medfed import plot as plot
    from medfed import testing as testing
    from medfed import transforms as transforms
    from medfed.api import Comparison as Comparison
    from medfed.api import Run as Run
    from medfed.api import check_data as check_data
    from medfed.api import export as export
    from medfed.api import leave_one_site_out as leave_one_site_out
    from medfed.api import leave_two_sites_out as leave_two_sites_out
    from medfed.api import load_config as load_config
    from medfed.api import load_run as load_run
    from medfed.api import make_plan as make_plan
    from medfed.api import run as run
    from medfed.api import score_bundle as score_bundle
    from medfed.api import write_report as write_report
    from medfed.config.schema import Config as Config
    from medfed.core.errors import UserError as UserError
    from medfed.outputs.callback import Callback as Callback

__version__ = "0.2.0"

# `medfed.export` is a program as well as a function. Importing a program sets the package's attribute of that name to
# the module, so the module itself is callable and does what the function does.
__getattr__, __dir__, __all__ = lazy_names(__name__, own=["__version__"], modules={"export"})
