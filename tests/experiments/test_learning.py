"""Whether a model has learned: its validation scores against predictions that ignore the image, and its own start."""

from types import SimpleNamespace

import pytest
import torch
from monai.data import MetaTensor

from medfed.datasets.case import Case, Volume
from medfed.experiments.evaluation import assess_learning, score_trivial
from medfed.federation.message import State
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.slices import Slices
from medfed.tasks.trivial_masks import FixedMask, mean_masks

SIDE = 4
TASK = Segmentation(("organ",), 1, SIDE, standardised="none")
WHOLE, NONE = torch.ones(1, SIDE, SIDE), torch.zeros(1, SIDE, SIDE)


def columns(first, last):
    """Return a mask (1, 4, 4) whose columns from `first` to before `last` are foreground."""
    mask = torch.zeros(1, SIDE, SIDE)
    mask[..., first:last] = 1
    return mask


def slices(*masks):
    """Return blank slices of one patient each, with these masks."""
    return Slices(torch.zeros(len(masks), 1, SIDE, SIDE), torch.stack(masks).byte(), torch.arange(len(masks)))


def experiment(*sites, start=NONE):
    """Return an experiment whose sites have (training masks, validation masks), and whose network is a fixed mask."""
    network = FixedMask(start)
    members = [
        SimpleNamespace(training=slices(*own), validation=slices(*kept) if kept else None) for own, kept in sites
    ]
    for member in members:
        member.network, member.load = network, network.load_state_dict
    return SimpleNamespace(task=TASK, network=network, start=State.of(network), sites=members)


def assess(model, *sites, start=NONE):
    return assess_learning(experiment(*sites, start=start), FixedMask(model).state_dict())


def test_a_model_below_the_mean_mask_of_the_training_images_did_not_learn():
    """The organ is the two left columns. Model: 3 of 4 columns, Dice 2 * 2/(3 + 2); full mask: 2 * 2/(4 + 2)."""
    left = columns(0, 2)
    result = assess(columns(0, 3), ([left, left], [left]))
    assert not result["learned"] and result["images"] == "validation"
    assert (result["score"], result["trivial"]) == (pytest.approx(0.8), 1.0)
    assert result["trivial_prediction"] == "the mean mask of the training images"
    assert result["start"] == 0.0


def test_a_model_learned_if_it_is_better_than_every_fixed_mask_and_its_start():
    """The training masks are on the left and the validation mask on the right: the full mask is the best fixed one."""
    left, right = columns(0, 2), columns(2, 4)
    result = assess(right, ([left], [right]))
    assert (result["learned"], result["score"], result["trivial"]) == (True, 1.0, pytest.approx(2 / 3))
    assert result["trivial_prediction"] == "every pixel is foreground"
    equal = assess(right, ([left], [right]), start=right)
    assert (equal["learned"], equal["start"]) == (False, 1.0), "the initial weights are as good"


def test_scores_are_means_over_the_sites_with_validation_images_and_the_mean_mask_is_each_site_s_own():
    """The mean masks of A and B fit their own site only; of C, which has no validation images, nothing counts."""
    left, right = columns(0, 2), columns(2, 4)
    result = assess(left, ([left], [left]), ([right], [right]), ([NONE], []))
    assert (result["score"], result["trivial"]) == (0.5, 1.0)


def test_without_validation_images_the_training_images_are_scored_and_named():
    left = columns(0, 2)
    result = assess(left, ([left, columns(2, 4)], []))
    assert (result["images"], result["score"], result["learned"]) == ("training", 0.5, False)


def test_the_mean_mask_has_the_threshold_with_the_best_dice():
    """Column 0 is foreground in 3 of 3 slices, column 1 in 2, column 2 in 1: without column 2, Dice is best."""
    stack = torch.stack([columns(0, 3), columns(0, 2), columns(0, 1)])
    assert torch.equal(mean_masks(stack, torch.arange(3)), columns(0, 2))


def test_one_class_for_all_images_is_the_trivial_prediction_of_a_classification():
    """Three images of class a and one of b: accuracy 0.75 and 0.25; no image is read."""
    task = Classification(("a", "b"), 1, 8)
    samples = task.prepare([Case("A", str(k), None, label=label) for k, label in enumerate([0, 0, 1, 0])], None)
    assert task.trivial_scores(samples, samples) == {"every image is 'a'": 0.75, "every image is 'b'": 0.25}
    (row,) = task.evaluate_trivial("every image is 'b'", [samples], None, [Case("U", "x", None, label=0)], "unseen")
    assert (row["label"], row["p_a"], row["p_b"]) == ("a", 0.0, 1.0)


class Stored:
    """A dataset of blank images with these masks, by the name of the case."""

    ratio_structures = None

    def __init__(self, **masks):
        self.masks = masks

    def load(self, case):
        image = MetaTensor(torch.zeros(1, SIDE, SIDE, 1))
        return Volume(image, MetaTensor(self.masks[case.name][..., None].byte()), None)


@pytest.mark.parametrize(
    ("prediction", "dice"),
    [
        ("no pixel is foreground", 0.0),
        ("every pixel is foreground", 2 * 8 / (16 + 8)),  # the organ is the two left columns
        ("the mean mask of the training images", 2 * 8 / (12 + 8)),  # three columns at two of three sites
    ],
)
def test_the_prediction_that_ignores_the_image_is_scored_on_the_unseen_and_on_the_validation_site(prediction, dice):
    sites = experiment(([columns(0, 3)], []), ([columns(0, 3)], []), ([columns(0, 1)], []))
    sites.dataset, sites.unseen = Stored(a=columns(0, 2), v=WHOLE), {"U": [Case("U", "a", None)], "none": []}
    sites.validation_site = SimpleNamespace(name="V")
    sites.splits = {"V": SimpleNamespace(validation=[Case("V", "v", None)])}
    result = score_trivial(sites, prediction)
    assert result["prediction"] == prediction and result.keys() == {"prediction", "scores"}
    of_sites = [line for line in result["scores"] if line["site"] != "average" and line["metric"] == "dice"]
    assert [(line["role"], line["site"], line["structure"]) for line in of_sites] == [
        ("unseen", "U", "organ"),
        ("validation", "V", "organ"),
    ]
    assert of_sites[0]["mean"] == pytest.approx(100 * dice)
    sites.unseen, sites.validation_site = {}, None
    assert score_trivial(sites, prediction) == {"prediction": prediction, "scores": []}
