"""R14: what the shared statistics reveal, by the attacks of `medfed.audit`."""

from statistics import fmean

import pytest
from conftest import SMALL_UNET, tiny_yaml

from medfed.auditing.audit import audit
from medfed.config.schema import load_text
from medfed.experiments.setup import build_experiment
from medfed.phantoms import ProstatePhantom

pytestmark = pytest.mark.hardening
MAX_DETAIL, MAX_LINKAGE, MAX_AUC, MIN_CONTROL = 0.1, 0.05, 0.6, 0.9
WINDOW = "elcfs, a window per image"
METHODS = {  # with their default settings, except for the size of the window, which 64 pixels need, and of the codec
    WINDOW: "{name: elcfs, alpha: 0.05}",
    "ccst, a style per site": "{name: ccst, transfer: moments}",
    "fisc, a style per site": "{name: fisc, transfer: moments}",
}


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
    return audit(config, experiment, n_images=measurement.count(10, 2), n_gallery=measurement.count(200, 40)).result


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
