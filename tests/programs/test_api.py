"""The Python interface: configs and their changes, a run, a comparison, and what a mistake raises."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import tiny_yaml

import medfed
from medfed import api, train
from medfed.config import strict_yaml
from medfed.config.schema import load
from medfed.methods import FedProx


@pytest.fixture(scope="module")
def config(tmp_path_factory, tiny_phantom):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(tiny_yaml(tiny_phantom))
    return medfed.load_config(path)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """One finished run, which the tests below only look at."""
    return medfed.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_changes_by_dotted_key_and_by_block_are_those_of_the_command_line(tmp_path, tiny_phantom):
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_yaml(tiny_phantom))
    expected = load(path, ["federation.rounds=5", "method.name=fedprox", "method.mu=0.5", "seed=4"])
    by_key = {"federation.rounds": 5, "method.name": "fedprox", "method.mu": 0.5}
    assert medfed.load_config(path, by_key, seed=4) == expected
    by_block = medfed.load_config(str(path), federation={"rounds": 5}, method={"name": "fedprox", "mu": 0.5}, seed=4)
    assert by_block == expected
    assert medfed.load_config(load(path), {"seed": np.int64(4)}).seed == 4


def test_a_config_is_a_path_a_name_a_dictionary_or_a_config(tiny_phantom):
    document = strict_yaml.parse(tiny_yaml(tiny_phantom), "tiny")
    from_dictionary = medfed.load_config({**document, "data": {**document["data"], "root": Path(tiny_phantom)}})
    assert from_dictionary.data.root == str(tiny_phantom) and medfed.load_config(from_dictionary) is from_dictionary
    assert medfed.load_config("prostate") == load(Path(medfed.__file__).parent.parent / "configs" / "prostate.yaml")


@pytest.mark.parametrize("changes, sentence", [
    ({"federation.round": 2}, "changed setting federation.round=2: .*unknown key.*Did you mean 'rounds'"),
    ({"federation.rounds": "two"}, "changed setting federation.rounds='two': federation.rounds: expected a whole num"),
    ({"data.root": object()}, "data.root: a config holds numbers, texts, lists and dictionaries, got object"),
])  # fmt: skip
def test_a_wrong_change_is_one_sentence(config, changes, sentence):
    with pytest.raises(medfed.UserError, match=sentence):
        medfed.load_config(config, changes)


def test_an_unknown_name_suggests_a_config():
    with pytest.raises(medfed.UserError, match="no file 'prostat' and no config of this name. Did you mean 'prostate'"):
        medfed.load_config("prostat")


def test_a_run_has_scores_history_network_and_the_table_of_the_program(run, config, capsys):
    assert capsys.readouterr().out == ""
    assert {row["role"] for row in run.scores} == {"seen", "unseen"}
    assert all(0 <= row["dice"] <= 1 for row in run.scores)
    assert [row["round"] for row in run.history] == [1, 2] and run.config == config
    assert run.summary["unseen_site"] == "UCL" and run.notices == run.summary["notices"]
    weights = safetensors.torch.load_file(run.folder / "model.safetensors")
    assert not run.network.training
    assert all(torch.equal(entry, weights[name]) for name, entry in run.network.state_dict().items())
    assert run.network(run.task.standardise(torch.rand(2, 1, 32, 32))).shape == (2, 1, 32, 32)
    assert repr(run).startswith(f"Run('{run.folder}')\n") and "UCL (UNSEEN)" in str(run)


def test_reading_the_network_does_not_touch_the_global_generator(run):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert medfed.load_run(run.folder).network is not None
    assert torch.equal(torch.rand(3), expected)


def test_the_program_and_the_function_write_the_same_bytes(run, config, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(Path(config.source).read_text())
    assert train.main([str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert str(run) in capsys.readouterr().out
    for name in ("model.safetensors", "cases.csv", "ledger.csv", "config.yaml"):
        assert (tmp_path / "run" / name).read_bytes() == (run.folder / name).read_bytes(), name


def test_a_folder_that_holds_a_run_is_refused_and_resumed_on_request(run, config):
    with pytest.raises(medfed.UserError, match="holds a finished run"):
        medfed.run(config, run.folder)
    assert medfed.run(config, run.folder, resume=True).scores == run.scores
    with pytest.raises(medfed.UserError, match="name the folder with out="):
        medfed.run(config, resume=True)


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(medfed.UserError, match="holds no finished run"):
        medfed.load_run(tmp_path)


def test_a_comparison_has_rows_runs_and_the_table_of_the_program(config):
    """In a temporary folder, which lives as long as one of the runs does."""
    comparison = medfed.leave_one_site_out(
        config, ["fedavg", {"name": "fedprox", "mu": 0.5}], sites=["UCL"], vary={"federation.participating": [1]}
    )
    labels = ["fedavg, federation.participating=1", "fedprox:mu=0.5, federation.participating=1"]
    assert sorted({row["method"] for row in comparison.rows}) == labels
    average = next(row for row in comparison.rows if row["unseen_site"] == "average")
    assert isinstance(average["mean"], float) and average["n_cases"] == 4 and average["p"] is None
    assert [run.config.method_name for run in comparison.runs] == ["fedavg", "fedprox"]
    assert str(comparison) == comparison.table and "p against fedavg" in str(comparison) and "cost" in str(comparison)
    folder, run = comparison.folder, comparison.runs[1]
    assert json.loads((folder / "table.json").read_text())["sites"] == ["UCL"]
    del comparison
    gc.collect()
    assert run.folder.is_dir()
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("method, text", [
    ("ccst+elcfs", "ccst+elcfs"), ({"name": "ccst"}, "ccst"), (FedProx, "fedprox"),
    ({"name": "ccst", "k": 1, "style": "single"}, "ccst:k=1,style=single"), ({"name": "rsc", "a": True}, "rsc:a=true"),
])  # fmt: skip
def test_methods_are_named_as_for_the_program(method, text):
    assert api._method_text(method) == text


def test_a_wrong_comparison_is_refused_before_anything_is_trained(config, tmp_path):
    for arguments, sentence in (
        ({"methods": ["elcf"]}, "Did you mean 'elcfs'"), ({"sites": ["Mars"]}, "Mars"), ({"seeds": 0}, "at least 1"),
        ({"methods": [FedProx()]}, "got FedProx; instead of an object, give a dictionary"),
        ({"methods": [{"mu": 1}]}, "expected a name"), ({"vary": {"seed": [1, 2]}}, "seed cannot be varied"),
    ):
        with pytest.raises(medfed.UserError, match=sentence):
            medfed.leave_one_site_out(config, out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_two_sites_are_left_out_by_pairs(config, tmp_path):
    comparison = medfed.leave_two_sites_out(config, ["fedavg"], pairs=[("UCL", "HK")], out=tmp_path / "two")
    assert [(run.config.federation.unseen_site, run.config.federation.validation_site) for run in comparison.runs] == [
        ("UCL", "HK")
    ]
    assert "VALIDATION SITES" in str(comparison)


def test_a_bundle_is_exported_from_a_run_or_a_folder(run, tmp_path):
    assert medfed.export(run) == run.folder / "bundle" / "prostate_segmentation"
    out = medfed.export(str(run.folder), tmp_path / "mine_segmentation")
    assert out == tmp_path / "mine_segmentation" and (out / "configs" / "metadata.json").is_file()


def test_configs_of_an_installed_package_are_found_by_name(tmp_path, monkeypatch):
    """A wheel has the configs inside the package; a checkout has them beside it."""
    (tmp_path / "medfed" / "configs").mkdir(parents=True)
    installed = tmp_path / "medfed" / "configs" / "mine.yaml"
    installed.write_text("seed: 1\n")
    monkeypatch.setattr(api.registry, "PACKAGE", tmp_path / "medfed")
    assert api.find_config("mine") == installed
    assert 'configs" = "medfed/configs"' in (Path(medfed.__file__).parent.parent / "pyproject.toml").read_text()


def test_an_empty_block_changes_nothing_and_none_is_refused():
    config = medfed.load_config("prostate")
    assert medfed.load_config("prostate", {"training": {}}, federation={}) == config
    with pytest.raises(medfed.UserError, match="^federation: expected settings by name, got None"):
        medfed.load_config("prostate", federation=None)
