"""The Gaussian mechanism on what leaves a site."""

import math

import pytest
import torch

from medfed.federation.message import Message
from medfed.federation.privacy import Privacy, protect
from medfed.federation.seeds import stream
from medfed.methods.fedavg import FedAvg

LETTER = Message("train", {"w": torch.ones(20_000), "n": torch.tensor(3), "norm.running_var": torch.full((50,), 1e-3)})
ANSWER = Message("train", {"w": torch.full((20_000,), 1.5), "n": torch.tensor(9), "norm.running_var": torch.full((50,), 2e-3)},
                 {"windows": torch.full((4, 100), 3.0), "counts": torch.tensor([1, 2])}, {"examples": 7})  # fmt: skip


def change(answer):
    return answer.weights["w"].double() - LETTER.weights["w"].double()


def test_nothing_asked_changes_nothing():
    assert protect(ANSWER, LETTER, Privacy(), stream(0)) is ANSWER


def test_a_long_change_is_shortened_to_the_clip_and_a_short_one_is_left():
    clipped = protect(ANSWER, LETTER, Privacy(clip=2.0), stream(0))
    assert float(change(clipped).norm()) == pytest.approx(2.0, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(change(clipped), change(ANSWER), dim=0) > 0.99999
    left = protect(ANSWER, LETTER, Privacy(clip=1e6), stream(0))
    assert torch.allclose(left.weights["w"], ANSWER.weights["w"])


def test_the_noise_has_the_deviation_that_the_accountant_is_told():
    """Two neighbouring sites differ by 2 * clip at most, and `noise` counts in this."""
    noised = protect(ANSWER, LETTER, Privacy(clip=0.5, noise=1.5), stream(0))
    clipped = protect(ANSWER, LETTER, Privacy(clip=0.5), stream(0))
    noise = change(noised) - change(clipped)
    assert float(noise.std()) == pytest.approx(2 * 0.5 * 1.5, rel=0.02) and abs(float(noise.mean())) < 0.03


def test_statistics_have_a_clip_of_their_own():
    only = protect(ANSWER, LETTER, Privacy(statistics_clip=1.0, statistics_noise=0.1), stream(0))
    assert torch.equal(only.weights["w"], ANSWER.weights["w"])
    assert float((only.tensors["windows"] - 3.0 / 60).std()) == pytest.approx(0.2, rel=0.15)


def test_whole_numbers_stay_and_a_variance_stays_possible():
    noised = protect(ANSWER, LETTER, Privacy(clip=1.0, noise=5.0, statistics_clip=1.0, statistics_noise=5.0), stream(0))
    assert noised.weights["n"] == 9 and noised.tensors["counts"].tolist() == [1, 2] and noised.facts == ANSWER.facts
    assert float(noised.weights["norm.running_var"].min()) == 0, "BatchNorm takes its root"


@pytest.mark.parametrize("wrong", [{"clip": -1.0}, {"noise": 1.0}, {"statistics_noise": 1.0}, {"delta": 0.0}, {"clip": math.inf}])
def test_settings_that_promise_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Privacy(**wrong)


def test_two_letters_never_get_the_same_noise(toy):
    """One answer taken from the other would leave what the noise was to hide; the same letter gets the same answer."""
    engine = toy.engine(FedAvg())
    site = engine.members[0]
    site.privacy = Privacy(clip=1e-6, noise=1.0)
    start = toy.start(FedAvg()).weights
    other = {name: entry + 1 if entry.is_floating_point() else entry for name, entry in start.items()}

    def answer(weights):
        site.memory = {}
        return site.answer(Message("train", weights, {}, {"round": 1}))

    first, again, second = map(answer, (start, start, other))
    name = next(name for name, entry in start.items() if entry.is_floating_point() and entry.numel() > 3)
    moved = [answer.weights[name] - asked[name] for answer, asked in ((first, start), (second, other))]
    assert torch.equal(first.weights[name], again.weights[name])
    assert not torch.allclose(*moved, rtol=0.1, atol=0)




