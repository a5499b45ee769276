"""`python -m medfed.export`: a finished run in, a bundle out; whatever is not a finished run, a sentence."""

import json
from types import SimpleNamespace

import pytest
import torch
from made_runs import CLASSES, MASKS, NOT_LEARNED, scores_of
from safetensors.torch import load_file
from torch import nn

from medfed.config.schema import load_text
from medfed.export import main
from medfed.federation.method import Method
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.outputs.bundle.model_card import sent_text
from medfed.outputs.bundle.write import export_run, sent_by_sites
from medfed.outputs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("quiet")
CONFIG = """
data: {name: prostate, root: nowhere, image_size: 32}
network: {name: unet, features: [2, 2, 2, 2, 2, 2]}
method: {name: fedavg}
federation: {unseen_site: UCL, rounds: 3}
seed: 5
"""


def images_of(structures=(), classes=(), channels=3):
    """The entry `images` of the summary of a run on pictures."""
    standardised = "imagenet" if classes else "slice"
    facts = {"intensity_range": [0.0, 255.0], "standardised": standardised, "pictures": True, "channels": channels}
    return facts | {"structures": list(structures), "classes": list(classes)}


SUMMARY = scores_of([], MASKS) | {
    "data": "phantom",
    "dataset": "a twin",
    "method": "fedavg",
    "unseen_site": "UCL",
    "source_sites": ["BMC", "HK"],
    "patients": {"BMC": {"train": 3}},
    "selection": "last",
    "selected_round": 3,
    "rounds": 3,
    "seed": 5,
    "config_sha256": "00",
    "versions": {"torch": "2"},
    "images": images_of(["prostate"], channels=1) | {"intensity_range": None, "pictures": False},
}
UNET = "{name: unet, features: [2, 2, 2, 2, 2, 2]}"
DENSE = "{name: densenet, init_features: 4, growth_rate: 2, blocks: [1, 1]}"


class Layered(Method):
    """Adds a layer that predicts nothing else, or something else."""

    changes = False

    def wrap_network(self, network, architecture):
        network.extra = nn.Linear(2, 2)
        if self.changes:
            network.final_conv.register_forward_hook(lambda module, images, logits: -logits)
        return network


class Changing(Layered):
    changes = True


@pytest.fixture
def run(tmp_path):
    """A finished run; its images are nowhere."""
    folder, config = RunFolder(tmp_path / "run"), load_text(CONFIG, "test.yaml")
    folder.path.mkdir()
    folder.write_text("config.yaml", config.yaml)
    torch.manual_seed(0)
    folder.save_model(config.network.build(1, 1).state_dict())
    folder.finish(SUMMARY)
    return folder


def test_a_finished_run_becomes_a_bundle_that_passes_the_check(run, capsys):
    assert main([str(run.path)]) == 0
    bundle = run.path / "bundle" / "prostate_segmentation"
    assert str(bundle) in capsys.readouterr().out
    assert main([str(bundle), "--check"]) == 0
    facts = json.loads((bundle / "configs" / "metadata.json").read_text())["medfed_provenance"]
    assert facts["sites"] == ["BMC", "HK"] and facts["unseen_site"] == "UCL" and facts["selected_round"] == 3
    assert facts["method"] == "fedavg" and facts["data"] == "phantom" and facts["selection"] == "last"
    assert facts["not_for_clinical_use"] is True and facts["seed"] == 5 and "McMahan" in facts["method_about"]
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    kept = load_file(run.path / "model.safetensors")
    assert weights.keys() == kept.keys() and all(torch.equal(weights[name], kept[name]) for name in kept)
    assert (bundle / "docs" / "README.md").read_text().startswith("# Prostate segmentation: trained and tested on syn")


