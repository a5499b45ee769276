"""A bundle is scored as the run from which it was exported, and as MONAI runs it; code of a bundle never runs."""

import json
import logging
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
from conftest import tiny_yaml
from monai.bundle import ConfigWorkflow
from monai.networks.nets import BasicUNet
from PIL import Image

import medfed
from medfed.config.overrides import Override
from medfed.config.schema import load_dataset
from medfed.core.errors import UserError
from medfed.datasets.reading import read_image
from medfed.networks.densenet import DenseNetwork
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.unet import UNet
from medfed.outputs.bundle.write import write_bundle
from medfed.outputs.report.elements import Table
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.page import failures
from medfed.scoring.score import score_bundle, write_scores
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.segmentation import Segmentation

SIDE = 32
UNET = UNet(features=(4, 4, 4, 8, 8, 4))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def seeded(network, channels, outputs):
    """Return a network whose first output is above 0 in about half of the pixels."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return network.build(channels, outputs).eval()


def exported(out, network, module, task, more=()):
    provenance = {"data": "phantom", "sites": ["other"], "unseen_site": "here", "method": "fedavg", "rounds": 1}
    provenance |= dict(more)
    return write_bundle(out, network=network, weights=module.state_dict(), task=task, provenance=provenance, summary={},
                        input_is_2d=task.intensity_range is not None if hasattr(task, "intensity_range") else True)


def write_photographs(root, n=3):
    """Write images of other sizes than the network's, and masks of a square; the last mask is empty."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / "here" / name).mkdir(parents=True)
    for k in range(n):
        mask = np.zeros((40 + k, 52), np.uint8)
        if k < n - 1:
            mask[10:30, 5:25] = 255
        image = rng.integers(0, 200, (*mask.shape, 3), np.uint8) + mask[..., None] // 5
        Image.fromarray(image).save(root / "here" / "images" / f"{k}.png")
        Image.fromarray(mask).save(root / "here" / "masks" / f"{k}.png")


def write_volumes(root, n=2):
    rng = np.random.default_rng(1)
    (root / "here").mkdir(parents=True)
    affine = np.array([[-0.6, 0.1, 0, 3], [0.1, -0.7, 0, -2], [0, 0, 3.3, 5], [0, 0, 0, 1]])
    for k in range(n):
        mask = np.zeros((36, 30, 4), np.uint8)
        mask[8:20, 8:20, 1:3] = 1
        nib.save(nib.Nifti1Image(rng.integers(0, 900, mask.shape).astype(np.int16), affine),
                 root / "here" / f"c{k}.nii.gz")  # fmt: skip
        nib.save(nib.Nifti1Image(mask, affine), root / "here" / f"c{k}_mask.nii.gz")


def same_rows(actual, expected):
    assert len(actual) == len(expected) > 0
    for row, other in zip(actual, expected):
        assert row.keys() == other.keys()
        for key, value in other.items():
            assert row[key] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), key


def test_a_bundle_has_the_scores_of_the_run_from_which_it_was_exported(tmp_path, small_phantom):
    (tmp_path / "run.yaml").write_text(tiny_yaml(small_phantom))
    changes = {"federation.rounds": 1, "method.name": "fedavg", "data.standardise": "slice"}
    run = medfed.run(medfed.load_config(tmp_path / "run.yaml", changes), tmp_path / "run")
    bundle = medfed.export(run, force=True)
    dataset = load_dataset(small_phantom, None, [Override.of("data.sites", ["UCL"])])
    scores = score_bundle(bundle, dataset)
    of_run = scores.task.scoring.read_cases(run.folder / "cases.csv")
    same_rows(scores.rows, [row for row in of_run if row["site"] == "UCL"])
    (group,), (other,) = (summary["unseen"]["sites"]["UCL"].values() for summary in (scores.summary, run.summary))
    assert group["n_missed"] == other["n_missed"] and group["dice"] == pytest.approx(other["dice"], abs=1e-6)


def test_photographs_have_the_scores_of_the_task_from_which_the_bundle_was_exported(tmp_path):
    write_photographs(tmp_path / "data")
    dataset = load_dataset(tmp_path / "data")
    task = Segmentation(("foreground",), dataset.channels, SIDE, (0.0, 255.0), Evaluation(0.5))
    module = seeded(UNET, dataset.channels, 1)
    bundle = exported(tmp_path / "bundle", UNET, module, task)
    expected = task.evaluate(module, dataset, dataset.cases("here"), "unseen", lambda *_: None, lambda n: None)
    scores = score_bundle(bundle, dataset)
    same_rows(scores.rows, expected.rows)
    assert any(0 < row["dice"] < 1 for row in expected.rows)
    group = scores.summary["unseen"]["sites"]["here"]["foreground"]
    assert group["dice"]["mean"] == pytest.approx(np.mean([row["dice"] for row in expected.rows]), abs=1e-6)


