"""A hospital's agreement with a federation: what may leave the hospital.

The hospital writes it in its own file. `medfed.deployment.guard.Guard` enforces it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from medfed.config import strict_yaml
from medfed.config.schema import Config
from medfed.core import bounds
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.federation.message import Message

TRAIN: Literal["train"] = "train"  # of `Agreement.requests`: all requests of a training


class Refused(Exception):
    """A request or reply that the hospital did not agree to; the text is a clause about the hospital or a reply.

    It contains no names of files or patients. `sent` is sent to the coordinator if `why` must stay at the hospital.
    """

    def __init__(self, why: str, sent: str = "") -> None:
        super().__init__(why)
        self.sent = sent or why


class Outgoing(NamedTuple):
    """A reply, and by name of a statistic from how many patients each of its numbers is computed, at least."""

    reply: Message
    n_patients: Mapping[str, int]


@dataclass(frozen=True)
class Agreement:
    """What may leave a hospital, and how often: the block `agrees` of its file; docs/how_to/hospital.md explains it."""

    requests: tuple[Literal["train", "survey"], ...] = (TRAIN,)
    sends: tuple[str, ...] = ()  # names of the statistics (tensors other than weights); `*` stands for any text
    rounds: PositiveInt = 100
    megabytes_per_round: PositiveFloat = 100.0  # of all tensors and facts in the replies of a round, in 10^6 bytes
    replies_per_round: PositiveInt = 3  # to requests of one kind
    min_patients: PositiveInt = 1  # behind each number of a statistic or of a survey
    max_epsilon: PositiveFloat | None = None  # of all weights and statistics in the whole federation; None: no limit
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # of `max_epsilon`

    def __post_init__(self) -> None:
        bounds.check(self)


def plan_checksum(path: Path) -> str:
    """Twelve digits that two plans share only if they have the same settings, whatever their comments and line ends."""
    settings = json.dumps(strict_yaml.parse(strict_yaml.read(path), str(path)), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


def check_reading(plan: Config, own_keys: Collection[str], file: str) -> None:
    """Raise UserError if a plan decides about the reading of images what only the hospital may set in its own file."""
    root, table = Path(plan.data.root), Path(getattr(plan.data, "table", None) or "")
    reasons = {
        "root": (root.is_absolute() or ".." in root.parts) and f"'{root}' is a folder that the coordinator chooses",
        "dicom_salt": getattr(plan.data, "dicom_salt", None)
        and "it names the file with the secret that hides this hospital's patients, which the coordinator could then "
        "know",
        "table": (table.is_absolute() or ".." in table.parts)
        and f"'{table}' is outside this hospital's images (data.root)",
        "by_site": getattr(plan.data, "by_site", None)
        and "settings of single sites replace those in a hospital's own file",
        "ignore_mask_geometry": plan.data.ignore_mask_geometry
        and "it accepts masks that lie elsewhere than their images, which only the hospital can know to be right",
        "allow_duplicates": plan.data.allow_duplicates
        and "it accepts images that occur twice, which only the hospital can know to be right",
        "if_missing": plan.data.if_missing == "phantom"
        and "a hospital whose images are not found would train on synthetic ones",
    }
    for key, reason in reasons.items():
        if reason and f"data.{key}" not in own_keys:
            raise UserError(
                f"{plan.source}: data.{key}: a plan may not set this, because {reason}; ask for a plan without it, or "
                f"set data.{key} in {file}"
            )
    if plan.network != plan.network.without_weights():
        raise UserError(
            f"{plan.source}: network: a plan may not name a bundle or weights, because this hospital would read files "
            "that the coordinator chooses; ask for a plan that medfed.coordinator prepare wrote, which has none"
        )
