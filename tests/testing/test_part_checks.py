"""`check_network` and `check_metric` accept what medfed has, and name the rule that a wrong part breaks."""

import numpy as np
import pytest

from medfed.core import registry
from medfed.methods.ccst import CCST
from medfed.methods.fedprox import FedProx
from medfed.methods.stack import Stack
from medfed.metrics.class_metric import ClassMetric
from medfed.metrics.mask_metric import MaskMetric
from medfed.testing import ContractError, check_metric, check_network, method_checks
from medfed.testing.small_unet import SmallUNet

METRICS = [(kind, name) for kind in ("mask_metrics", "class_metrics") for name in registry.known_names(kind)]


@pytest.mark.parametrize(("kind", "name"), METRICS)
def test_every_metric_keeps_the_rules(kind, name):
    check_metric(registry.resolve(kind, name)())


class Upside(MaskMetric):
    name, label, worst = "upside", "Upside", 1.0
    higher_is_better = False

    def value(self, masks):
        return float((masks.prediction & masks.reference).sum() / masks.reference.sum())


class Unbounded(ClassMetric):
    name, label, limits = "unbounded", "Unbounded", (0.0, 1.0)

    def value(self, probabilities, labels):
        return 1.0 + float(np.eye(probabilities.shape[1])[labels][probabilities > 0.5].sum())


class Nameless(MaskMetric):
    def value(self, masks):
        return 1.0


class Signed(MaskMetric):
    """Best is 0, and a larger mask has a higher value than a perfect one."""

    name, label, worst = "signed", "Signed", -1.0

    def value(self, masks):
        return float(masks.prediction.sum() / masks.reference.sum()) - 1


class Infinite(MaskMetric):
    """Infinite for a mask that was invented."""

    name, label, worst, accepts_empty_masks = "infinite", "Infinite", -9.0, True

    def value(self, masks):
        n_voxels = masks.reference.sum()
        return abs(float(masks.prediction.sum() / n_voxels) - 1) if n_voxels else float("inf")


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        (Upside, "higher_is_better"),
        (Signed, "higher_is_better"),
        (Infinite, "accepts_empty_masks"),
        (Unbounded, "limits"),
        (Nameless, "name"),
    ],
)
def test_a_wrong_metric_is_named_with_the_rule(metric, rule):
    with pytest.raises(ContractError, match=rule):
        check_metric(metric())


class OtherHead(SmallUNet):
    @property
    def head(self):
        return "no_such_layer"


class EarlierFeatures(SmallUNet):
    @property
    def last_features(self):
        return "upcat_2"


def test_a_network_keeps_the_rules_and_a_wrong_place_is_named():
    check_network(SmallUNet)
    with pytest.raises(ContractError, match="'final_conv' does not receive the output of 'upcat_2'"):
        check_network(EarlierFeatures)
    with pytest.raises(ContractError, match="OtherHead: head: the network has no submodule 'no_such_layer'"):
        check_network(OtherHead)


def test_a_stack_is_checked_alone_as_it_cannot_be_inside_another():
    stack = Stack((CCST(min_patients=1, transfer="moments"), FedProx(mu=0.1)))
    checks = dict(method_checks(stack, tasks=["segmentation"]))
    assert checks and not any(name.endswith("-stack") for name in checks)
    for name in ("settings", "wrap_network-segmentation", "messages-segmentation", "order_of_sites-segmentation"):
        checks[name]()