def test_the_model_card_says_what_left_the_sites(run):
    """Without rows in the ledger, the run was no federation; a statistic that nobody describes is named."""

    def text(method, *contents, n_sites=2):
        of_site = [
            {"direction": "up", "kind": "train", "content": c, "name": name, "site": "A"} for c, name in contents
        ]
        rows = [*of_site, *(row | {"site": "B"} for row in of_site[: n_sites - 1])]
        folder = SimpleNamespace(ledger=lambda: iter(rows))
        return sent_text({"sent": sent_by_sites(folder, method)}, None)

    weights, facts = ("weight", ""), ("fact", "loss")
    survey = {"direction": "up", "kind": "survey", "content": "fact", "name": "images; patients"}
    folder = SimpleNamespace(ledger=lambda: iter([survey | {"site": site} for site in "AB"]))
    assert sent_by_sites(folder, FedAvg()) == ["survey of the images"]
    assert text(FedAvg(), facts, weights).endswith("numbers such as losses. They sent no images.")
    own = text(ELCFS(), ("statistic", "windows"), weights, facts, ("statistic", "x"))
    assert own.endswith("They also sent: low-frequency amplitude windows; x (not known to this report).")
    assert (
        text(FedAvg(), weights, n_sites=1)
        == text(FedAvg())
        == "It was trained without a federation: its training images were in one place."
    )
    noise = {"epsilon": 4.734, "delta": 1e-5}
    assert "had noise (epsilon 4.734, delta 1e-05, for a whole site)." in sent_text({"sent": ["weights"]}, noise)
    simulated = sent_text({"sent": ["weights"]}, noise | {"epsilon": "none", "assumes": "that the noise is secret"})
    assert "(no finite epsilon, " in simulated and simulated.endswith("The noise of this simulation was not secret.")
    card = (export_run(run.path) / "docs" / "README.md").read_text()
    assert "\nIt was trained without a federation: its training images were in one place.\n" in card


def test_the_bundle_looks_for_all_nifti_volumes_and_for_pictures_with_the_suffix_of_the_training_images(run):
    cases = (".nii", False, "*.nii*"), (".mha", False, "*.nii*"), (".jpg", True, "*.jpg"), (".tif", True, "*.png")
    for number, (suffix, pictures, pattern) in enumerate(cases):
        run.finish(SUMMARY | {"images": SUMMARY["images"] | {"suffix": suffix, "pictures": pictures}})
        bundle = export_run(run.path, run.path.parent / f"{number}_segmentation")
        assert json.loads((bundle / "configs" / "inference.json").read_text())["image_pattern"] == pattern
        assert f"(`{pattern}`) into one folder" in (bundle / "docs" / "README.md").read_text()


def test_the_model_card_shows_names_as_they_are(run):
    """A site may have any name that a folder can have, also one that Markdown or a browser would interpret."""
    run.finish(SUMMARY | {"source_sites": ["<b>a", "[b](c)", "d*e"], "unseen_site": "`f`"})
    card = (export_run(run.path) / "docs" / "README.md").read_text()
    assert r"\<b>a, \[b](c), d\*e" in card and r"\`f\`" in card


CLASS_FOLDERS = "folder, image: '{site}/{class}/{case}.*', standardise: imagenet, image_channels"


@pytest.mark.parametrize(
    ("name", "data", "images"),
    [
        ("disc_cup_segmentation", "fundus", images_of(["disc", "cup"])),
        ("polyp_segmentation", "folder, image_channels: 3", images_of(["polyp"])),
        ("normal_tumour_classification", "camelyon17", images_of(classes=["normal", "tumour"])),
        ("4_classes_classification", f"{CLASS_FOLDERS}: 1", images_of((), ["a", "b c", "d", "e"], 1)),
        ("not_sure_yes_classification", f"{CLASS_FOLDERS}: 3", images_of(classes=["not sure", "yes"])),
    ],
)
def test_every_task_and_image_type_gets_its_bundle_template(name, data, images, tmp_path, capsys):
    text = CONFIG.replace("name: prostate", f"name: {data}").replace(UNET, DENSE if images["classes"] else UNET)
    folder, config = RunFolder(tmp_path / "run"), load_text(text, "test.yaml")
    summary = SUMMARY | scores_of([], CLASSES if images["classes"] else MASKS) | {"images": images}
    folder.path.mkdir()
    folder.write_text("config.yaml", config.yaml)
    n_out = len(images["structures"] or images["classes"])
    folder.save_model(config.network.build(images["channels"], n_out).state_dict())
    folder.finish(summary | {"method_summary": {"error": 0.5}, "transductive": False})
    assert main([str(folder.path)]) == 0, capsys.readouterr().err
    assert capsys.readouterr().err == ""
    bundle = folder.path / "bundle" / name
    assert main([str(bundle), "--check"]) == 0
    card = (bundle / "docs" / "README.md").read_text()
    assert "- Error: 0.5" in card and "{" not in card and "TRANSDUCTIVE" not in card
    told = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert told["network_data_format"]["outputs"]["pred"]["num_channels"] == n_out and told["data_type"] == "png"
    assert told["medfed_provenance"]["method_summary"] == {"error": 0.5}
    assert ("predictions.csv" in card) == name.endswith("_classification")