def write_classes(root):
    rng = np.random.default_rng(2)
    for name, low in (("a", 0), ("b", 90)):
        (root / "here" / name).mkdir(parents=True)
        for k in range(4):
            image = rng.integers(low, low + 120, (35, 41, 3), np.uint8)
            Image.fromarray(image).save(root / "here" / name / f"{name}{k}.png")


def test_an_exported_classification_bundle_has_the_scores_of_its_task_with_the_classes_in_another_order(tmp_path):
    write_classes(tmp_path / "data")
    dataset = load_dataset(tmp_path / "data")
    network = DenseNetwork(4, 2, (1, 1))
    task = Classification(("B", "A"), 3, SIDE)  # of a run that numbered the classes in the other order
    module = seeded(network, 3, 2)
    bundle = exported(tmp_path / "bundle", network, module, task)
    scores = score_bundle(bundle, dataset)
    own = Classification(dataset.classes, 3, SIDE)
    expected = {row["patient"]: row for row in own.evaluate(
        module, dataset, dataset.cases("here"), "unseen", lambda *_: None, lambda n: None).rows}  # fmt: skip
    for row in scores.rows:
        other = expected[row["patient"]]
        assert row["label"] == other["label"] and row["p_b"] == pytest.approx(other["p_a"], abs=1e-6)
    assert scores.summary["compared_with"] == {"a": "A", "b": "B"}
    write_scores(scores, tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"cases.csv", "figures", "scores.html", "summary.json"}
    assert (tmp_path / "out" / "figures" / "examples.png").is_file()


TRANSFORMS = [
    {"_target_": "LoadImaged", "keys": "@image_key", "image_only": False},
    {"_target_": "EnsureChannelFirstd", "keys": "@image_key", "channel_dim": -1},
    {"_target_": "Resized", "keys": ["@image_key"], "spatial_size": [SIDE, SIDE + 16], "mode": ["bilinear"]},
    {"_target_": "ScaleIntensityd", "keys": "@image_key"},
    {"_target_": "CastToTyped", "keys": "@image_key", "dtype": "$torch.float32"},
    {"_target_": "EnsureTyped", "keys": "@image_key", "device": "@device"},
]
INVERT = {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "@image_key",
          "meta_key_postfix": "meta_dict", "nearest_interp": False, "to_tensor": True}  # fmt: skip
SAVE = {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "output_ext": ".png",
        "output_postfix": "seg", "separate_folder": False, "output_dtype": "$np.uint8", "resample": False}
ENDINGS = {
    "argmax": [{"_target_": "Activationsd", "keys": "pred", "softmax": True}, INVERT,
               {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}, SAVE],
    "one-hot without background": [INVERT,
                                   {"_target_": "AsDiscreted", "keys": ["pred"], "argmax": True, "to_onehot": 2},
                                   {"_target_": "Lambdad", "keys": ["pred"], "func": "$lambda x : x[1:]"}, SAVE],
}  # fmt: skip


def foreign_bundle(path, ending="argmax", names=("background", "Tool"), **changes):
    """Write a bundle as people write them by hand: two channels with background, MONAI's own resizing, references."""
    network = {"_target_": "BasicUNet", "spatial_dims": 2, "in_channels": 3, "out_channels": 2,
               "features": [4, 4, 4, 8, 8, 4]}  # fmt: skip
    inference = {
        "imports": ["$import glob"], "bundle_root": ".", "image_key": "image", "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cpu')", "datalist": "$sorted(glob.glob(@dataset_dir + '/*.png'))", "dataset_dir": ".",
        "network_def": network, "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": TRANSFORMS},
        "dataset": {"_target_": "Dataset", "data": "$[{'image': i} for i in @datalist]",
                    "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {"_target_": "Compose", "transforms": ENDINGS[ending]},
        "evaluator": {"_target_": "SupervisedEvaluator", "device": "@device", "val_data_loader": "@dataloader",
                      "network": "@network", "inferer": "@inferer", "postprocessing": "@postprocessing"},
        "loader": {"_target_": "CheckpointLoader", "load_path": "$@bundle_root + '/models/model.pt'",
                   "load_dict": {"model": "@network"}},
        "initialize": ["$@loader(@evaluator)"], "run": ["$@evaluator.run()"],
    } | changes  # fmt: skip
    channels = {"num_channels": len(names), "channel_def": {str(k): name for k, name in enumerate(names)}}
    metadata = {"version": "1", "name": "Tools", "network_data_format": {
        "inputs": {"image": {"num_channels": 3}}, "outputs": {"pred": channels}}}  # fmt: skip
    for name in ("configs", "models"):
        (path / name).mkdir(parents=True)
    (path / "configs" / "inference.json").write_text(json.dumps(inference))
    (path / "configs" / "metadata.json").write_text(json.dumps(metadata))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = BasicUNet(2, 3, 2, features=(4, 4, 4, 8, 8, 4))
        module.final_conv.bias.data[1] -= 0.8  # about half of the pixels become the tool
    torch.save(module.state_dict(), path / "models" / "model.pt")
    return path


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bundle_of_others_predicts_the_masks_that_monai_writes(tmp_path, ending):
    write_photographs(tmp_path / "data")
    images = tmp_path / "data" / "here" / "images"
    bundle = foreign_bundle(tmp_path / "tools", ending)
    flow = ConfigWorkflow(str(bundle / "configs" / "inference.json"), str(bundle / "configs" / "metadata.json"),
                          workflow_type="infer", logging_file=False, bundle_root=str(bundle), dataset_dir=str(images),
                          output_dir=str(tmp_path / "eval"))  # fmt: skip
    flow.initialize()
    flow.run()
    model = load_bundle(bundle, CPU)
    for path in sorted(images.iterdir()):
        mask = model.masks(read_image(path, 3, []), is_2d=True)["Tool"][..., 0].numpy()
        expected = np.asarray(Image.open(tmp_path / "eval" / f"{path.stem}_seg.png"))
        assert np.array_equal(mask, expected) and 0.02 < mask.mean() < 0.98


