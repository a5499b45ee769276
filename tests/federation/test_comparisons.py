"""Replies are compared with the median of the sites: counts, sizes of updates, shared statistics."""

import math
import re
import warnings
from dataclasses import replace

import pytest
import torch
from toy_runs import changing_replies

from medfed.core.errors import UserError
from medfed.federation.checks.comparisons import MAX_MEAN_DISTANCE, MAX_VARIANCE_RATIO
from medfed.federation.checks.expected import Earlier, Expected, range_of
from medfed.federation.checks.measures import change_products, received_ratios
from medfed.federation.checks.notices import NAMED_LAYER_ROUNDS, OPPOSED_ROUNDS
from medfed.federation.checks.replies import check_replies
from medfed.federation.exchange import Exchange
from medfed.federation.image_moments import MOMENTS, RANGES
from medfed.federation.message import Message, State
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.harmofl import HarmoFL
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.densenet import DenseNetwork
from medfed.testing.toy import ToyClassification

SITES = ("east", "north", "south", "west")
FREQUENCIES, STYLES = ELCFS(alpha=0.1, min_patients=1), StableFDG(min_patients=1, stages=(1, 2))
GLOBAL = {
    "w": torch.ones(4, 4),
    "bn.running_mean": torch.zeros(4),
    "bn.running_var": torch.ones(4),
    "bn.num_batches_tracked": torch.tensor(0),
}
TRAIN = Expected("train", 1, GLOBAL, frozenset({"w"}), largest_change=10.0, largest_count=100.0)
SHARE = Expected("share", 1, GLOBAL, frozenset({"w"}), ranges={"windows": (0.0, 1.0), "prototype/": (-5.0, 5.0)})
SHARE_MOMENTS, VALIDATE = replace(SHARE, ranges=RANGES), replace(TRAIN, kind="validate")


def update(w=0.1, mean=0.1, steps=10, examples=10, tensors=None, **entries):
    weights = {**GLOBAL, "w": GLOBAL["w"] + w, "bn.running_mean": GLOBAL["bn.running_mean"] + mean, **entries}
    return Message("train", weights, tensors or {}, {"round": 1, "examples": examples, "steps": steps, "loss": 0.5})


def rejected(replies, expected, earlier=None):
    """Return, by site, why its reply is rejected."""
    return {one.site: one.reason for one in check_replies(replies, replies, expected, earlier or Earlier())[1]}


def with_bad(bad):
    return {"a": update(), "b": update(0.12), "c": update(0.09), "bad": bad}


def share(size):
    return Message("share", tensors={"windows": torch.full((3, 1, 5), size)}, facts={"round": 1})


def test_an_update_more_than_ten_times_the_median_is_an_outlier():
    """A change of all 16 weights by 1.2 has the norm 4.8; the median of the norms 0.36, 0.4, 0.48 and 4.8 is 0.44."""
    outliers = rejected(with_bad(update(1.2)), TRAIN)
    assert outliers.keys() == {"bad"}
    assert outliers["bad"].startswith("changes the weights by 4.8 (L2 norm), but the median of the sites is 0.44")


@pytest.mark.parametrize(("tensors", "group"), [(False, "the weights"), (True, "'change/...'")])
def test_a_site_that_changes_much_more_than_the_others_is_named_after_three_rounds_in_a_row(tensors, group):
    """The median of the changes is 0.11 with the bad one, so that 0.3 is 2.7 times as much, and 0.25 is 2.3 times."""

    def n_notices(sizes, **changes):
        earlier, numbers = Earlier(), []
        for bad in sizes:
            by_site = {"a": 0.1, "b": 0.12, "c": 0.09, "bad": bad}
            replies = {site: update(size) for site, size in by_site.items()}
            if tensors:
                controls = {site: {"change/w": torch.full((4, 4), size)} for site, size in by_site.items()}
                replies = {site: update(1 + size, tensors=controls[site]) for site, size in by_site.items()}
            accepted, _, notices = check_replies(replies, replies, replace(TRAIN, **changes), earlier)
            assert len(accepted) == 4
            assert all(text.startswith(f"bad: changes {group} more than 2.5 times") for text in notices)
            numbers.append(len(notices))
        return numbers

    assert n_notices([0.3, 0.3, 0.3, 0.25]) == [0, 0, 1, 0]
    assert n_notices([0.3, 0.25, 0.3, 0.3]) == n_notices([0.3] * 4, largest_change=None) == [0, 0, 0, 0]


