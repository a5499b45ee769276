"""A config says what it means or one sentence; the plug-in dataset here stands for any dataset."""

import dataclasses
import shlex
import sys

import pytest

from medfed.config.overrides import Override
from medfed.config.schema import changed, difference, load, load_text, resolved
from medfed.core.errors import UserError
from medfed.core.registry import code_allowed
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.networks.unet import UNet

PLUG_IN = '''
"""Pretend hospitals."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from medfed.datasets.base import Dataset
from medfed.federation.method import Method

@dataclass(frozen=True)
class Hospitals(Dataset):
    grey_range: tuple[float, float] | None = None
    scanners: dict[str, int] | None = None
    plane: Literal["axial", "coronal"] = "axial"
    bits: Literal[8, 16] | None = None
    margin: Annotated[float, "millimetres"] = 0.0

class Clinics(Hospitals):
    pass

@dataclass(frozen=True)
class FedProx(Method):
    mu: float = 0.01
    blocks: tuple[str, ...] = ()
    presets = {"medfed": {"mu": 0.1}, "vision": {"mu": 1.0, "blocks": ("a", "b")}}
'''
GOOD = """
data:
  name: hospitals_for_test.Hospitals
  root: data/x
network:
  name: unet
method:
  name: fedavg
"""


@pytest.fixture(autouse=True, scope="module")
def plug_in(tmp_path_factory):
    """A module outside the package, importable by the tests of this file."""
    folder = tmp_path_factory.mktemp("plug_in")
    (folder / "hospitals_for_test.py").write_text(PLUG_IN)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(folder)
        with code_allowed():
            yield
    sys.modules.pop("hospitals_for_test", None)


def read(more: str = "", *overrides: str):
    return load_text(GOOD + more, "a.yaml", overrides)


def complaint(more: str = "", *overrides: str) -> str:
    with pytest.raises(UserError) as raised:
        read(more, *overrides)
    return str(raised.value)


def test_defaults_fill_what_a_config_leaves_out():
    config = read()
    assert (config.seed, config.device, config.preset, config.method_name) == (1337, "auto", "medfed", "fedavg")
    assert config.training.batch_size == 5 and config.data.root == "data/x" and config.source == "a.yaml"
    assert config.method == FedAvg() and config.network == UNet()
    assert read("training:\n") == config, "an empty block is its defaults"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", ".001", "+1e-3", "0.001"])
def test_a_number_is_read_however_it_is_written(text):
    """PyYAML alone takes 1e-3 for text."""
    assert read(f"training: {{learning_rate: {text}}}").training.learning_rate == 1e-3


def test_values_have_the_types_of_their_fields():
    config = read("training: {betas: [0, 0.5], learning_rate: 1}")
    assert config.training.betas == (0.0, 0.5) and isinstance(config.training.learning_rate, float)
    config = read("", "data.grey_range=[0, 255]", "data.scanners={Skyra: 3, Avanto: 1}")
    assert config.data.grey_range == (0.0, 255.0) and config.data.scanners == {"Skyra": 3, "Avanto": 1}
    config = read("", "data.plane=coronal", "data.bits=16", "data.margin=2")
    assert (config.data.plane, config.data.bits, config.data.margin) == ("coronal", 16, 2.0)
    config = read("", "data.grey_range=null", "data.bits=null")
    assert config.data.grey_range is None and config.data.bits is None


