"""Tables with very many rows or sites: the work is counted."""

from collections import Counter

import pytest

from medfed.core import site_names
from medfed.datasets import table
from medfed.datasets.collections.folder import Folder

N_SITES = 40


@pytest.fixture
def dataset(tmp_path) -> Folder:
    rows = [f"s{n},a{n}.png,b{n}.png" for n in range(N_SITES)]
    (tmp_path / "list.csv").write_text("\n".join(["site,image,mask", *rows]) + "\n")
    for n in range(N_SITES):
        for kind in "ab":
            (tmp_path / f"{kind}{n}.png").touch()
    return Folder(root=str(tmp_path), table="list.csv")


def test_names_of_sites_are_checked_once_and_files_are_asked_for_once(dataset, monkeypatch):
    calls: Counter = Counter()
    real_problem, real_existing = site_names._problem, table._existing
    monkeypatch.setattr(site_names, "_problem", lambda name: (calls.update(names=1), real_problem(name))[1])
    monkeypatch.setattr(table, "_existing", lambda *path: (calls.update(files=1), real_existing(*path))[1])
    cases = dataset.cases_by_site(dataset.site_names())
    assert [len(cases[f"s{n}"]) for n in range(N_SITES)] == [1] * N_SITES
    assert calls == {"names": N_SITES, "files": 2 * N_SITES}
