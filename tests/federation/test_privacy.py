"""The Gaussian mechanism on what leaves a site."""

import math
from dataclasses import replace

import pytest
import torch

from medfed.core.errors import UserError
from medfed.federation.message import Message
from medfed.federation.privacy import Privacy, protect, standard_normal
from medfed.methods.fedavg import FedAvg

KEY = bytes(32)
LETTER = Message("train", {"w": torch.ones(20_000), "n": torch.tensor(3), "norm.running_var": torch.full((50,), 1e-3)})
ANSWER = Message(
    "train",
    {"w": torch.full((20_000,), 1.5), "n": torch.tensor(9), "norm.running_var": torch.full((50,), 2e-3)},
    {"windows": torch.full((4, 100), 3.0), "counts": torch.tensor([1, 2])},
    {"examples": 7},
)


def change(answer):
    return answer.weights["w"].double() - LETTER.weights["w"].double()


def test_nothing_asked_changes_nothing():
    assert protect(ANSWER, LETTER, Privacy(), KEY) is ANSWER


def test_a_long_change_is_shortened_to_the_clip_and_a_short_one_is_left():
    clipped = protect(ANSWER, LETTER, Privacy(clip=2.0), KEY)
    assert float(change(clipped).norm()) == pytest.approx(2.0, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(change(clipped), change(ANSWER), dim=0) > 0.99999
    left = protect(ANSWER, LETTER, Privacy(clip=1e6), KEY)
    assert torch.allclose(left.weights["w"], ANSWER.weights["w"])


def test_the_noise_has_the_deviation_that_the_accountant_is_told():
    """Two neighbouring sites differ by 2 * clip at most, and `noise` counts in this."""
    noised = protect(ANSWER, LETTER, Privacy(clip=0.5, noise=1.5), KEY)
    clipped = protect(ANSWER, LETTER, Privacy(clip=0.5), KEY)
    noise = change(noised) - change(clipped)
    assert float(noise.std()) == pytest.approx(2 * 0.5 * 1.5, rel=0.02) and abs(float(noise.mean())) < 0.03


def test_statistics_have_a_clip_of_their_own():
    only = protect(ANSWER, LETTER, Privacy(statistics_clip=1.0, statistics_noise=0.1), KEY)
    assert torch.equal(only.weights["w"], ANSWER.weights["w"])
    assert float((only.tensors["windows"] - 3.0 / 60).std()) == pytest.approx(0.2, rel=0.15)


def test_whole_numbers_stay_and_a_variance_stays_possible():
    noised = protect(ANSWER, LETTER, Privacy(clip=1.0, noise=5.0, statistics_clip=1.0, statistics_noise=5.0), KEY,
                     {"norm.running_var"})  # fmt: skip
    assert noised.weights["n"] == 9 and noised.tensors["counts"].tolist() == [1, 2] and noised.facts == ANSWER.facts
    assert float(noised.weights["norm.running_var"].min()) == 0, "BatchNorm takes its root"


@pytest.mark.parametrize(
    "wrong", [{"clip": -1.0}, {"noise": 1.0}, {"statistics_noise": 1.0}, {"delta": 0.0}, {"clip": math.inf}]
)
def test_settings_that_promise_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Privacy(**wrong)


def test_draws_are_standard_normal_and_follow_every_bit_of_the_key():
    drawn = standard_normal(b"key", 200_000)
    assert abs(float(drawn.mean())) < 0.01 and float(drawn.std()) == pytest.approx(1, rel=0.01)
    assert float((drawn.abs() > 1.959964).double().mean()) == pytest.approx(0.05, rel=0.05)
    assert torch.equal(drawn[:10], standard_normal(b"key", 10))
    for other in (b"kez", b"key" + bytes(4), bytes([0x6B, 0x65, 0x79 ^ 0x80])):
        assert abs(float(torch.corrcoef(torch.stack([drawn, standard_normal(other, 200_000)]))[0, 1])) < 0.02


def test_nothing_leaves_that_no_clipping_bounds():
    entry = ANSWER.weights["w"].clone()
    entry[3] = math.nan
    poisoned = replace(ANSWER, weights={**ANSWER.weights, "w": entry})
    with pytest.raises(UserError, match="not finite"):
        protect(poisoned, LETTER, Privacy(clip=1.0, noise=1.0), KEY)


def noise_of(site, weights, memory=None):
    """The noise that a site's answer carries: nothing else is left of a change that is clipped to a millionth."""
    site.memory = memory or {}
    answer = site.reply(Message("train", weights, {}, {"round": 1})).weights
    return torch.cat([(answer[name] - entry).flatten() for name, entry in weights.items() if entry.is_floating_point()])


def test_no_two_answers_have_the_same_noise_and_the_very_same_answer_has(toy):
    """One taken from the other would leave what the noise was to hide."""
    first, second, *_ = toy.engine(FedAvg()).local_sites
    start = toy.start(FedAvg()).weights
    moved = {name: entry + 1 if entry.is_floating_point() else entry for name, entry in start.items()}
    for site in (first, second):
        site.privacy = Privacy(clip=1e-6, noise=1.0)
    noise = noise_of(first, start)
    assert torch.equal(noise, noise_of(first, start))
    others = [noise_of(second, start), noise_of(first, moved)]
    # The same letter, another answer.
    first.settings = replace(first.settings, learning_rate=2 * first.settings.learning_rate)
    others.append(noise_of(first, start))
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([noise, other]))[0, 1])) < 0.3