def test_out_names_the_folder_and_a_second_export_there_is_refused(run, tmp_path, capsys):
    assert main([str(run.path), "--out", str(tmp_path / "mine"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main([str(run.path), "--out", str(tmp_path / "mine")]) == 2
    assert "mine: exists already" in capsys.readouterr().err


def test_a_model_that_did_not_learn_is_exported_only_by_force_and_its_readme_says_so(run, capsys):
    run.finish(SUMMARY | {"learning": NOT_LEARNED})
    assert main([str(run.path)]) == 2 and not (run.path / "bundle").exists()
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "DID NOT LEARN" in output and output.endswith("with --force\n")
    assert main([str(run.path), "--force"]) == 0
    (bundle,) = (run.path / "bundle").iterdir()
    card = (bundle / "docs" / "README.md").read_text()
    assert "(every pixel is foreground) 25.00 %" in card and "IT DID NOT LEARN" in card.splitlines()[0]
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert metadata["medfed_provenance"]["learning"] == NOT_LEARNED


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("config.yaml", "holds no run"),
        ("summary.json", "not finished"),
        ("model.safetensors", "is missing"),
    ],
)
def test_a_run_without_its_files_is_refused_in_one_line(run, name, sentence, capsys):
    (run.path / name).unlink()
    assert main([str(run.path)]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and output.startswith(f"medfed.export: {run.path}")
    assert sentence in output and not (run.path / "bundle").exists()


def test_a_damaged_model_is_refused(run, capsys):
    path = run.path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert main([str(run.path)]) == 2 and "model.safetensors: its content does not match" in capsys.readouterr().err
    assert not (run.path / "bundle").exists()


@pytest.mark.parametrize("method", [Layered, Changing])
def test_layers_of_a_method_are_left_out_unless_they_change_the_masks(run, method):
    config = load_text(CONFIG, "")
    run.save_model(method().wrap_network(config.network.build(1, 1), config.network).state_dict())
    text = (run.path / "config.yaml").read_text()
    run.write_text("config.yaml", text.replace("name: fedavg", f"name: {method.__module__}.{method.__qualname__}"))
    run.finish(SUMMARY)
    assert main([str(run.path)]) == 0
    models = run.path / "bundle/prostate_segmentation/models"
    weights = torch.load(models / "model.pt", weights_only=True)
    assert any(name.startswith("extra") for name in weights) == method.changes
    facts = json.loads((models.parent / "configs" / "metadata.json").read_text())["medfed_provenance"]
    assert facts["method_layers"] == method.changes and facts["network"]["features"] == [2, 2, 2, 2, 2, 2]
    plain = config.network.build(1, 1).eval()
    plain.load_state_dict({name: entry for name, entry in weights.items() if not name.startswith("extra")})
    image = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = -plain(image) if method.changes else plain(image)
        assert (models / "model.pt2").is_file() == method.changes
        network = torch.export.load(models / "model.pt2").module() if method.changes else plain
        assert torch.allclose(network(image), expected, atol=1e-5)


def test_a_folder_that_is_not_a_bundle_fails_the_check(tmp_path, capsys):
    assert main([str(tmp_path), "--check"]) == 2
    assert "LICENSE is missing" in capsys.readouterr().err
