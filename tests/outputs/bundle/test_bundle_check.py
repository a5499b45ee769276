"""Tests of the allowed content of a bundle: metadata, classes, expressions and files."""

import io
import json
import sys
import zipfile

import PIL
import pytest
import torch
from hostile_bundles import ENTRIES, HOSTILE_EXPRESSIONS, TARGETS, changed_copy
from made_bundles import exported
from monai.bundle.config_item import ConfigExpression

from medfed.core.errors import UserError
from medfed.networks.unet import UNet
from medfed.outputs.bundle.check import CASES, IMPORTS, check_bundle, check_inference, check_metadata
from medfed.outputs.bundle.write import template_folder
from medfed.tasks.class_bundle import CLASSIFICATION_TEMPLATE
from medfed.tasks.mask_bundle import VOLUME_TEMPLATE
from medfed.tasks.segmentation import Segmentation

TEMPLATE = template_folder(VOLUME_TEMPLATE) / "configs"
UNET = UNet(features=(2, 2, 2, 2, 2, 2))


@pytest.fixture
def meta():
    return json.loads((TEMPLATE / "metadata.json").read_text())


@pytest.fixture
def inference():
    return json.loads((TEMPLATE / "inference.json").read_text())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "organ_segmentation"
    return exported(out, UNET, UNET.build(1, 1), Segmentation(("organ",), 1, 32), input_is_2d=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("task"), "'task' is a required property"),
        (lambda m: m.update(optional_packages_version=m.pop("required_packages_version")), "required_packages_version"),
        (lambda m: m["network_data_format"]["inputs"]["image"].update(num_channels="1"), "num_channels: '1' is not"),
        (lambda m: m.update(authors=["A", "B"]), "authors: .* is not of type 'string'"),
        (lambda m: m.update(supported_apps=["Slicer"]), "supported_apps: .* is not of type 'object'"),
        (lambda m: m.update(version="9.9.9"), "version 9.9.9 is not in the changelog"),
        (lambda m: m["medfed_provenance"].update(not_for_clinical_use=False), "not_for_clinical_use: True was"),
        (lambda m: m.update(description="$__import__('os')"), "description: found .* metadata are plain values"),
        (lambda m: m.update({"a#_target_": "os.system"}), "metadata are plain values"),
    ],
)
def test_wrong_metadata_are_rejected_with_the_key(meta, change, says):
    check_metadata(meta, "metadata.json")
    change(meta)
    with pytest.raises(UserError, match=f"^metadata.json: .*{says}"):
        check_metadata(meta, "metadata.json")


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_not_on_the_list_is_rejected(inference, target):
    inference["preprocessing"]["transforms"][1]["_target_"] = target
    with pytest.raises(UserError, match=r"inference.json: preprocessing.transforms.1._target_: .* is not allowed"):
        check_inference(inference, "inference.json")


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_every_other_way_to_run_code_is_rejected(inference, key, value):
    inference["dataset"][key] = value
    with pytest.raises(UserError, match="^inference.json: "):
        check_inference(inference, "inference.json")


def of_classes():
    return json.loads((template_folder(CLASSIFICATION_TEMPLATE) / "configs" / "inference.json").read_text())


def step(config, name):
    parts = config["preprocessing"]["transforms"] + config["postprocessing"]["transforms"]
    return next(part for part in parts if part["_target_"].endswith(f".{name}"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Lambdad", {"func": "@network"}),
        ("Lambdad", {"func": {"_target_": "torch.jit.load", "f": "x"}}),
        ("Lambdad", {"inv_func": "@network"}),
        ("Lambdad", {"func": {"_target_": "torch.nn.functional.interpolate"}}),
        ("Lambdad", {"func": {"_target_": "torch.nn.functional.interpolate", "_mode_": "debug"}}),
        ("Lambdad", {"func": {"_target_": "torch.narrow"}}),
        ("Lambdad", {"func": {"_target_": "torch.narrow", "_mode_": "callable", "out": "@network"}}),
        ("LoadImaged", {"_mode_": "callable"}),
        ("SaveClassificationd", {"filename": "../../.bashrc"}),  # MONAI deletes what is there, then writes
        ("SaveClassificationd", {"saver": "@evaluator"}),
        ("SaveClassificationd", {"output_dir": "/tmp"}),
        ("SaveImaged", {"output_dir": "/tmp"}),
        ("SaveImaged", {"output_dir": "@other"}),
        ("SaveImaged", {"output_ext": ".png/../../x"}),
        ("SaveImaged", {"output_postfix": "../../x"}),
        ("SaveImaged", {"output_postfix": "@other"}),
        ("SaveImaged", {"data_root_dir": "/"}),
        ("SaveImaged", {"output_name_formatter": "@other"}),
    ],
)
def test_transforms_that_could_call_or_overwrite_anything_are_restricted(inference, name, change):
    config = inference if name == "SaveImaged" else of_classes()
    step(config, name).update(change)
    with pytest.raises(UserError, match=f"^inference.json: .*{next(iter(change))}"):
        check_inference(config, "inference.json")


@pytest.mark.parametrize("key", ["bundle_root", "output_dir"])
def test_another_folder_for_the_output_is_refused(inference, key):
    inference[key] = "/tmp"
    with pytest.raises(UserError, match=f"^inference.json: {key}: '/tmp' is not allowed here; expected"):
        check_inference(inference, "inference.json")


