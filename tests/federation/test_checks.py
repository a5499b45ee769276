import pytest
import torch

from medfed.federation.checks.expected import Earlier, Expected
from medfed.federation.checks.replies import check_replies, find_failing_sites
from medfed.federation.ledger import message_rows
from medfed.federation.message import Message, failed_reply

WEIGHTS = {"w": torch.zeros(2, 3), "norm.running_mean": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(0)}
FACTS = {"examples": 10, "steps": 3, "loss": 0.5}


def update(size=1.0, tensors=None, drop=(), **facts):
    weights = {n: e + size if e.is_floating_point() else e + 1 for n, e in WEIGHTS.items() if n not in drop}
    return Message("train", weights, tensors or {}, {**FACTS, **facts})


def checked(replies, kind="train", requests=None, **expected):
    requests = dict.fromkeys(requests or replies, Message(kind))
    accepted, rejected, _ = check_replies(
        requests, replies, Expected(kind, 4, WEIGHTS, frozenset({"w"}), **expected), Earlier()
    )
    return sorted(accepted), {one.site: one.reason for one in rejected}


def share(**tensors):
    return Message("share", tensors=tensors)


def test_a_tensor_may_have_another_first_dimension_at_each_site():
    """There is one window per image; a site may share nothing. Whether a tensor has rows, the method declares."""
    replies = {site: share(windows=torch.ones(n, 1, 25)) for site, n in (("a", 10), ("b", 3), ("d", 10))}
    replies["c"] = share()
    assert checked(replies, "share", row_tensors=frozenset({"windows"})) == (["a", "b", "c", "d"], {})
    assert checked(replies, "share")[0] == ["a", "c", "d"]
    replies["b"] = share(windows=torch.ones(0, 1, 25))
    reason = checked(replies, "share", row_tensors=frozenset({"windows"}))[1]["b"]
    assert reason == "holds 'windows' as (0, 1, 25) float32, but at least one row is expected"


def test_a_share_with_other_names_than_most_sites_is_rejected():
    replies = {"a": share(x=torch.ones(4)), "b": share(x=torch.ones(4)), "c": share(), "d": share(y=torch.ones(4))}
    accepted, rejected = checked(replies, "share")
    assert accepted == ["a", "b", "c"]
    assert rejected == {"d": "holds ['y'], but at most half of the sites sent these"}


@pytest.mark.parametrize(
    "tensor", [torch.ones(4, 3, 25), torch.ones(4, 1, 25).double(), torch.ones(4, 25), torch.ones(())]
)
def test_a_tensor_unlike_that_of_most_sites_is_rejected(tensor):
    good = torch.ones(10, 1, 25)
    accepted, rejected = checked({"a": share(x=good), "b": share(x=tensor), "c": share(x=good)}, "share")
    assert accepted == ["a", "c"] and rejected["b"].startswith("holds 'x' as")
    assert rejected["b"].endswith("but at most half of the sites sent that form")


def test_two_different_tensors_are_both_rejected():
    accepted, rejected = checked({"a": share(x=torch.ones(4, 2)), "b": share(x=torch.ones(4, 3))}, "share")
    assert accepted == [] and set(rejected) == {"a", "b"}
    accepted, rejected = checked({"a": update(drop=WEIGHTS)}, local_keys=frozenset())
    assert accepted == [] and "lacks expected entries (3)" in rejected["a"], "nor is an update left to compare"


@pytest.mark.parametrize("name", ["w", "control/w", "0/change/w"])
@pytest.mark.parametrize(
    ("bad", "form"), [(torch.ones(1, 3), "(1, 3) float32"), (torch.ones(2, 3).double(), "(2, 3) float64")]
)
def test_a_tensor_that_is_named_after_an_entry_must_have_its_shape_and_dtype(name, bad, form):
    accepted, rejected = checked({"a": update(tensors={name: bad}), "b": update(tensors={name: torch.ones(2, 3)})})
    assert accepted == ["b"]
    assert rejected["a"] == f"holds '{name}' as {form}, but the network's entry is (2, 3) float32"


