"""A bundle with added layers of a method is scored as its run; the layers are built from settings, and no code runs."""

import json
import shutil
from functools import partial

import pandas as pd
import pytest
import torch
from made_bundles import CPU, SIDE, write_classes, write_photographs
from made_runs import scores_of

import medfed
from medfed.config.schema import load_dataset, load_text
from medfed.core.errors import UserError
from medfed.outputs.bundle.program import PROGRAM, save_program
from medfed.outputs.run_folder import RunFolder
from medfed.results.scores import table_of
from medfed.scoring.bundle_model import load_bundle
from medfed.scoring.score import score_bundle
from medfed.tasks.factory import task_of_images
from medfed.tasks.task import UNOBSERVED

pytestmark = pytest.mark.usefixtures("quiet")

DENSE = "{name: densenet, init_features: 4, growth_rate: 2, blocks: [1, 1]}"
RUNS = {  # config of a method, and of a network
    "stable_fdg": ("{name: stable_fdg, stages: [1], dimension: 3}", DENSE),
    "fedsr": ("{name: fedsr, n_samples: 5}", DENSE),
    "jigen+fedsr": ("{name: stack, methods: [{name: jigen, n_orders: 3}, {name: fedsr}]}", DENSE),
    "harmofl": ("{name: harmofl, half_width: 2}", "{name: unet, features: [4, 4, 4, 8, 8, 4]}"),
    "mixstyle+harmofl": ("{name: stack, methods: [{name: mixstyle}, {name: harmofl}]}", "{name: elcfs_unet, width: 2}"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folders of labelled images of the two tasks."""
    root = tmp_path_factory.mktemp("data")
    write_photographs(root / "folder")
    write_classes(root / "classes")
    return root


@pytest.fixture(scope="module")
def export(tmp_path_factory, data):
    """Function that returns the bundle of a finished run that nobody trained, its network, its task and its images."""
    root, made = tmp_path_factory.mktemp("runs"), {}
    save_program(root / "other.pt2", torch.nn.Identity(), 3, SIDE)

    def exported(name):
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:  # the program is not the network, so that loading it would fail
                patch.setattr(
                    "medfed.outputs.bundle.write.save_program",
                    lambda path, *network: shutil.copy(root / "other.pt2", path),
                )
                made[name] = _export(root / name, data, *RUNS[name])
        return made[name]

    return exported


def _export(path, data, method, network):
    kind = "folder" if "harmofl" in method else "classes"
    dataset = load_dataset(data / kind)
    names = list(dataset.classes) or ["foreground"]
    config = load_text(
        f"data: {{name: folder, root: nowhere, image_size: {SIDE}, image_channels: 3, standardise: none}}\n"
        f"network: {network}\nmethod: {method}\nfederation: {{unseen_site: here, rounds: 1}}\n",
        "test.yaml",
    )
    images = {"channels": 3, "intensity_range": [0.0, 255.0], "standardised": "none", "pictures": True}
    images |= {"structures": [], "classes": []} | {"structures" if kind == "folder" else "classes": names}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = config.network.build(3, len(names))
        module = config.method.wrap_network(plain, config.network).eval()
        for name, entry in module.state_dict().items():
            if name.startswith("amplitude"):
                entry.copy_(torch.rand_like(entry) / 4)
    folder, task = RunFolder(path), task_of_images(images, config.data, config.evaluation)
    path.mkdir()
    folder.write_text("config.yaml", config.yaml)
    folder.save_model(module.state_dict())
    summary = scores_of([], task.scoring) | {"data": "phantom", "dataset": "toys", "method": config.method_name}
    summary |= {"unseen_site": "here", "source_sites": ["there"], "patients": {}, "images": images, "versions": {}}
    summary |= {"selection": "last", "selected_round": 1, "rounds": 1, "seed": 1, "config_sha256": "00"}
    folder.finish(summary)
    bundle = medfed.export(path)
    assert (bundle / PROGRAM).is_file()
    return bundle, module, task, dataset


@pytest.mark.parametrize("name", RUNS)
def test_a_bundle_with_the_layers_of_a_method_has_the_scores_of_its_run(name, export):
    bundle, module, task, dataset = export(name)
    result = task.evaluate(module, dataset, dataset.cases("here"), "unseen", UNOBSERVED)
    expected = table_of(result.rows, task.scoring.metrics)
    scores = score_bundle(bundle, dataset)
    assert expected.value.notna().any()
    keys = ["image", "structure", "metric"]
    pd.testing.assert_frame_equal(
        *(table.sort_values(keys, ignore_index=True) for table in (scores.table, expected)), rtol=0, atol=1e-6
    )
    assert scores.summary["bundle"]["network"].endswith(f" with the layers of {name}")


def test_without_its_layers_a_bundle_would_have_other_scores(export):
    """The toys are not blind to the layers: the plain network predicts something else for each image."""
    for name in ("stable_fdg", "fedsr", "harmofl"):
        _, module, *_ = export(name)
        image = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        plain = load_text(f"data: {{name: folder, root: x}}\nmethod: {{name: fedavg}}\nnetwork: {RUNS[name][1]}\n", "")
        network = plain.network.build(3, 1 if name == "harmofl" else 2).eval()
        network.load_state_dict(module.state_dict(), strict=False)
        with torch.no_grad():
            assert not torch.allclose(network(image), module(image), atol=1e-3)


def changed(export, tmp_path, name, change):
    """Return a copy of a bundle whose recorded facts are changed."""
    bundle = tmp_path / "bundle"
    shutil.copytree(export(name)[0], bundle)
    path = bundle / "configs" / "metadata.json"
    metadata = json.loads(path.read_text())
    change(metadata["medfed_provenance"])
    path.write_text(json.dumps(metadata))
    return bundle


def recorded(block="", **values):
    """The change of values in a block of the facts, or of the facts."""
    return lambda facts: (facts[block] if block else facts).update(values)


settings, network = partial(recorded, "method_settings"), partial(recorded, "network")


def second_name(facts):
    facts["method_settings"]["methods"][1]["name"] = "hostile"


DSU = {"name": "dsu"}
STACK = {"name": "stack", "methods": [DSU]}
NO_ATTENTION = "method.attention: StableFDG's attention needs one class per image"
NAMED = "medfed imports no code of others for a bundle; expected one of medfed: "
TOO_MANY = "the network cannot be built (the network has more than 1,048,576 values)"
REFUSED = [  # the key and the beginning of the sentence; the bundle; what is changed
    ("network: is missing, so that medfed can build", "fedsr", lambda facts: facts.pop("network")),
    ("method_settings.name: is missing; export the run again", "fedsr", lambda facts: facts.pop("method_settings")),
    ("method_layers: expected true or false, got the text 'yes'", "fedsr", recorded(method_layers="yes")),
    (f"method_settings.name: got the text 'hostile.Layers'; {NAMED}bigaug", "fedsr", settings(name="hostile.Layers")),
    (f"method_settings.methods[1].name: got the text 'hostile'; {NAMED}", "jigen+fedsr", second_name),
    (f"network.name: got the text 'hostile.Network'; {NAMED}densenet", "fedsr", network(name="hostile.Network")),
    (f"network.name: got the text 'bundle'; {NAMED}", "fedsr", network(name="bundle", path=".")),
    (f"network.name: got ['densenet']; {NAMED}", "fedsr", network(name=["densenet"])),
    ("method_settings.n_sample: unknown key. Did you mean 'n_samples'", "fedsr", settings(n_sample=5)),
    ("method_settings.n_samples: expected a whole number, got the text '5'", "fedsr", settings(n_samples="5")),
    (f"method_settings: {TOO_MANY}", "fedsr", settings(n_samples=10**9)),
    (f"method_settings: {TOO_MANY}", "harmofl", settings(half_width=20_000)),
    (f"method_settings: {TOO_MANY}", "stable_fdg", settings(dimension=10**15)),
    (f"network: {TOO_MANY}", "fedsr", network(init_features=10**9)),
    (f"network: {TOO_MANY}", "fedsr", network(blocks=[10**9])),
    ("method_settings: methods contains another stack", "jigen+fedsr", settings(methods=[STACK])),
    ("method_settings.methods: has 60000 methods; expected at most", "jigen+fedsr", settings(methods=[DSU] * 60_000)),
    ("method_settings: expected a block of keys and values, got [1]", "fedsr", recorded(method_settings=[1])),
    (f"method_settings: {NO_ATTENTION}", "harmofl", recorded(method_settings={"name": "stable_fdg"})),
]


@pytest.mark.parametrize(("sentence", "name", "change"), REFUSED)
def test_recorded_facts_from_which_nothing_can_be_built_are_refused_with_their_key(
    sentence, name, change, export, tmp_path, monkeypatch
):
    (tmp_path / "hostile.py").write_text("raise SystemExit('code has run')")
    monkeypatch.syspath_prepend(tmp_path)
    bundle = changed(export, tmp_path, name, change)
    with pytest.raises(UserError) as raised:
        load_bundle(bundle, CPU)
    (message, *_) = raised.value.sentences
    assert message.startswith(f"{bundle / 'configs' / 'metadata.json'}: medfed_provenance.{sentence}"), message


def test_other_recorded_layers_than_those_of_the_weights_are_refused(export, tmp_path):
    for number, change in enumerate((settings(half_width=3), recorded(method_layers=False))):
        bundle = changed(export, tmp_path / str(number), "harmofl", change)
        with pytest.raises(UserError, match=r"model.pt belongs to another network: 'amplitude\.window' is"):
            load_bundle(bundle, CPU)
