import pytest
import torch

from medfed.methods.elcfs import inner_step
from medfed.methods.harmofl import sharpness_ascent


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


def test_the_gradient_is_taken_at_the_moved_weights_and_passed_to_the_original_ones():
    """L = w^2 + v^2 at (3, 4): g = (6, 8) of length 10, delta = (0.3, 0.4); dL/dw there is (6.6, 8.8)."""
    w, v = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (3.0, 4.0))
    above = sharpness_ascent(w**2 + v**2, {"w": w, "v": v}, distance=0.5)
    assert above["w"].item() == pytest.approx(3.3) and above["v"].item() == pytest.approx(4.4)
    (above["w"] ** 2 + above["v"] ** 2).backward()
    assert w.grad.item() == pytest.approx(6.6) and v.grad.item() == pytest.approx(8.8)
    assert (w.item(), v.item()) == (3.0, 4.0), "the step starts where it stood"


def test_weights_with_zero_gradient_and_unused_or_frozen_weights_stay():
    w, unused, frozen = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True), torch.tensor(4.0)
    weights = {"w": w, "unused": unused, "frozen": frozen}
    level = sharpness_ascent(0 * w * frozen, weights, distance=1.0)
    assert level["w"].item() == 2.0 and level["unused"] is unused and level["frozen"] is frozen
    assert sharpness_ascent(w * frozen, weights, distance=0.0)["w"].item() == 2.0
