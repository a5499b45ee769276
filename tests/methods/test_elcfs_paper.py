"""The loss of ELCFS with `preset: paper` against a second implementation of eq. 1-9."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import nn

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound
from medfed.federation.message import Message
from medfed.functional.fourier import low_frequency_window, pack_window
from medfed.losses import soft_dice_loss
from medfed.methods.elcfs import BANK, ELCFS

SIDE, ALPHA, RING, BETA, TAU, GAMMA = 16, 0.2, 2, 0.05, 0.5, 0.7  # larger than the paper's, so that errors are visible
HALF = 3  # floor(0.2 * 16)
PAPER = replace(
    ELCFS(**ELCFS.presets["paper"]), alpha=ALPHA, ring_width=RING, meta_step=BETA, temperature=TAU, gamma=GAMMA
)


class TinyNetwork(nn.Module):
    """Two decoder levels: "deep" on every second pixel, "fine" on every pixel."""

    def __init__(self):
        super().__init__()
        self.deep = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh())
        self.fine = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.Tanh())
        self.head = nn.Conv2d(2, 2, 1)

    def forward(self, image):
        deep = self.deep(F.avg_pool2d(image, 2))
        return self.head(self.fine(torch.cat([image, F.interpolate(deep, scale_factor=2)], dim=1)))


def outputs_of(theta, image):
    """Return the logits and the two levels, with the weights as a plain list (the same network, written again)."""
    deep = torch.tanh(F.conv2d(F.avg_pool2d(image, 2), theta[0], theta[1], padding=1))
    doubled = deep.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    fine = torch.tanh(F.conv2d(torch.cat([image, doubled], dim=1), theta[2], theta[3], padding=1))
    return F.conv2d(fine, theta[4], theta[5]), fine, deep


def dice_loss(logits, label):
    p = torch.sigmoid(logits)
    scores = [(2 * (p[:, c] * label[:, c]).sum() + 1e-5) / (p[:, c].sum() + label[:, c].sum() + 1e-5) for c in (0, 1)]
    return 1 - sum(scores) / 2


def exchanged(image, other, ratio):
    """Eq. 1-3 with full spectra (numpy)."""
    spectrum = np.fft.fftshift(np.fft.fft2(image))
    amplitude, phase = np.abs(spectrum), np.angle(spectrum)
    middle = (slice(SIDE // 2 - HALF, SIDE // 2 + HALF + 1),) * 2
    amplitude[middle] = (1 - ratio) * amplitude[middle] + ratio * np.abs(np.fft.fftshift(np.fft.fft2(other)))[middle]
    return np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * phase))).real.clip(0, 1)


def boundary_loss(fine, deep, label):
    """Eq. 5-8 for the features of one image and its K - 1 copies, and one structure; None without the structure."""
    mask = label.numpy() > 0.5
    if not mask.any():
        return None
    grown = ndimage.binary_dilation(mask, iterations=RING)
    regions = [mask & ~ndimage.binary_erosion(mask), grown & ~mask]
    features = torch.cat([fine, F.interpolate(deep, (SIDE, SIDE), mode="bilinear", align_corners=False)], dim=1)
    places = [torch.from_numpy(region) for region in regions]
    vectors = [(z[:, place].mean(dim=1), kind) for z in features for kind, place in enumerate(places)]
    losses = []
    for m, (h_m, kind) in enumerate(vectors):
        against = sum(torch.exp(F.cosine_similarity(h_m, h, dim=0) / TAU) for h, other in vectors if other != kind)
        for p, (h_p, other) in enumerate(vectors):
            if p != m and other == kind:
                losses.append(-torch.log(torch.exp(F.cosine_similarity(h_m, h_p, dim=0) / TAU) / against))
    assert len(losses) == 2 * len(fine) * (len(fine) - 1)
    return sum(losses) / len(losses)


class Problem:
    """Three images with two structures (the second is absent in one image), and two other sites with four images."""

    def __init__(self):
        rng = torch.Generator().manual_seed(0)
        self.images = torch.rand(3, 1, SIDE, SIDE, generator=rng, dtype=torch.float64) * 0.6 + 0.2
        self.label = torch.zeros(3, 2, SIDE, SIDE, dtype=torch.float64)
        for b in range(3):
            self.label[b, 0, 3 + b : 11, 4 : 12 - b] = 1
        self.label[:2, 1, 5:9, 6:9] = 1
        self.others = {name: torch.rand(4, 1, SIDE, SIDE, generator=rng, dtype=torch.float64) for name in "ab"}
        torch.manual_seed(0)
        self.network = TinyNetwork().double()

    def medfed_loss(self, method):
        banks = {BANK + name: pack_window(low_frequency_window(images, ALPHA)) for name, images in self.others.items()}
        task = SimpleNamespace(loss=soft_dice_loss, standardise=lambda image, moments: image, slice_ratio=1.0)
        local = LocalRound(
            site="c",
            round=1,
            network=self.network,
            architecture=SimpleNamespace(decoder_levels=("fine", "deep")),
            task=task,
            message=Message("train", tensors=banks),
            memory={},
            rng=stream(0, "test"),
            device=torch.device("cpu"),
            training=None,
        )
        return method.loss(local, Batch(self.images, self.label))[0]

    def second_implementation(self, theta, balanced):
        rng, copies = stream(0, "test"), []
        for name in "ab":
            positions, ratios = torch.rand(2, 3, generator=rng)
            donors = [self.others[name][int(4 * u)] for u in positions.tolist()]
            copies.append(
                [
                    exchanged(x[0].numpy(), donor[0].numpy(), r)
                    for x, donor, r in zip(self.images, donors, ratios.tolist(), strict=True)
                ]
            )
        copies = torch.tensor(np.array(copies))[:, :, None]  # (other site, image, 1, H, W)
        logits, last_features, _ = outputs_of(theta, self.images)
        inner = dice_loss(logits, self.label)
        gradients = torch.autograd.grad(inner, theta, create_graph=True)
        after = [weight - BETA * g for weight, g in zip(theta, gradients, strict=True)]  # eq. 4
        outer = dice_loss(outputs_of(after, copies.flatten(0, 1))[0], self.label.repeat(2, 1, 1, 1))
        features = [outputs_of(after, torch.cat([self.images[b : b + 1], copies[:, b]]))[1:] for b in range(3)]
        boundary = 0
        for structure in (0, 1):
            of_images = [boundary_loss(*features[b], self.label[b, structure]) for b in range(3)]
            shown = [loss for loss in of_images if loss is not None]
            boundary = boundary + sum(shown) / len(shown)
        weight = GAMMA
        if balanced:
            task = torch.autograd.grad(inner, last_features, retain_graph=True)[0]
            own = [g[0] for g in torch.autograd.grad(boundary, [fine for fine, _ in features], retain_graph=True)]
            weight = GAMMA * min(1.0, task.norm().item() / torch.stack(own).norm().item())
        return inner + outer + weight * boundary  # eq. 8-9


@pytest.mark.parametrize("balance", ["none", "gradient"])
def test_the_loss_and_its_gradient_are_those_of_a_second_implementation(balance):
    problem, balanced = Problem(), balance == "gradient"
    theta = list(problem.network.parameters())
    losses = problem.medfed_loss(replace(PAPER, balance=balance)), problem.second_implementation(theta, balanced)
    assert (abs(losses[0] - problem.medfed_loss(PAPER)) > 0.1) == balanced
    torch.testing.assert_close(*losses, rtol=1e-10, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(loss, theta) for loss in losses), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("key", sorted(ELCFS.presets["paper"].keys() - {"inner_clamp", "alpha"}))  # auto is ALPHA
def test_every_setting_of_the_paper_preset_changes_the_gradient(key):
    """A second-order term leaves the loss as it is, so the gradients are compared."""
    problem, default = Problem(), getattr(ELCFS(), key)
    weights = list(problem.network.parameters())
    of_paper, of_other = (
        torch.cat([g.flatten() for g in torch.autograd.grad(problem.medfed_loss(method), weights)])
        for method in (PAPER, ELCFS(**{**vars(PAPER), key: default}))
    )
    assert not torch.allclose(of_paper, of_other, rtol=1e-3, atol=1e-6)
