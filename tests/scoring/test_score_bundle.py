"""A bundle is scored as the run from which it was exported, and as MONAI runs it; code of a bundle never runs."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny_yaml
from made_bundles import (
    CPU,
    ENDINGS,
    INVERT,
    SIDE,
    TRANSFORMS,
    UNET,
    compose,
    exported,
    foreign_bundle,
    inference_of,
    seeded,
    step,
    write_classes,
    write_photographs,
    write_volumes,
)
from PIL import Image

import medfed
from medfed.config.overrides import Override
from medfed.config.schema import load_dataset
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.images.reading import read_image
from medfed.networks.densenet import DenseNetwork
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.networks.parts.bundle_config import read_config
from medfed.outputs.bundle.program import PROGRAM, PROGRAM_DEF, save_program
from medfed.results.scores import COLUMNS, read_scores, table_of
from medfed.score import main
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.bundle_steps import BundleSteps
from medfed.scoring.page import failures
from medfed.scoring.score import score_bundle, write_results
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import UNOBSERVED

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    ("func", "first"),
    [
        ("$lambda x: x[1:]", 1),
        ({"_target_": "torch.narrow", "dim": 0, "start": 2, "length": 3}, 2),
        ({"_target_": "torch.narrow", "dim": 1, "start": 2, "length": 3}, 0),
        ({"_target_": "torch.nn.functional.interpolate", "size": [8, 8]}, 0),
    ],
)
def test_only_a_function_that_drops_channels_moves_the_first_one(func, first, tmp_path):
    steps = {"postprocessing": compose(step("Lambdad", ["pred"], func=func), step("AsDiscreted", threshold=0.5))}
    (tmp_path / "inference.json").write_text(json.dumps(steps))
    config = read_config(tmp_path / "inference.json", ["postprocessing"])
    assert BundleSteps(config, "inference.json").output_form() == (False, first)
    if isinstance(func, dict) and func["_target_"] == "torch.narrow":
        for wrong in ({"start": "x"}, {"start": None}, {"start": "$1"}, {"start": -2}, {"dim": -4}):
            steps = {"postprocessing": compose(step("Lambdad", ["pred"], func=func | wrong), ARGMAX)}
            (tmp_path / "inference.json").write_text(json.dumps(steps))
            config = read_config(tmp_path / "inference.json", ["postprocessing"])
            with pytest.raises(UserError, match="torch.narrow has dim"):
                BundleSteps(config, "inference.json").output_form()


def scores_of_task(task, module, dataset):
    result = task.evaluate(module, dataset, dataset.cases("here"), "unseen", UNOBSERVED)
    return table_of(result.rows, task.scoring.metrics)


def records(summary, site="here"):
    """The scores of a site in `summary.json`, by metric."""
    return {line["metric"]: line for line in summary["scores"] if line["site"] == site}


PHOTOGRAPHS = Segmentation(("foreground",), 3, SIDE, (0.0, 255.0), Evaluation(0.5))


@pytest.fixture
def photographs(tmp_path):
    write_photographs(tmp_path / "data")
    return load_dataset(tmp_path / "data")


def assert_same_scores(actual, expected):
    assert len(expected) > 0
    pd.testing.assert_frame_equal(actual.reset_index(drop=True), expected.reset_index(drop=True), rtol=0, atol=1e-6)


def test_a_bundle_has_the_scores_of_the_run_from_which_it_was_exported(tmp_path, small_phantom):
    (tmp_path / "run.yaml").write_text(tiny_yaml(small_phantom))
    changes = {"federation.rounds": 1, "method.name": "fedavg", "data.standardise": "slice"}
    run = medfed.run(medfed.load_config(tmp_path / "run.yaml", changes), tmp_path / "run")
    bundle = medfed.export(run, force=True)
    dataset = load_dataset(small_phantom, None, [Override.of("data.sites", ["UCL"])])
    scores = score_bundle(bundle, dataset)
    of_run = read_scores(run.folder / "cases.csv")
    assert_same_scores(scores.table, of_run.loc[of_run.site == "UCL", list(COLUMNS)])
    own, other = (records(summary, "UCL") for summary in (scores.summary, run.summary))
    for metric in ("missed", "dice"):
        assert own[metric] == pytest.approx(other[metric], abs=1e-6)
    case = dataset.cases("UCL")[0]
    masks, _ = load_bundle(bundle, torch.device("cpu")).masks(dataset.read_image(case, []), is_2d=False)
    assert torch.equal(run.predict(case.image), torch.stack([masks[name] for name in run.task.labels]))


def test_photographs_have_the_scores_of_the_exporting_task_and_weights_with_a_flipped_bit_have_none(
    tmp_path, photographs
):
    """One bit of the first convolution, which changes scores and nothing that PyTorch notices."""
    module = seeded(UNET, 3, 1)
    bundle = exported(tmp_path / "bundle", UNET, module, PHOTOGRAPHS)
    expected = scores_of_task(PHOTOGRAPHS, module, photographs)
    scores = score_bundle(bundle, photographs)
    assert_same_scores(scores.table, expected)
    dice = expected.value[expected.metric == "dice"]
    assert dice.between(0, 100, inclusive="neither").any()
    assert records(scores.summary)["dice"]["mean"] == pytest.approx(dice.mean(), abs=1e-6)
    weights = bundle / "models" / "model.pt"
    content = bytearray(weights.read_bytes())
    content[content.index(next(iter(module.state_dict().values())).numpy().tobytes()) + 2] ^= 1
    weights.write_bytes(content)
    assert torch.load(weights, weights_only=True).keys() == module.state_dict().keys()
    with pytest.raises(UserError, match="model.pt is damaged: .* does not fit its checksum; copy it again"):
        score_bundle(bundle, photographs)


def test_an_exported_classification_bundle_has_the_scores_of_its_task_with_the_classes_in_another_order(tmp_path):
    write_classes(tmp_path / "data")
    dataset = load_dataset(tmp_path / "data")
    network = DenseNetwork(4, 2, (1, 1))
    task = Classification(("B", "A"), 3, SIDE)  # of a run that numbered the classes in the other order
    module = seeded(network, 3, 2)
    bundle = exported(tmp_path / "bundle", network, module, task)
    scores = score_bundle(bundle, dataset)
    own = Classification(dataset.classes, 3, SIDE)
    expected = scores_of_task(own, module, dataset)
    expected["metric"] = expected.metric.map({"p_a": "p_b", "p_b": "p_a"})
    assert_same_scores(*(table.sort_values(["image", "metric"]) for table in (scores.table, expected)))
    assert scores.summary["compared_with"] == {"a": "A", "b": "B"}
    write_results(scores, tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"cases.csv", "figures", "scores.html", "summary.json"}
    assert (tmp_path / "out" / "figures" / "examples.png").is_file()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bundle_of_others_predicts_the_masks_that_monai_writes(tmp_path, photographs, ending):
    images = tmp_path / "data" / "here" / "images"
    bundle = foreign_bundle(tmp_path / "tools", ending)
    inference_of(bundle, images, tmp_path / "eval").run()
    model = load_bundle(bundle, CPU)
    for path in sorted(images.iterdir()):
        mask = model.masks(read_image(path, 3, []), is_2d=True)[0]["Tool"][..., 0].numpy()
        expected = np.asarray(Image.open(tmp_path / "eval" / f"{path.stem}_seg.png"))
        assert np.array_equal(mask, expected) and 0.02 < mask.mean() < 0.98


def test_names_are_asked_for_when_they_are_not_clear(tmp_path, photographs):
    bundle = foreign_bundle(tmp_path / "tools")
    assert score_bundle(bundle, photographs).summary["compared_with"] == {"foreground": "Tool"}
    liver = type(photographs)(root=photographs.root, image_channels=3, structure_names=("liver",))
    with pytest.raises(UserError, match="predicts Tool, and .* has 'liver'.* such as --name liver=Tool"):
        score_bundle(bundle, liver)
    named = score_bundle(bundle, liver, {"liver": "Tool"})
    assert named.summary["compared_with"] == {"liver": "Tool"}
    with pytest.raises(UserError, match="has no 'spleen'"):
        score_bundle(bundle, liver, {"spleen": "Tool"})


def test_a_missed_structure_a_false_alarm_and_an_absent_one_are_counted_and_listed(tmp_path, photographs):
    bundle = foreign_bundle(tmp_path / "tools")
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    weights["final_conv.weight"].zero_()
    for bias, counts in (([1.0, 0.0], (2, 0, 1)), ([0.0, 1.0], (0, 1, 0))):  # always background; always the tool
        weights["final_conv.bias"] = torch.tensor(bias)
        torch.save(weights, bundle / "models" / "model.pt")
        scores = score_bundle(bundle, photographs)
        shares = [records(scores.summary)[metric] for metric in ("missed", "false_alarm")]
        n_failed = (round(share["mean"] * share["n_patients"] / 100) for share in shares)
        assert (*n_failed, scores.summary["n_absent"]) == counts
        table = failures(scores.table)
        listed = [] if isinstance(table, str) else [row[3].text for row in table.table.rows[1:]]
        assert (listed.count("missed"), listed.count("false alarm")) == counts[:2]


def changed(key, value):
    transforms = [dict(entry) for entry in TRANSFORMS]
    place, _, name = key.partition(".")
    transforms[int(place)][name] = value
    return {"preprocessing": compose(*transforms)}


MARK = "$__import__('pathlib').Path('code_has_run').touch()"
ARGMAX = step("AsDiscreted", argmax=True)
PROGRAM_OF_MARK = {**PROGRAM_DEF["export_module"], "f": MARK}
REFUSED = {
    "preprocessing.transforms.2.mode: '\\$": changed("2.mode", MARK),
    "preprocessing.transforms.2: the transform RandFlipd is not": changed("2._target_", "RandFlipd"),
    "preprocessing.transforms.2: the transform os.system is not": changed("2._target_", "os.system"),
    "preprocessing.transforms.0.reader: found 'os.system'": changed("0.reader", "os.system"),
    "preprocessing.transforms.0.converter: found '\\$lambda": changed("0.converter", "$lambda x: x"),
    "preprocessing.transforms.3._disabled_: found '\\$": changed("3._disabled_", MARK),
    "preprocessing: its first transform is Resized": {"preprocessing": compose(*TRANSFORMS[2:])},
    "LoadImaged is not followed by EnsureChannelFirstd": {"preprocessing": compose(TRANSFORMS[0], *TRANSFORMS[2:])},
    "inference.json: detected circular references": {"image_key": "@a", "a": "@a"},
    "inference.json: the referring item `@image_key::0::x` is not defined": changed("2.keys", "@image_key#0#x"),
    "is not a monai.transforms.Compose": {"preprocessing": MARK},
    "inferer: found": {"inferer": MARK},
    "postprocessing.transforms.0.func: found": {"postprocessing": compose(step("Lambdad", func=MARK), ARGMAX)},
    "has no AsDiscreted": {"postprocessing": compose(INVERT)},
    "network_def: loads a program": {"network_def": {"_target_": "torch.jit.load", "f": MARK}},
    "network_def: loads a program, and": {"network_def": {**PROGRAM_DEF, "export_module": PROGRAM_OF_MARK}},
    "network_def.in_channels": {"network_def": {"_target_": "BasicUNet", "spatial_dims": 2, "in_channels": MARK}},
}


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


def test_a_network_of_medfed_is_built_from_its_settings_and_not_loaded_as_a_program(tmp_path, monkeypatch):
    """MONAI cannot build it, so that the exported config loads a program, here one without the network's weights."""
    monkeypatch.setattr(
        "medfed.outputs.bundle.write.save_program",
        lambda path, network, *size: save_program(path, torch.nn.Identity(), *size),
    )
    network = ElcfsUNet(width=2)
    task = Segmentation(("foreground",), 3, SIDE, (0.0, 255.0))
    module = seeded(network, 3, 1)
    bundle = exported(tmp_path / "bundle", network, module, task, network={"name": "elcfs_unet", "width": 2})
    assert (bundle / PROGRAM).is_file()
    model = load_bundle(bundle, CPU)
    assert all(torch.equal(entry, module.state_dict()[name]) for name, entry in model.network.state_dict().items())
    (bundle / PROGRAM).unlink()
    assert load_bundle(bundle, CPU).channels == 3