@pytest.mark.parametrize(
    "override, wrong",
    [
        ("data.plane=Axial", "expected 'axial' or 'coronal', got the text 'Axial'. Did you mean 'axial'?"),
        ("data.plane=oblique", "expected 'axial' or 'coronal', got the text 'oblique'"),
        ("data.plane=8", "expected 'axial' or 'coronal', got 8"),
        ("data.bits=12", "expected 8 or 16, got 12"),
        ("data.bits=8.0", "expected a whole number, got 8.0"),
        ("data.margin=wide", "expected a number, got the text 'wide'"),
        ("privacy.noise=1e200", "expected a number of at most 1000000"),
        ("method.ratio=1.5", "expected 'uniform' or a number of at most 1 or a list, got 1.5"),
        ("method.denominator=negative", "expected 'positive_and_negatives' or 'negatives', got the text 'negative'"),
    ],
)
def test_a_value_that_is_no_choice_or_out_of_range_is_refused(override, wrong):
    key = override.partition("=")[0]
    assert complaint("", "method.name=elcfs", override).startswith(f"--set {override}: {key}: {wrong}")


KNOWN_TRAINING = (
    "Known: optimizer, learning_rate, schedule, decay_rounds, decay_factor, betas, momentum, weight_decay, batch_size, "
    "augment, optimizer_state, threads, precision"
)
BAD_VALUES = {  # the beginning of the sentence, after the file
    "seed: yes": "seed: expected a whole number, got true",
    "training: {augment: 1}": "training.augment: expected true or false, got 1",
    "federation: {unseen_site: no}": "federation.unseen_site: expected text, got false; YAML reads yes, no, on and off",
    "federation: {unseen_site: }": 'federation.unseen_site: expected text, got nothing; "" is an empty text',
    "device:": "device: expected 'auto', 'cpu' or 'cuda', got nothing",
    "seed: 010": "seed: expected a whole number, got the text '010'; write 10",
    "seed: 1:30": "seed: expected a whole number, got the text '1:30'",
    "training: {betas: [0.9, -.inf]}": "training.betas[1]: expected a finite number, got -inf",
    "training: {learning_rate: .nan}": "training.learning_rate: expected a finite number, got nan",
    "training: {momentum: 1e999}": "training.momentum: expected a finite number, got inf",
    "training: {betas: [0.9, 0.99, 0.999]}": "training.betas: expected a list of at most 2 entries, got [0.9, ",
    "training: {betas: 0.9}": "training.betas: expected a list, got 0.9",
    "training: fast": "training: expected a block of keys and values, got the text 'fast'",
    "evaluation: {threshold: 1}": "evaluation.threshold: expected a number below 1, got 1",
    "device: gpu": "device: expected 'auto', 'cpu' or 'cuda', got the text 'gpu'. Did you mean 'cpu'?",
    "device: cpu\ndeterministic: false": "deterministic: false is for GPUs, but this run uses the CPU, whose results",
    "federation: {engine: in_proces}": "federation.engine: no engine 'in_proces'. Did you mean 'in_process'? Known:",
    "training:\n  momentum: 0.1\n  momentum: 0.1": "line 11, column 3: the key 'momentum' already stands in line 10;",
    "training: [1": "line 9, column 13: expected ',' or ']', but got '<stream end>'",
    "training:\n\tmomentum: 1": "line 10, column 1: found character '\\t' that cannot start any token",
    "seed: !!python/object/apply:os.getpid []": "line 9, column 7: the tag '!!python/object/apply:os.getpid' is not",
    "training: &d {name: prostate, sites: *d}": "line 9, column 38: the alias *d is not allowed; write the value",
    "training: {yes: 1}": f"training.yes: unknown key. {KNOWN_TRAINING}",
    "training: {null: 1}": f"training.null: unknown key. {KNOWN_TRAINING}",
    "device: \x00": "character 0x0 at position 112 is not allowed in YAML; expected plain UTF-8 text",
    "seed: " + "[" * 4000: "the blocks or lists are nested too deeply to be read; expected two or three levels of keys",
}


@pytest.mark.parametrize("text", BAD_VALUES)
def test_a_bad_value_is_one_sentence_with_file_key_found_and_expected(text):
    assert complaint(text).startswith(f"a.yaml: {BAD_VALUES[text]}") and "\n" not in complaint(text)


