"""Which images a run reads, and how many of them it keeps in memory."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from monai.data import MetaTensor

from medfed.config.schema import load, load_text
from medfed.datasets.case import Case
from medfed.datasets.splits import Split
from medfed.experiments.setup import build_experiment
from medfed.experiments.sites import assign_patients, read_sites
from medfed.tasks.classification import Classification

CONFIG = "{data: {name: camelyon17, root: unused}, network: {name: densenet}, method: {name: fedavg}}"
BLACK = SimpleNamespace(read_image=lambda case, notices: MetaTensor(torch.zeros(3, 8, 8, 1)), classes=("a", "b"))


def test_all_sites_of_a_process_together_keep_the_largest_number_of_images(monkeypatch):
    """Room for 4 images, and sites with 6 and 2: they keep 3 and 1 images."""
    monkeypatch.setattr("medfed.experiments.sites.MAX_CACHE_BYTES", 4 * 3 * 8 * 8)
    splits = {
        site: Split([Case(site, f"{k}", Path(f"{k}.png"), label=0) for k in range(n)], [], [])
        for site, n in (("s", 6), ("t", 2))
    }
    task, network = Classification(BLACK.classes, 3, 8), torch.nn.Linear(1, 1)
    sites, _ = read_sites(load_text(CONFIG, "a.yaml"), BLACK, task, network, splits, {})
    assert [len(site.training._cache) for site in sites] == [3, 1]


def test_clients_get_the_patients_of_participating_sites_only(tiny_config):
    """Three patients of one site train or validate, so two clients share them."""
    settings = ["federation.participating=1", "federation.clients=2", "method.name=fedavg", "data.test_ratio=0"]
    result = build_experiment(load(tiny_config, settings), None, True)
    (site,) = result.splits
    assert len(result.clients) == 2
    assert {case.site for held in result.clients.values() for case in held.all()} == {site}


@pytest.mark.parametrize("unseen", ["HK", "UCL"])
def test_a_damaged_site_that_does_not_participate_is_not_read(tiny_config, tmp_path, tiny_phantom, unseen):
    """The files of a site that takes no part are not opened: its folder may hold anything."""
    root = tmp_path / "copy"
    shutil.copytree(tiny_phantom, root)
    changes = [f"data.root={root}", f"federation.unseen_site={unseen}", "federation.participating=1"]
    (taken,) = build_experiment(load(tiny_config, changes), None, True).splits
    (left,) = {"BMC", "HK", "UCL"} - {taken, unseen}
    for path in (path for path in (root / left).rglob("*") if path.is_file()):
        path.write_bytes(b"broken")
    assert list(build_experiment(load(tiny_config, changes), None, True).splits) == [taken]


def test_images_that_are_too_many_to_search_for_copies_give_a_sentence(tiny_config, monkeypatch):
    monkeypatch.setattr("medfed.experiments.sites.MAX_HASHED_CASES", 2)
    config = load(tiny_config)
    with pytest.warns(UserWarning, match="more than 2 images, so they are not searched for copies"):
        assign_patients(config.data, config.federation, config.seed, "tiny.yaml")
