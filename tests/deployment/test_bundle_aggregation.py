"""Tests of `python -m medfed.aggregate`: bundles that were trained elsewhere become one bundle."""

import csv
import json
import os
import shutil

import pytest
import torch
from made_bundles import UNET, exported

from medfed import aggregate
from medfed.networks.unet import UNet
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.program import PROGRAM_DEF
from medfed.tasks.segmentation import Segmentation

ENTRY = "conv_0.conv_0.conv.weight"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    out = tmp_path_factory.mktemp("start") / "organ_segmentation"
    return exported(out, UNET, UNET.build(1, 1), Segmentation(("organ",), 1, 32), input_is_2d=False)


@pytest.fixture
def trained(start, tmp_path):
    """Return a function that writes the bundle of a site whose trained weights are larger by some number."""

    def write(name, more, wrapped=False):
        shutil.copytree(start, tmp_path / name)
        weights = weights_of(start)
        weights = {key: entry + more if entry.is_floating_point() else entry for key, entry in weights.items()}
        torch.save({"model": weights} if wrapped else weights, tmp_path / name / "models" / "model.pt")
        return tmp_path / name

    return write


def weights_of(bundle):
    return torch.load(bundle / "models" / "model.pt", weights_only=True)


def run(*arguments):
    return aggregate.main([str(argument) for argument in arguments])


def test_the_mean_counts_hospitals_by_their_images_and_the_bundle_says_who_took_part(start, trained, tmp_path, capsys):
    sites = trained("A", 0.1), trained("B", 0.5, wrapped=True)
    out = tmp_path / "organ_segmentation"
    assert run(*sites, "--start", start, "--out", out, "--images", 30, 10) == 0
    expected = weights_of(start)[ENTRY] + 0.75 * 0.1 + 0.25 * 0.5
    torch.testing.assert_close(weights_of(out)[ENTRY], expected)
    check_bundle(out)
    output = capsys.readouterr()
    assert (
        "\nA   " in output.out
        and " 30  " in output.out
        and "not compared: --largest-change needs 3 sites" in output.err
    )
    metadata, old = (json.loads((path / "configs" / "metadata.json").read_text()) for path in (out, start))
    about = metadata["medfed_provenance"]["aggregation"]
    assert metadata["eval_metrics"] == {} and metadata["version"] > old["version"]
    assert sorted(about["sites"]) == ["A", "B"] and about["changes"]["B"] > about["changes"]["A"] > 0
    assert about["weights_of_start"] == old["medfed_provenance"]["weights_sha256"]
    rows = list(csv.DictReader((out / "docs" / "ledger.csv").open()))
    assert {row["site"] for row in rows} == {"A", "B"} and {row["content"] for row in rows} == {"weight", "fact"}
    assert "Nobody has tested them" in (out / "docs" / "README.md").read_text()
    assert [path.name for path in (out / "models").iterdir()] == ["model.pt"]  # not the weights of the start


def test_the_result_of_a_round_is_the_start_of_the_next(start, trained, tmp_path):
    a, b = trained("A", 0.1), trained("B", 0.3)
    first, second = tmp_path / "r1_segmentation", tmp_path / "r2_segmentation"
    assert run(a, b, "--start", start, "--out", first) == 0
    assert run(a, b, "--start", first, "--out", second) == 0
    check_bundle(second)
    text = (second / "docs" / "README.md").read_text()
    assert text.count("# Combined weights") == 1 and text.endswith((start / "docs" / "README.md").read_text())
    assert json.loads((second / "configs" / "metadata.json").read_text())["version"] == "0.1.2"


def test_a_folder_of_the_start_in_place_of_the_ledger_is_not_copied(start, trained, tmp_path):
    (damaged(start, tmp_path / "bad") / "docs" / "ledger.csv").mkdir()
    (tmp_path / "bad" / "docs" / "ledger.csv" / "x").write_text("")
    arguments = (trained("A", 0.1), trained("B", 0.2), "--start", tmp_path / "bad", "--out", tmp_path / "out")
    assert run(*arguments, "--allow-unchecked-configs") == 0
    assert (tmp_path / "out" / "docs" / "ledger.csv").is_file()


