"""R12: files that attack: nothing is executed, nothing is written outside of the folder, each file is refused."""

import gzip
import json
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from audited_process import record
from conftest import SMALL_UNET, tiny_yaml
from hostile_bundles import ENTRIES, HOSTILE_EXPRESSIONS, TARGETS, changed_copy, small_bundle
from made_runs import made_run
from monai.bundle import ConfigParser
from PIL import Image

from medfed import data, export, train
from medfed.core.files import sha256_digest
from medfed.deployment.join import read_site_file
from medfed.deployment.templates import site_file_text
from medfed.federation.message import Message, State
from medfed.networks.parts.adain import load_codec
from medfed.outputs.run_folder import RunFolder

pytestmark = [pytest.mark.hardening, pytest.mark.filterwarnings("ignore")]
CODE = "open('EXECUTED', 'w').close()\nclass Thing: pass\n"


class Evil:
    """Runs a program when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch EXECUTED",)


def config_of(place: Path, root: Path, old: str = "", new: str = "", **files: bytes | str) -> int:
    """Train with a config in which a part is replaced, beside files of these names."""
    for name, content in files.items():
        path = place / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = tiny_yaml(root, SMALL_UNET)
    assert old in text
    (place / "config.yaml").write_text(text.replace(old, new, 1) if old else new)
    return train.main(["config.yaml", "--out", "out/run", "--quiet", "--device", "cpu"])


def plan_of(place: Path, root: Path, new: str) -> int:
    (place / "evil.py").write_text(CODE)
    text = tiny_yaml(root).replace("unseen_site: UCL, ", "")
    (place / "plan.yaml").write_text(text.replace("{name: elcfs, alpha: 0.1, min_patients: 1}", new))
    (place / "HK.yaml").write_text(site_file_text("HK", 2, {}))
    return read_site_file(place / "HK.yaml") and 0


def run_with(place: Path, name: str, content: bytes, read: Callable[[Path], object]) -> int:
    """Read a run in which one file is replaced."""
    made_run(place / "out" / "run")
    (place / "out" / "run" / name).parent.mkdir(exist_ok=True)
    (place / "out" / "run" / name).write_bytes(content)
    return read(place / "out" / "run") and 0 or 0


def checked_bundle(place: Path, bundle: Path, contents: dict[str, bytes | str], link: str = "") -> int:
    copied = changed_copy(bundle, place / bundle.name, contents)
    if link:
        (copied / link).symlink_to("/etc/passwd")
    return export.main(["--check", str(copied), "--quiet"])


def changed_inference(place: Path, bundle: Path, change: Callable[[dict], object]) -> int:
    content = json.loads((bundle / "configs" / "inference.json").read_text())
    change(content)
    return checked_bundle(place, bundle, {"configs/inference.json": json.dumps(content).encode()})


def checked_images(place: Path, name: str, make: Callable[[Path], object]) -> int:
    """Check a folder with a site whose image `name` is hostile."""
    for folder in ("images", "masks"):
        (place / "root" / "A" / folder).mkdir(parents=True)
    (place / "secret.raw").write_bytes(np.arange(120, dtype=np.int16).tobytes())
    (place / "secret.png").write_bytes(b"x")
    make(place / "root" / "A" / "images" / name)
    mask = place / "root" / "A" / "masks" / (name if name.endswith(".png") else "a.nii")
    if name.endswith(".png"):
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(mask)
    else:
        nib.save(nib.Nifti1Image(np.ones((6, 5, 4), np.uint8), np.eye(4)), mask)
    return data.main(["check", str(place / "root"), "--quiet"])


def nrrd(*fields_and_path) -> None:
    *fields, path = fields_and_path
    head = "NRRD0004\ntype: short\ndimension: 3\nsizes: 6 5 4\nspace: left-posterior-superior\n"
    head += "space directions: (1,0,0) (0,1,0) (0,0,3)\nspace origin: (0,0,0)\nendian: little\n"
    path.write_text(head + "\n".join([*fields, "", ""]))


def mhd(path: Path) -> None:
    lines = ["ObjectType = Image", "NDims = 3", "DimSize = 6 5 4", "ElementType = MET_SHORT"]
    path.write_text("\n".join([*lines, "ElementDataFile = ../../../secret.raw", ""]))


def gzip_bomb(path: Path) -> None:
    header = nib.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((30_000, 30_000, 1_000))
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4 + (1 << 22))))


def samples(root: Path, bundle: Path) -> dict[str, Callable[[Path], int]]:
    """Return the hostile samples: functions that write one into a folder and let medfed read it."""
    evil, network = pickle.dumps(Evil()), SMALL_UNET.removesuffix("}")
    of_run = partial(run_with, name="model.safetensors", content=evil, read=lambda path: RunFolder(path).load_model())
    checkpoint = partial(run_with, name="states/round_00001.state", content=sha256_digest(evil) + evil)
    found: dict[str, Callable[[Path], int]] = {
        "a pickle as a message": lambda place: Message.from_bytes(evil) and 0,
        "a pickle as a checkpoint in a message's place": lambda place: State.from_bytes(evil) and 0,
        "a pickle as a checkpoint": partial(checkpoint, read=lambda path: RunFolder(path).load_state(1)),
        "a pickle as the model of a run": of_run,
        "a pickle as a codec": lambda place: (
            (place / "c.safetensors").write_bytes(evil) and load_codec(place / "c.safetensors") and 0
        ),
    }
    for name in ("a.pt", "a.pth", "a.safetensors"):
        file, new = {name.replace(".", "__"): evil}, f"{network}, weights: {name}}}"
        found[f"a pickle as weights {name}"] = partial(config_of, root=root, old=SMALL_UNET, new=new, **file)
    method, data_block = "{name: elcfs, alpha: 0.1, min_patients: 1}", "{name: prostate, "
    for words, old, new in [
        ("a YAML tag that calls", "seed: 3", "seed: !!python/object/apply:os.system ['touch EXECUTED']"),
        ("a YAML tag that imports", "seed: 3", "seed: !!python/module:evil"),
        ("a method that is a function", method, "{name: os.system}"),
        ("a method in a file beside it", method, "{name: evil.Thing}"),
        ("a network in a file beside it", SMALL_UNET, "{name: evil.Thing}"),
        ("a dataset in a file beside it", data_block, "{name: evil.Thing, "),
        ("an engine in a file beside it", "rounds: 2", "rounds: 2, engine: evil.Thing"),
        ("YAML aliases that multiply", "seed: 3", "a: &a [1,1]\nseed: [*a,*a]"),
        ("YAML that is nested deeply", "seed: 3", "seed: " + 10_000 * "["),
    ]:
        found[f"config: {words}"] = partial(config_of, root=root, old=old, new=new, evil__py=CODE)
    for new in ("{name: evil.Thing}", "{name: stack, methods: [{name: evil.Thing}]}"):
        found[f"a coordinator's plan with {new}"] = partial(plan_of, root=root, new=new)
    for target in TARGETS:

        def set_target(config: dict, target=target) -> None:
            config["preprocessing"]["transforms"][1]["_target_"] = target

        found[f"bundle: _target_ {target}"] = partial(changed_inference, bundle=bundle, change=set_target)
    for key, value in ENTRIES:
        change = lambda config, key=key, value=value: config["dataset"].update({key: value})  # noqa: E731
        found[f"bundle: {key} {value}"] = partial(changed_inference, bundle=bundle, change=change)
    for text in HOSTILE_EXPRESSIONS:
        change = lambda config, text=text: config["dataset"].update(data=text)  # noqa: E731
        found[f"bundle: {text[:40]}"] = partial(changed_inference, bundle=bundle, change=change)
    found["bundle: a link"] = partial(checked_bundle, bundle=bundle, contents={}, link="docs/data_license.txt")
    for name, code in {
        "configs/logging.conf": "[handler_a]\nclass=__import__('os').system('x')",
        "scripts/__init__.py": CODE,
        "models/model.pt2": evil,
    }.items():
        found[f"bundle: {name}"] = partial(checked_bundle, bundle=bundle, contents={name: code})
    images = {
        "NRRD, voxels elsewhere": ("a.nrrd", partial(nrrd, "encoding: raw", "data file: ../../../secret.raw")),
        "NRRD, list of files": ("a.nrrd", partial(nrrd, "encoding: raw", "data file: LIST\n/etc/passwd")),
        "MHD, voxels elsewhere": ("a.mhd", mhd),
        "a link out of the folder": ("a.png", lambda path: path.symlink_to("../../../secret.png")),
        "a link to a device": ("a.nii", lambda path: path.symlink_to("/dev/zero")),
        "a pipe": ("a.nii", os.mkfifo),
        "a gzip bomb": ("a.nii.gz", gzip_bomb),
        "a pickle as an image": ("a.nii.gz", lambda path: path.write_bytes(evil)),
    }
    for words, (name, make) in images.items():
        found[f"image: {words}"] = partial(checked_images, name=name, make=make)
    return found


def harmless(root: Path, bundle: Path) -> list[Callable[[Path], int]]:
    """Return the same readings of files that are not hostile, which are accepted."""

    def image(path: Path) -> None:
        nib.save(nib.Nifti1Image(np.arange(120, dtype=np.int16).reshape(6, 5, 4), np.eye(4)), path)

    return [
        partial(config_of, root=root, old="rounds: 2", new="rounds: 1"),
        partial(plan_of, root=root, new="{name: fedavg}"),
        partial(checked_bundle, bundle=bundle, contents={}),
        partial(changed_inference, bundle=bundle, change=lambda config: None),
        partial(checked_images, name="a.nii", make=image),
    ]


def controls(place: Path) -> dict[str, Callable[[], object]]:
    """What happens to such files elsewhere: four readers that trust what they read."""
    (place / "a.pt").write_bytes(pickle.dumps(Evil()))
    (place / "evil.py").write_text(CODE)
    parsed = lambda content: ConfigParser({"a": content}).get_parsed_content("a")  # noqa: E731
    return {
        "pickle": lambda: torch.load(place / "a.pt", weights_only=False),
        "_target_ in MONAI": lambda: parsed({"_target_": "os.system", "command": "touch EXECUTED"}),
        "$ in MONAI": lambda: parsed("$__import__('os').system('touch EXECUTED')"),
        "../ in a name": lambda: (place / ".." / "escaped").write_bytes(b"x"),
    }


def test_r12_hostile_files(measurement, small_phantom, tmp_path):
    bundle = small_bundle(tmp_path)
    chosen = measurement.some(samples(small_phantom, bundle).items(), 40)
    executed, written, accepted = [], [], []
    for number, (name, sample) in enumerate(chosen):
        (place := tmp_path / str(number)).mkdir()
        done = record(place, place, partial(sample, place))
        executed += [f"{name}: {what}" for what in done.executed] + [name] * (place / "EXECUTED").exists()
        written += [f"{name}: {what}" for what in done.written]
        accepted += [f"{name} ({done.code})"] if done.code != 2 else []
    (place := tmp_path / "control").mkdir()
    n_caught = 0
    for work in controls(place).values():
        done = record(place, place / "out", lambda: work() and 0 or 0)  # noqa: B023
        n_caught += bool(done.executed or done.written)
    n_ok = 0
    for number, sample in enumerate(good := harmless(small_phantom, bundle)):
        (place := tmp_path / f"harmless_{number}").mkdir()
        n_ok += record(place, place, partial(sample, place)).code == 0
    n, n_good = len(chosen), len(good)
    measurement.report(
        f"{n} hostile files: pickles, configs, plans, bundles, images",
        (
            f"0 executed, 0 written outside the folder, {n} refused",
            f"{len(executed)} executed, {len(written)} written outside, {n - len(accepted)} refused",
            not executed and not written and not accepted,
        ),
        (
            f"found in 4 readers that trust what they read: {n_caught}; harmless files accepted: {n_ok} of {n_good}",
            n_caught == 4 and n_ok == n_good,
        ),
        [*executed, *written, *accepted],
    )
