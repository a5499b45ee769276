"""The Python interface: configs and their changes, a run, a comparison, and what a mistake raises."""

import gc
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import small_yaml
from made_dicom import volume as dicom_volume
from made_dicom import write_nifti, write_series

import medfed
from medfed import api, leave_two_sites_out, load_config, train
from medfed.config import strict_yaml
from medfed.config.schema import load, load_text
from medfed.datasets.collections.folder import Folder
from medfed.experiments.arguments import method_text
from medfed.experiments.grid import config_of
from medfed.federation.settings import Training
from medfed.methods import CCST, FedAvg, FedProx, Stack
from medfed.results.row import ComparisonRow


@pytest.fixture(scope="module")
def config(tmp_path_factory, small_phantom):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(small_yaml(small_phantom))
    return load_config(path)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """One finished run, which the tests below only look at."""
    return medfed.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_changes_by_dotted_key_and_by_block_are_those_of_the_command_line(tmp_path, small_phantom):
    path = tmp_path / "tiny.yaml"
    path.write_text(small_yaml(small_phantom))
    expected = load(path, ["federation.rounds=5", "method.name=fedprox", "method.mu=0.5", "seed=4"])
    by_key = {"federation.rounds": 5, "method.name": "fedprox", "method.mu": 0.5}
    assert load_config(path, by_key, seed=4) == expected
    by_block = load_config(str(path), federation={"rounds": 5}, method={"name": "fedprox", "mu": 0.5}, seed=4)
    assert by_block == expected
    assert load_config(load(path), {"seed": np.int64(4)}).seed == 4


def test_a_config_is_a_path_a_name_a_dictionary_or_a_config(small_phantom):
    document = strict_yaml.parse(small_yaml(small_phantom), "tiny")
    from_dictionary = load_config({**document, "data": {**document["data"], "root": Path(small_phantom)}})
    assert from_dictionary.data.root == str(small_phantom) and load_config(from_dictionary) is from_dictionary
    assert load_config("prostate") == load(Path(medfed.__file__).parent.parent / "configs" / "prostate.yaml")


def test_a_run_has_scores_history_network_and_the_table_of_the_program(run, config, capsys):
    assert capsys.readouterr().out == ""
    assert set(run.scores.role) == {"seen", "unseen"}
    dice = run.scores[run.scores.metric == "dice"]
    assert len(dice) and dice.value.between(0, 100).all()
    assert [row["round"] for row in run.history] == [1, 2] and run.config == config
    assert run.summary["unseen_site"] == "UCL"
    weights = safetensors.torch.load_file(run.folder / "model.safetensors")
    assert not run.network.training
    assert all(torch.equal(entry, weights[name]) for name, entry in run.network.state_dict().items())
    assert run.network(run.task.standardise(torch.rand(2, 1, 32, 32))).shape == (2, 1, 32, 32)
    assert repr(run).startswith(f"Run('{run.folder}')\n") and "UCL (UNSEEN)" in str(run)
    assert str(run).endswith("print(run.explain()).") and "Student t over patients" in run.explain()
    learning, row = run.summary["learning"], run.history[run.summary["selected_round"] - 1]
    assert learning["images"] == "validation" and learning["score"] == row["validation_score"]
    assert 0 < learning["trivial"] < 1 and learning["learned"] == (row["validation_score"] > learning["trivial"])