def test_a_median_ignores_one_hospital_that_is_far_off_whatever_its_size(start, trained, tmp_path):
    sites = [trained(name, more) for name, more in (("A", 0.1), ("B", 0.2), ("C", 0.9))]
    flags = ("--start", start, "--out", tmp_path / "o_segmentation", "--images", 1, 1, 100000)
    assert run(*sites, *flags, "--rule", "coordinate_median") == 0
    torch.testing.assert_close(weights_of(tmp_path / "o_segmentation")[ENTRY], weights_of(start)[ENTRY] + 0.2)


def test_weights_that_fail_a_check_stop_the_program_or_are_left_out(start, trained, tmp_path, capsys):
    sites = [trained(name, more) for name, more in (("A", 0.1), ("B", 0.3), ("C", 50.0))]
    flags = ["--start", start, "--out", tmp_path / "o_segmentation"]
    assert run(*sites, *flags) == 2
    assert "C: its bundle changes the weights" in capsys.readouterr().err
    assert not (tmp_path / "o_segmentation").exists()
    assert run(*sites, *flags, "--on-bad-update", "drop") == 0
    torch.testing.assert_close(weights_of(tmp_path / "o_segmentation")[ENTRY], weights_of(start)[ENTRY] + 0.2)
    assert "left out: C: its bundle" in capsys.readouterr().err


def weights_with(entry):
    """Return a function that replaces an entry of a bundle's weights by `entry(it)`."""

    def damage(site):
        weights = weights_of(site)
        torch.save({**weights, ENTRY: entry(weights[ENTRY])}, site / "models" / "model.pt")

    return damage


def other_network(site):
    torch.save(UNet(features=(4, 4, 8, 8, 8, 4)).build(1, 1).state_dict(), site / "models" / "model.pt")


def pipe(site):
    (site / "models" / "model.pt").unlink()
    os.mkfifo(site / "models" / "model.pt")


