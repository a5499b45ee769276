import json

import pytest
import safetensors.torch
import torch

from medfed.core.errors import UserError
from medfed.federation.encoding import header_of, pack, unpack
from medfed.federation.message import Kind, Message, State, failed_reply, failed_reply_to_error
from medfed.functional.weights import DTYPES


def test_a_kind_is_written_as_its_text():
    assert Message(Kind.TRAIN).to_bytes() == Message("train").to_bytes()
    assert f"{Kind.TRAIN}" == str(Kind.TRAIN) == json.loads(json.dumps(Kind.TRAIN)) == "train"


def test_tensors_that_share_memory_are_received_as_separate_tensors():
    whole = torch.arange(6.0)
    back = Message.from_bytes(Message("train", {"a": whole, "b": whole, "c": whole[2:4]}).to_bytes()).weights
    assert torch.equal(back["a"], whole) and torch.equal(back["b"], whole) and back["c"].tolist() == [2, 3]
    back["a"] += 1
    assert whole[0] == back["b"][0] == 0, "nor do they share memory with the tensors that were sent"


def test_reading_a_checkpoints_bytes_returns_an_equal_state():
    state = State(7, {"w": torch.ones(2)}, {"bank/a": torch.zeros(3)})
    back = State.from_bytes(state.to_bytes())
    assert back.round == 7 and torch.equal(back.weights["w"], state.weights["w"]) and list(back.memory) == ["bank/a"]


def test_the_bytes_are_those_that_safetensors_itself_writes_and_are_read_in_their_order():
    tensors = {name: torch.arange(6).to(dtype).reshape(2, 3) for name, dtype in DTYPES.items()}
    tensors |= {"number": torch.tensor(3), "empty": torch.zeros(0, 3), "transposed": torch.rand(2, 3).T}
    data = pack({"weights": tensors}, {"round": 1})
    metadata = json.loads(bytes(header_of(data)))["__metadata__"]
    named = {f"weights/{name}": tensor.contiguous() for name, tensor in tensors.items()}
    assert data == safetensors.torch.save(named, metadata)
    received = unpack(data, ("weights",))[0]["weights"]
    assert list(received) == list(tensors), "order matters: optimisers number the parameters"
    assert all(torch.equal(received[n], t) and received[n].dtype == t.dtype for n, t in tensors.items())


def test_a_message_or_a_checkpoint_of_another_format_version_is_refused():
    data = pack({"weights": {}}, {"kind": "train"}).replace(b'\\"format\\": 1', b'\\"format\\": 9')
    with pytest.raises(ValueError, match="the data have format version 9, but .* reads format version 1"):
        unpack(data, ("weights",))
    data = pack({"weights": {"w": torch.zeros(1)}}, {"checkpoint": 1, "round": 3, "took_part": {}, "parameters": []})
    with pytest.raises(ValueError, match="the data have checkpoint version 1, but .* reads checkpoint version 2"):
        State.from_bytes(data)


def test_a_states_parameters_include_those_that_two_modules_share_and_no_buffers():
    network = torch.nn.Module()
    network.first = torch.nn.Linear(2, 2)
    network.second = network.first
    network.norm = torch.nn.BatchNorm1d(2)
    parameters = State.of(network).parameters
    assert parameters == {f"{part}.{entry}" for part in ("first", "second", "norm") for entry in ("weight", "bias")}


def test_a_failed_reply_names_no_file_because_the_name_may_be_that_of_a_patient(capsys):
    reply = failed_reply_to_error(UserError("data/HK/Jane Doe/IM1: the file is damaged; copy it again"))
    assert b"Jane" not in reply.to_bytes()
    assert reply.facts["why"].startswith("could not reply; ")
    assert capsys.readouterr().err == "data/HK/Jane Doe/IM1: the file is damaged; copy it again\n"
    assert failed_reply_to_error(UserError("HK: the loss is nan")).facts["why"] == "HK: the loss is nan"


def test_a_failed_reply_can_be_sent_whatever_its_reason_contains():
    """A file name that is not UTF-8 has half a character, and an error of a library may be very long."""
    reply = failed_reply("\udcff" + 2000 * "a")
    assert Message.from_bytes(reply.to_bytes()).facts == {"why": "?" + 999 * "a"}