def test_the_page_says_at_which_site_the_model_was_trained_and_gives_no_other_role(tmp_path, photographs):
    module = seeded(UNET, 3, 1)
    for sites, label in ((["here"], "<dt>Trained at</dt><dd>here</dd>"), (["other"], "<dd>other</dd>")):
        bundle = exported(tmp_path / sites[0], UNET, module, PHOTOGRAPHS, sites=sites, unseen_site="")
        write_results(score_bundle(bundle, photographs), tmp_path / f"out_{sites[0]}")
        page = (tmp_path / f"out_{sites[0]}" / "scores.html").read_text(encoding="utf-8")
        assert label in page and "(unseen)" not in page


def test_the_program_prints_the_table_and_refuses_a_used_folder_and_one_among_the_images(tmp_path, photographs, capsys):
    bundle = foreign_bundle(tmp_path / "tools")
    arguments = [str(bundle), str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "foreground is compared with Tool of the bundle" in printed and "\n  here " in printed
    assert (tmp_path / "out" / "figures" / "cases_here.png").is_file()
    page = (tmp_path / "out" / "scores.html").read_text()
    assert "unseen" not in page and "Unseen" not in page
    assert page.count("<img") > 1 and '<td class="text">false alarm</td>' in page
    assert main(arguments) == 2 and "out: exists already" in capsys.readouterr().err
    assert main([*arguments, "--json", "--out", str(tmp_path / "again")]) == 0
    printed, stored = (json.loads(capsys.readouterr().out), json.loads((tmp_path / "out" / "summary.json").read_text()))
    assert printed == {"folder": str(tmp_path / "again"), **stored}
    assert medfed.score_bundle(bundle, tmp_path / "data").summary == stored
    arguments[3] = str(tmp_path / "data" / "here" / "out")
    assert main(arguments) == 2 and "would mix results with data" in capsys.readouterr().err
    shutil.rmtree(bundle / "models")
    assert main([*arguments[:3], str(tmp_path / "new"), "--quiet"]) == 2
    assert "has no models/model.safetensors or models/model.pt" in capsys.readouterr().err
    assert main([*arguments, "--name", "x"]) == 2 and "expected YOUR_NAME=NAME_IN_THE_BUNDLE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nogpu", "mps", "cuda:3", "meta", ""])
def test_an_unknown_device_on_the_command_line_is_one_sentence(name):
    with pytest.raises(UserError, match=f"^device: is '{name}'; expected auto, cpu or cuda "):
        pick_device(name)