@pytest.mark.parametrize("definition", [{}, {"network_def": None}], ids=["missing", "null"])
def test_a_bundle_without_a_network_is_refused(bundle, tmp_path, definition):
    config = json.loads((bundle / "configs/inference.json").read_text())
    del config["network_def"]
    with pytest.raises(UserError, match="configs/inference.json has no network_def that builds a network"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"configs/inference.json": json.dumps(config | definition)}))


MASK_CASES = (
    "$[{'image': @dataset_dir + '/images/' + name, 'label': @dataset_dir + '/labels/' + name} for name in @names]"
)


@pytest.mark.parametrize(
    "text", [*HOSTILE_EXPRESSIONS, MASK_CASES.replace("images/", "@f {x}/"), MASK_CASES + " + [0]"]
)
def test_expressions_other_than_those_of_medfed_are_rejected(text, inference):
    assert CASES.fullmatch(MASK_CASES) and CASES.fullmatch(MASK_CASES.replace("'label'", '"label_crohn\'s"'))
    inference["dataset"]["data"] = text
    with pytest.raises(UserError, match=r"dataset.data: the expression [\s\S]* is not one of medfed's"):
        check_inference(inference, "inference.json")


def test_a_bundle_is_accepted_and_the_model_is_read_without_unpickling(bundle):
    check_bundle(bundle)
    assert torch.load(bundle / "models" / "model.pt", weights_only=True).keys() == UNET.build(1, 1).state_dict().keys()


def test_code_a_link_a_missing_file_and_broken_json_are_named(bundle, tmp_path):
    with pytest.raises(UserError, match="contains 'scripts/x.py'"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"scripts/x.py": b""}))
    with pytest.raises(UserError, match="configs/inference.json is not JSON"):
        check_bundle(changed_copy(bundle, tmp_path / "b", {"configs/inference.json": b"{"}))
    with pytest.raises(UserError, match="nested deeper"):
        deep = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
        check_bundle(changed_copy(bundle, tmp_path / "c", {"configs/inference.json": deep}))
    (changed_copy(bundle, tmp_path / "d", {}) / "docs" / "data_license.txt").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="is a link"):
        check_bundle(tmp_path / "d")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError):
            check_bundle(path)


@pytest.mark.parametrize("target", ["torch.jit.load", "torch.export.load"])
def test_programs_are_refused_because_they_can_run_code_or_write_files(inference, bundle, tmp_path, target):
    inference["network_def"] = {"_target_": target, "f": "$@bundle_root + '/models/model.pt'"}
    with pytest.raises(UserError, match=f"network_def._target_: '{target}' is not allowed"):
        check_inference(inference, "inference.json")
    with pytest.raises(UserError, match="model.pt2 is a program, which can run code when it is loaded"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"models/model.pt2": b""}))


def test_a_flipped_bit_in_the_weights_is_found(bundle, tmp_path):
    name = "models/model.pt"
    content = bytearray((bundle / name).read_bytes())
    with zipfile.ZipFile(bundle / name) as archive:
        stored = [member for member in archive.infolist() if member.compress_type == zipfile.ZIP_STORED]
        entry = max(stored, key=lambda member: member.file_size)
        position = content.index(archive.read(entry)) + entry.file_size // 2
    content[position] ^= 1
    with pytest.raises(UserError, match=f"{name} is damaged: .* checksum; copy the bundle again"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {name: bytes(content)}))


class Hostile:
    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda weights: {"a": Hostile()}, "cannot be read as a state dict"),
        (lambda weights: [torch.zeros(1)], "is not a plain state dict"),
        (lambda weights: {name: entry * float("nan") for name, entry in weights.items()}, "contains NaN or infinite"),
        (lambda weights: {name: entry[..., :1] for name, entry in weights.items()}, "does not fit network_def"),
        (lambda weights: dict(list(weights.items())[1:]), "does not fit network_def"),
    ],
    ids=["hostile", "list", "nan", "shapes", "missing"],
)
def test_weights_that_are_hostile_not_finite_or_of_another_network_are_refused(bundle, tmp_path, capsys, change, says):
    data = io.BytesIO()
    torch.save(change(UNET.build(1, 1).state_dict()), data)
    with pytest.raises(UserError, match=f"models/model.pt:? {says}"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"models/model.pt": data.getvalue()}))
    assert not capsys.readouterr().out


@pytest.mark.parametrize("features", [[2, 2, 2, 2, 2, 10**9], "@device", "many"])
def test_a_network_that_is_too_large_or_cannot_be_built_is_refused(bundle, tmp_path, features):
    config = json.loads((bundle / "configs/inference.json").read_text())
    config["network_def"]["features"] = features
    with pytest.raises(UserError, match="models/model.pt does not fit network_def"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"configs/inference.json": json.dumps(config)}))


def test_compressed_weights_are_refused_before_they_are_unpacked(bundle, tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data/0", bytes(1000))
    with pytest.raises(UserError, match="models/model.pt is compressed"):
        check_bundle(changed_copy(bundle, tmp_path / "a", {"models/model.pt": data.getvalue()}))


def test_the_imports_of_a_bundle_work_in_a_new_process(monkeypatch):
    """Pillow has no ImageOps until it is imported, and in this process it is imported already."""
    monkeypatch.delitem(sys.modules, "PIL.ImageOps")
    monkeypatch.delattr(PIL, "ImageOps")
    for text in IMPORTS:
        ConfigExpression(text).evaluate()
    actual = ConfigExpression(IMPORTS[1], globals=(known := {}))
    actual.evaluate()
    assert callable(known["ImageOps"].exif_transpose)
