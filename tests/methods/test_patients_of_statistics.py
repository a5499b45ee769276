"""From how many patients each number of a shared statistic is computed, as methods report it to the hospital."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.datasets.case import Case, numbered_patients
from medfed.federation.image_moments import moments_request
from medfed.federation.local_round import SiteData, count_patients
from medfed.federation.message import Message
from medfed.federation.site import Site
from medfed.methods.ccst import CCST
from medfed.methods.copa import COPA
from medfed.methods.elcfs import ELCFS
from medfed.methods.epi_fcr import EpiFCR
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fisc import FISC
from medfed.methods.fpl import FPL
from medfed.methods.harmofl import HarmoFL
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack
from medfed.tasks.slices import Slices
from medfed.testing.toy import ToyClassification, ToySegmentation

MOMENTS = {"transfer": "moments", "min_patients": 1}


class Images:
    """Images of noise with a mean each; `patients` has a number for the patient of each image."""

    def __init__(self, means: list[float], patients: list[int]) -> None:
        noise = 0.05 * torch.randn(len(means), 3, 8, 8, generator=stream(0, "noise"))
        self.images = (torch.tensor(means)[:, None, None, None] + noise).clamp(0, 1)
        self.patient = torch.tensor(patients)
        self.n_patients = len(set(patients))

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices) -> Batch:
        return Batch(self.images[list(indices)], torch.zeros(len(indices)))


def indices_of(*images: int) -> torch.Tensor:
    return torch.tensor(images, dtype=torch.int64)


def share(method, samples) -> dict[str, int]:
    """What a method reports; every shared tensor must be reported."""
    site = SiteData("a", samples, None, None, stream(0, "share"))
    tensors = method.share(site, torch.nn.Linear(1, 1))
    assert set(site.n_patients) == set(tensors)
    return site.n_patients


def test_images_of_one_patient_count_once_and_unknown_patients_as_one():
    samples = Images([0.5] * 6, [0, 0, 0, 1, 1, 2])
    assert [count_patients(samples, indices_of(*images)) for images in ((0, 1, 2), (2, 3, 5), ())] == [1, 3, 0]
    unknown = SimpleNamespace(n_patients=6)
    assert [count_patients(unknown, indices_of(*images)) for images in ((0, 1, 2), ())] == [1, 0]


def test_slices_of_two_volumes_of_one_patient_are_one_patient():
    """Two visits: `volume` is the number of the volume, which validation needs."""
    cases = [Case("A", f"p{k}_visit{v}", None, patient=f"p{k}") for k, v in ((0, 1), (0, 2), (1, 1))]
    assert numbered_patients([*cases, replace(cases[0], site="B")]).tolist() == [0, 0, 1, 2], "a name at two sites"
    slices = Slices(torch.zeros(6, 1, 4, 4), torch.zeros(6, 1, 4, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert slices.n_patients == 3
    of_two = replace(slices, patient_of_volume=numbered_patients(cases))
    assert of_two.n_patients == 2 and of_two.patient.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ELCFS(alpha=0.2, min_patients=1), {"windows": 1}),  # of one image
        (CCST(style="single", **MOMENTS), {"mean": 1, "std": 1}),
        (CCST(**MOMENTS), {"mean": 3, "std": 3}),  # of all images
        (HarmoFL(half_width=1, min_patients=1), {"amplitude": 3}),
        (SCAFFOLD(), {"examples": 3}),
    ],
)
def test_a_statistic_is_of_the_patients_of_its_images(method, expected):
    assert share(method, Images([0.2, 0.4, 0.6, 0.8], [0, 0, 1, 2])) == expected


def test_an_overall_style_is_of_the_patients_whose_images_are_not_blank():
    samples = Images([0.2, 0.4, 0.6, 0.8], [0, 0, 1, 2])
    samples.images[2] = 0.5
    assert share(CCST(**MOMENTS), samples) == {"mean": 2, "std": 2}


def test_the_style_of_fisc_is_of_the_patients_of_its_smallest_cluster():
    """Nine bright images of nine patients, and three dark ones of two: two clusters."""
    samples = Images([0.9] * 9 + [0.1] * 3, [*range(9), 9, 9, 10])
    assert share(FISC(**MOMENTS), samples) == {"style/mean": 2, "style/std": 2, "n_clusters": 11}
    assert share(FISC(site_clusters="none", **MOMENTS), samples)["style/mean"] == 11


def site_of(method, toy) -> Site:
    return toy.engine(method, sites=("north",)).local_sites[0]


def trained(method, toy, site: Site | None = None) -> dict[str, int]:
    site = site or site_of(method, toy)
    reply = site.reply(Message("train", toy.start(method).weights, {}, {"round": 1}))
    assert set(site.n_patients) == set(reply.tensors)
    return site.n_patients


@pytest.mark.parametrize(
    "method", [SCAFFOLD(), COPA(), EpiFCR(warm_up=1, min_patients=1)], ids=lambda method: type(method).__name__
)
def test_gradients_heads_and_models_are_of_all_patients(method):
    assert set(trained(method, ToySegmentation()).values()) == {5}


def test_a_loss_is_of_the_validation_patients():
    toy, method = ToySegmentation(), FedDGGA()
    site = site_of(method, toy)
    weights = toy.start(method).weights
    four = Slices(site.training.images[:4], site.training.labels[:4], site.training.volume[:4])
    for samples, n in ((None, 5), (four, 2)):
        site.validation = samples
        for kind in ("share", "train"):
            site.reply(Message(kind, weights, {}, {"round": 1}))
            assert site.n_patients == {"loss": n}


@pytest.mark.parametrize(
    ("toy", "first", "expected"),
    [
        (ToyClassification(), 3, {"prototype/0": 4, "prototype/1": 2}),
        (ToySegmentation(), 5, {"prototype/0": 3, "prototype/1": 3}),  # the structure and the ring around it
    ],
    ids=["classes", "masks"],
)
def test_a_prototype_is_of_the_patients_of_its_class(toy, first, expected):
    """Images 0 to 9 are of five patients with two images each. Only the first images show class 1 or the structure."""
    method = FPL(min_images=1, min_patients=1)
    site = site_of(method, toy)
    labels = site.training.labels.clone()
    labels[:first] = 1 if labels.ndim == 1 else labels[:first]
    labels[first:] = 0
    site.training = replace(site.training, labels=labels)
    assert trained(method, toy, site) == expected


def test_the_image_moments_are_of_all_patients_and_weights_are_not_listed():
    site = site_of(FedAvg(), ToySegmentation())
    site.reply(moments_request())
    assert site.n_patients == {"image_moments": 5}
    site.reply(Message("train", ToySegmentation().start(FedAvg()).weights, {}, {"round": 1}))
    assert site.n_patients == {}


def test_a_stack_reports_under_the_names_that_it_sends():
    toy, method = ToySegmentation(), Stack((ELCFS(alpha=0.1), SCAFFOLD()))
    assert method.patients_advice == ELCFS.patients_advice and method.fact_names == frozenset()
    assert Stack((FISC(), SCAFFOLD())).fact_names == FISC().fact_names != frozenset()
    site = site_of(method, toy)
    site.reply(Message("share", {}, {}, {"round": 1}))
    assert site.n_patients == {"0/windows": 1, "1/examples": 5}
    sent = site.reply(Message("train", toy.start(method).weights, {}, {"round": 1})).tensors
    assert site.n_patients == dict.fromkeys(sent, 5) and all(name.startswith("1/change/") for name in sent)


def test_styles_of_stable_fdg_are_of_all_patients():
    toy, method = ToySegmentation(), StableFDG(stages=(1, 2), attention=False)
    site = site_of(method, toy)
    site.reply(Message("share", toy.start(method).weights, {}, {"round": 1}))
    assert site.n_patients == dict.fromkeys(("mean", "std", "mean_spread", "std_spread"), 5)
