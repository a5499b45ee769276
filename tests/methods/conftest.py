"""The toy federations of the tests of methods: a site has six images, so that a round is a whole and a half batch."""

import pytest

from medfed.testing.toy import ToyClassification, ToyFederation, ToySegmentation

N_IMAGES = 6  # of three patients: most methods need three patients to share statistics


@pytest.fixture
def toy() -> ToySegmentation:
    return ToySegmentation(n_images=N_IMAGES)


@pytest.fixture
def toy_of_classes() -> ToyClassification:
    return ToyClassification(n_images=N_IMAGES)


@pytest.fixture(params=[ToySegmentation, ToyClassification], ids=["masks", "classes"])
def any_toy(request) -> ToyFederation:
    return request.param(n_images=N_IMAGES)
