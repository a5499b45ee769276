"""Mistakes in a config that programs find before torch and MONAI are imported."""

import subprocess
import sys

import pytest
from conftest import small_yaml

from medfed.config.early import check_config
from medfed.config.schema import load
from medfed.config.search import read_schema
from medfed.core.errors import Problem, UserError
from medfed.core.registry import shipped_configs


@pytest.fixture
def config(small_phantom, tmp_path):
    (tmp_path / "small.yaml").write_text(small_yaml(small_phantom))
    return tmp_path / "small.yaml"


@pytest.mark.parametrize(
    "change",
    "federation.round=3 seed=x seed=-1 device=gpu method.name=elcf method.nam=1 data.imge=x "
    "training.optimizer=adm "
    "training.learning_rate='0.1' data.image_size=5000 privacy.noise=x evaluation.threshold=2 deterministic=1".split(),
)
def test_a_mistake_has_the_sentence_with_which_the_config_is_refused_later(config, change):
    with pytest.raises(UserError) as later:
        load(config, [change])
    with pytest.raises(UserError) as early:
        check_config(config, [change])
    assert early.value.sentences == later.value.sentences


def test_what_only_the_classes_can_check_is_left_to_them(config):
    for change in ("method.preset=pap", "federation.engine=inproces", "data.sites=[1]", "method.name=[]"):
        check_config(config, [change])
    config.write_text("data:\nmethod: {name: elcfs}\nnetwork: {name: [1], weights: 5}")
    check_config(config)


@pytest.mark.parametrize("named", [key for key in read_schema()["$defs"] if "." in key])
def test_every_method_network_and_dataset_of_the_schema_is_checked(config, named):
    """Also one such as `stack`, whose setting without a default comes after settings with one."""
    block, _, name = named.partition(".")
    with pytest.raises(UserError, match=f"{block}.unheard_of: unknown key"):
        check_config(config, [f"{block}.name={name}", f"{block}.unheard_of=1"])


def test_every_shipped_config_has_no_mistake_and_its_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in shipped_configs().items():
        try:
            check_config(name)
        except Problem as problem:
            assert problem.place == "data.root" and load(path).data.root in str(problem)


def test_a_program_answers_a_wrong_flag_config_or_folder_without_torch(config):
    code = f"""
import sys
from medfed import aggregate, data, evaluate, export, init, report, score, train

def answer(program, *arguments):
    try:
        return program.main(list(arguments))
    except SystemExit as stop:
        return stop.code

config, missing = {str(config)!r}, ("--set", "data.root=nowhere", "--set", "data.if_missing=error")
codes = [
    answer(train, "nowhere.yaml"),
    answer(train, config, "--wrong"),
    answer(train, config, "--set", "seed=x"),
    answer(train, config, "--resume", "--out", "nowhere"),
    answer(evaluate, config),
    answer(evaluate, config, "--leave-one-site-out", *missing),
    answer(init, "nowhere"),
    answer(data, "check", "nowhere"),
    answer(score, "no", "where"),
    answer(report, "no"),
    answer(export, "no"),
    answer(aggregate, "no", "--start", "no", "--out", "new"),
]
print(codes, [name for name in ("torch", "monai", "pandas", "matplotlib") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == f"{[2] * 12} []\n", ended.stderr


def test_a_terminal_hears_of_a_start_that_takes_longer_than_half_a_second(monkeypatch, capsys):
    from medfed.cli import program

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(program.threading, "Timer", lambda seconds, show, args, options: Immediate(show, args, options))
    assert program.run_program("medfed.train", lambda: 0) == 0
    assert capsys.readouterr().err == "medfed.train: starting ...\n"


class Immediate:
    """A timer whose time is over as soon as it starts."""

    def __init__(self, show, args, options):
        self.start, self.cancel = lambda: show(*args, **options), lambda: None
