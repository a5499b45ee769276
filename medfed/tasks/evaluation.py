"""The `evaluation` block of a config, which all tasks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from medfed.core import bounds, registry
from medfed.core.bounds import PositiveFloat
from medfed.core.errors import UserError
from medfed.metrics.metric import Metric

METRIC_KINDS = ("mask_metrics", "class_metrics")  # folders of the registry: of segmentation, of classification


@dataclass(frozen=True)
class Evaluation:
    """From probabilities to masks, and which metrics are computed.

    Args:
        threshold: a voxel belongs to a structure when its probability is above this. ELCFS's code has 0.75.
        largest_component: keep only the largest connected piece of each structure, in 3-D. An empty prediction stays
            empty (the authors' helper turns it into an all-foreground mask).
        tent: adapt the network to each site's test images while predicting (`medfed.networks.tent`). Transductive: it
            sees the unseen site's images, without their labels, and every result says so.
        tent_learning_rate: of that adaptation.
        boundary_distance: at each validation a source site also sends one number, the mean distance of features along
            outlines from those of the background beside them (ELCFS, Figure 7); at sites that take no part it is
            measured once, at the end. Of masks only.
        metrics: more metrics than the task's own, each by the name of a file of `medfed/metrics` or by a dotted name
            (`mypackage.mymetric`). Every table and figure shows them.
    """

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    largest_component: bool = False
    tent: bool = False
    tent_learning_rate: PositiveFloat = 1e-3
    boundary_distance: bool = False
    metrics: Annotated[tuple[str, ...], Field(json_schema_extra={"uniqueItems": True})] = ()

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ValueError: if a value is out of its range, or a metric is unknown or named twice.
        """
        bounds.check(self, self._conflicts)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each name that is no metric, and for each that is there twice."""
        known = sorted({name for kind in METRIC_KINDS for name in registry.known_names(kind)}) if self.metrics else []
        for name in dict.fromkeys(self.metrics):
            is_dotted = "." in name and all(part.isidentifier() for part in name.split("."))
            if self.metrics.count(name) > 1:
                yield "metrics", f"'{name}' comes twice; leave one out"
            elif name not in known and not is_dotted:
                yield "metrics", f"no metric '{name}'. {registry.suggestion(name, known)}"


def chosen_metrics(kind: str, names: tuple[str, ...]) -> tuple[Metric, ...]:
    """The metrics of these names.

    Args:
        kind: one of METRIC_KINDS.

    Raises:
        UserError: if a name is none of this kind, or cannot be imported or built.
    """
    found = []
    for name in names:
        try:
            found.append(registry.resolve(kind, name)())
        except UserError:
            raise
        except Exception as error:  # code from outside medfed may raise anything
            raise UserError(f"metric '{name}' cannot be used: {type(error).__name__}: {error}; correct it") from error
    return tuple(found)