def test_a_prediction_of_a_file_a_series_a_tensor_or_an_array_is_the_scored_one(run, tmp_path, monkeypatch):
    volume = run.config.data.load(case := run.config.data.cases("UCL")[0])
    predicted = run.predict(case.image)
    dice = 200 * (predicted & volume.mask).sum().item() / (predicted.sum() + volume.mask.sum()).item()
    scores = run.scores[(run.scores.site == "UCL") & (run.scores.image == case.name) & (run.scores.metric == "dice")]
    assert predicted.shape == volume.mask.shape and scores.value.item() == pytest.approx(dice)
    assert torch.equal(run.predict(volume.image), predicted)
    flat = np.random.default_rng(0).uniform(0, 255, (1, 40, 30))
    assert run.predict(flat).shape == (len(predicted), 40, 30)
    assert torch.equal(run.predict(flat), run.predict(torch.from_numpy(flat[..., None]))[..., 0])
    assert torch.equal(run.predict(flat[:, ::-1]), run.predict(np.ascontiguousarray(flat[:, ::-1])))
    write_series(tmp_path / "series", voxels := dicom_volume((40, 30, 3)))
    write_nifti(tmp_path / "same.nii.gz", voxels)
    assert torch.equal(of_series := run.predict(tmp_path / "series"), run.predict(tmp_path / "same.nii.gz"))
    write_series(tmp_path / "series", 0 * voxels[..., :2], names="scout{}.dcm", SeriesDescription="scout")
    with pytest.raises(medfed.UserError, match="data.dicom_series"):
        run.predict(tmp_path / "series")
    data = Folder(root="x", ignored_names=("scout*",))
    monkeypatch.setitem(vars(run), "config", replace(run.config, data=data))
    assert torch.equal(run.predict(tmp_path / "series"), of_series)
    for wrong in (flat[0], np.zeros((3, 8, 8))):
        with pytest.raises(medfed.UserError, match=r"^image: expected the shape \(1, H, W\) or"):
            run.predict(wrong)


def test_a_notebook_shows_the_table_escaped_and_a_figure(run, tmp_path, monkeypatch):
    copied = medfed.load_run(shutil.copytree(run.folder, tmp_path / "run"))
    (tmp_path / "run" / "figures").mkdir(exist_ok=True)
    (tmp_path / "run" / "figures" / "site_boxes.png").write_bytes(b"png")
    monkeypatch.setattr(type(run), "__str__", lambda self: "<script>")
    shown = copied._repr_html_()
    assert "&lt;script&gt;" in shown and "<script>" not in shown and shown.count("data:image/png;base64,") == 1


def test_reading_the_network_does_not_touch_the_global_generator(run):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert medfed.load_run(run.folder).network is not None
    assert torch.equal(torch.rand(3), expected)