FIVE_MISTAKES = """
data: {name: prostate, root: 7, sites: [UCL, BMC]}
network: {name: unet, norm: no}
method: {name: elcfs, alpha: 0.7}
training: {learnig_rate: 0.1}
federation: {unseen_site: HK}
"""


def test_all_mistakes_of_a_file_are_listed_at_once():
    with pytest.raises(UserError) as raised:
        load_text(FIVE_MISTAKES, "a.yaml")
    assert raised.value.sentences == (
        "a.yaml: data.root: expected text, got 7; put it in quotes",
        "a.yaml: network.norm: expected 'instance' or 'batch', got false; YAML reads yes, no, on and off as true and "
        "false, so put the word in quotes",
        "a.yaml: method.alpha: expected a number below 0.5 or 'auto', got 0.7",
        f"a.yaml: training.learnig_rate: unknown key. Did you mean 'learning_rate'? {KNOWN_TRAINING}",
    )
    with pytest.raises(UserError) as raised:
        load_text(FIVE_MISTAKES.replace("root: 7", "root: x"), "a.yaml", ["training.betas=[1, 2]", "seed=x"])
    assert [sentence.split(": expected")[0] for sentence in raised.value.sentences] == [
        "a.yaml: network.norm",
        "a.yaml: method.alpha",
        "--set seed=x: seed",
        "--set training.betas=[1, 2]: training.betas[0]",
        "--set training.betas=[1, 2]: training.betas[1]",
        f"a.yaml: training.learnig_rate: unknown key. Did you mean 'learning_rate'? {KNOWN_TRAINING}",
    ]
    right = (
        FIVE_MISTAKES.replace("root: 7", "root: x")
        .replace("norm: no", "")
        .replace("0.7", "0.1")
        .replace("learnig", "learning")
    )
    with pytest.raises(UserError) as raised:  # blocks are compared once each is right
        load_text(right, "a.yaml")
    assert str(raised.value) == "a.yaml: federation.unseen_site: 'HK' is not in data.sites. Known: UCL, BMC"


def test_settings_made_in_python_are_checked_too():
    with pytest.raises(ValueError) as raised:
        dataclasses.replace(read().training, batch_size=0, optimizer="adm")
    assert str(raised.value) == (
        "optimizer: expected 'adam' or 'sgd', got the text 'adm'. Did you mean 'adam'?\n"
        "batch_size: expected a number of at least 1, got 0"
    )
    with pytest.raises(ValueError, match="^alpha: expected a number below 0.5 or 'auto', got 0.7$"):
        ELCFS(alpha=0.7)
    with pytest.raises(ValueError, match="^seed: expected a number of at least 0, got -1$"):
        dataclasses.replace(read(), seed=-1)


BAD_SITES = {
    "federation.unseen_site=ucl": "federation.unseen_site: 'ucl' is not in data.sites. Did you mean 'UCL'? Known: UCL,",
    "federation.unseen_site=../x": "federation.unseen_site: a site cannot be called '../x': it must not contain / \\ :",
    "data.sites=[..]": "data.sites: a site cannot be called '..': it must not begin or end with a space or a dot",
    "data.sites=[BMC, BMC]": "data.sites: 'BMC' is listed twice; expected every site once; remove one of the two",
    "data.sites=[BMC, bmc]": "data.sites: the site names 'BMC' and 'bmc' differ only in upper and lower case",
    "data.sites=[\u00e9, e\u0301]": r"data.sites: the site names '\xe9' and 'e\u0301' differ",
    f"data.sites=[{'x' * 300}]": f"data.sites: a site cannot be called '{'x' * 64}': it has 300 characters, expected 1",
    'data.sites=["a\\nb"]': r"data.sites: a site cannot be called 'a\nb': it must not contain / \ : * ? ",
    "data.sites=[average]": "data.sites: a site cannot be called 'average': tables of scores call",
}


@pytest.mark.parametrize("override", BAD_SITES)
def test_site_names_are_different_and_safe_as_folders(override):
    assert complaint("", "data.sites=[UCL, BMC]", override).startswith(f"--set {override}: {BAD_SITES[override]}")