def test_one_weight_far_off_is_an_outlier_though_the_norm_is_not():
    """100 x 100 changes of 0.1 have the norm 10; one change of -5.1 adds little to it, but is 51 times the others."""
    facts, sites = {"steps": 5, "examples": 9, "loss": 0.5}, ("a", "b", "c", "bad")
    replies = {site: Message("train", {"w": torch.full((100, 100), 0.1)}, {}, facts) for site in sites}
    replies["bad"].weights["w"][3, 4] = -5.1
    outliers = rejected(replies, replace(TRAIN, weights={"w": torch.zeros(100, 100)}))
    assert outliers.keys() == {"bad"}
    assert "by 5.1 (largest element), but the median of the sites is 0.1" in outliers["bad"]


LIMITS = [
    # a site with more steps and images may change the weights more, if its images explain its steps
    ({"w": 1.2, "steps": 20, "examples": 20}, {}, False),
    ({"w": 1.2, "steps": 20}, {}, True),
    ({"w": 1.2, "examples": 20}, {}, True),
    ({"w": 1.2, "steps": 5}, {}, True),
    ({"w": 1.2, "steps": 5, "examples": 5}, {}, True),
    ({"w": 10.0, "steps": 1000, "examples": 1000}, {}, False),
    ({"w": 12.0, "steps": 1000, "examples": 1000}, {}, True),
    # received statistics widen the limit at most three times
    ({"w": 29 * 0.11}, {"received": {"bad": 300.0}}, False),
    ({"w": 31 * 0.11}, {"received": {"bad": 300.0}}, True),
]


@pytest.mark.parametrize(("bad", "changes", "is_outlier"), LIMITS)
def test_the_limit_of_a_change_depends_on_steps_images_and_what_was_received(bad, changes, is_outlier):
    outliers = rejected(with_bad(update(**bad)), replace(TRAIN, **changes))
    assert outliers.keys() == ({"bad"} if is_outlier else set())


def test_means_of_one_layer_far_from_the_other_sites_are_outliers():
    """The median variance is 1, so that a mean which is x larger is x standard deviations away."""
    near, far = (update(mean=0.1 + factor * MAX_MEAN_DISTANCE) for factor in (0.99, 1.01))
    assert rejected(with_bad(near), TRAIN) == {}
    outliers = rejected(with_bad(far), TRAIN)
    assert outliers.keys() == {"bad"} and "holds means beside 'bn.running_var' that are" in outliers["bad"]


def test_means_far_from_sites_that_agree_are_named():
    """The means of the sites are 0.1, 0.1 and 0.1, and those of the bad one are 0.4 standard deviations away."""
    replies = with_bad(update(mean=0.5))
    accepted, _, notices = check_replies(replies, replies, TRAIN, Earlier())
    assert len(accepted) == 4 and [text.partition(":")[0] for text in notices] == ["bad"]
    spread = {site: update(0.1 + index / 100, mean=0.1 * index) for index, site in enumerate("abcd")}
    assert check_replies(spread, spread, TRAIN, Earlier())[2] == []


@pytest.mark.parametrize(("variance", "is_named"), [(2.4, False), (2.6, True), (1 / 2.4, False), (1 / 2.6, True)])
def test_variances_unlike_those_of_the_other_sites_are_named(variance, is_named):
    replies = with_bad(update(**{"bn.running_var": torch.full((4,), variance)}))
    del replies["c"]  # three sites are enough
    accepted, _, notices = check_replies(replies, replies, TRAIN, Earlier())
    assert len(accepted) == 3 and [text.partition(":")[0] for text in notices] == ["bad"] * is_named
    few_steps = with_bad(update(steps=2, examples=2, **{"bn.running_var": torch.full((4,), variance)}))
    assert check_replies(few_steps, few_steps, TRAIN, Earlier())[2] == []


