"""Callbacks, to which a run reports its start, each round and its end; `tracking` in a config names them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.registry import describe_error

if TYPE_CHECKING:
    from medfed.config.schema import Config


class Callback:
    """Base class of callbacks, which report a run to a tracker such as MLflow.

    A config lists callbacks by name: `tracking: [tensorboard, mymodule.MyCallback]`. A run creates each one without
    arguments, and calls the three methods, which do nothing here; override those that you need. The calls come from the
    process that runs the federation, one after another, and receive no images and no weights. Callbacks do not change
    the result of a run. An exception does not stop the run: it becomes a notice (`notices.json`), once for each method.
    A callback whose `on_start` fails is not called again.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        """Called before the first round, and when a run is resumed.

        Args:
            config: the config of the run; `config.yaml` is its text with all values.
            folder: the run's folder. Write files into a folder of their own there, which `SHA256SUMS` does not list. If
                the run is resumed, `history.csv` has the rows of the finished rounds, which `on_round` does not receive
                again.
        """

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Called after each round, when its files are written.

        Args:
            row: the new row of `history.csv`, by column: `round` (from 1), `train_loss` and `validation_score` (means
                over the sites), those of each site, such as `train_loss/BMC`, and the numbers that the method reports.
                A value is None if it is unknown.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called when the run has written all its files but `summary.json` and `SHA256SUMS`; not if it was stopped.

        Args:
            summary: the content of `summary.json`: the scores of the sites (`scores`), and `selected_round` among
                others.
        """


class Callbacks:
    """The callbacks of one run; UserError, beginning with the config's file `source`, if one cannot be created."""

    def __init__(self, names: Sequence[str] = (), source: str = "") -> None:
        self._callbacks = {name: _create(name, source) for name in names}
        self._failed: set[tuple[str, str]] = set()  # names of a callback and its method

    def start(self, config: Config, folder: Path) -> None:
        self._call("on_start", config, folder)
        self._callbacks = {name: one for name, one in self._callbacks.items() if (name, "on_start") not in self._failed}

    def round_done(self, row: Mapping[str, Any]) -> None:
        self._call("on_round", row)

    def end(self, summary: Mapping[str, Any]) -> None:
        self._call("on_end", summary)

    def _call(self, method: str, *arguments: object) -> None:
        for name, callback in self._callbacks.items():
            try:
                getattr(callback, method)(*copy.deepcopy(arguments))  # which a callback may change
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a tracker that fails, or exits, must not lose a run of days
                if (name, method) not in self._failed:
                    self._failed.add((name, method))
                    warnings.warn(
                        f"tracking: '{name}' failed in {method}: {_describe(error)}; the run continues", stacklevel=1
                    )


def _describe(error: BaseException) -> str:
    try:
        return describe_error(error)
    except Exception:  # the error's own text fails
        return type(error).__name__


def _create(name: str, source: str) -> Callback:
    try:
        callback: Callback = registry.resolve("callbacks", name)()
    except UserError as error:
        raise UserError(f"{source}: tracking: {error}") from error
    except Exception as error:  # code from outside medfed may raise anything
        raise UserError(
            f"{source}: tracking: '{name}' cannot be created: {describe_error(error)}; correct it"
        ) from error
    return callback
