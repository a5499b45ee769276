"""Others train and evaluate an exported bundle with MONAI alone: on a folder, and as clients of `monai.fl`."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from made_bundles import SIDE, UNET, exported, training_of
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from PIL import Image

from medfed.datasets.base import Volume
from medfed.images.reading import read_image
from medfed.networks.bundle import Bundle
from medfed.networks.densenet import DenseNetwork
from medfed.outputs.bundle.check import check_bundle
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.segmentation import Segmentation

pytestmark = pytest.mark.usefixtures("quiet")

ORGAN = Segmentation(("organ",), 1, SIDE)
TRAINING = {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.5, "weight_decay": 0.01, "batch_size": 3}


def write_site(folder, n=5, seed=0, shift=0.0):
    """Write n NIfTI volumes of 40 x 36 x 4 voxels with a bright disc, and their masks."""
    rng = np.random.default_rng(seed)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    x, y, _ = np.meshgrid(*[np.linspace(-1, 1, size) for size in (40, 36, 4)], indexing="ij")
    for number in range(n):
        mask = (x - rng.uniform(-0.3, 0.3)) ** 2 + (y - rng.uniform(-0.3, 0.3)) ** 2 < 0.2
        image = mask + shift + rng.normal(0, 0.2, mask.shape)
        affine = np.diag([-0.6, -0.7, 3.0, 1.0])  # LPS
        nib.save(nib.Nifti1Image(image.astype(np.float32), affine), folder / "images" / f"{number}.nii.gz")
        nib.save(nib.Nifti1Image(mask.astype(np.uint8), affine), folder / "labels" / f"{number}.nii.gz")
    return folder


def export(out, task=ORGAN, network=UNET, input_is_2d=False, **training):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = network.build(task.channels, task.out_channels)
    return exported(out, network, module, task, input_is_2d, training_settings=TRAINING | training)


def batch_of(flow, block):
    dataset = flow.parser.get_parsed_content(f"{block}#dataset")
    item = dataset[0]
    return item[0] if isinstance(item, list) else item


@pytest.mark.parametrize("standardise", ["none", "slice", "volume"])
def test_a_validation_case_is_prepared_as_in_the_run(tmp_path, standardise):
    task = Segmentation(("organ",), 1, SIDE, standardised=standardise)
    site = write_site(tmp_path / "site")
    flow = training_of(export(tmp_path / "b_segmentation", task), site)
    case = flow.parser.get_parsed_content("validate#dataset").data[0]
    item = batch_of(flow, "validate")
    volume = Volume(read_image(Path(case["image"]), 1, []), read_image(Path(case["label"]), 1, []), None)
    prepared = task.prepare([volume])
    image = task.standardise(prepared.images, task.moments_of(prepared.images))
    torch.testing.assert_close(item["image"].movedim(-1, 0), image, rtol=1e-5, atol=1e-5)
    assert torch.equal(item["label"].movedim(-1, 0).to(torch.uint8), prepared.labels.to(torch.uint8))


def test_the_loss_and_the_optimiser_are_those_of_the_run(tmp_path):
    flow = training_of(export(tmp_path / "b_segmentation"), write_site(tmp_path / "site"))
    optimizer, loss = flow.parser.get_parsed_content("optimizer"), flow.parser.get_parsed_content("loss")
    assert type(optimizer) is torch.optim.SGD
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.05, 0.5, 0.01)
    logits = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loss(logits, (logits > 0.3).float()), ORGAN.loss(logits, logits > 0.3))
    dataset = flow.parser.get_parsed_content("train#dataset")
    assert len(dataset) == 4 and [tuple(item["image"].shape) for item in dataset[0]] == [(1, SIDE, SIDE)] * 3


@pytest.mark.slow
def test_training_with_monai_starts_from_the_exported_weights_and_learns(tmp_path):
    bundle = export(tmp_path / "b_segmentation", learning_rate=0.02, optimizer="adam", betas=(0.9, 0.99))
    site = write_site(tmp_path / "site")
    flow = training_of(bundle, site, **{"train#trainer#max_epochs": 12, "val_interval": 12})
    assert flow.check_properties() == []
    network = flow.parser.get_parsed_content("network")
    stored = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert all(torch.equal(entry, stored[name]) for name, entry in network.state_dict().items())
    flow.run()
    assert flow.parser.get_parsed_content("validate#evaluator").state.metrics["val_mean_dice"] > 0.6
    trained = torch.load(bundle / "models" / "trained.pt", weights_only=True)
    assert list(trained) == list(stored)
    evaluated = training_of(bundle, site, "train", "evaluate", load_pretrain=False)
    evaluated.parser.get_parsed_content("network").load_state_dict(trained)
    evaluated.run()
    (dice,) = evaluated.parser.get_parsed_content("validate#evaluator").state.metrics.values()
    assert dice == pytest.approx(flow.parser.get_parsed_content("validate#evaluator").state.metrics["val_mean_dice"])


def test_two_monai_algo_clients_train_the_bundle_and_medfed_starts_from_the_result(tmp_path):
    bundle = export(tmp_path / "b_segmentation")
    weights, algorithms = torch.load(bundle / "models" / "model.pt", weights_only=True), []
    for seed in (1, 2):
        site = write_site(tmp_path / f"site{seed}", n=3, seed=seed)
        options = {"bundle_root": str(bundle), "dataset_dir": str(site), "device": "cpu"}
        options["ckpt_dir"] = str(tmp_path / f"models{seed}")
        algorithm = MonaiAlgo(str(bundle), send_weight_diff=False, train_kwargs=options, eval_kwargs=options)
        algorithm.initialize({"CLIENT_NAME": f"site{seed}"})
        algorithms.append(algorithm)
    replies = []
    for algorithm in algorithms:
        algorithm.train(ExchangeObject(weights=weights, weight_type=WeightType.WEIGHTS))
        replies.append({name: entry.clone() for name, entry in algorithm.get_weights().weights.items()})
    assert not torch.equal(replies[0]["final_conv.weight"], replies[1]["final_conv.weight"])
    average = {name: (replies[0][name] + replies[1][name]) / 2 for name in weights}
    metrics = algorithms[0].evaluate(ExchangeObject(weights=average, weight_type=WeightType.WEIGHTS)).metrics
    assert 0 <= metrics["val_mean_dice"] <= 1  # not NaN, not percent
    torch.save(average, bundle / "models" / "model.pt")
    settings = Bundle(str(bundle))
    network = settings.build(1, 1)
    settings.load_pretrained(network)
    assert all(torch.equal(entry, average[name]) for name, entry in network.state_dict().items())


def test_a_bundle_of_2d_images_with_two_structures_trains(tmp_path):
    task = Segmentation(("disc", "cup"), 3, SIDE, (0.0, 255.0), Evaluation(), standardised="slice")
    rng = np.random.default_rng(0)
    for folder, channels in [("images", 3), ("labels_disc", 1), ("labels_cup", 1)]:
        (tmp_path / "site" / folder).mkdir(parents=True)
        for number in range(5):
            values = rng.integers(0, 256, (40, 36, channels))
            values = values if channels == 3 else (values > 127) * 255
            path = tmp_path / "site" / folder / f"{number}.png"
            Image.fromarray(values.astype(np.uint8).squeeze()).save(path)
    flow = training_of(export(tmp_path / "b_segmentation", task, input_is_2d=True), tmp_path / "site")
    item, case = batch_of(flow, "validate"), flow.parser.get_parsed_content("validate#dataset").data[0]
    masks = torch.cat([read_image(Path(case[f"label_{name}"]), 1, []) > 0 for name in ("disc", "cup")]).float()
    prepared = task.prepare([Volume(read_image(Path(case["image"]), 3, []), masks, None)])
    assert torch.equal(item["label"].movedim(-1, 0).to(torch.uint8), prepared.labels.to(torch.uint8))
    flow.run()
    assert flow.parser.get_parsed_content("train#trainer").state.iteration == 2  # four images in batches of three


def test_a_bundle_for_classification_trains_and_its_score_is_the_mean_recall(tmp_path):
    task = Classification(("normal", "tumour", "other"), 3, SIDE)
    rng = np.random.default_rng(0)
    for name in task.classes:
        (tmp_path / "site" / name).mkdir(parents=True)
        for number in range(5):
            values = rng.integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)
            Image.fromarray(values).save(tmp_path / "site" / name / f"{number}.png")
    bundle = export(tmp_path / "b_classification", task, DenseNetwork(4, 4, (1, 1)), input_is_2d=True)
    flow = training_of(bundle, tmp_path / "site", load_pretrain=False)
    network = flow.parser.get_parsed_content("network")
    flow.run()
    dataset = flow.parser.get_parsed_content("validate#dataset")
    with torch.no_grad():
        predicted = [int(network.eval()(item["image"][None]).argmax()) for item in dataset]
    classes = [int(torch.as_tensor(item["label"]).argmax()) for item in dataset]
    pairs = list(zip(classes, predicted, strict=True))
    recalls = [np.mean([p == c for t, p in pairs if t == c]) for c in sorted(set(classes))]
    score = flow.parser.get_parsed_content("validate#evaluator").state.metrics["val_balanced_accuracy"]
    assert len(dataset) == 3 and score == pytest.approx(np.mean(recalls))
    label = torch.eye(3)[[2, 0]]
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    loss = flow.parser.get_parsed_content("loss")
    torch.testing.assert_close(loss(logits, label), task.loss(logits, torch.tensor([2, 0])))


@pytest.fixture(scope="module")
def bundle_to_damage(tmp_path_factory):
    """Return a bundle, and the text of its train.json."""
    bundle = export(tmp_path_factory.mktemp("d") / "b_segmentation")
    return bundle, (bundle / "configs" / "train.json").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["load"]["src"].update(weights_only=False), "weights_only: 'False' is not allowed"),
        (lambda c: c["load"]["src"].update(pickle_module="os"), "torch.load has the unknown argument"),
        (lambda c: c["optimizer"].update(_target_="os.system"), "'os.system' is not allowed"),
        (lambda c: c.update(cases="$[open(name) for name in @names]"), "is not one of medfed's"),
        (lambda c: c["load"]["src"].pop("weights_only"), "torch.load without weights_only could run code"),
        (lambda c: c.update(ckpt_dir="/home"), "ckpt_dir: '/home' is not allowed here"),
        (lambda c: c["train"]["handlers"][-1].update(final_filename="../../.bashrc"), "final_filename: '"),
        (lambda c: c["train"]["handlers"][-1].update(file_prefix="../x"), "CheckpointSaver has the unknown argument"),
    ],
)
def test_a_training_config_that_could_run_code_or_write_elsewhere_is_rejected(bundle_to_damage, change, says):
    bundle, content = bundle_to_damage
    path, content = bundle / "configs" / "train.json", json.loads(content)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(Exception, match=says):
        check_bundle(bundle)


def test_a_logging_file_that_names_a_class_is_rejected(tmp_path):
    bundle = export(tmp_path / "b_segmentation")
    path = bundle / "configs" / "logging.conf"
    path.write_text(path.read_text().replace("class=StreamHandler", "class=subprocess.Popen"))
    with pytest.raises(Exception, match="logging.conf"):
        check_bundle(bundle)
