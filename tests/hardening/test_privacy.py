"""R13: how many numbers a site shares. R14: what they reveal, by the attacks of `medfed.audit`."""

from statistics import fmean

import pytest
import torch
from brute_force import full_fft
from conftest import SMALL_UNET, tiny_yaml

from medfed.auditing.audit import audit
from medfed.config.schema import load_text
from medfed.experiments.setup import build_experiment
from medfed.federation.message import Message
from medfed.functional.fourier import exchange_amplitude, low_frequency_window
from medfed.methods.elcfs import ELCFS, WINDOWS
from medfed.phantoms import ProstatePhantom
from medfed.testing.toy import ToyClassification

pytestmark = pytest.mark.hardening
SIDE, MAX_NUMBERS, MAX_DIFFERENCE = 384, 25, 1e-5
MAX_DETAIL, MAX_LINKAGE, MAX_AUC, MIN_CONTROL = 0.1, 0.05, 0.6, 0.9
WINDOW = "elcfs, a window per image"
METHODS = {  # with their default settings, except for the size of the window, which 64 pixels need, and of the codec
    WINDOW: "{name: elcfs, alpha: 0.05}",
    "ccst, a style per site": "{name: ccst, transfer: moments}",
    "fisc, a style per site": "{name: fisc, transfer: moments}",
}


def test_r13_numbers_per_shared_spectrum(measurement):
    toy = ToyClassification(image_side=SIDE, n_images=4)
    method = ELCFS(min_patients=1)
    site = toy.engine(method).local_sites[0]
    windows = site.reply(Message("share", {}, {}, {"round": 1})).tensors[WINDOWS]
    n_shared = windows[0, 0].numel()
    full = torch.fft.rfft2(site.training.batch([0]).image[0, 0])
    n_full = full.numel()
    images, others = (
        torch.rand(measurement.count(8, 2), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        for seed in (measurement.seed, measurement.seed + 1)
    )
    ratio = torch.linspace(0, 1, len(images))
    ours = exchange_amplitude(images, low_frequency_window(others, method.alpha), ratio, method.alpha)
    expected = full_fft(images.double(), others.double(), ratio.double(), method.alpha)
    difference = float((ours - expected).abs().max())
    other_window = full_fft(images.double(), others.double(), ratio.double(), 2 * method.alpha)
    control = float((ours - other_window).abs().max())
    measurement.report(
        f"numbers per channel of a shared spectrum, and images augmented with them, {SIDE} pixels",
        (
            f"at most {MAX_NUMBERS} numbers; difference from full spectra below {MAX_DIFFERENCE:g}",
            f"{n_shared} numbers, difference {difference:.1e}",
            n_shared <= MAX_NUMBERS and difference < MAX_DIFFERENCE,
        ),
        (
            f"full spectrum {n_full:,} numbers; another window differs by {control:.1e}",
            n_full > MAX_NUMBERS and control > MAX_DIFFERENCE,
        ),
    )


@pytest.fixture(scope="module")
def phantom(tmp_path_factory, request):
    n_cases = max(8, round(16 * request.config.getoption("--hardening-scale")))
    root = tmp_path_factory.mktemp("audited") / "prostate_phantom"
    seed = request.config.getoption("--hardening-seed")
    ProstatePhantom(root=str(root), cases_per_site=n_cases, matrix=64, phantom_seed=seed).ensure_available()
    return root


def audited(measurement, phantom, method: str) -> dict:
    """Return the results of the audit of a method."""
    text = tiny_yaml(phantom, SMALL_UNET).replace("image_size: 32", "image_size: 64")
    config = load_text(text.replace("{name: elcfs, alpha: 0.1, min_patients: 1}", method), "audit.yaml")
    experiment = build_experiment(config, None, quiet=True)
    return audit(config, experiment, n_images=measurement.count(10, 2), n_gallery=measurement.count(200, 40))[0]


def linkage(result: dict) -> tuple[float, float, str]:
    """Return how often an image is re-identified, the area under the curve of membership, and both as text."""
    linked, membership = result["reidentification"], result["membership"]
    rate = max(trial["top_1"] for trial in linked["perturbations"].values()) if linked else 0.0
    area = max(membership[way]["auc"] for way in ("same_images", "second_look"))
    of = f"{rate:.0%} of {linked['n']} images re-identified" if linked else "no row belongs to one image"
    return rate, area, f"{of}, area {area:.2f} ({membership['members']} members)"


def test_r14_what_the_shared_statistics_reveal(measurement, phantom):
    results = {name: audited(measurement, phantom, method) for name, method in METHODS.items()}
    for name, result in results.items():
        details = {
            way: fmean(image[way]["detail_correlation"] for image in result["reconstruction"])
            for way in result["reconstruction"][0]
        }
        detail = max(abs(details[way]) for way in ("window", "fitted") if way in details)
        measurement.add(
            f"{name}: detail of {len(result['reconstruction'])} images reconstructed from what is shared",
            (f"mean correlation at most {MAX_DETAIL}", f"{detail:.3f}", detail <= MAX_DETAIL),
            (f"full spectrum {details['full']:.3f}", details["full"] >= MIN_CONTROL),
        )
    attacked = linkage(results[WINDOW])
    is_attacked = attacked[0] > MAX_LINKAGE or attacked[1] > MAX_AUC
    for name, result in results.items():
        rate, area, text = linkage(result)
        measurement.add(
            f"{name}: images re-identified, and patients recognised as members, from what is shared",
            (
                f"at most {MAX_LINKAGE:.0%} re-identified, area under the curve at most {MAX_AUC}",
                text,
                rate <= MAX_LINKAGE and area <= MAX_AUC,
            ),
            (f"{WINDOW}: {attacked[2]}", is_attacked),
        )
    measurement.conclude()
