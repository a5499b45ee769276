"""Images on the device, and losses that are read from it seldom; on a GPU where there is one."""

import pytest
import torch

from medfed.core.batch import Batch
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation import step_losses
from medfed.federation.device_samples import DeviceSamples, max_device_bytes, on_device
from medfed.federation.message import Message
from medfed.federation.settings import Training
from medfed.federation.step_losses import StepLosses
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation, disc_slices

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def losses_of(values, interval, monkeypatch) -> StepLosses:
    monkeypatch.setattr(step_losses, "STEPS_BETWEEN_CHECKS", interval)
    losses = StepLosses("north", 3, torch.device("meta"))  # a device that is not the CPU; the losses stay on the CPU
    for value in values:
        losses.add(torch.tensor(value))
    return losses


def test_the_mean_loss_is_the_sum_in_float64_whenever_the_losses_are_read(monkeypatch):
    values = torch.rand(23, generator=torch.Generator().manual_seed(0)).tolist()
    expected = 0.0
    for value in values:
        expected += value
    assert {losses_of(values, interval, monkeypatch).mean() for interval in (1, 7, 50)} == {expected / 23}


@pytest.mark.parametrize("interval", [1, 4, 50])
def test_the_error_names_the_first_step_that_is_not_finite(monkeypatch, interval):
    with pytest.raises(UserError, match="north: training diverged in round 3, step 6: the loss is inf"):
        losses_of([1.0] * 5 + [float("inf"), float("nan")] + [1.0] * 3, interval, monkeypatch).mean()


def test_samples_that_fit_are_copied_and_give_the_same_batches():
    samples = disc_slices("north")
    size = sum(part.numel() * part.element_size() for part in (samples.images, samples.labels))
    assert on_device(samples, CPU, size - 1) is samples
    assert max_device_bytes(CPU) == 0, "on a CPU they are there already"
    copy = on_device(samples, CPU, size)
    assert isinstance(copy, DeviceSamples)
    assert (len(copy), copy.n_patients) == (len(samples), samples.n_patients)
    one, other = copy.batch([3, 0]), samples.batch([3, 0])
    assert torch.equal(one.image, other.image) and torch.equal(one.label, other.label)
    views = DeviceSamples(Batch(samples.images, samples.labels, {"styled": samples.images + 1}), 1)
    assert torch.equal(views.batch([2]).views["styled"], samples.images[2:3] + 1)


@needs_cuda
def test_a_site_on_a_gpu_keeps_its_images_there_and_augments_them_like_a_cpu():
    samples, task = disc_slices("north"), ToySegmentation().task
    copy = on_device(samples, torch.device("cuda"), max_device_bytes(torch.device("cuda")))
    assert copy.batch([0]).image.device.type == "cuda"
    on_gpu, on_cpu = (task.augment(part.batch([1, 2]), stream(0, "test")) for part in (copy, samples))
    assert on_gpu.image.device.type == "cuda"
    assert torch.allclose(on_gpu.image.cpu(), on_cpu.image, atol=1e-5)


@needs_cuda
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", [FedAvg(), ELCFS(alpha=0.1)], ids=["fedavg", "elcfs"])
def test_a_round_on_a_gpu_gives_the_weights_of_a_cpu_up_to_rounding(method, precision):
    toy = ToySegmentation(training=Training(optimizer="sgd", learning_rate=0.01, batch_size=4, precision=precision))
    replies = {}
    for device in ("cpu", "cuda"):
        (site,) = toy.engine(method, ("north",)).local_sites
        site.network.to(pick_device(device))
        start = toy.start(method).weights
        tensors = {}
        if method.shares == "once":
            windows = site.reply(Message("share", facts={"round": 1})).tensors["windows"]
            tensors = {"bank/east": windows, "bank/west": windows}
        replies[device] = site.reply(Message("train", start, tensors, {"round": 1, "last": 0}))
    tolerance = 1e-3 if precision == "float32" else 2e-2
    for name, entry in replies["cpu"].weights.items():
        assert torch.allclose(replies["cuda"].weights[name].cpu(), entry, atol=tolerance), name


@needs_cuda
def test_a_step_on_a_gpu_does_not_wait_for_the_device():
    """PyTorch raises an error where a call of the training step waits."""
    toy, method = ToySegmentation(), FedAvg()
    (site,) = toy.engine(method, ("north",)).local_sites
    site.network.to("cuda")
    request = Message("train", toy.start(method).weights, {}, {"round": 1, "last": 0})
    site.reply(request)  # copies the images and warms up
    step = site._step

    def watched(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    site._step = watched
    site.reply(request)