def test_names_are_asked_for_when_they_are_not_clear(tmp_path):
    write_photographs(tmp_path / "data")
    bundle = foreign_bundle(tmp_path / "tools")
    dataset = load_dataset(tmp_path / "data")
    assert score_bundle(bundle, dataset).summary["compared_with"] == {"foreground": "Tool"}
    liver = type(dataset)(root=dataset.root, image_channels=3, structure_names=("liver",))
    with pytest.raises(UserError, match="predicts Tool, and .* has 'liver'.* such as name=liver=Tool"):
        score_bundle(bundle, liver)
    named = score_bundle(bundle, liver, {"liver": "Tool"})
    assert named.summary["compared_with"] == {"liver": "Tool"}
    with pytest.raises(UserError, match="has no 'spleen'"):
        score_bundle(bundle, liver, {"spleen": "Tool"})


def test_a_missed_structure_a_false_alarm_and_an_absent_one_are_counted_and_listed(tmp_path):
    write_photographs(tmp_path / "data", n=3)
    bundle = foreign_bundle(tmp_path / "tools")
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    weights["final_conv.weight"].zero_()
    for bias, counts in (([1.0, 0.0], (2, 0, 1)), ([0.0, 1.0], (0, 1, 0))):  # always background; always the tool
        weights["final_conv.bias"] = torch.tensor(bias)
        torch.save(weights, bundle / "models" / "model.pt")
        scores = score_bundle(bundle, load_dataset(tmp_path / "data"))
        group = scores.summary["unseen"]["sites"]["here"]["foreground"]
        assert (group["n_missed"], group["n_false_alarm"], group["n_absent"]) == counts
        table = failures(scores.task.scoring, scores.rows, "REAL data")
        listed = [row[3].text for row in table.body] if isinstance(table, Table) else []
        assert (listed.count("missed"), listed.count("false alarm")) == counts[:2]


def changed(key, value):
    transforms = [dict(entry) for entry in TRANSFORMS]
    place, _, name = key.partition(".")
    transforms[int(place)][name] = value
    return {"preprocessing": {"_target_": "Compose", "transforms": transforms}}


