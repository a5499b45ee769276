"""The learning rate of each round: constant, along half a cosine wave, or in steps."""

import math

import pytest

from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.testing.toy import ToySegmentation


def rates(settings: Training, rounds: int) -> list[float]:
    return [settings.learning_rate_in(number, rounds) for number in range(1, rounds + 1)]


def test_a_step_schedule_decays_after_the_given_number_of_rounds():
    """StableFDG on Digits-DG: 50 rounds from 0.02, decayed by 0.1 every 20 rounds."""
    digits = rates(Training(learning_rate=0.02, schedule="step", decay_rounds=20, decay_factor=0.1), 50)
    assert digits == pytest.approx([0.02] * 20 + [0.002] * 20 + [0.0002] * 10, rel=1e-12)
    assert rates(Training(learning_rate=8.0, schedule="step", decay_rounds=1, decay_factor=0.5), 4) == [8, 4, 2, 1]
    assert rates(Training(learning_rate=8.0, schedule="step", decay_rounds=4, decay_factor=0.5), 4) == [8, 8, 8, 8]


def test_a_constant_schedule_is_constant_and_a_cosine_ends_near_zero():
    assert rates(Training(learning_rate=0.2), 3) == [0.2, 0.2, 0.2]
    cosine = rates(Training(learning_rate=0.2, schedule="cosine"), 4)
    slope = 0.1 * math.cos(math.pi / 4)
    assert cosine == pytest.approx([0.2, 0.1 + slope, 0.1, 0.1 - slope], rel=1e-12)


def test_a_site_trains_with_the_step_size_of_the_round(fedavg):
    """Weight decay shrinks the weights by learning_rate * weight_decay; the images have no effect at 1e-30."""

    def shrinkage(decay_rounds: int) -> list[float]:
        settings = {"schedule": "step", "decay_rounds": decay_rounds, "decay_factor": 0.5, "augment": False}
        training = Training(optimizer="sgd", learning_rate=1e-30, weight_decay=1e29, batch_size=100, **settings)
        toy = ToySegmentation(training=training, image_side=16, n_images=6)
        before, ratios = toy.start(fedavg).weights, []
        name = max(before, key=lambda name: before[name].dim())
        for done in federate(fedavg, toy.engine(fedavg), toy.start(fedavg), Federation(rounds=3), 0):
            after = done.state.weights
            ratios.append(float((after[name] / before[name]).median()))
            before = after
        return ratios

    assert shrinkage(1) == pytest.approx([0.9, 0.95, 0.975], abs=1e-5)
    assert shrinkage(2) == pytest.approx([0.9, 0.9, 0.95], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay_rounds": 5}, "decay_rounds: is 5, which has no effect without schedule 'step'"),
        ({"schedule": "cosine", "decay_factor": 0.5}, "decay_factor: is 0.5, which has no effect"),
    ],
)
def test_a_setting_of_the_steps_without_effect_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Training(**settings)


def test_a_stored_reply_depends_on_the_number_of_rounds_only_with_a_cosine(fedavg):
    def keys(**settings) -> set[str]:
        site, *_ = ToySegmentation(training=Training(**settings)).engine(fedavg).local_sites
        return {site.reply_key() for site.rounds in (2, 3)}

    assert len(keys(schedule="cosine")) == 2
    assert len(keys()) == len(keys(schedule="step")) == 1
    assert keys(schedule="step") != keys(schedule="step", decay_rounds=2)
    assert keys(schedule="step") != keys(schedule="step", decay_factor=0.5)