def test_the_unseen_and_the_validation_site_are_sites_and_leave_one_to_train_on():
    sites = ("data.sites=[UCL, BMC]", "federation.unseen_site=UCL")
    assert complaint("", *sites, "federation.validation_site=BM").endswith(
        "federation.validation_site: 'BM' is not in data.sites. Did you mean 'BMC'? Known: UCL, BMC"
    )
    assert complaint("", *sites, "federation.validation_site=BMC").endswith(
        "data.sites: 'UCL' is the unseen site and 'BMC' is the validation site, and no other site is left to train on; "
        "add one"
    )
    assert read("", "data.sites=[UCL]").data.sites == ("UCL",)  # local training
    assert read("", "data.sites=[K\u00f6ln, \u6771\u4eac, St. Mary]").data.sites[1] == "\u6771\u4eac", "of any script"
    expected = "federation.selection: 'source_validation' needs data.validation_ratio above 0, got 0"
    assert expected in complaint("federation: {selection: source_validation}", "data.validation_ratio=0")


def test_a_missing_key_or_block_says_what_belongs_there():
    for block in ("data", "network", "method"):
        with pytest.raises(UserError, match=f"^a.yaml: {block}.name: missing; expected one of "):
            load_text(GOOD.replace(f"{block}:\n", f"{block}:\n#"), "a.yaml")
    with pytest.raises(UserError, match="^a.yaml: data.root: missing; add it$"):
        load_text(GOOD.replace("  root: data/x\n", ""), "a.yaml")
    with pytest.raises(UserError) as raised:
        load_text("seed: 1", "a.yaml")
    sentence = "a.yaml: {}: missing; add it"
    assert raised.value.sentences == tuple(sentence.format(block) for block in ("data", "network", "method"))


def test_a_text_that_is_no_config_is_one_line():
    for text, expected in {
        "# nothing\n": "expected the blocks data, network and method, got nothing",
        "- a\n": "expected the blocks data, network and method, got ['a']",
        "hello": "expected the blocks data, network and method, got the text 'hello'",
    }.items():
        with pytest.raises(UserError) as raised:
            load_text(text, "a.yaml")
        assert str(raised.value) == f"a.yaml: {expected}"


