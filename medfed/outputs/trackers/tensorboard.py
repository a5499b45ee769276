"""TensorBoard: the numbers of each round and the final scores, in the folder `tensorboard` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.outputs.callback import Callback
from medfed.outputs.run_folder import RunFolder


class TensorBoard(Callback):
    """Writes event files, which `tensorboard --logdir runs` shows.

    The tags of a round are the columns of `history.csv`, such as `train_loss/BMC`. A final score has the tag
    `METRIC/ROLE, SITE, STRUCTURE`, such as `dice/unseen, UCL, prostate`; its step is the round whose weights were
    scored. Values are stored as float32. A resumed run continues in the same folder; rounds that are trained again
    replace their earlier values.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "'tensorboard' needs the package tensorboard, which is not installed; "
                'run pip install "medfed[tracking]"'
            ) from error
        self._create_writer = SummaryWriter

    def on_start(self, config: Config, folder: Path) -> None:
        done = RunFolder(folder).history()
        next_round = done[-1]["round"] + 1 if done else None
        self._writer = self._create_writer(str(folder / "tensorboard"), purge_step=next_round)

    def on_round(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name != "round" and value is not None:
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        for score in summary["scores"]:
            if score["mean"] is not None:
                place = ", ".join(filter(None, (score["role"], score["site"], score["structure"])))
                self._writer.add_scalar(f"{score['metric']}/{place}", score["mean"], summary["selected_round"])
        self._writer.close()
