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
    from medfed import datasets, functional, losses, methods, metrics, networks, plot, testing, transforms
    from medfed.api import (
        Comparison,
        Run,
        check_data,
        export,
        leave_one_site_out,
        leave_two_sites_out,
        load_config,
        load_run,
        make_plan,
        run,
        score_bundle,
        write_report,
    )
    from medfed.config.schema import Config
    from medfed.core.errors import UserError
    from medfed.outputs.callback import Callback

__version__ = "0.2.0"
__all__ = [
    "Callback",
    "Comparison",
    "Config",
    "Run",
    "UserError",
    "__version__",
    "check_data",
    "datasets",
    "export",
    "functional",
    "leave_one_site_out",
    "leave_two_sites_out",
    "load_config",
    "load_run",
    "losses",
    "make_plan",
    "methods",
    "metrics",
    "networks",
    "plot",
    "run",
    "score_bundle",
    "testing",
    "transforms",
    "write_report",
]

# `medfed.export` is a program as well as a function. Importing a program sets the package's attribute of that name to
# the module, so the module itself is callable and does what the function does.
__getattr__, __dir__ = lazy_names(__name__, modules={"export"})
