"""The configs that ship: they load, and say what their comments say."""

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import torch
import yaml

from medfed import api, evaluate, train
from medfed.config.overrides import Override
from medfed.config.schema import load, load_text, resolved
from medfed.experiments.grid import config_of
from medfed.results.row import ComparisonRow

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAMS = {"train": train, "evaluate": evaluate}


class _Resolved(Exception):
    """Raised instead of training."""


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_comes_back_from_its_own_text_and_exchanges_a_window_of_seven_by_seven(path):
    config = load(path)
    assert load_text(config.yaml, "again") == config
    if config.data.patch_size:
        config.network.check_patch_size(config.data.patch_size)
    else:
        config.network.check_image_size(config.data.image_size)
    if config.method_name == "elcfs":
        image = torch.rand(1, 1, config.data.image_size, config.data.image_size)
        assert config.method.spectrum(image).half_width == 3


N_WEIGHTS = {  # channels of the image, classes or structures, and the number of weights of the network
    "prostate_paper": (1, 1, 3_179_569),
    "fundus_paper": (3, 2, 3_179_890),
    "camelyon17_paper": (3, 2, 6_955_906),
    "pacs_stablefdg": (3, 7, 11_180_103 + 30_780 + 7 * 512),
    "pacs_fisc": (3, 7, 27_718_727),
}


@pytest.mark.parametrize(("name", "sizes"), N_WEIGHTS.items())
def test_the_network_of_a_paper_has_the_papers_number_of_weights(name, sizes):
    config = load(CONFIGS / f"{name}.yaml")
    network = config.method.wrap_network(config.network.build(*sizes[:2]), config.network)
    assert sum(weights.numel() for weights in network.parameters()) == sizes[2]


CCST = """method.k=3 method.style=overall data.test_ratio=0.0 federation.rounds=500 training.augment=false
    federation.selection=source_validation training.optimizer=sgd training.learning_rate=1e-3 training.momentum=0.0 """
PAPERS = {
    "prostate_paper": """data.image_size=384 federation.rounds=100 training.batch_size=5 training.betas=[0.9,0.99]
        method.gamma=0.5 method.alpha=0.01 method.temperature=0.05 method.balance=none method.views=0
        method.denominator=positive_and_negatives""",
    "fundus_paper": "data.image_size=384 federation.rounds=100 method.gamma=0.1",
    "camelyon17_paper": """method.k=4 method.transfer_size=512 federation.rounds=100 training.optimizer=sgd
        training.learning_rate=1e-3 data.validation_ratio=0.2 federation.unseen_ratio=0.2""",
    "pacs_stablefdg": """federation.rounds=50 federation.local_epochs=5 federation.clients=30 federation.min_images=70
        federation.clients_per_round=10 federation.partition=dirichlet federation.concentration=0.5
        training.learning_rate=1e-3 training.momentum=0.9 training.weight_decay=5e-4 training.schedule=cosine
        method.level=3.0 method.probability=0.5 method.dimension=30""",
    "pacs_fisc": """federation.rounds=50 federation.mixing=0.1 federation.clients=100 federation.clients_per_round=20
        federation.selection=last federation.validation_site= method.contrast=0.75 method.regularisation=0.2
        method.margin=0.3 method.alpha=1.0 method.normalise=false training.optimizer=adam training.learning_rate=3e-5
        data.validation_ratio=0.1 data.test_ratio=0.1""",
    "pacs_ccst": CCST + "network.depth=50 data.validation_ratio=0.1 federation.unseen_ratio=1.0",
    "officehome_ccst": CCST + "network.depth=18 data.validation_ratio=0.2 federation.unseen_ratio=0.2",
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_config_has_the_settings_of_its_paper(name):
    document = resolved(load(CONFIGS / f"{name}.yaml"))
    for override in map(Override.parse, PAPERS[name].split()):
        block, key = override.key.split(".")
        assert document[block][key] == override.value, override.key


HEADER = {
    path: list(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    for path in sorted(CONFIGS.glob("*.yaml"))
}
VALUE = re.compile(r"#   ([a-z_]+\.[a-z_.]+) = (.+?)(?:: |$)")  # a line of the header that gives the value of a key
COMMAND = re.compile(r"python -m medfed\.(train|evaluate) ([^`]+)")


@pytest.mark.parametrize("path", HEADER, ids=lambda path: path.stem)
def test_the_header_of_a_config_gives_the_values_that_it_has(path):
    document = resolved(load(path))
    for line in HEADER[path]:
        if found := VALUE.match(line):
            block, key = found[1].split(".")
            assert document[block][key] == yaml.safe_load(found[2]), line


def test_a_paper_config_lists_its_departures():
    papers = [path for path in HEADER if "Departures from the paper:" in "\n".join(HEADER[path])]
    assert {"prostate_paper", "fundus_paper", "camelyon17_paper"} <= {path.stem for path in papers}
    for path in papers:
        start = next(n for n, line in enumerate(HEADER[path]) if line.startswith("# Departures from the paper:"))
        listed = takewhile(lambda line: line.startswith("#   "), HEADER[path][start + 1 :])
        wrong = [line for line in listed if not re.match(r"#    +|#   no setting: |#   [a-z_]+\.[a-z_.]+ = ", line)]
        assert not wrong, wrong


def test_every_command_in_the_header_of_a_config_resolves(monkeypatch):
    """The program's own parser reads the command, and the config of every row is built; nothing is trained."""
    rows: set[tuple[str, str]] = set()

    def run(config, *arguments, **more):
        raise _Resolved

    def compare(config, methods, out, **more):
        for method in methods:
            if (config.source, method) not in rows and method not in ("all", "METHOD"):
                config_of(config, ComparisonRow(method), "", config.seed)
                rows.add((config.source, method))
        raise _Resolved

    monkeypatch.chdir(CONFIGS.parent)
    monkeypatch.setattr("medfed.config.early.check_config", lambda *arguments: None)  # the images are not here
    monkeypatch.setattr(api, "run", run)
    monkeypatch.setattr(api, "compare", compare)
    commands = [found for lines in HEADER.values() for line in lines for found in COMMAND.findall(line)]
    assert len(commands) > len(HEADER)
    for program, arguments in commands:
        words = shlex.split(arguments)
        with pytest.raises(_Resolved):
            pytest.fail(f"exit code {PROGRAMS[program].main(words)}: {arguments}")
