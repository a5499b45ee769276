"""The configs that ship: they load, and say what their comments say."""

from pathlib import Path

import pytest
import yaml

from medfed.config.schema import load, load_text, to_yaml
from medfed.functional.fourier import window_half_width

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_loads_and_comes_back_from_its_own_text(path):
    config = load(path)
    assert load_text(to_yaml(config), "again") == config
    config.network.check_image_size(config.data.image_size)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_exchanged_window_is_seven_by_seven(path):
    config = load(path)
    if config.method_name != "elcfs":
        pytest.skip("exchanges no window")
    size = config.data.image_size
    assert window_half_width((size, size), config.method.alpha) == 3


def test_the_paper_config_is_the_papers_setting():
    config = load(CONFIGS / "prostate_paper.yaml")
    network = config.network.build(1, 1)
    assert sum(p.numel() for p in network.parameters()) == 3_179_569
    assert (config.data.image_size, config.federation.rounds, config.training.batch_size) == (384, 100, 5)
    assert (config.method.gamma, config.method.alpha, config.method.temperature) == (0.5, 0.01, 0.05)
    assert config.training.betas == (0.9, 0.99) and config.method.views == 0


def test_the_small_config_says_what_happens_without_the_real_data():
    text = (CONFIGS / "prostate.yaml").read_text()
    assert yaml.safe_load(text)["data"]["if_missing"] == "phantom" and "synthetic phantom" in text


def test_the_fundus_paper_config_is_the_papers_setting():
    config = load(CONFIGS / "fundus_paper.yaml")
    network = config.network.build(3, 2)
    assert sum(p.numel() for p in network.parameters()) == 3_179_890
    assert (config.data.image_size, config.federation.rounds, config.method.gamma) == (384, 100, 0.1)


def test_the_camelyon_paper_config_is_the_papers_setting():
    config = load(CONFIGS / "camelyon17_paper.yaml")
    network = config.network.build(3, 2)
    assert sum(p.numel() for p in network.parameters()) == 6_955_906
    assert (config.method.k, config.method.transfer_size, config.federation.rounds) == (4, 512, 100)
    assert (config.training.optimizer, config.training.learning_rate) == ("sgd", 1e-3)


def test_the_stablefdg_config_is_the_papers_setting():
    config = load(CONFIGS / "pacs_stablefdg.yaml")
    network = config.method.wrap_network(config.network.build(3, 7), config.network)
    assert sum(p.numel() for p in network.parameters()) == 11_180_103 + 30_780 + 7 * 512
    federation, training = config.federation, config.training
    assert (federation.rounds, federation.local_epochs) == (50, 5)
    assert (federation.clients, federation.clients_per_round) == (30, 10)
    assert (federation.partition, federation.concentration, federation.min_images) == ("dirichlet", 0.5, 70)
    assert (training.learning_rate, training.momentum) == (1e-3, 0.9)
    assert (training.weight_decay, training.schedule) == (5e-4, "cosine")
    assert (config.method.level, config.method.probability, config.method.dimension) == (3.0, 0.5, 30)


def test_the_fisc_config_is_the_papers_setting():
    config = load(CONFIGS / "pacs_fisc.yaml")
    assert sum(p.numel() for p in config.network.build(3, 7).parameters()) == 27_718_727
    federation, method = config.federation, config.method
    assert (federation.rounds, federation.mixing) == (50, 0.1)
    assert (federation.clients, federation.clients_per_round) == (100, 20)
    assert (method.contrast, method.regularisation, method.margin, method.alpha) == (0.75, 0.2, 0.3, 1.0)
    assert (config.training.optimizer, config.training.learning_rate) == ("adam", 3e-5)


def test_the_ccst_configs_have_the_papers_settings_for_pacs_and_office_home():
    pacs, office = (load(CONFIGS / f"{name}_ccst.yaml") for name in ("pacs", "officehome"))
    for config, depth, ratio, tested in ((pacs, 50, 0.1, 1.0), (office, 18, 0.2, 0.2)):
        assert (config.network.depth, config.method.k, config.method.style) == (depth, 3, "overall")
        assert (config.data.validation_ratio, config.data.test_ratio) == (ratio, 0.0)
        assert (config.federation.rounds, config.federation.unseen_ratio) == (500, tested)
        assert config.federation.selection == "source_validation" and not config.training.augment
        assert (config.training.optimizer, config.training.learning_rate, config.training.momentum) == ("sgd", 1e-3, 0)


def test_the_camelyon_and_fisc_configs_have_the_papers_splits():
    camelyon, fisc = load(CONFIGS / "camelyon17_paper.yaml"), load(CONFIGS / "pacs_fisc.yaml")
    assert (camelyon.data.validation_ratio, camelyon.federation.unseen_ratio) == (0.2, 0.2)
    assert (fisc.data.validation_ratio, fisc.data.test_ratio, fisc.federation.selection) == (0.1, 0.1, "last")
    assert not fisc.federation.validation_site and not fisc.method.normalise
