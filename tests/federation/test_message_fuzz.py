"""Decoding of messages and checkpoints from anybody: `InvalidMessage` or a valid value, and nothing else."""

import random
import string

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from mutated_messages import MESSAGES, STATE, joined, mutated, refused_or_stable, split

from medfed.federation.encoding import InvalidMessage
from medfed.federation.message import Message, State
from medfed.functional.weights import DTYPES

bounded = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
any_characters = st.sampled_from(string.printable) | st.integers(0, 0x10FFFF).map(chr)  # `st.characters` takes a second
characters = any_characters.filter(lambda character: not "\ud800" <= character <= "\udfff")  # what UTF-8 encodes
names = st.text(characters, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(any_characters, max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(names, values, max_size=3),
    max_leaves=6,
)
shapes = st.lists(st.integers(0, 3), max_size=4)
tensors = st.builds(
    lambda shape, dtype: torch.ones(shape, dtype=dtype),
    shapes,
    st.sampled_from([*DTYPES.values(), torch.complex64, torch.complex128, torch.uint16]),
)
groups = st.dictionaries(names, tensors, max_size=3)


@pytest.fixture(scope="module", autouse=True)
def _no_constants_of_modules():
    """Hypothesis reads no constants in medfed's files: that takes seconds, and depends on what is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", lambda: providers._local_constants, raising=False)
        yield


@bounded
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    assert not refused_or_stable(Message, data) and not refused_or_stable(State, data)


@bounded
@given(json_values, json_values, json_values, json_values)
def test_any_json_values_in_the_header_are_refused_or_valid(kind, facts, order, weights_digest):
    _, body = split(MESSAGES[1].to_bytes())
    inner = {"format": 1, "kind": kind, "facts": facts, "order": order, "weights_digest": weights_digest}
    refused_or_stable(Message, joined({}, body, inner))
    inner |= {"kind": "train", "order": [], "weights_digest": ""}
    refused_or_stable(Message, joined({}, body, inner))
    numbers = {"round": kind, "took_part": facts, "parameters": weights_digest}
    refused_or_stable(State, joined({}, body, {"format": 1, "checkpoint": 2, "order": [], **numbers}))


@bounded
@given(st.sampled_from([*DTYPES, "C64", "U16", "F4", "F8_E4M3"]), st.lists(st.integers(0, 2**64), max_size=20))
def test_any_declared_dtype_and_shape_of_an_empty_tensor_are_refused_or_valid(dtype, shape):
    inner = {"format": 1, "kind": "share", "facts": {}, "order": ["tensors/x"]}
    entry = {"dtype": dtype, "shape": [0, *shape], "data_offsets": [0, 0]}
    refused_or_stable(Message, joined({"tensors/x": entry}, b"", inner))


@bounded
@given(st.text(characters, max_size=5), groups, st.dictionaries(names, json_values, max_size=3))
def test_what_can_be_encoded_can_be_decoded(kind, tensors, facts):
    message = Message(kind, tensors, tensors, facts)
    try:
        data = message.to_bytes()
    except InvalidMessage:
        return
    assert data == message.to_bytes()
    back = Message.from_bytes(data)
    assert back.kind == kind and back.facts == facts and list(back.tensors) == list(tensors)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in tensors.items())


def test_mutations_of_valid_bytes_raise_no_other_error():
    valid = [(message.to_bytes(), Message) for message in MESSAGES] + [(STATE.to_bytes(), State)]
    rng, n = random.Random(0), 1000
    n_accepted = sum(refused_or_stable(kind, mutated(data, rng)) for data, kind in (n // 4) * valid)
    assert 0.02 * n < n_accepted < 0.5 * n, "some mutations are harmless, most are not"


def with_facts(facts: object) -> bytes:
    header, body = split(Message("train").to_bytes())
    return joined(header, body, {"format": 1, "kind": "train", "order": [], "facts": facts})


BOOL = {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (with_facts([]), "values of type list, but a dict"),
        (with_facts(None), "values of type NoneType, but a dict"),
        (with_facts({"loss": float("nan")}), "NaN is not a finite number"),
        (with_facts({"loss": 1e308}).replace(b"1e+308", b"1e+999"), r"1e\+999 is not a finite number"),
        (with_facts({"round": 1.0}), "'round' is 1.0, but a whole number"),
        (with_facts({"round": True}), "'round' is True, but a whole number"),
        (with_facts({"last": -1}), "'last' is -1, but a whole number"),
        (with_facts({"steps": 2**64}), "'steps' is of type int"),
        (with_facts({"steps": -(2**64)}), "'steps' is of type int"),
        (with_facts({"note": "\ud800"}), "half a character"),
        (with_facts({"\x1b[2J": 1}), "is used as a name"),
        (with_facts({"x": {"\x1b[2J": 1}}), "is used as a name"),
        (with_facts({"a" * 2000: 1}), "is used as a name"),
        (with_facts({"x": [[[[[[[[[1]]]]]]]]]}), "more than 8 lists"),
        (joined({"tensors/\x1b": BOOL}, b"\2", {"format": 1, "order": ["tensors/\x1b"]}), "is used as a name"),
        (
            joined({"tensors/x": BOOL}, b"\2", {"format": 1, "order": ["tensors/x"]}),
            "'x' has booleans that are neither",
        ),
        (joined({"tensors/x": BOOL}, b"\1", {"format": 1, "order": 2 * ["tensors/x"]}), "'order' does not list"),
    ],
)
def test_the_error_says_what_is_wrong(data, reason):
    with pytest.raises(InvalidMessage, match=reason):
        Message.from_bytes(data)


def test_a_header_that_would_need_much_memory_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr("medfed.federation.encoding.json.loads", None)
    for header in (b"[" + (2**19) * b"[],", b"[" + (2**19) * b"{},", (2**24 + 1) * b" "):
        with pytest.raises(InvalidMessage, match="at most"):
            Message.from_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Message("train", {"w": torch.ones(2, dtype=torch.complex128)}), "'w' is torch.strided torch.complex128, but"),
        (Message("train", {"w": torch.eye(2).to_sparse()}), "'w' is torch.sparse_coo torch.float32, but"),
        (Message("train", {"\ud800": torch.ones(1)}), "is used as a name"),
        (Message("train", facts={"loss": float("inf")}), "a value is neither a finite number"),
        (Message("train", facts={"loss": float("nan")}), "a value is neither a finite number"),
        (Message("train", facts={"tensor": torch.zeros(1)}), "'tensor' is of type Tensor"),
        (Message("failed"), "a failed reply without its reason"),
        (Message("failed", facts={"why": 3}), "a failed reply without its reason"),
        (Message(3), "3 is used as a name"),
        (Message("train", facts=[]), "values of type list, but a dict"),
        (Message("train", {"w": [1.0]}), "'w' is of type list, but a tensor"),
        (Message("train", facts={3: 1}), "3 is used as a name"),
        (Message("share", tensors={"x": torch.zeros(0, 2**30)}), "'x' has the shape"),
        (Message("share", tensors={"x": torch.zeros(17 * [1])}), "'x' has the shape"),
        (State(2**63, {}), "'round' is 9223372036854775808, but a whole number"),
    ],
    ids=string.ascii_letters[:15],
)
def test_what_would_be_refused_is_not_encoded(content, reason):
    with pytest.raises(InvalidMessage, match=reason):
        content.to_bytes()