@pytest.mark.parametrize(("statistic", "unusual", "far"), [("variances", 3.0, 4.5), ("means", 0.3, 0.5)])
def test_one_layer_is_named_after_rounds_in_a_row_and_many_layers_or_large_values_at_once(statistic, unusual, far):
    """Honest sites have such variances or means in one layer and one round."""
    ending = {"variances": "running_var", "means": "running_mean"}[statistic]
    honest = {f"bn{index}.running_var": torch.ones(4) for index in range(8)}
    honest |= {f"bn{index}.running_mean": torch.zeros(4) for index in range(8)}
    expected, earlier = replace(TRAIN, weights={**GLOBAL, **honest}), Earlier()

    def n_notices(n_layers, value=unusual):
        changed = {f"bn{index}.{ending}": torch.full((4,), value) for index in range(n_layers)}
        replies = with_bad(update(0.11, **{**honest, **changed}))
        replies |= {site: update(w, **honest) for site, w in (("a", 0.1), ("b", 0.12), ("c", 0.09))}
        notices = check_replies(replies, replies, expected, earlier)[2]
        assert all(text.startswith(f"bad: its running {statistic} are") for text in notices)
        return len(notices)

    assert [n_notices(1) for _ in range(NAMED_LAYER_ROUNDS)] == [0, 0, 1]
    assert [n_notices(n) for n in (0, 1, 1, 0, 1, 3)] == [0, 0, 0, 0, 0, 1]
    assert [n_notices(0), n_notices(1, far)] == [0, 1]


def test_variances_near_zero_in_one_layer_are_outliers():
    """Their sum over all layers hardly changes, but BatchNorm divides by their roots."""
    assert rejected(with_bad(update(**{"bn.running_var": torch.full((4,), 1.01 / MAX_VARIANCE_RATIO)})), TRAIN) == {}
    outliers = rejected(with_bad(update(**{"bn.running_var": torch.full((4,), 0.99 / MAX_VARIANCE_RATIO)})), TRAIN)
    assert outliers.keys() == {"bad"}
    assert outliers["bad"].startswith(
        "holds variances in 'bn.running_var' that are 0.198 times the median of the sites"
    )
    few_steps = update(steps=2, examples=2, **{"bn.running_var": torch.full((4,), 1.01 / 25)})
    assert rejected(with_bad(few_steps), TRAIN) == {}, "a fifth of the steps: a factor of 25 is allowed"
    sizes = {"a": 1.0, "b": 1.2, "c": 0.9, "bad": 0.0}  # of another model
    own = {site: update(tensors=variance(size, "domain/")) for site, size in sizes.items()}
    outliers = rejected(own, TRAIN)
    assert outliers.keys() == {"bad"} and "holds variances in 'domain/bn.running_var'" in outliers["bad"]


def test_large_statistics_widen_the_limits_of_their_receivers_only():
    expected = replace(TRAIN, received={"a": 4.0, "b": 4.0})
    assert rejected(with_bad(update(1.2)), expected).keys() == {"bad"}
    replies = {**with_bad(update()), "a": update(1.2), "b": update(mean=9 * MAX_MEAN_DISTANCE)}
    assert rejected(replies, expected) == {} and rejected(replies, TRAIN).keys() == {"a", "b"}