def test_the_program_and_the_function_write_the_same_bytes(run, config, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(Path(config.source).read_text())
    assert train.main([str(path), "--out", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"folder": str(tmp_path / "run"), **medfed.load_run(tmp_path / "run").summary}
    assert str(run).rpartition("\n")[0] in printed.err  # the last line says how to print the definitions
    for name in ("model.safetensors", "cases.csv", "ledger.csv", "config.yaml"):
        assert (tmp_path / "run" / name).read_bytes() == (run.folder / name).read_bytes(), name


def test_a_comparison_has_rows_runs_and_the_table_of_the_program(config):
    """In a temporary folder, which lives as long as one of the runs does."""
    config = load_config(config, {"federation.rounds": 1})
    comparison = medfed.leave_one_site_out(
        config, ["fedavg", {"name": "fedprox", "mu": 0.5}], sites=["UCL"], vary={"federation.participating": [1]}
    )
    labels = ["fedavg, federation.participating=1", "fedprox:mu=0.5, federation.participating=1"]
    assert sorted(name for name in set(comparison.scores.row) if not name.startswith("trivial")) == labels
    averages = comparison.scores[(comparison.scores.site == "average") & (comparison.scores.role == "unseen")]
    average = averages[averages.metric == "dice"].iloc[0]
    assert isinstance(average["mean"], float) and average.n_patients == 4
    assert average.isna()["low"], "four patients have no interval"
    assert set(comparison.differences.minus) == {labels[0]}
    assert [run.config.method_name for run in comparison.runs] == ["fedavg", "fedprox"]
    assert "minus" in str(comparison) and "SYNTHETIC" in str(comparison)
    folder, run = comparison.folder, comparison.runs[1]
    assert json.loads((folder / "table.json").read_text())["data"] == "phantom"
    del comparison
    gc.collect()
    assert run.folder.is_dir()
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    "method, label",
    [
        ("ccst+elcfs", "ccst+elcfs"),
        ({"name": "ccst"}, "ccst"),
        (FedProx, "fedprox"),
        ({"name": "ccst", "k": 1, "style": "single"}, "ccst:k=1,style=single"),
        ({"name": "elcfs", "episodic": True}, "elcfs:episodic=true"),
        (FedProx(mu=1e20), "fedprox:mu=1e20"),
        (FedProx(), "fedprox"),
        (Stack((FedProx(mu=0.5), CCST(k=1))), "fedprox:mu=0.5+ccst:k=1"),
        ({"name": "ccst", "codec": "/data/a+b/c,d.safetensors"}, 'ccst:codec="/data/a+b/c,d.safetensors"'),
        ({"name": "ccst", "codec": "1"}, 'ccst:codec="1"'),
        (
            {"name": "stack", "methods": [{"name": "fedprox", "mu": 0.5}, {"name": "fedavg"}]},
            'stack:methods=[{"name": "fedprox", "mu": 0.5}, {"name": "fedavg"}]',
        ),
    ],
)
def test_the_label_of_a_method_names_the_same_method_on_the_command_line(config, method, label):
    assert method_text(method, config) == label
    if not isinstance(method, str):
        row = config_of(load_config(config), ComparisonRow(label), "UCL", 3)
        assert row.method == load_config(config, method=method).method


def test_an_object_and_a_dictionary_give_their_settings_exactly(config):
    """Also where a text would be several methods, and where the config uses the method with other settings."""
    base = load_config(config, method=FedProx(mu=0.5))
    assert base.method == FedProx(mu=0.5) and load_config(base, method=FedProx()).method == FedProx()
    for method in (FedProx(mu=1e20), {"name": "fedprox", "mu": 1e20}, FedProx(), "fedprox:mu=1e+20+fedavg"):
        chosen = config_of(base, ComparisonRow(method_text(method, base)), "UCL", 3).method
        expected = method if isinstance(method, FedProx) else FedProx(mu=1e20)
        assert expected in (chosen, *getattr(chosen, "methods", ()))
    by_name, by_class = (load_config(config, method=method).method for method in ("fedprox", FedProx))
    assert by_name == by_class == FedProx()
    assert load_config(config, training=Training(batch_size=4)).training == Training(batch_size=4)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"methods": ["elcf"]}, "--methods elcf: method.name: no method 'elcf'. Did you mean 'elcfs'"),
        ({"methods": {"nam": "fedprox"}}, "methods: a dictionary needs the key 'name', got"),
        ({"methods": []}, "methods: expected a list of at least 1 entries, got \\[\\]"),
        ({"methods": 5}, "methods: expected settings by name, .*, got 5"),
        ({"methods": [{"name": "fedprox", "mu": -1}]}, "--methods fedprox:mu=-1: method.mu: expected a number of at"),
        ({"sites": ["Mars"]}, "--sites Mars: no such site in .*; found .*UCL"),
        ({"sites": "UCL"}, "sites: expected a list, got the text 'UCL'"),
        ({"sites": []}, "sites: expected a list of at least 1 entries"),
        ({"seeds": 0}, "seeds: expected a number of at least 1, got 0"),
        ({"seeds": [1, 2]}, "seeds: expected a whole number, got \\[1, 2\\]"),
        ({"seeds": "2"}, "seeds: expected a whole number, got the text '2'"),
        ({"vary": {"training.batch_size": "48"}}, "vary.training.batch_size: expected a list, got the text '48'"),
        ({"vary": {"training.batch_size": 4}}, "vary.training.batch_size: expected a list, got 4"),
        ({"vary": {"training.batch_size": np.array([8, 8])}}, ".*batch_size=8.* would share a folder"),
        ({"vary": {"training.batch_size": [np.int64(0)]}}, "--vary training.batch_size=0: training.batch_size: exp"),
        ({"vary": "seed=1"}, "vary: expected a block of keys and values or a list, got the text 'seed=1'"),
        ({"resume": 1}, "resume: expected true or false, got 1"),
        ({"out": ""}, "out: expected a path, or None, got the text ''"),
    ],
)
def test_a_wrong_comparison_is_refused_before_anything_is_trained(config, tmp_path, arguments, sentence):
    with pytest.raises(medfed.UserError, match=f"^{sentence}"):
        medfed.leave_one_site_out(config, **{"out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda config: load_config(5), "config: expected a path, the name of a config, a dictionary or a Config"),
        (lambda config: load_config("prostat"), "no file 'prostat' and no config .* Did you mean 'prostate'"),
        (lambda config: load_config(config, {"federation.round": 2}), ".*unknown key.*Did you mean 'rounds'"),
        (lambda config: load_config(config, {"federation.rounds": "two"}), ".* federation.rounds: expected a whole"),
        (lambda config: load_config(config, {"data.root": object()}), ".*data.root: a config holds .*, got object"),
        (lambda config: load_config(config, {1: 2}), "changed setting 1=2: 1: unknown key"),
        (lambda config: load_config(config, "seed=2"), "changes: expected a block of keys and values or a list, got "),
        (lambda config: load_config(config, ["sed=2"]), "--set sed=2: sed: unknown key. Did you mean 'seed'"),
        (lambda config: load_config(config, {"data.root": "a\0b"}), "data.root: expected a text without the char"),
        (lambda config: load_config(config, seed=10**30), "changed setting seed=10*: seed: expected a number below"),
        (lambda config: load_config(config, method=Training()), 'method: expected .* method={"name": "fedprox", '),
        (lambda config: load_config(config, federation=None), "federation: expected settings by name, .*, got nothing"),
        (lambda config: medfed.run(None), "config: expected a path, the name of a config, .*, got nothing"),
        (lambda config: medfed.run(config, resume=True), "--resume continues in a folder .*; name the folder with"),
        (lambda config: medfed.run(config, out=""), "out: expected a path, or None, got the text ''"),
        (lambda config: medfed.load_run(None), "folder: expected the path of a folder, got nothing"),
        (lambda config: medfed.write_report(None), r"runs\[0\]: expected a Run, a Comparison or a folder, got nothing"),
        (lambda config: medfed.write_report(["a", 5]), r"runs\[1\]: expected a Run, a Comparison or a folder, got 5"),
        (lambda config: medfed.write_report([]), "runs: expected a list of at least 1 entries"),
        (lambda config: medfed.write_report("nowhere"), "nowhere: not a folder; name a folder that medfed.train"),
        (lambda config: medfed.write_report(".", "a/b.html"), "a/b.html: expected a file whose name ends in .html"),
        (lambda config: medfed.write_report(".", "page.txt"), "page.txt: expected a file whose name ends in .html"),
        (lambda config: medfed.write_report(".", 5), "out: expected a path, or None, got 5"),
        (lambda config: medfed.plot.scores(config), "run: expected a Run or the path of its folder, got "),
        (lambda config: medfed.plot.cases("nowhere"), "nowhere: holds no run; name the folder of a run"),
        (lambda config: medfed.check_data(None), "path: expected the path of a folder, of a table .*, got nothing"),
        (lambda config: medfed.score_bundle("a", "b", names=["a"]), "names: expected a block of keys and values"),
        (lambda config: medfed.export(config), "run: expected a Run or the path of its folder, got "),
        (lambda config: replace(config, seed=2**63), "seed: expected a number below .*, got 9223372036854775808"),
        (lambda config: replace(config, federation={"rounds": 2}), "federation: expected an instance of Federation"),
        (lambda config: leave_two_sites_out(config, ["fedavg"], pairs=["UCL/HK"]), "pairs.0.: expected .* 'UCL/HK'"),
    ],
)
def test_a_wrong_argument_is_one_sentence_that_names_it(config, call, sentence):
    with pytest.raises(medfed.UserError, match=f"^{sentence}"):
        call(config)


