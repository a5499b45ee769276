"""A config is data: what it names is code of medfed, of its plugins, of an imported module, or needs --allow-code."""

import sys

import pytest

from medfed import train
from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.core.registry import code_allowed, require
from medfed.tasks.evaluation import Evaluation

CONFIG = "data: {name: prostate, root: data}\nnetwork: {name: unet}\nmethod: {name: %s}\n"
METHOD = """
open({!r}, "w").close()
from medfed.methods.fedavg import FedAvg

class Mine(FedAvg):
    pass
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A file that exists once `own_methods.py`, `own_package/inner.py` or `own_namespace/inner.py` was run."""
    for name in ("own_methods.py", "own_package/__init__.py", "own_package/inner.py", "own_namespace/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(METHOD.format(str(tmp_path / "ran")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "ran"
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["own_methods.Mine", "own_package.inner.Mine", "own_namespace.inner.Mine"])
def test_a_config_does_not_run_a_file_of_the_working_directory(ran, name):
    with pytest.raises(
        UserError, match=f"^a.yaml: method.name: '{name}' would run code from outside of medfed; .*--allow-code"
    ):
        load_text(CONFIG % name, "a.yaml")
    assert not ran.exists()
    with code_allowed():
        assert type(load_text(CONFIG % name, "a.yaml").method).__name__ == "Mine"
    assert ran.exists()


def test_a_config_may_name_what_the_program_has_imported(ran):
    import own_methods  # type: ignore[import-not-found]

    assert type(load_text(CONFIG % "own_methods.Mine", "a.yaml").method) is own_methods.Mine
    with pytest.raises(UserError, match="would run code"):
        load_text(CONFIG % "own_package.inner.Mine", "a.yaml")


@pytest.mark.parametrize("name", ["this.Zen", "antigravity.Fly", "own_package.inner.Mine"])
def test_metrics_and_engines_run_no_code_either(ran, name):
    with pytest.raises(ValueError, match="metrics: .*would run code"):
        Evaluation(metrics=(name,))
    with pytest.raises(UserError, match="federation.engine: .*would run code"):
        load_text(CONFIG % "fedavg" + f"federation: {{engine: {name}}}\n", "a.yaml")
    assert not ran.exists() and name.partition(".")[0] not in sys.modules


def test_a_package_in_the_working_directory_cannot_extend_an_installed_one(ran, monkeypatch, tmp_path):
    for name in ("google", "torch"):  # one may be a namespace package, the other is imported
        (tmp_path / name).mkdir()
        (tmp_path / name / "evil.py").write_text("open('ran', 'w')")
        with pytest.raises(UserError):
            load_text(CONFIG % f"{name}.evil.Method", "a.yaml")
    assert not ran.exists()


def test_medfed_needs_no_flag():
    require("medfed.testing.small_unet.SmallUNet", "networks")


def test_the_programs_take_the_flag(ran, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(CONFIG % "own_methods.Mine")
    assert train.main(["a.yaml"]) == 2
    assert "add the flag --allow-code" in capsys.readouterr().err and not ran.exists()
    assert train.main(["a.yaml", "--allow-code"]) == 2 and "data.root" in capsys.readouterr().err