def test_what_a_site_received_is_compared_with_what_the_median_site_received():
    """The size is the root mean square or the largest element; that of b is only one element, and negative."""
    requests = {
        site: Message("train", tensors={"mean": torch.full((2, 4), size), "loss": torch.tensor([size**9])})
        for site, size in (("a", 2.0), ("b", 2.0), ("c", 4.0), ("d", 2.0))
    }
    requests["b"].tensors["mean"][1, 2] = -120.0
    assert received_ratios(requests, TRAIN) == {"a": 1.0, "b": 60.0, "c": 2.0, "d": 1.0}
    assert received_ratios({"a": requests["a"], "b": requests["b"]}, TRAIN) == {"a": 1.0, "b": 60.0}
    zero = {site: share(size) for site, size in (("a", 0.0), ("b", 0.0), ("c", 0.5))}
    assert received_ratios(zero, TRAIN) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_a_site_that_decides_the_average_is_named_once():
    class Recorded:
        def sites(self):
            return ["a", "b", "bad", "c"]

        def exchange(self, kind, messages):
            return with_bad(update(0.11, steps=90, examples=90))

    exchange, state = (
        Exchange(Recorded(), Federation(largest_change=None)),
        State(0, dict(GLOBAL), parameters=frozenset({"w"})),
    )
    requests = dict.fromkeys("abc", Message("train", dict(GLOBAL), {}, {"round": 1, "last": 0}))
    requests["bad"] = requests["a"]
    with pytest.warns(UserWarning, match="^bad: reports more than 67% of all training images of a round") as warned:
        exchange.ask(requests, state)
        exchange.ask(requests, state)
    assert len(warned) == 1


def test_shared_counts_are_compared_and_the_largest_of_several_counts():
    counts = {site: Message("share", tensors={"0/examples": torch.tensor([n])}) for site, n in zip("abc", (3, 301, 3))}
    assert rejected(counts, SHARE).keys() == set()
    assert rejected(counts, replace(SHARE, largest_count=100.0)).keys() == {"b"}
    others = {site: update(tensors={"0/examples": torch.tensor([10])}) for site in "abc"}
    hidden = update(tensors={"0/examples": torch.tensor([10**7])})
    assert rejected({**others, "bad": hidden}, TRAIN)["bad"].startswith("reports 10,000,000 training images")


def test_controls_are_compared_too():
    sizes = {"a": 0.1, "b": 0.2, "c": 0.1, "bad": 30.0}
    controls = {site: update(tensors={"change/w": torch.full((4, 4), size)}) for site, size in sizes.items()}
    outliers = rejected(controls, TRAIN)
    assert outliers.keys() == {"bad"} and outliers["bad"].startswith("changes 'change/...' by 120 (L2 norm)")


def test_sizes_are_not_compared_of_two_sites_without_a_limit_or_with_a_median_of_zero():
    for size in (1e5, -1e5):
        replies = with_bad(update(size))
        assert rejected(replies, TRAIN).keys() == {"bad"}
        two = {"a": replies["a"], "bad": replies["bad"]}
        assert rejected(two, replace(TRAIN, largest_change=1.5)) == {}, "the larger one is twice their median"
        assert rejected(replies, replace(TRAIN, largest_change=None)) == {}
    assert rejected({**{site: update(0.0) for site in "abc"}, "bad": update(1.0)}, TRAIN) == {}


@pytest.mark.parametrize(("fact", "noun"), [("examples", "training images"), ("steps", "training steps")])
def test_a_count_above_a_hundred_times_the_other_sites_is_an_outlier(fact, noun):
    assert rejected({"a": update(), "b": update(**{fact: 1000}), "c": update()}, TRAIN) == {}
    outliers = rejected({"a": update(), "b": update(**{fact: 1001}), "c": update()}, TRAIN)
    assert outliers == {
        "b": f"reports 1,001 {noun}, but the median of the other sites is 10 and "
        "federation.largest_count allows 100 times the median"
    }
    assert rejected({"b": update(**{fact: 1001})}, TRAIN) == {}
    two = {"a": update(), "b": update(**{fact: 1001})}
    accepted, _, notices = check_replies(two, two, TRAIN, Earlier())
    assert len(accepted) == 2, "two sites do not show which number is wrong"
    assert any("b and a: report very different numbers" in text for text in notices) == (fact == "examples")


