"""The `evaluation` block of a config, which is the same for all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from medfed.core import bounds, registry
from medfed.core.bounds import NonNegativeInt, PositiveFloat, Ratio
from medfed.core.errors import UserError
from medfed.metrics.metric import Metric

METRIC_KINDS = ("mask_metrics", "class_metrics")  # folders of the registry: of segmentation, of classification


@dataclass(frozen=True)
class Evaluation:
    """How predictions are made from the network's outputs, and which metrics are computed.

    Args:
        threshold: a voxel belongs to a structure if its probability is above this value, in (0, 1). ELCFS's code has
            0.75.
        largest_component: whether only the largest connected component of each structure is kept, in 3-D. An empty
            prediction stays empty (the code of ELCFS's authors turns it into a mask that is foreground everywhere).
        tent: whether the network is adapted to each site's test images before they are predicted
            (`medfed.networks.parts.tent`). This is transductive: it uses the unseen site's images without their labels,
            and every result says so. The unseen site is also scored without the adaptation, and every result says how
            many patients became worse.
        tent_learning_rate: learning rate of the adaptation that `tent` switches on, above 0.
        match: which mean of the federation each test image is changed towards before it is predicted, at sites that did
            not train: "window" replaces its low-frequency amplitudes (the method must share such windows, as ELCFS
            does), "style" redraws it in another style (the method must share styles, as CCST and FISC do). The means
            are those that the sites shared for training, each site with the same weight. Every image is changed on its
            own, without its label; blank images stay as they are. The unseen site is also scored without the change,
            and every result says how many patients became worse. Not together with `tent`.
        match_ratio: weight of the federation's mean with `match`, in [0, 1]: 1 replaces the amplitudes or the style of
            the image, 0 keeps them.
        boundary_distance: whether each validation of a source site (a site that trains) also computes the boundary
            distance: the mean cosine distance between the features on the boundary of a structure and those in a ring
            of background around it (Figure 7 (a) of ELCFS). For segmentation only.
        unseen_every: number of rounds between two points of a curve of the unseen site over the rounds (Figure 7 (a) of
            ELCFS). The weights of these rounds are kept, and scored at the unseen site after training. This is a look
            at the target: the scores must not choose a round, a setting or a method. They are written to
            `unseen_rounds.json` and a figure, and used for nothing else. 0 scores the result of the run only.
        failure_dice: a structure of a patient counts as a failure if its Dice is below this value, in (0, 1]. Tables
            show the share of such patients with its interval, in addition to missed structures and false alarms. The
            value changes no other score. For segmentation only.
        also_on: "prepared" also computes Dice and the Hausdorff distances of masks on the grid that the network
            receives, whose slices have `data.image_size` pixels a side, as many papers do. Every table and figure shows
            them in additional columns. "none" scores on the grid of the image file only. For segmentation only.
        metrics: metrics in addition to those of the task. Each is the name of a file of `medfed/metrics/masks` or
            `medfed/metrics/classes`, or a dotted name (`mypackage.mymodule.MyMetric`). Every table and figure shows
            them.
    """

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    largest_component: bool = False
    tent: bool = False
    tent_learning_rate: PositiveFloat = 1e-3
    match: Literal["none", "window", "style"] = "none"
    match_ratio: Ratio = 1.0
    boundary_distance: bool = False
    unseen_every: NonNegativeInt = 0
    failure_dice: Annotated[float, Field(gt=0, le=1)] = 0.7
    also_on: Literal["none", "prepared"] = "none"
    metrics: Annotated[tuple[str, ...], Field(json_schema_extra={"uniqueItems": True})] = ()

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other key) for each wrong name of a metric, and for two adaptations at once."""
        if self.tent and self.match != "none":
            yield (
                "match",
                f"'{self.match}' comes together with evaluation.tent: true, so the harm of each would be unknown; set "
                "evaluation.tent to false, or evaluation.match to none",
                "tent",
            )
        for name in dict.fromkeys(self.metrics):
            if self.metrics.count(name) > 1:
                yield "metrics", f"'{name}' comes twice; leave one out"
            try:
                registry.require(name, *METRIC_KINDS)
            except UserError as error:
                yield "metrics", str(error)


def chosen_metrics(kind: str, names: tuple[str, ...]) -> tuple[Metric, ...]:
    """Create the metrics of `evaluation.metrics`; `kind` is one of `METRIC_KINDS`."""
    found = []
    for name in names:
        try:
            found.append(registry.resolve(kind, name)())
        except UserError:
            raise
        except Exception as error:  # code from outside medfed may raise anything
            raise UserError(f"metric '{name}' cannot be used: {type(error).__name__}: {error}; correct it") from error
    return tuple(found)