with_nan = weights_with(lambda entry: torch.where(torch.arange(entry.numel()).view(entry.shape) == 0, torch.nan, entry))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda site: (site / "models" / "model.pt").unlink(), "A: has no models/trained.pt or models/model.pt"),
        (other_network, "A: its bundle does not fit the network"),
        (with_nan, "A: its bundle is not finite"),
        (weights_with(lambda entry: print), "A/models/model.pt: cannot be read as a state dict"),
        (weights_with(torch.Tensor.to_sparse), f"A/models/model.pt: '{ENTRY}' is not a plain tensor of numbers"),
        (weights_with(lambda entry: torch.zeros(1).expand(1 << 30)), "but its tensors would need 4,29"),
        (lambda site: (site / "configs" / "inference.json").write_text("[1]"), "A: configs/inference.json is not an"),
        (pipe, "A: 'models/model.pt' is a link, a pipe or a device"),
    ],
)
def test_a_wrong_bundle_is_one_sentence_and_nothing_is_written(damage, says, start, trained, tmp_path, capsys):
    sites = trained("A", 0.1), trained("B", 0.2)
    damage(sites[0])
    assert run(*sites, "--start", start, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error and not (tmp_path / "out").exists()
    out = tmp_path / "o_segmentation"
    assert run(*sites, trained("C", 0.4), "--start", start, "--out", out, "--on-bad-update", "drop") == 0
    torch.testing.assert_close(weights_of(out)[ENTRY], weights_of(start)[ENTRY] + 0.3)
    about = json.loads((out / "configs" / "metadata.json").read_text())["medfed_provenance"]["aggregation"]
    assert sorted(about["sites"]) == ["B", "C"] and list(about["left_out"]) == ["A"]


def test_a_hostile_name_and_the_folders_of_this_computer_are_not_copied_into_the_bundle(start, trained, tmp_path):
    sites = [trained(name, more) for name, more in (("A", 0.1), ("B", 0.2), ("C", 0.4))]
    torch.save({"x\n\n<a>![](//evil)": torch.zeros(2).to_sparse()}, sites[0] / "models" / "model.pt")
    out = tmp_path / "o_segmentation"
    assert run(*sites, "--start", start, "--out", out, "--on-bad-update", "drop") == 0
    text, metadata = (out / "docs" / "README.md").read_text(), (out / "configs" / "metadata.json").read_text()
    assert r"* Left out: A/models/model.pt: 'x\\n\\n\<a>!\[](//evil)' is not a plain tensor" in text
    assert "A/models/model.pt: 'x" in metadata and str(tmp_path) not in text + metadata


def test_mistakes_in_the_arguments_are_named(start, trained, tmp_path, capsys):
    a, b = trained("A", 0.1), trained("B", 0.2)
    (tmp_path / "again").mkdir()
    shutil.copytree(a, tmp_path / "again" / "A")
    for arguments, says in [
        ((a, tmp_path / "again" / "A"), "'A' is listed twice"),
        ((a, start), "is the bundle that all sites started from"),
        ((a, b, "--images", 3), "expected 2 whole numbers above 0, one for each of A, B"),
        ((a, tmp_path / "nowhere"), "nowhere: does not exist; expected a bundle"),
    ]:
        assert run(*arguments, "--start", start, "--out", tmp_path / "out") == 2
        assert says in capsys.readouterr().err


def damaged(start, folder, **files):
    shutil.copytree(start, folder)
    for name, text in files.items():
        (folder / "configs" / f"{name}.json").write_text(text)
    return folder


def test_a_start_whose_configs_could_run_code_is_refused_unless_this_is_allowed(start, trained, tmp_path, capsys):
    config = json.loads((start / "configs" / "inference.json").read_text())
    bad = damaged(start, tmp_path / "bad", inference=json.dumps(config | {"x": "$print(1)"}))
    arguments = (trained("A", 0.1), trained("B", 0.2), "--start", bad, "--out", tmp_path / "out")
    assert run(*arguments) == 2 and not (tmp_path / "out").exists()
    assert "may run code at a hospital" in capsys.readouterr().err
    assert run(*arguments, "--allow-unchecked-configs") == 0
    assert "were not checked" in (tmp_path / "out" / "docs" / "README.md").read_text()


@pytest.mark.parametrize(
    ("config", "text", "says"),
    [
        ("inference", '{"network_def": "@x_target_"}', ""),
        ("inference", "[1]", ""),
        ("metadata", "[1]", ""),
        ("metadata", '{"version": "1.\\u00b2", "changelog": [1], "medfed_provenance": ["x"]}', ""),
        ("inference", json.dumps({"network_def": PROGRAM_DEF}), "loads a program, which cannot take averaged weights"),
    ],
)
def test_a_damaged_start_or_one_whose_network_is_a_program_is_a_sentence(
    config, text, says, start, trained, tmp_path, capsys
):
    bad = damaged(start, tmp_path / "bad", **{config: text})
    assert run(trained("A", 0.1), trained("B", 0.2), "--start", bad, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert str(bad) in error and says in error and not (tmp_path / "out").exists()


def test_a_start_with_nan_or_a_folder_within_a_bundle_is_refused(start, trained, tmp_path, capsys):
    a, b, bad = trained("A", 0.1), trained("B", 0.2), trained("start", 0.0)
    for out in (a / "new", start / "new"):
        assert run(a, b, "--start", start, "--out", out) == 2 and not out.exists()
    weights_with(lambda entry: torch.zeros(1).expand(1 << 30))(bad)
    assert run(a, b, "--start", bad, "--out", tmp_path / "out") == 2
    shutil.copyfile(start / "models" / "model.pt", bad / "models" / "model.pt")
    with_nan(bad)
    assert run(a, b, "--start", bad, "--out", tmp_path / "out") == 2
    assert run(a, b, "--start", start, "--out", tmp_path / "out", "--largest-change", "nan") == 2
    errors = capsys.readouterr().err
    for says in (
        "lies in the bundle",
        "its tensors would need",
        "NaN or infinite values, first in",
        "expected a number of at least 1",
    ):
        assert says in errors
    assert "allow" not in errors


def test_an_odd_hospital_is_named_that_did_not_train_sent_a_copy_or_changed_the_transforms(
    start, trained, tmp_path, capsys
):
    a, b, c = trained("A", 0.0), trained("B", 0.2), trained("C", 0.2)
    config = json.loads((b / "configs" / "inference.json").read_text())
    config["preprocessing"]["transforms"].pop()
    (b / "configs" / "inference.json").write_text(json.dumps(config))
    assert run(a, b, c, "--start", start, "--out", tmp_path / "o_segmentation", "--quiet") == 0
    notes = capsys.readouterr().err
    assert (
        "A: returned the weights unchanged" in notes
        and "B and C: sent the same weights" in notes
        and "B: its configs/inference.json has another preprocessing" in notes
    )