def test_a_site_that_leaves_out_a_tensor_of_an_entry_does_not_switch_the_comparison_off():
    """Otherwise the changes of a group that one site sends in part could not be compared, and anything would pass."""
    whole = {
        f"change/{name}": torch.full_like(GLOBAL[name], 0.1) for name in GLOBAL if GLOBAL[name].is_floating_point()
    }
    replies = {site: update(tensors=whole) for site in "abc"}
    missing = min(whole)
    replies["bad"] = update(tensors={name: 1e4 * entry for name, entry in whole.items() if name != missing})
    assert rejected(replies, TRAIN) == {"bad": f"lacks '{missing}', unlike most sites"}


def test_tensors_that_two_of_four_sites_send_are_not_compared():
    tensors = {"domain/bn.running_var": torch.ones(4), "change/w": torch.full((4, 4), 0.1)}
    larger = {name: 100 * tensor for name, tensor in tensors.items()}
    replies = {"a": update(), "b": update(0.12), "c": update(0.09, tensors=tensors), "d": update(tensors=larger)}
    assert rejected(replies, TRAIN) == {}


def test_an_entry_stays_at_the_sites_if_fewer_than_half_of_them_send_it():
    without = update(0.11)
    del without.weights["bn.running_var"]
    expected = replace(TRAIN, local_keys=None)
    replies = {"a": update(), "b": update(0.12), "c": without, "d": without}
    assert rejected(replies, expected).keys() == {"c", "d"}
    assert rejected({**replies, "b": without}, expected).keys() == {"a"}


def test_statistics_far_from_the_median_are_named_and_of_at_least_four_sites_rejected():
    replies = {"a": share(0.01), "b": share(0.012), "c": share(0.009), "large": share(0.06), "zero": share(0.0)}
    accepted, refused, notices = check_replies(replies, replies, SHARE, Earlier())
    assert len(accepted) == 5 and refused == []
    assert [text.partition(" (root")[0] for text in notices] == [
        "large: its share holds 'windows' more than 4 times as large as the median of the sites",
        "zero: its share holds 'windows' less than 0.25 times as large as the median of the sites",
    ]
    replies = {"a": share(0.01), "b": share(0.012), "c": share(0.009), "bad": share(0.5)}
    assert rejected(replies, SHARE).keys() == {"bad"}
    del replies["c"]
    accepted, refused, notices = check_replies(replies, replies, SHARE, Earlier())
    assert len(accepted) == 3 and refused == [] and [text.partition(":")[0] for text in notices] == ["bad"]
    zeros = {**dict.fromkeys("abc", share(0.0)), "d": share(0.5)}
    assert len(check_replies(zeros, zeros, SHARE, Earlier())[0]) == 4, "a median of zero has no multiple"


def test_an_update_of_an_earlier_round_is_rejected():
    earlier = Earlier()
    assert rejected(with_bad(update()), TRAIN, earlier) == {}
    later = replace(TRAIN, round=2, weights={**GLOBAL, "w": GLOBAL["w"] + 0.05})
    replies = {site: reply_of_round_2(0.2 + index / 100) for index, site in enumerate(("a", "b", "c"))}
    replies["bad"] = replace(update(), facts={**update().facts, "round": 2})
    assert rejected({**replies, "bad": reply_of_round_2(0.19)}, later) == {}
    assert rejected(replies, later, earlier) == {
        "bad": "has the same weights as its update of round 1, although the model has changed"
    }


def reply_of_round_2(w):
    return replace(update(w), facts={**update().facts, "round": 2})


def test_unchanged_and_equal_weights_are_named():
    replies = {"a": update(0.1), "b": update(0.1), "c": update(0.09), "idle": update(0.0)}
    earlier = Earlier()
    accepted, _, notices = check_replies(replies, replies, TRAIN, earlier)
    assert set(accepted) == set(replies)
    assert [text.partition(":")[0] for text in notices] == ["idle", "a and b"]
    assert rejected(replies, TRAIN, earlier) == {}, "a repeated request has the same reply"


