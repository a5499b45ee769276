"""A hospital's agreement with a federation: what may leave the hospital.

The hospital writes it in its own file. `medfed.deployment.guard.Guard` enforces it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from medfed.config.schema import Config
from medfed.core import bounds
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.federation.message import Message

TRAIN = "train"  # of `Agreement.requests`: all requests of a training


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
    """What may leave a hospital, and how often: the block `agrees` of its file.

    Args:
        requests: what the site may be asked for: "train" (all requests of a training: to share statistics, to train, to
            validate, and the final model) and "survey" (the description of its images before round 1).
        sends: names of the tensors that may leave in addition to weights. `*` stands for any text.
        rounds: number of training rounds; greater than 0.
        megabytes_per_round: largest total size of the replies of one round, in units of 10^6 bytes; greater than 0.
            Tensors and facts count, facts with their names. A reply that was lost and is sent again unchanged counts
            once, because it reveals nothing new.
        replies_per_round: how often the site may reply to requests of one kind in a round; greater than 0. More than
            one is needed if a reply is lost and requested again.
        min_patients: from how many training patients each number of a shared statistic must be computed at least.
            Statistics are all tensors except weights. 1 also allows statistics of a single patient, such as the
            amplitudes of single images in ELCFS. It is also the smallest group of patients behind each number of a
            survey, which has a minimum of its own; the larger one counts.
        max_epsilon: largest epsilon of differential privacy for all weights and statistics that leave in the whole
            federation, for `delta`; greater than 0. Every reply that leaves is counted, apart from a repeated equal
            reply to an equal request. null sets no limit. Facts (numbers of images and steps, losses, validation
            scores) and whole numbers have no noise, and epsilon does not cover them.
        delta: the delta of `max_epsilon`, in (0, 1).
    """

    requests: tuple[Literal["train", "survey"], ...] = ("train",)
    sends: tuple[str, ...] = ()
    rounds: PositiveInt = 100
    megabytes_per_round: PositiveFloat = 100.0
    replies_per_round: PositiveInt = 3
    min_patients: PositiveInt = 1
    max_epsilon: PositiveFloat | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def __post_init__(self) -> None:
        bounds.check(self)


def check_reading(plan: Config, own_keys: Collection[str], file: str) -> None:
    """Raise UserError if a plan decides about the reading of images what only the hospital may set in its own file."""
    table = Path(getattr(plan.data, "table", None) or "")
    reasons = {
        "dicom_salt": getattr(plan.data, "dicom_salt", None)
        and "it names the file with the secret that hides this hospital's patients, which the coordinator could then "
        "know",
        "table": (table.is_absolute() or ".." in table.parts)
        and f"'{table}' is outside this hospital's images (data.root)",
        "ignore_mask_geometry": plan.data.ignore_mask_geometry
        and "it accepts masks that lie elsewhere than their images, which only the hospital can know to be right",
    }
    for key, reason in reasons.items():
        if reason and f"data.{key}" not in own_keys:
            raise UserError(
                f"{plan.source}: data.{key}: a plan may not set this, because {reason}; ask for a plan without it, or "
                f"set data.{key} in {file}"
            )