def test_a_shipped_config_in_another_folder_is_answered_with_its_name_and_its_name_with_its_path(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="write 'prostate' without folder and ending$"):
        load(tmp_path / "configs" / "prostate.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="The config of this name that comes with medfed is /.*/prostate.yaml$"):
        load("prostate")


@pytest.mark.parametrize(
    "code, sentence",
    [
        ("1 / 0", ".name: 'outside.A' cannot be imported: ZeroDivisionError: division by zero .FILE.; "),
        ("def", ".name: 'outside.A' cannot be imported: SyntaxError: invalid syntax .FILE.; correct the file"),
    ],
)
def test_an_exception_in_an_imported_file_is_one_sentence_with_file_and_line(tmp_path, monkeypatch, code, sentence):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outside_for_test.py").write_text(code)
    sentence = sentence.replace("outside.", "outside_for_test.").replace("FILE", "outside_for_test.py, line 1")
    with pytest.raises(UserError, match=f"^a.yaml: method{sentence}"):
        load_text(GOOD.replace("fedavg", "outside_for_test.A"), "a.yaml")
    sys.modules.pop("outside_for_test", None)


def test_a_run_folders_config_loads_back_to_an_equal_config(tmp_path):
    names = "data.sites=['no', '1e3', '010', '2024-01-01', '\u00e9']"
    overrides = ["seed=0", "method.name=elcfs", "method.preset=released", "federation.unseen_site='no'", names]
    training = "training: {learning_rate: 1.0e-05, weight_decay: 1e+20}"
    config = read(training, *overrides, "data.root='1:30'", "data.scanners={'on': 1}")
    again = load_text(config.yaml, "runs/x/config.yaml")
    assert again == config
    assert again.preset == "released" and again.method.ratio == 1
    assert again.yaml == config.yaml
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # a byte order mark
    assert load(tmp_path / "a.yaml") == read()


def test_resolved_holds_every_field_by_name():
    document = resolved(read())
    assert document["data"]["name"] == "hospitals_for_test.Hospitals"
    assert document["method"] == {"name": "fedavg", "preset": "medfed"}
    assert document["network"].pop("features") == [32, 32, 64, 128, 256, 32]
    assert document["network"] == {"name": "unet", "norm": "instance", "dropout": 0.0, "weights": ""}
    assert document["training"].keys() == {field.name for field in dataclasses.fields(read().training)}
    assert "source" not in document and "preset" not in document


def test_overrides_reach_blocks_that_the_file_lacks_and_nothing_is_empty_text():
    config = read("seed: 1", "seed=5", "training.batch_size=8", "federation.unseen_site=UCL", "training.batch_size=9")
    assert (config.seed, config.training.batch_size, config.federation.unseen_site) == (5, 9, "UCL")

    assert read("federation: {unseen_site: UCL}", "federation.unseen_site=").federation.unseen_site == ""


BAD_OVERRIDES = {
    "training.batch_size=many": "training.batch_size: expected a whole number, got the text 'many'",
    "training.learning_rate=-1": "training.learning_rate: expected a number above 0, got -1",
    "training.lr=1": f"training.lr: unknown key. {KNOWN_TRAINING}",
    "data.sites=A,B": "data.sites: expected a list, got the text 'A,B'; write it as [a, b]",
    "data.sites=[A, 1]": "data.sites[1]: expected text, got 1; put it in quotes",
    "batch_size": "expected key=value, such as --set training.batch_size=8",
    "=3": "expected key=value, such as --set training.batch_size=8",
    "seed.x=3": "seed: expected a block of keys and values, got 1",
    "training.betas=[1": "line 1, column 3: expected ',' or ']', but got '<stream end>'",
    "data.name=hospitals_for_test.FedProx": "data.name: 'hospitals_for_test.FedProx' is no dataset; expected a class",
    "method.name=elcf": "method.name: no method 'elcf'. Did you mean 'elcfs'? Known: ",
    "trainng.batch_size=8": "trainng: unknown key. Did you mean 'training'? Known: ",
}


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_a_bad_override_is_named_instead_of_the_file(override):
    assert complaint("seed: 1", override).startswith(f"--set {override}: {BAD_OVERRIDES[override]}")
    assert complaint("training: {momentum: 2}", "training.batch_size=8").startswith("a.yaml: training.momentum: ")


def test_a_preset_comes_first_and_written_keys_after():
    name = "method.name=hospitals_for_test.FedProx"
    assert read("", name).method.mu == 0.1
    vision = read("", "method.mu=0.5", "method.preset=vision", name)
    assert (vision.method.mu, vision.method.blocks, vision.preset) == (0.5, ("a", "b"), "vision")
    assert complaint("", name, "method.preset=visio").endswith(
        "method.preset: no preset 'visio' of hospitals_for_test.FedProx. Did you mean 'vision'? Known: medfed, vision"
    )


def test_changing_a_config_keeps_the_rest_but_another_method_starts_from_its_own_defaults():
    """Or the keys of the first would be unknown to the second, and a preset would change nothing."""
    elcfs = read("", "method.name=elcfs", "method.gamma=0.1")
    assert elcfs.method.gamma == 0.1
    assert changed(elcfs, {"method.name": "fedavg"}).method == FedAvg()
    assert changed(elcfs, {"method.name": "elcfs"}).method.gamma == 0.1
    assert changed(elcfs, {"method.preset": "released"}).method == ELCFS(**ELCFS.presets["released"])
    config = read("", "seed=3", "method.name=elcfs", "method.preset=released")
    other = changed(config, {"federation.unseen_site": "no", "seed": 4})
    assert (other.federation.unseen_site, other.seed, other.preset) == ("no", 4, "released")
    assert other.source == "a.yaml" and other.method == config.method
    with pytest.raises(UserError, match="^--set seed=x: seed: expected a whole number, got the text 'x'$"):
        changed(config, {"seed": "x"})


def test_a_reset_block_that_lacks_a_key_is_blamed_on_the_override():
    """The file has data.root; the override dropped it."""
    override = "data.name=hospitals_for_test.Clinics"
    assert complaint("", override) == f"--set {override}: data.root: missing; add it"
    assert read("", override, "data.root=data/y").data.root == "data/y"


def test_difference_lists_what_changed_by_key():
    old, new = resolved(read()), resolved(read("", "training.batch_size=8", "method.name=elcfs"))
    lines = difference(old, new)
    assert lines[:2] == ["method.name: fedavg -> elcfs", "training.batch_size: 5 -> 8"]
    assert "method.gamma: (absent) -> 0.5" in lines
    assert difference(old, old) == []


CLIENTS = "federation: {unseen_site: UCL, clients: 30, partition: dirichlet}"
BAD_CLIENTS = {
    "federation.clients=-1": "expected a number of at least 0, got -1",
    "federation.partition=dirichle": "expected 'domains', 'heterogeneous' or 'dirichlet', got the text 'dirichle'. Did",
    "federation.mixing=1.5": "expected a number of at most 1, got 1.5",
    "federation.concentration=0": "expected a number above 0, got 0",
    "federation.min_images=0": "expected a number of at least 1, got 0",
    "federation.clients=0": "is dirichlet, which has no effect without clients above 0; set that too, or leave",
    "federation.mixing=0.5": "is 0.5, which has no effect without partition 'heterogeneous'; set that too, or leave",
    "federation.validation_site=UCL": "'UCL' is the unseen site, which must not choose the round; name another site",
}


@pytest.mark.parametrize("override", BAD_CLIENTS)
def test_what_would_have_no_effect_or_mislead_is_refused(override):
    key = "federation.partition" if override == "federation.clients=0" else override.partition("=")[0]
    assert complaint(CLIENTS, override).startswith(f"--set {override}: {key}: {BAD_CLIENTS[override]}")


def test_clients_and_a_validation_site_read_back():
    validated = ("federation.validation_site=BMC", "federation.selection=validation_site")
    config = read(CLIENTS, "federation.min_images=70", *validated)
    assert load_text(config.yaml, "b.yaml") == config
    assert config.federation.partition_label() == "dirichlet 0.5"
    assert read("", "federation.clients=9").federation.partition_label() == "domains"
    assert read(CLIENTS, "federation.batch_norm=local").federation.batch_norm == "local"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("data.dicom_series='*-labelled'", "*-labelled"),
        ("\"data.dicom_series='*-labelled'\"", "*-labelled"),
        ("\"data.ignored_names=['*.a b', '*_x.*']\"", ["*.a b", "*_x.*"]),
        ("data.ignored_names=['*_a.*','*_b.*']", ["*_a.*", "*_b.*"]),
        ("data.image='{site}/{case}_{eye:[LR]}.*'", "{site}/{case}_{eye:[LR]}.*"),
        ("'data.image={site:[a-z]+}_{case}.png'", "{site:[a-z]+}_{case}.png"),
        ("'data.mask_values={disc:[0,128],cup:[0]}'", {"disc": [0, 128], "cup": [0]}),
        ("'data.by_site={s:{mask:[a]},t:{mask:[b]}}'", {"s": {"mask": ["a"]}, "t": {"mask": ["b"]}}),
    ],
)
def test_a_text_that_begins_with_a_star_or_a_field_survives_the_shell(typed, value):
    (argument,) = shlex.split(typed)  # as a shell passes it
    assert Override.parse(argument).value == value
