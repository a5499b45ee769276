import torch

from medfed.functional.meta_learning import inner_step


def test_first_order_adds_the_outer_gradient_at_the_fast_weights():
    """L = w^2, beta = 0.1, w = 1: w' = 0.8; g_in + g_out = 2w + 2w' = 3.6, and 2w + 2w'(1 - 2 beta) = 3.28 in full."""
    for second_order, expected in ((False, 3.6), (True, 3.28)):
        w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        inner = w**2
        fast = inner_step(inner, {"w": w}, step_size=0.1, clamp=100.0, second_order=second_order)
        assert torch.isclose(fast["w"], torch.tensor(0.8, dtype=torch.float64))
        (inner + fast["w"] ** 2).backward()
        assert torch.isclose(w.grad, torch.tensor(expected, dtype=torch.float64))


def test_the_inner_gradient_is_cut():
    w = torch.tensor(1000.0, requires_grad=True)
    assert inner_step(w**2, {"w": w}, step_size=1.0, clamp=100.0)["w"].item() == 900.0
    assert inner_step(w**2, {"w": w}, step_size=1.0, clamp=None)["w"].item() == -1000.0


def test_with_step_zero_and_for_unused_or_frozen_weights_nothing_changes():
    w, unused = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    frozen = torch.tensor(4.0)
    fast = inner_step(w * frozen, {"w": w, "unused": unused, "frozen": frozen}, step_size=0.0, clamp=1.0)
    assert fast["w"].item() == 2.0 and fast["unused"] is unused and fast["frozen"] is frozen
