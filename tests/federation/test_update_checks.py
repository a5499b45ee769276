import pytest
import torch

from medfed.federation.message import Message, failed_reply
from medfed.federation.reply_checks import Expected
from medfed.federation.update_checks import find_failing_sites, validate_replies

WEIGHTS = {"w": torch.zeros(2, 3), "norm.running_mean": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(0)}
FACTS = {"examples": 10, "steps": 3, "loss": 0.5}


def update(size=1.0, tensors=None, drop=(), **facts):
    weights = {n: e + size if e.is_floating_point() else e + 1 for n, e in WEIGHTS.items() if n not in drop}
    return Message("train", weights, tensors or {}, {**FACTS, **facts})


def judged(answers, kind="train", asked=None, **expected):
    asked = dict.fromkeys(asked or answers, Message(kind))
    left, rejected = validate_replies(
        asked,
        answers,
        Expected(kind, 4, WEIGHTS, expected.pop("examples", {}), frozenset({"w"}), **expected),
    )
    return sorted(left), {one.site: one.reason for one in rejected}


def share(**tensors):
    return Message("share", tensors=tensors)


def test_good_answers_pass_as_they_are():
    answers = {"a": update(), "b": update(2.0)}
    left, rejected = validate_replies(answers, answers, Expected("train", 4, WEIGHTS, {"a": 10}, frozenset({"w"})))
    assert left == answers and rejected == []


def test_a_tensor_may_have_another_first_dimension_at_each_site():
    """One window an image, one prototype a class; and a site may share nothing, or a name that others do not."""
    assert judged({"a": share(windows=torch.ones(10, 1, 25)), "b": share(windows=torch.ones(3, 1, 25)), "c": share(),
                   "d": share(other=torch.ones(4))}, "share") == (["a", "b", "c", "d"], {})  # fmt: skip


@pytest.mark.parametrize("odd", [torch.ones(4, 3, 25), torch.ones(4, 1, 25).double(), torch.ones(4, 25),
                                 torch.ones(())])  # fmt: skip
def test_a_tensor_unlike_that_of_most_sites_is_odd(odd):
    good = torch.ones(10, 1, 25)
    left, rejected = judged({"a": share(x=good), "b": share(x=odd), "c": share(x=good)}, "share")
    assert left == ["a", "c"] and rejected["b"].startswith("holds 'x' as")
    assert rejected["b"].endswith("unlike that of other sites")


def test_of_two_that_differ_nobody_knows_whose_is_odd():
    left, rejected = judged({"a": share(x=torch.ones(4, 2)), "b": share(x=torch.ones(4, 3))}, "share")
    assert left == [] and set(rejected) == {"a", "b"}


@pytest.mark.parametrize("name", ["w", "control/w", "0/change/w"])
def test_a_tensor_that_is_named_like_an_entry_has_its_shape(name):
    left, rejected = judged({site: update(tensors={name: torch.ones(n, 3)}) for site, n in (("a", 1), ("b", 2))})
    assert left == ["b"]
    assert f"holds '{name}' as (1, 3) float32, but that entry of the network is (2, 3)" in rejected["a"]


def test_entries_that_no_site_sends_stay_at_the_sites():
    local = ("norm.running_mean", "norm.num_batches_tracked")
    answers = {site: update(drop=local) for site in "abc"}
    assert judged(answers) == (["a", "b", "c"], {})
    left, rejected = judged({**answers, "b": update()})
    assert left == ["a", "c"] and "2 entries are unknown" in rejected["b"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64,
                                   torch.uint8, torch.bool])  # fmt: skip
def test_tensors_of_all_dtypes_of_numbers_pass_empty_ones_too(dtype):
    assert judged({"a": share(x=torch.ones(3, dtype=dtype), y=torch.ones(0, dtype=dtype))}, "share")[1] == {}


@pytest.mark.parametrize(("tensors", "reason"), [
    ({"x": torch.tensor([1.0, float("nan"), 2.0])}, "is not finite (first in 'x')"),
    ({"x": torch.tensor(float("-inf"), dtype=torch.float16)}, "is not finite (first in 'x')"),
    ({"x": torch.tensor(-2e18)}, "is too large to compute with (2e+18 in 'x')"),
    ({"x": torch.tensor(-(2**63))}, "is too large to compute with (9e+18 in 'x')"),
    ({"x": torch.zeros(1).expand(2**33)}, "has 34,359,738,368 bytes, where at most"),
    ({str(i): torch.zeros(0) for i in range(100_001)}, "has 100,001 entries, where at most 100,000 are expected"),
])  # fmt: skip
def test_what_is_shared_is_numbers_and_not_too_many(tensors, reason):
    assert judged({"a": share(**tensors)}, "share")[1]["a"].startswith(reason)


def test_only_what_was_asked_for_is_taken():
    weights, tensors = {"w": torch.zeros(2, 3)}, {"x": torch.zeros(1)}
    assert "holds 1 entries of a network" in judged({"a": Message("share", weights)}, "share")[1]["a"]
    assert "holds 1 entries of a network" in judged({"a": Message("validate", weights)}, "validate")[1]["a"]
    assert "holds 1 tensors" in judged({"a": Message("validate", {}, tensors)}, "validate")[1]["a"]
    assert judged({"a": Message("validate")}, "validate") == (["a"], {})  # it has no validation images


def test_what_did_not_come_is_not_bad():
    asked = dict.fromkeys("abc", Message("train"))
    _, rejected = validate_replies(asked, {"a": failed_reply("its process was killed"), "b": update(loss="?")},
                        Expected("train", 4, WEIGHTS, {}, frozenset({"w"})))  # fmt: skip
    assert {(one.site, one.is_bad) for one in rejected} == {("a", False), ("b", True), ("c", False)}
    assert str(rejected[0]) == "a: its update of round 4 did not come: its process was killed"


@pytest.mark.parametrize(("value", "factor", "gone"), [(10.0, 9.0, True), (10.0, 11.0, False), (-10.0, 9.0, True)])
def test_a_change_is_held_against_the_median(value, factor, gone):
    """Changes of 1, 1 and 10 in every learned element: the last is ten times the median. Statistics do not count."""
    answers = {"a": update(), "b": update(), "c": update(value)}
    assert ("c" in judged(answers, largest_change=factor)[1]) is gone
    answers["c"] = Message("train", {**update().weights, "norm.running_mean": torch.full((3,), 1e6)}, {}, FACTS)
    assert judged(answers, largest_change=factor)[1] == {}


def test_a_change_is_not_judged_of_two_sites_or_where_most_did_not_move():
    assert judged({"a": update(), "b": update(1e9)}, largest_change=2.0)[1] == {}
    assert judged({"a": update(0.0), "b": update(0.0), "c": update()}, largest_change=2.0)[1] == {}
    assert judged({"a": update(), "b": update(), "c": update(1e9)})[1] == {}


def test_a_site_alone_with_which_the_method_fails_is_found():
    def use(answers):
        return [answer.tensors["x"] + 1 for answer in answers.values()]

    answers = {"a": share(x=torch.ones(1)), "b": share()}
    (found,) = find_failing_sites(use, answers, "share", 4)
    assert str(found) == "b: its share of round 4 is nothing that the method can use (KeyError: \"'x'\")"
    assert find_failing_sites(use, {"b": share(), "c": share()}, "share", 4) == []
