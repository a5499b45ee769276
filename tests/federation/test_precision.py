"""Training in bfloat16, on the CPU: the forward pass only; everything that is kept or sent is float32."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from medfed.federation.message import n_bytes
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.rsc import RSC
from medfed.testing.toy import ToyClassification, ToySegmentation

BF16 = Training(batch_size=4, precision="bf16")


@pytest.mark.parametrize(
    ("toy", "method"), [(ToySegmentation, ELCFS(alpha=0.1)), (ToyClassification, FedAvg()), (ToyClassification, RSC())]
)
def test_a_run_in_bf16_learns_and_keeps_and_sends_float32(toy, method):
    toy = toy(training=BF16, image_side=16, n_images=8)
    rounds = list(federate(method, toy.engine(method), toy.start(method), Federation(rounds=3), 0))
    losses = [done.history["train_loss"] for done in rounds]
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[0]
    kept = [*rounds[-1].state.weights.values(), *rounds[-1].state.memory.values()]
    assert all(entry.dtype in (torch.float32, torch.int64) for entry in kept)
    sent = [row["bytes"] for done in rounds for row in done.ledger if row["content"] == "weight"]
    assert set(sent) == {sum(map(n_bytes, rounds[-1].state.weights.values()))}


@dataclass(frozen=True)
class Watch(Method):
    """Records the dtypes at a step."""

    seen = {}

    def loss(self, local, batch):
        inner = self.seen["inner"] = set()
        note = lambda layer, inputs, output: inner.add(output.dtype)  # noqa: E731
        handles = [one.register_forward_hook(note) for one in local.network.modules() if isinstance(one, nn.Conv2d)]
        output = local.forward(batch, [local.architecture.last_features])
        for handle in handles:
            handle.remove()
        self.seen["outer"] = {output.logits.dtype, *(feature.dtype for feature in output.features.values())}
        return local.task.loss(output.logits, batch.label), output


@pytest.mark.parametrize(("precision", "inner"), [("bf16", torch.bfloat16), ("float32", torch.float32)])
def test_only_the_layers_compute_in_bf16_and_the_loss_gets_float32(precision, inner):
    toy, method = ToySegmentation(training=Training(batch_size=4, precision=precision)), Watch()
    next(federate(method, toy.engine(method), toy.start(method), Federation(rounds=1), 0))
    assert Watch.seen["inner"] >= {inner}
    assert torch.bfloat16 not in Watch.seen["inner"] or precision == "bf16"
    assert Watch.seen["outer"] == {torch.float32}
