"""`federation.participating` in a single run: of whom images are read, handed out and scored."""

import shutil

import pytest

from medfed.config.schema import load
from medfed.experiments.setup import build_experiment
from medfed.federation.settings import Federation


def test_null_means_all_sites(tiny_config):
    for value in ("null", "2"):
        config = load(tiny_config, [f"federation.participating={value}"])
        assert set(build_experiment(config, None, True).splits) == {"BMC", "HK"}
    assert Federation().participating is None


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
