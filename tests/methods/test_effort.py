"""What a method declares about its steps and images (`Method.effort`) is what it takes, counted at the network."""

import pytest
from toy_runs import rounds_of, shared_run

from medfed.core.registry import known_names, resolve
from medfed.federation.local_round import LocalRound
from medfed.federation.method import Effort, Method
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fedprox import FedProx
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack
from medfed.testing.toy import ToyClassification

SMALL = {
    "elcfs": {"alpha": 0.1, "min_patients": 1},
    "ccst": {"min_patients": 1, "transfer": "moments"},
    "fisc": {"min_patients": 1, "transfer": "moments"},
    "trimmed_mean": {"trim": 0.0},
    "jigen": {"ordered": 0.0, "n_orders": 4},
}
ADDS_FEATURES = {"stable_fdg"}  # adds its copies inside the network
HOOKS = ("expand", "augment", "loss", "regulariser")  # a method without them trains as FedAvg does
NAMES = [
    name
    for name in known_names("methods")
    if name not in ADDS_FEATURES
    and name != "stack"
    and any(getattr(resolve("methods", name), hook) is not getattr(Method, hook) for hook in HOOKS)
]


def counted(toy, method, monkeypatch) -> tuple[int, int, int]:
    """Train one round; return the steps, the different images that entered the network, and the sites' images."""
    seen: set[tuple[str, bytes]] = set()
    forward = LocalRound.forward

    def counting(local, batch, *others, **named):
        if local.network.training:
            seen.update((local.site, image.numpy().tobytes()) for image in batch.image)
        return forward(local, batch, *others, **named)

    monkeypatch.setattr(LocalRound, "forward", counting)
    done = rounds_of(toy, method, 1)[0]
    return done.n_steps, len(seen), done.n_images


@pytest.mark.parametrize("name", NAMES)
def test_a_method_takes_the_steps_and_images_that_it_declares(name, monkeypatch):
    toy = ToyClassification(n_images=8)
    method = resolve("methods", name)(**SMALL.get(name, {}))
    plain = shared_run(toy, FedAvg()).rounds[0]
    steps, images, declared = counted(toy, method, monkeypatch)
    effort = method.effort(3)
    assert steps == effort.steps * plain.n_steps
    assert declared == effort.images * plain.n_images == images


def test_stable_fdg_adds_images_inside_the_network(monkeypatch):
    """With probability 1, each batch of 4 is trained as 8: the loss sees twice the images."""
    toy, sizes = ToyClassification(n_images=8), []
    method = StableFDG(min_patients=1, stages=(1, 2), probability=1.0, attention=False)
    loss = type(toy.task).loss
    monkeypatch.setattr(
        type(toy.task), "loss", lambda task, logits, label: sizes.append(len(label)) or loss(task, logits, label)
    )
    done = rounds_of(toy, method, 1)[0]
    assert sum(sizes) == done.n_images and method.effort(3) == Effort(1, 2)


def test_settings_change_the_effort():
    assert CCST(k=3).effort(2) == Effort(2, 2), "at most one copy for each site"
    assert ELCFS(views=0).effort(5) == Effort(1, 5) and ELCFS(exchange=False).effort(5) == Effort(1, 1)
    assert Stack((CCST(k=2), ELCFS(views=2))).effort(5) == Effort(2, 6), "2 styles, each with 2 restyled copies"
    assert Stack((FedProx(), CCST(k=3))).effort(5) == Effort(3, 3)
