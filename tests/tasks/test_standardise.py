"""`data.standardise`: the numbers of each word by hand, and what each word leaves of a change of brightness."""

from dataclasses import replace

import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor

from medfed.datasets.base import Volume
from medfed.federation.message import Message
from medfed.functional.fourier import low_frequency_spectrum, low_frequency_window, mix_amplitude
from medfed.methods.bigaug import BigAug
from medfed.methods.elcfs import ELCFS
from medfed.methods.epi_fcr import EpiFCR
from medfed.methods.jigen import JiGen
from medfed.networks.unet import UNet
from medfed.outputs.bundle.write import inference_config, template_folder
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Task
from medfed.testing.toy import ToySegmentation

# Two slices of one volume: mean 0.1 and 0.5, sd 0.1 and 0.3; over the volume mean 0.3, variance 0.05 + 0.04.
VOLUME = torch.tensor([[0.0, 0.2], [0.2, 0.8]]).reshape(2, 1, 1, 2)
BY_HAND = {
    "none": [[0.0, 0.2], [0.2, 0.8]],
    "slice": [[-1.0, 1.0], [-1.0, 1.0]],
    "volume": [[-1, -1 / 3], [-1 / 3, 5 / 3]],
    "imagenet": [[(value - 0.449) / 0.226 for value in pair] for pair in ([0.0, 0.2], [0.2, 0.8])],
    "dataset": [[-0.5, 0.5], [0.5, 3.5]],
}
CONSTANTS = {"dataset": ((0.1,), (0.2,))}


def segmentation(word: str, **settings) -> Segmentation:
    return Segmentation(("organ",), 1, 32, (0.0, 1.0), standardised=word, constants=CONSTANTS.get(word), **settings)


def seen(task: Task, image: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """The network's input for the slices of a volume that were `before` when their moments were computed."""
    return task.standardise(image, task.moments_of(image if before is None else before))


@pytest.mark.parametrize("word", BY_HAND)
def test_numbers_by_hand(word):
    assert torch.allclose(seen(segmentation(word), VOLUME).reshape(2, 2), torch.tensor(BY_HAND[word]), atol=1e-6)


def test_a_constant_channel_becomes_0_volume_needs_moments_and_the_volume_of_a_classified_image_is_the_image():
    task = Classification(("a", "b"), 1, 2, standardised="volume")
    assert torch.allclose(seen(task, VOLUME).reshape(2, 2), torch.tensor([[-1.0, 1], [-1, 1]]), atol=1e-6)
    for word in ("slice", "volume"):
        assert torch.equal(seen(segmentation(word), torch.full((2, 1, 4, 4), 0.5)), torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match="needs the moments of the images' volumes"):
        segmentation("volume").standardise(VOLUME)


@pytest.mark.parametrize(("word", "kept"), [("none", 1), ("volume", 1), ("dataset", 1), ("slice", 0)])
def test_an_exchange_of_the_mean_reaches_the_network_except_with_slice(word, kept):
    """The exchange of amplitude 0 adds a constant c; the network sees c / sd, or nothing if each slice is centred."""
    image = 0.3 + 0.2 * torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    donor = low_frequency_window(image + 0.25, 0.0)
    exchanged = mix_amplitude(image, low_frequency_spectrum(image, 0.0), donor, torch.ones(3, dtype=torch.float64))
    task = segmentation(word)
    change = seen(task, exchanged, before=image) - seen(task, image)
    sd = {"none": 1.0, "volume": float(image.std(unbiased=False)), "dataset": 0.2, "slice": 1.0}[word]
    assert float(change.square().mean().sqrt()) == pytest.approx(kept * 0.25 / sd, abs=1e-9, rel=1e-5)


def test_each_slice_of_a_site_has_the_moments_of_its_own_volume():
    task = segmentation("volume")
    rng = torch.Generator().manual_seed(0)
    images = [torch.rand(1, 32, 32, n, generator=rng) * scale for n, scale in ((2, 1.0), (3, 0.5))]
    volumes = [Volume(MetaTensor(image), MetaTensor(torch.zeros_like(image)), (1.0, 1.0, 1.0), []) for image in images]
    samples = task.prepare(volumes)
    batch = samples.batch([0, 1, 4])
    for row, volume in zip(batch.moments, (0, 0, 1)):
        own = samples.images[samples.volume == volume].double()
        assert torch.allclose(row.double(), torch.stack([own.mean(), own.std(unbiased=False)])[:, None])
    assert torch.equal(task.augment(batch, rng).moments, batch.moments)
    assert segmentation("slice").prepare(volumes).moments is None


@pytest.mark.parametrize(
    "method",
    [ELCFS(alpha=0.1, views=2), BigAug(), EpiFCR(min_patients=1), JiGen()],
    ids=["elcfs", "bigaug", "epi_fcr", "jigen"],
)
def test_methods_that_change_or_repeat_images_keep_the_moments(method):
    """Every forward pass of a step gets the moments of the images before the change; a pass without them fails."""
    toy = ToySegmentation(n_images=4)
    toy.task = replace(toy.task, standardised="volume")
    (site,) = toy.engine(method, sites=("north",)).local_sites
    passed = []

    class Recording(Segmentation):
        def standardise(self, image, moments=None):
            passed.append(moments.unique(dim=0))
            return super().standardise(image, moments)

    site.task = Recording(**{key: getattr(toy.task, key) for key in toy.task.__dataclass_fields__})
    moments = toy.task.moments_of(site.training.images)
    site.training = replace(site.training, moments=moments)
    site.validation = None
    bank = {"bank/south": torch.rand(3, 1, 25)}
    site.reply(Message("train", toy.start(method).weights, bank, {"round": 1, "last": 0}))
    assert passed and all(torch.equal(entry, moments[:1]) for entry in passed)


@pytest.mark.parametrize("input_is_2d", [True, False], ids=["2d", "volume"])
@pytest.mark.parametrize("word", ["none", "slice", "volume", "dataset", "imagenet"])
def test_the_transforms_of_a_bundle_standardise_as_the_task_does(word, input_is_2d):
    task = segmentation(word)
    bundle = task.bundle(input_is_2d)
    config = inference_config(template_folder(bundle.folder), bundle, UNet().network_def(1, 1))
    steps = config["preprocessing"]["transforms"]
    resized = max(i for i, step in enumerate(steps) if step["_target_"].endswith("Lambdad"))
    image = torch.rand(1, 8, 8, 1 if input_is_2d else 3, generator=torch.Generator().manual_seed(1))
    item = {"image": image.clone()}  # MONAI changes it in place
    for step in steps[resized + 1 :]:
        item = ConfigParser({"step": step}).get_parsed_content("step")(item)
    assert torch.allclose(torch.as_tensor(item["image"]).movedim(-1, 0), seen(task, image.movedim(-1, 0)), atol=1e-5)