@pytest.mark.parametrize("kind", ["weights", "control"])
def test_a_change_that_points_against_the_others_is_named_after_three_rounds(kind):
    """The others change all weights upwards, the bad site downwards: the cosine is -1."""
    signs, earlier, named = {"a": 0.1, "b": 0.12, "c": 0.09, "bad": -0.1}, Earlier(), []
    for number in range(OPPOSED_ROUNDS):
        replies = {
            site: update(number / 100 + (sign if kind == "weights" else 0.1 + index / 100))
            for index, (site, sign) in enumerate(signs.items())
        }
        if kind == "control":
            tensors = {site: {"change/w": torch.full((4, 4), sign)} for site, sign in signs.items()}
            replies = {site: replace(reply, tensors=tensors[site]) for site, reply in replies.items()}
        accepted, refused, notices = check_replies(replies, replies, TRAIN, earlier)
        assert len(accepted) == 4 and not refused
        named.append([text.partition(":")[0] for text in notices])
    assert named == [[]] * (OPPOSED_ROUNDS - 1) + [["bad"]]


def counted(number, name="examples"):
    return Message("share", facts={"round": 1, name: number})


def moments(number):
    return Message("share", tensors={MOMENTS: torch.full((2, 3), number).double()}, facts={"round": 1, "pixels": 9})


def scored(score):
    return Message("validate", facts={"score": score, "boundary_distance": 1.9})


def with_loss(loss):
    return replace(update(), facts={**update().facts, "loss": loss})


def variance(size, beginning=""):
    return {f"{beginning}bn.running_var": torch.full((4,), size)}


@pytest.mark.parametrize(
    ("expected", "reply", "reason"),
    [
        *((SHARE, counted(count), "training images, but a whole number from 1") for count in ("abc", [3], 0, True)),
        *((SHARE, counted(n, "pixels"), "pixels, but a whole number from 1") for n in (0, -1, 1.5, 10**16)),
        (SHARE, share(-0.01), "contains the number -0.01 in 'windows', but numbers from 0 to 1 are expected"),
        (SHARE, share(1.5), "contains the number 1.5 in 'windows'"),
        (SHARE, Message("share", tensors={"prototype/2": torch.full((3,), 6.0)}), "the number 6 in 'prototype/2'"),
        (SHARE_MOMENTS, moments(-0.5), "contains the number -0.5 in 'image_moments', but numbers from 0"),
        (SHARE_MOMENTS, moments(20.0), "contains the number 20 in 'image_moments', but numbers from 0"),
        (VALIDATE, scored(1e17), r"reports the score 1e\+17, but a number from 0 to 1 is expected"),
        (VALIDATE, scored(-7.0), "-7.0"),
        (VALIDATE, scored(1.0001), "the score 1.0001"),
        *((VALIDATE, scored(score), "for 'score', but a finite") for score in (math.nan, math.inf, "good", None, True)),
        *(
            (TRAIN, with_loss(loss), r"the loss .*, but a number from -1e\+06 to 1e\+06")
            for loss in (-1e17, 1.1e6, -2e6)
        ),
        (TRAIN, update(**{"bn.num_batches_tracked": torch.tensor(-7)}), "the number -7 in 'bn.num_batches_tracked'"),
        (TRAIN, update(1e7), r"contains the weight 1e\+07 in 'w'"),
        (TRAIN, update(tensors={"change/w": torch.full((4, 4), -1e7)}), r"contains the weight 1e\+07 in 'change/w'"),
        (VALIDATE, Message("validate", facts=dict.fromkeys(map(str, range(1001)), 1)), "reports 1,001 numbers"),
        (TRAIN, update(**variance(-1.0)), "the number -1 in 'bn.running_var', but numbers at least 0 are expected"),
        (TRAIN, update(tensors=variance(-1.0, "domain/")), "the number -1 in 'domain/bn.running_var', but numbers at"),
    ],
)
def test_a_number_that_no_honest_site_sends_is_refused(expected, reply, reason):
    """Intensities are in [0, 1], and so are their means and variances. A tensor has the limits of its entry."""
    assert re.search(reason, rejected({"a": reply}, expected)["a"])