@pytest.mark.parametrize("liars", ["b", "ab"], ids=["one of two", "two of three"])
def test_the_plan_decides_which_entries_an_update_has(liars):
    """A majority of updates with entries that stay at the sites does not make them expected."""
    local = frozenset({"norm.running_mean", "norm.num_batches_tracked"})
    replies = {**{site: update() for site in liars}, "honest": update(drop=local)}
    accepted, rejected = checked(replies, local_keys=local)
    assert accepted == ["honest"] and all("unknown entries (2)" in rejected[site] for site in liars)
    assert checked({"a": update(), "b": update(drop=local)}, local_keys=frozenset())[0] == ["a"]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_of_all_numeric_dtypes_are_accepted_also_empty_ones(dtype):
    assert checked({"a": share(x=torch.ones(3, dtype=dtype), y=torch.ones(0, dtype=dtype))}, "share")[1] == {}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"x": torch.tensor([1.0, float("nan"), 2.0])}, "is not finite (first in 'x')"),
        ({"x": torch.tensor(float("-inf"), dtype=torch.float16)}, "is not finite (first in 'x')"),
        ({"x": torch.tensor(-2e18)}, "contains the number 2e+18 in 'x'; at most 1e+18 is allowed"),
        ({"x": torch.tensor(-(2**63))}, "contains the number 9e+18 in 'x'; at most 1e+18 is allowed"),
        ({"x": torch.zeros(1).expand(2**33)}, "has 34,359,738,368 bytes in 1 entries, but at most"),
        (dict.fromkeys(map(str, range(100_001)), torch.zeros(0)), "has 0 bytes in 100,001 entries, but at most"),
    ],
)
def test_shared_tensors_must_be_finite_and_not_too_many(tensors, reason):
    assert checked({"a": share(**tensors)}, "share")[1]["a"].startswith(reason)


def test_weights_or_tensors_that_were_not_requested_are_rejected():
    weights, tensors = {"w": torch.zeros(2, 3)}, {"x": torch.zeros(1)}
    assert "holds 1 entries of a network" in checked({"a": Message("share", weights)}, "share")[1]["a"]
    assert "holds 1 entries of a network" in checked({"a": Message("validate", weights)}, "validate")[1]["a"]
    assert "holds 1 tensors" in checked({"a": Message("validate", {}, tensors)}, "validate")[1]["a"]
    assert checked({"a": Message("validate")}, "validate") == (["a"], {})  # it has no validation images


def test_a_missing_reply_is_not_a_bad_reply():
    requests = dict.fromkeys("abc", Message("train"))
    replies = {"a": failed_reply("its process was killed"), "b": update(loss="?")}
    _, rejected, _ = check_replies(requests, replies, Expected("train", 4, WEIGHTS, frozenset({"w"})), Earlier())
    assert {(one.site, one.is_bad) for one in rejected} == {("a", False), ("b", True), ("c", False)}
    assert str(rejected[0]) == "a: its update of round 4 was not received: its process was killed"


def test_a_site_whose_reply_alone_makes_the_method_fail_is_found():
    def use(replies):
        return [reply.tensors["x"] + 1 for reply in replies.values()]

    replies = {"a": share(x=torch.ones(1)), "b": share()}
    (rejection,) = find_failing_sites(use, replies, "share", 4)
    assert str(rejection) == "b: its share of round 4 cannot be used by the method (KeyError: \"'x'\")"
    assert find_failing_sites(use, {"b": share(), "c": share()}, "share", 4) == []


@pytest.mark.parametrize(
    "fields",
    [
        *({"facts": facts} for facts in ([], None, {3: 1}, {"x": torch.ones(1)}, {"round": 4.0}, {"x": 10**5000})),
        {"kind": 3},
        {"kind": "failed"},
        {"kind": "failed", "facts": {"why": None}},
        {"weights": None},
        {"weights": {"w": 1.0}},
        {"weights": {3: torch.ones(1)}},
        {"tensors": {"x" * 2000: torch.ones(1)}},
        {"weights_digest": 3},
    ],
)
def test_a_reply_that_cannot_be_read_is_rejected_with_its_reason_and_listed_in_the_ledger(fields):
    bad = Message(**{"kind": "train", **fields})
    accepted, rejected = checked({"a": update(), "b": bad})
    assert accepted == ["a"] and rejected["b"].startswith("was not received: its reply cannot be read: ")
    (row,) = message_rows(4, "up", {"b": bad})
    assert (row["kind"], row["name"]) == ("failed", "why")


def test_a_site_without_which_the_others_work_is_found_if_each_reply_works_alone():
    def step(replies):
        return torch.stack([reply.tensors["x"] for reply in replies.values()])

    replies = {site: share(x=torch.zeros(3)) for site in "abc"} | {"d": share(x=torch.zeros(2))}
    (found,) = find_failing_sites(step, replies, "train", 2)
    assert found.site == "d" and "does not fit the replies of the other sites" in found.reason
    assert find_failing_sites(step, {site: replies[site] for site in "ad"}, "train", 2) == []


def test_a_fact_that_the_method_does_not_report_is_rejected():
    replies = {"a": update(), "b": update(validation_site_score=1.0)}
    assert checked(replies)[1] == {"b": "reports 'validation_site_score', which is not in the fact_names of the method"}
    assert checked(replies, fact_names=frozenset({"validation_site_score"}))[1] == {}
