"""The configs that ship: they load, and say what their comments say."""

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import torch
import yaml

from medfed import api, evaluate, train
from medfed.config.schema import load, load_text, resolved, to_yaml
from medfed.experiments.grid import Grid

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAMS = {"train": train, "evaluate": evaluate}


class _Resolved(Exception):
    """Raised instead of training."""


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_comes_back_from_its_own_text_and_exchanges_a_window_of_seven_by_seven(path):
    config = load(path)
    assert load_text(to_yaml(config), "again") == config
    config.network.check_image_size(config.data.image_size)
    if config.method_name == "elcfs":
        image = torch.rand(1, 1, config.data.image_size, config.data.image_size)
        assert config.method._spectrum(image).half_width == 3


def n_parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_configs_of_elcfs_and_ccst_have_the_settings_of_their_papers():
    config = load(CONFIGS / "prostate_paper.yaml")
    assert n_parameters(config.network.build(1, 1)) == 3_179_569
    assert (config.data.image_size, config.federation.rounds, config.training.batch_size) == (384, 100, 5)
    assert (config.method.gamma, config.method.alpha, config.method.temperature) == (0.5, 0.01, 0.05)
    assert (config.method.balance, config.method.denominator) == ("none", "positive_and_negatives")
    assert config.training.betas == (0.9, 0.99) and config.method.views == 0
    config = load(CONFIGS / "fundus_paper.yaml")
    assert n_parameters(config.network.build(3, 2)) == 3_179_890
    assert (config.data.image_size, config.federation.rounds, config.method.gamma) == (384, 100, 0.1)
    config = load(CONFIGS / "camelyon17_paper.yaml")
    assert n_parameters(config.network.build(3, 2)) == 6_955_906
    assert (config.method.k, config.method.transfer_size, config.federation.rounds) == (4, 512, 100)
    assert (config.training.optimizer, config.training.learning_rate) == ("sgd", 1e-3)
    assert (config.data.validation_ratio, config.federation.unseen_ratio) == (0.2, 0.2)


def test_the_small_config_says_what_happens_without_the_real_data():
    text = (CONFIGS / "prostate.yaml").read_text()
    assert yaml.safe_load(text)["data"]["if_missing"] == "phantom" and "synthetic phantom" in text


def test_the_stablefdg_config_is_the_papers_setting():
    config = load(CONFIGS / "pacs_stablefdg.yaml")
    network = config.method.wrap_network(config.network.build(3, 7), config.network)
    assert n_parameters(network) == 11_180_103 + 30_780 + 7 * 512
    federation, training = config.federation, config.training
    assert (federation.rounds, federation.local_epochs) == (50, 5)
    assert (federation.clients, federation.clients_per_round) == (30, 10)
    assert (federation.partition, federation.concentration, federation.min_images) == ("dirichlet", 0.5, 70)
    assert (training.learning_rate, training.momentum) == (1e-3, 0.9)
    assert (training.weight_decay, training.schedule) == (5e-4, "cosine")
    assert (config.method.level, config.method.probability, config.method.dimension) == (3.0, 0.5, 30)


def test_the_fisc_config_is_the_papers_setting():
    config = load(CONFIGS / "pacs_fisc.yaml")
    assert n_parameters(config.network.build(3, 7)) == 27_718_727
    federation, method = config.federation, config.method
    assert (federation.rounds, federation.mixing) == (50, 0.1)
    assert (federation.clients, federation.clients_per_round) == (100, 20)
    assert (method.contrast, method.regularisation, method.margin, method.alpha) == (0.75, 0.2, 0.3, 1.0)
    assert (config.training.optimizer, config.training.learning_rate) == ("adam", 3e-5)
    assert (config.data.validation_ratio, config.data.test_ratio, federation.selection) == (0.1, 0.1, "last")
    assert not federation.validation_site and not method.normalise


def test_the_ccst_configs_have_the_papers_settings_for_pacs_and_office_home():
    pacs, office = (load(CONFIGS / f"{name}_ccst.yaml") for name in ("pacs", "officehome"))
    for config, depth, ratio, tested in ((pacs, 50, 0.1, 1.0), (office, 18, 0.2, 0.2)):
        assert (config.network.depth, config.method.k, config.method.style) == (depth, 3, "overall")
        assert (config.data.validation_ratio, config.data.test_ratio) == (ratio, 0.0)
        assert (config.federation.rounds, config.federation.unseen_ratio) == (500, tested)
        assert config.federation.selection == "source_validation" and not config.training.augment
        assert (config.training.optimizer, config.training.learning_rate, config.training.momentum) == ("sgd", 1e-3, 0)


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


@pytest.mark.parametrize(
    ("name", "departure"),
    [
        ("fundus_paper", "no setting: the boundary loss is the mean over the pairs of vectors in both orders; eq. 7"),
        ("prostate_paper", "no setting: the boundary loss is the mean over the pairs of vectors in both orders; eq. 7"),
        ("pacs_stablefdg", "no setting: style shifting sets negative standard deviations to 0"),
        ("pacs_stablefdg", "exploration moves styles away from the mean style of the batch without the added"),
        ("pacs_fisc", "The method of the public code instead of the text. training.augment stays false"),
        ("camelyon17_paper", "at 96 pixels exchanges only the mean brightness"),
    ],
)
def test_the_header_names_a_departure_that_no_setting_shows(name, departure):
    assert departure in "\n".join(HEADER[CONFIGS / f"{name}.yaml"])


def test_every_command_in_the_header_of_a_config_resolves(monkeypatch):
    """The program's own parser reads the command, and the config of every row is built; nothing is trained."""
    rows: set[tuple[str, str]] = set()

    def run(config, *arguments, **more):
        raise _Resolved

    def compare(config, methods, out, varied, **more):
        for method in methods:
            if (config.source, method.label) not in rows and method.label not in ("all", "METHOD"):
                Grid(config).config_of(method, "", config.seed)
                rows.add((config.source, method.label))
        raise _Resolved

    monkeypatch.chdir(CONFIGS.parent)
    monkeypatch.setattr(api, "run", run)
    monkeypatch.setattr(api, "compare", compare)
    commands = [found for lines in HEADER.values() for line in lines for found in COMMAND.findall(line)]
    assert len(commands) > len(HEADER)
    for program, arguments in commands:
        words = shlex.split(arguments)
        with pytest.raises(_Resolved):
            pytest.fail(f"exit code {PROGRAMS[program].main(words)}: {arguments}")