def test_a_method_that_was_replaced_in_python_does_not_keep_the_preset_of_the_other_one(config):
    released = load_config(config, {"method.name": "elcfs", "method.preset": "released"})
    text = replace(released, method=FedAvg()).yaml
    assert "preset: medfed" in text and load_text(text, "config").method == FedAvg()


def test_a_folder_with_other_files_is_refused_unchanged(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for start in (medfed.run, lambda config, out: medfed.leave_one_site_out(config, ["fedavg"], out=out)):
        with pytest.raises(medfed.UserError, match=r"contains other files \(thesis.tex\).*--out"):
            start(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_class_of_a_notebook_cannot_work_in_several_processes_and_nothing_is_written(config, tmp_path, monkeypatch):
    mine = type("Mine", (FedAvg,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    for name, call in (
        ("run", lambda **more: medfed.run(load_config(config, method=mine()), **more)),
        ("runs", lambda **more: medfed.leave_one_site_out(config, [mine()], seeds=1, **more)),
    ):
        with pytest.raises(medfed.UserError, match="--jobs 2: the config names a class of the program itself"):
            call(out=tmp_path / name, jobs=2)
        assert not (tmp_path / name).exists() or not list((tmp_path / name).iterdir())
    mine = load_config(config, method=mine())
    medfed.run(mine, out=tmp_path / "run", jobs=1)
    assert medfed.run(mine, out=tmp_path / "run", jobs=2, resume=True).scores is not None, "a finished run is only read"


def test_an_interrupt_names_the_folder_or_says_that_it_is_deleted(config, tmp_path, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("medfed.experiments.training.federate", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"temporary folder, which is deleted; --out keeps them"):
        medfed.run(config)
    resumable = f"{tmp_path}/run holds the finished rounds, .*the same config and --resume"
    with pytest.raises(KeyboardInterrupt, match=resumable):
        medfed.run(config, tmp_path / "run")


@pytest.mark.parametrize(
    "name, content, read",
    [
        ("summary.json", "{", lambda run: run.summary),
        ("summary.json", "{}", lambda run: run.task),
        ("summary.json", "[]", str),
        ("model.safetensors", None, lambda run: run.network),
        ("model.safetensors", "broken", lambda run: run.network),
        ("cases.csv", None, lambda run: run.scores),
        ("cases.csv", "a\n1\n", lambda run: run.scores),
        ("config.yaml", "seed: 1", lambda run: run.config),
    ],
)
def test_a_damaged_run_is_a_user_error_with_the_file(run, tmp_path, name, content, read):
    shutil.copytree(run.folder, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    if content is not None:
        (tmp_path / "copy" / name).write_text(content)
    with pytest.raises(medfed.UserError, match=f"^{tmp_path}/copy/{name}"):
        read(medfed.load_run(tmp_path / "copy"))


def test_two_sites_are_left_out_by_pairs(config, tmp_path):
    config = load_config(config, {"federation.rounds": 1})
    comparison = leave_two_sites_out(config, ["fedavg"], pairs=[("UCL", "HK")], out=tmp_path / "two")
    (run,) = comparison.runs
    assert (run.config.federation.unseen_site, run.config.federation.validation_site) == ("UCL", "HK")
    assert "each column: validation site" in str(comparison)


def test_a_path_that_exists_is_used_before_a_config_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert api.find_config("prostate").name == "prostate.yaml"
    (tmp_path / "fundus").mkdir()
    with pytest.raises(medfed.UserError, match="^fundus: Is a directory; .* comes with medfed is .*fundus.yaml"):
        load_config("fundus")
    (tmp_path / "prostate").write_text("seed: 1\n")
    assert api.find_config("prostate") == Path("prostate")


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_name_that_could_mean_a_file_here_or_another_config_is_refused(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    shipped = api.find_config("prostate")
    own = Path(f"prostate{suffix}")
    own.write_text("seed: 1\n")
    with pytest.raises(medfed.UserError, match=f"write {own} for this file, or {shipped} for the other config$"):
        api.find_config("prostate")
    assert api.find_config(own) == own
    own.unlink()
    own.symlink_to(shipped)
    assert api.find_config("prostate") == shipped


def test_an_empty_block_changes_nothing():
    assert load_config("prostate", {"training": {}}, federation={}) == load_config("prostate")
