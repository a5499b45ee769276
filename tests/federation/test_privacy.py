"""Clipping and Gaussian noise on the replies of a site."""

import math
from dataclasses import replace

import pytest
import torch

from medfed.core.errors import UserError
from medfed.federation.message import Message
from medfed.federation.privacy import Privacy, protect, standard_normal
from medfed.methods.fedavg import FedAvg

KEY = bytes(32)
REQUEST = Message("train", {"w": torch.ones(20_000), "n": torch.tensor(3), "norm.running_var": torch.full((50,), 1e-3)})
REPLY = Message(
    "train",
    {"w": torch.full((20_000,), 1.5), "n": torch.tensor(9), "norm.running_var": torch.full((50,), 2e-3)},
    {"windows": torch.full((4, 100), 3.0), "counts": torch.tensor([1, 2])},
    {"examples": 7},
)


def change(reply):
    return reply.weights["w"].double() - REQUEST.weights["w"].double()


def test_default_settings_return_the_reply_unchanged():
    assert protect(REPLY, REQUEST, Privacy(), KEY, {}) == REPLY


def test_a_change_is_scaled_down_to_the_clip_and_a_shorter_one_is_not_changed():
    clipped = protect(REPLY, REQUEST, Privacy(clip=2.0), KEY, {})
    assert float(change(clipped).norm()) == pytest.approx(2.0, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(change(clipped), change(REPLY), dim=0) > 0.99999
    unclipped = protect(REPLY, REQUEST, Privacy(clip=1e6), KEY, {})
    assert torch.allclose(unclipped.weights["w"], REPLY.weights["w"])


def test_the_noises_standard_deviation_is_the_one_that_the_accountant_assumes():
    """The replies of two data sets differ by at most 2 * clip, and `noise` is relative to this."""
    noised = protect(REPLY, REQUEST, Privacy(clip=0.5, noise=1.5), KEY, {})
    clipped = protect(REPLY, REQUEST, Privacy(clip=0.5), KEY, {})
    noise = change(noised) - change(clipped)
    assert float(noise.std()) == pytest.approx(2 * 0.5 * 1.5, rel=0.02) and abs(float(noise.mean())) < 0.03


def test_statistics_have_their_own_clip():
    noised = protect(REPLY, REQUEST, Privacy(statistics_clip=1.0, statistics_noise=0.1), KEY, {})
    assert torch.equal(noised.weights["w"], REPLY.weights["w"])
    assert float((noised.tensors["windows"] - 3.0 / 60).std()) == pytest.approx(0.2, rel=0.15)


def test_every_tensor_of_a_reply_has_its_own_noise():
    """With equal noise, the difference of two tensors would contain no noise."""
    zeros = torch.zeros(1000)
    request, privacy = Message("train", {"a": zeros, "b": zeros}), Privacy(1.0, 1.0, 1.0, 1.0)
    noised = protect(replace(request, tensors={"a": zeros}), request, privacy, KEY, {})
    noises = torch.stack([*noised.weights.values(), *noised.tensors.values()])
    assert torch.allclose(torch.corrcoef(noises), torch.eye(3), atol=0.2)


def test_whole_numbers_are_not_changed_and_a_variance_is_never_negative():
    privacy = Privacy(clip=1.0, noise=5.0, statistics_clip=1.0, statistics_noise=5.0)
    noised = protect(REPLY, REQUEST, privacy, KEY, {"norm.running_var": (0.0, math.inf)})
    assert noised.weights["n"] == 9 and noised.tensors["counts"].tolist() == [1, 2] and noised.facts == REPLY.facts
    assert float(noised.weights["norm.running_var"].min()) == 0, "BatchNorm computes its square root"
    name = "domain/bn.running_var"  # of another model
    reply = Message("train", tensors={name: torch.full((50,), 0.01)})
    variance = protect(reply, Message("train"), privacy, KEY, {"bn.running_var": (0.0, math.inf)}).tensors[name]
    assert float(variance.min()) == 0 and float(variance.max()) > 1


@pytest.mark.parametrize(
    "wrong", [{"clip": -1.0}, {"noise": 1.0}, {"statistics_noise": 1.0}, {"delta": 0.0}, {"clip": math.inf}]
)
def test_settings_without_a_privacy_guarantee_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Privacy(**wrong)


def test_samples_are_standard_normal_and_depend_on_every_bit_of_the_key():
    samples = standard_normal(b"key", 200_000)
    assert abs(float(samples.mean())) < 0.01 and float(samples.std()) == pytest.approx(1, rel=0.01)
    assert float((samples.abs() > 1.959964).double().mean()) == pytest.approx(0.05, rel=0.05)
    assert torch.equal(samples[:10], standard_normal(b"key", 10))
    for other in (b"kez", b"key" + bytes(4), bytes([0x6B, 0x65, 0x79 ^ 0x80])):
        assert abs(float(torch.corrcoef(torch.stack([samples, standard_normal(other, 200_000)]))[0, 1])) < 0.02


def test_a_reply_with_nan_is_refused_because_clipping_cannot_bound_it():
    entry = REPLY.weights["w"].clone()
    entry[3] = math.nan
    poisoned = replace(REPLY, weights={**REPLY.weights, "w": entry})
    with pytest.raises(UserError, match="the reply contains NaN or infinite values"):
        protect(poisoned, REQUEST, Privacy(clip=1.0, noise=1.0), KEY, {})


def noise_of(site, weights, memory=None):
    """Return the noise in a site's reply; the change itself is clipped to a millionth and thus negligible."""
    site.memory = memory or {}
    reply = site.reply(Message("train", weights, {}, {"round": 1})).weights
    return torch.cat([(reply[name] - entry).flatten() for name, entry in weights.items() if entry.is_floating_point()])


def test_different_replies_have_different_noise_and_equal_replies_equal_noise(toy):
    """With equal noise, the difference of two replies would contain no noise."""
    first, second, *_ = toy.engine(FedAvg()).local_sites
    start = toy.start(FedAvg()).weights
    moved = {name: entry + 1 if entry.is_floating_point() else entry for name, entry in start.items()}
    for site in (first, second):
        site.privacy = Privacy(clip=1e-6, noise=1.0)
    noise = noise_of(first, start)
    assert torch.equal(noise, noise_of(first, start))
    others = [noise_of(second, start), noise_of(first, moved)]
    first.privacy = replace(first.privacy, noise=2.0)  # twice the reply minus this one would contain no noise
    others.append(noise_of(first, start))
    first.privacy = second.privacy
    # The same request, but another reply.
    first.settings = replace(first.settings, learning_rate=2 * first.settings.learning_rate)
    others.append(noise_of(first, start))
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([noise, other]))[0, 1])) < 0.3
