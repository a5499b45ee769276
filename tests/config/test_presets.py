"""Which methods have the preset `paper`; a changed preset starts the block `method` again and names replaced values."""

import warnings

import pytest

import medfed
from medfed import train
from medfed.config.schema import changed, load_text
from medfed.core.errors import UserError
from medfed.core.registry import known_names, resolve
from medfed.experiments.grid import config_of
from medfed.results.row import ComparisonRow

TEXT = """
data: {name: prostate, root: data/prostate}
network: {name: unet}
method: {name: elcfs, preset: paper, gamma: 0.1, temperature: 0.05}
"""
# 0.1 becomes 0.5, the value of the class; the presets paper and released do not set it
GAMMA = "the preset replaces method.gamma of a.yaml"


@pytest.mark.parametrize("name", known_names("methods"))
def test_a_method_offers_the_preset_paper_only_if_its_own_class_declares_it(name):
    cls = resolve("methods", name)
    if "paper" not in vars(cls).get("presets", {}):
        assert "paper" not in cls.presets
        with pytest.raises(UserError, match=f"no preset 'paper' of {name}. .*Known: {', '.join(cls.presets)}"):
            load_text(TEXT.replace("elcfs, preset: paper, gamma: 0.1, temperature: 0.05", f"{name}, preset: paper"), "")


@pytest.fixture
def base():
    return load_text(TEXT, "a.yaml")


def test_a_changed_preset_names_the_values_of_the_file_that_it_replaces():
    with pytest.warns(UserWarning, match="the preset replaces") as caught:
        config = load_text(TEXT, "a.yaml", ["method.preset=released"])
    assert config.method.gamma == 0.5 and config.notices == tuple(str(warning.message) for warning in caught)
    assert len(caught) == 1 and config.notices[0].startswith("--set method.preset=released: ")
    assert GAMMA in config.notices[0]
    assert "temperature" not in config.notices[0], "the same value as without the key"
    with pytest.warns(UserWarning, match="the preset replaces method.gamma, method.meta_step of a.yaml"):
        load_text(TEXT.replace("gamma: 0.1", "gamma: 0.1, meta_step: 0.1"), "a.yaml", ["method.preset=released"])


def test_a_value_that_is_kept_is_not_named(base):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = load_text(TEXT, "a.yaml", ["method.preset=released", "method.gamma=0.1"])
        assert config.method.gamma == 0.1 and not config.notices
        assert not load_text(TEXT, "a.yaml", ["method.preset=released", "method.gamma=0.2"]).notices, "the user's own"
        assert not load_text(TEXT, "a.yaml", ["method.preset=paper"]).notices, "the preset of the file"
        assert not changed(base, {"method.name": "ccst"}).notices, "values of another method"
        assert not changed(load_text(TEXT.replace("gamma: 0.1, ", ""), "a"), {"method.preset": "released"}).notices


@pytest.mark.filterwarnings("ignore:.*the preset replaces.*")
def test_a_method_of_a_comparison_and_python_name_them_too(base):
    of_row = config_of(base, ComparisonRow("elcfs:preset=released"), "", 1).notices
    assert len(of_row) == 1 and GAMMA in of_row[0] and "elcfs:preset=released: " in of_row[0]
    assert not config_of(base, ComparisonRow("elcfs:preset=released,gamma=0.1"), "", 1).notices
    in_python = medfed.load_config(base, method={"preset": "released"})
    assert len(in_python.notices) == 1 and GAMMA in in_python.notices[0]
    assert changed(in_python, {"seed": 2}).notices == in_python.notices


@pytest.mark.filterwarnings("ignore:.*the preset replaces.*")
def test_a_preset_inside_a_stack_replaces_the_values_of_the_config_too(base):
    """The preset released has ratio one; the config's gamma 0.1 gives way to the method's default 0.5."""
    for label in ("swa+elcfs:preset=released", "elcfs:preset=released+swa"):
        config = config_of(base, ComparisonRow(label), "", 1)
        alone = config_of(base, ComparisonRow("elcfs:preset=released"), "", 1)
        assert alone.method in config.method.methods and alone.method.gamma == 0.5 and alone.method.ratio == 1
    for label in ("swa+elcfs", "swa+elcfs:preset=paper"):  # the preset of the file
        config = config_of(base, ComparisonRow(label), "", 1)
        assert base.method in config.method.methods


def test_a_run_prints_the_notice_once_and_records_it(tiny_config, tmp_path, capsys):
    text = tiny_config.read_text().replace("name: elcfs,", "name: elcfs, gamma: 0.25,")
    tiny_config.write_text(text)
    short = ["--set", "federation.rounds=1", "--set", "data.sites=[HK, UCL]", "--set", "method.exchange=false"]
    arguments = [str(tiny_config), "--out", str(tmp_path / "run"), "--device", "cpu", "--set", "method.preset=paper"]
    assert train.main([*arguments, *short]) == 0
    assert capsys.readouterr().err.count("the preset replaces method.gamma") == 1
    recorded = [notice for notice in medfed.load_run(tmp_path / "run").summary["notices"] if "method.gamma" in notice]
    assert len(recorded) == 1