def test_usual_numbers_are_accepted():
    assert rejected({"a": replace(moments(0.5), facts={"round": 1, "pixels": 10**9})}, SHARE_MOMENTS) == {}
    for score in (0, 0.5, 1.0):
        assert rejected({"a": scored(score)}, VALIDATE) == {}
    assert rejected({"a": with_loss(-0.9)}, TRAIN) == {}
    tensors = {**variance(1.0, "domain/"), "change/w": torch.zeros(4, 4)}
    assert rejected({"a": update(tensors=tensors)}, TRAIN) == {}


@pytest.mark.parametrize("shared", [update(), Message("share", tensors={"0/examples": torch.tensor([3, 10])})])
def test_a_site_reports_the_same_number_of_images_in_every_update_as_it_shared(shared):
    """SCAFFOLD weights the controls by the numbers that the sites share before round 1; scores change no number."""
    earlier = Earlier()
    assert rejected({"a": shared}, replace(TRAIN, kind=shared.kind), earlier) == {}
    assert rejected({"a": Message("validate", facts={"examples": 500})}, VALIDATE, earlier) == {
        "a": "reports 'examples', which was not requested"
    }
    assert rejected({"a": update(0.3, examples=30)}, TRAIN, earlier) == {
        "a": "reports 30 training images, but 10 in an earlier round"
    }
    assert rejected({"a": update(0.2)}, TRAIN, earlier) == {}


def test_a_reply_that_was_not_requested_may_have_any_facts():
    (one,) = check_replies({}, {"a": Message("train", facts={"why": 5})}, TRAIN, Earlier())[1]
    assert one.reason == "was not requested"


def test_large_layers_are_compared_in_parts():
    """The products of 3 x 70,000 elements are those of the whole."""
    sent, start = [{"w": torch.rand(3, 70_000)} for _ in range(2)], {"w": torch.rand(3, 70_000)}
    products, largest = change_products(sent, start)
    whole = torch.stack([(one["w"].double() - start["w"].double()).flatten() for one in sent])
    torch.testing.assert_close(products, whole @ whole.T)
    torch.testing.assert_close(largest, whole.abs().amax(dim=1))


def test_the_number_of_steps_follows_from_the_plan():
    """10 images in batches of 4 are 3 steps in an epoch, and 3 images are one step."""
    plan = replace(TRAIN, batch_size=4, local_epochs=2)
    assert rejected({"a": update(steps=6, examples=10), "b": update(steps=2, examples=3)}, plan) == {}
    wrong = rejected({"a": update(steps=60, examples=10)}, plan)
    assert "but 10 images in batches of 4 give 6 steps in 2 epochs" in wrong["a"]


def test_a_range_may_be_that_of_all_names_with_a_beginning():
    assert range_of("prototype/7", SHARE.ranges) == (-5.0, 5.0)
    assert range_of("prototype", SHARE.ranges) is None


def small_toy() -> ToyClassification:
    """Return a federation whose sites do two training steps in a round, on small images."""
    return ToyClassification(DenseNetwork(4, 2, (1, 1)), image_side=16, n_images=6)


def two_rounds(method, kind, change, toy=None):
    toy, settings = toy or small_toy(), Federation(rounds=2, on_bad_update="drop", quorum=2)

    def poison(of, messages, replies):
        return replies | {site: change(reply) for site, reply in replies.items() if (of, site) == (kind, "south")}

    engine = changing_replies(toy.engine(method, SITES), poison)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        *_, last = federate(method, engine, toy.start(method), settings, 0)
    return last, [str(one.message) for one in warned if one.category is UserWarning]