MARK = "$__import__('pathlib').Path('code_has_run').touch()"
REFUSED = {
    "preprocessing.transforms.2.mode: '\\$": changed("2.mode", MARK),
    "preprocessing.transforms.2: the transform RandFlipd is not": changed("2._target_", "RandFlipd"),
    "preprocessing.transforms.2: the transform os.system is not": changed("2._target_", "os.system"),
    "preprocessing.transforms.0.reader: found 'os.system'": changed("0.reader", "os.system"),
    "preprocessing.transforms.0.converter: '\\$lambda": changed("0.converter", "$lambda x: x"),
    "preprocessing.transforms.3._disabled_: found '\\$": changed("3._disabled_", MARK),
    "preprocessing: its first transform is Resized": {
        "preprocessing": {"_target_": "Compose", "transforms": TRANSFORMS[2:]}},
    "preprocessing: LoadImaged is not followed by EnsureChannelFirstd": {
        "preprocessing": {"_target_": "Compose", "transforms": [TRANSFORMS[0], *TRANSFORMS[2:]]}},
    "the reference '@a' leads to itself": {"image_key": "@a", "a": "@a"},
    "the reference '@image_key#0#x' leads to nothing": changed("2.keys", "@image_key#0#x"),
    "is not a monai.transforms.Compose": {"preprocessing": MARK},
    "inferer: found": {"inferer": MARK},
    "postprocessing.transforms.0.func: found": {"postprocessing": {"_target_": "Compose", "transforms": [
        {"_target_": "Lambdad", "keys": "pred", "func": MARK}, *ENDINGS["argmax"]]}},
    "has no AsDiscreted": {"postprocessing": {"_target_": "Compose", "transforms": [INVERT]}},
    "network_def: is TorchScript": {"network_def": {"_target_": "torch.jit.load", "f": MARK}},
    "network_def.in_channels": {"network_def": {"_target_": "BasicUNet", "in_channels": MARK}},
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_whatever_could_run_code_is_refused_with_its_key_and_runs_none(tmp_path, monkeypatch, sentence):
    monkeypatch.chdir(tmp_path)
    bundle = foreign_bundle(tmp_path / "tools", **REFUSED[sentence])
    with pytest.raises(UserError, match=sentence):
        load_bundle(bundle, CPU)
    assert not (tmp_path / "code_has_run").exists()


def test_expressions_in_parts_that_are_not_needed_are_never_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = dict.fromkeys(("imports", "initialize", "run", "dataset", "evaluator", "handlers"), [MARK])
    assert load_bundle(foreign_bundle(tmp_path / "tools", **hostile), CPU).channels == 3
    assert not (tmp_path / "code_has_run").exists()


def test_a_bundle_for_another_task_other_channels_or_other_images_is_refused_in_one_sentence(tmp_path):
    bundle = foreign_bundle(tmp_path / "tools")
    write_classes(tmp_path / "classes")
    write_volumes(tmp_path / "volumes")
    sentences = {"classes": "the bundle segments images, but", "volumes": "images with 3 channels, and"}
    for folder, sentence in sentences.items():
        with pytest.raises(UserError, match=sentence):
            score_bundle(bundle, load_dataset(tmp_path / folder))
    model = load_bundle(bundle, CPU)
    volume = read_image(tmp_path / "volumes" / "here" / "c0.nii.gz", 1, [])
    sentence = "preprocessing: fails with these images|the SimpleInferer of the bundle expect"
    with pytest.raises(UserError, match=sentence):
        model.masks(volume.repeat(3, 1, 1, 1), is_2d=False)
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    torch.save({name: entry for name, entry in weights.items() if "conv_0" not in name}, bundle / "models" / "model.pt")
    with pytest.raises(UserError, match="model.pt belongs to another network: 'conv_0"):
        load_bundle(bundle, CPU)


def test_a_network_of_medfed_needs_no_torchscript(tmp_path):
    """MONAI cannot build it, so that the exported config loads TorchScript; medfed takes its settings instead."""
    network = ElcfsUNet(width=2)
    task = Segmentation(("foreground",), 3, SIDE, (0.0, 255.0))
    module = seeded(network, 3, 1)
    more = {"network": {"name": "elcfs_unet", "width": 2}}
    bundle = exported(tmp_path / "bundle", network, module, task, more)
    model = load_bundle(bundle, CPU)
    assert all(torch.equal(entry, module.state_dict()[name]) for name, entry in model.network.state_dict().items())
    (bundle / "models" / "model.ts").unlink()
    assert load_bundle(bundle, CPU).channels == 3


def test_the_program_prints_the_table_and_refuses_a_used_folder_and_one_among_the_images(tmp_path, capsys):
    from medfed.score import main

    write_photographs(tmp_path / "data")
    bundle = foreign_bundle(tmp_path / "tools")
    arguments = [str(bundle), str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "foreground is compared with Tool of the bundle" in printed and "\n  here " in printed
    assert (tmp_path / "out" / "figures" / "cases_here.png").is_file()
    page = (tmp_path / "out" / "scores.html").read_text()
    assert "<svg" in page and '<td class="text">false alarm</td>' in page
    assert main(arguments) == 2 and "out: exists already" in capsys.readouterr().err
    arguments[3] = str(tmp_path / "data" / "here" / "out")
    assert main(arguments) == 2 and "would mix results with data" in capsys.readouterr().err
    shutil.rmtree(bundle / "models")
    assert main([*arguments[:3], str(tmp_path / "new"), "--quiet"]) == 2
    assert "has no models/model.safetensors or models/model.pt" in capsys.readouterr().err
    assert main([*arguments, "--name", "x"]) == 2 and "expected YOUR_NAME=NAME_IN_THE_BUNDLE" in capsys.readouterr().err