def times(factor):
    return lambda reply: replace(
        reply, tensors={name: (tensor * factor).to(tensor.dtype) for name, tensor in reply.tensors.items()}
    )


def one_huge_weight(reply):
    name = next(iter(reply.weights))
    entry = reply.weights[name].clone()
    entry.view(-1)[0] = 1e5
    return replace(reply, weights={**reply.weights, name: entry})


def doubled(reply):
    return replace(reply, tensors={name: torch.cat([one, one]) for name, one in reply.tensors.items()})


@pytest.mark.parametrize(
    ("method", "kind", "change"),
    [
        *((method, "train", one_huge_weight) for method in (FedAvg(), SCAFFOLD())),
        *((method, "share", times(factor)) for method in (FREQUENCIES, STYLES) for factor in (1e6, 1e17, -1e17)),
        *((method, "share", doubled) for method in (SCAFFOLD(), HarmoFL(min_patients=1), STYLES)),
    ],
)
def test_only_the_sender_of_a_bad_reply_is_rejected(method, kind, change):
    last, warned = two_rounds(method, kind, change)
    assert {text.partition(":")[0] for text in warned if "continues without it" in text} == {"south"}
    assert {site for site, number in last.state.took_part.items() if number == 2} == {"east", "north", "west"}


def one_channel(reply):
    """Raise the first channel of a style to nine times its root mean square."""
    tensors = {name: tensor.clone() for name, tensor in reply.tensors.items()}
    for tensor in tensors.values():
        tensor[0] = 9 * float(tensor.square().mean().sqrt())
    return replace(reply, tensors=tensors)


@pytest.mark.parametrize("change", [times(4.0), times(9.0), one_channel], ids=["x4", "x9", "one channel"])
def test_a_large_style_that_is_not_named_rejects_no_other_site(change):
    """With a smaller network, the large style would not change the updates of the other sites enough to tell."""
    last, _ = two_rounds(STYLES, "share", change, ToyClassification())
    assert {last.state.took_part[site] for site in ("east", "north", "west")} == {2}


def test_unusual_statistics_are_named_once_and_used():
    last, warned = two_rounds(STYLES, "share", times(6.0))
    named = [text for text in warned if "times as large as the median" in text]
    assert named and all(text.startswith("south: its share holds '") for text in named)
    assert set(last.state.took_part.values()) == {2}, "no site is rejected for what it received from south"


def infinite(reply):
    return replace(reply, weights={n: e * math.inf if e.is_floating_point() else e for n, e in reply.weights.items()})


def test_sites_that_all_diverge_are_not_blamed_one_by_one():
    toy, settings = small_toy(), Federation(rounds=1, on_bad_update="drop", quorum=1)
    diverging = lambda kind, _, replies: {  # noqa: E731
        site: infinite(reply) if kind == "train" and site != "west" else reply for site, reply in replies.items()
    }
    engine = changing_replies(toy.engine(FedAvg(), SITES), diverging)
    sentence = "^round 1: the replies of 3 of 4 sites are not .*global weights or the settings"
    with pytest.raises(UserError, match=sentence):
        list(federate(FedAvg(), engine, toy.start(FedAvg()), settings, 0))


def test_with_two_sites_a_notice_says_once_that_sizes_are_not_compared_also_after_resuming():
    toy, sites, settings = small_toy(), ("east", "west"), Federation(rounds=2)
    with pytest.warns(UserWarning) as before:
        first, _ = federate(FedAvg(), toy.engine(FedAvg(), sites), toy.start(FedAvg()), settings, 0)
    with pytest.warns(UserWarning) as after:
        list(federate(FedAvg(), toy.engine(FedAvg(), sites), first.state, settings, 0))
    texts = [[str(one.message) for one in warned] for warned in (before, after)]
    assert set(texts[0]) == set(texts[1])
    (sentence,) = (text for text in texts[0] if "largest_change" in text)
    assert "federation.largest_change needs 3 sites in a round; 2 sent a valid update" in sentence
