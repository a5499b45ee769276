import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from medfed.datasets import partitions
from medfed.datasets.case import Case
from medfed.datasets.partitions import heterogeneous_shares, partition
from medfed.datasets.splits import Split, split
from medfed.federation.settings import Partition

PACS = {"photo": 1670, "art": 2048, "cartoon": 2344, "sketch": 3929}  # 9,991 images, a person each
SMALL_PACS = {"photo": 167, "art": 205, "cartoon": 234, "sketch": 393}  # a tenth, for properties without numbers
IMAGE = Path("i")


def cases(site: str, n: int, images: int = 1) -> list[Case]:
    return [Case(site, f"{p:04d}_{i}", IMAGE, (), f"{p:04d}") for p in range(n) for i in range(images)]


def sites(sizes=PACS, images: int = 1) -> dict[str, Split]:
    return {site: Split(cases(site, n, images), [], []) for site, n in sizes.items()}


def client_cases(n_clients: int, rule: str = "heterogeneous", sizes=PACS, seed: int = 0, **numbers) -> list[list[Case]]:
    return [client.train for client in partition(sites(sizes), n_clients, rule, seed, **numbers).values()]


@pytest.mark.parametrize("mixing", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("n_clients", [2, 3, 4, 10, 100])
def test_every_image_is_at_exactly_one_client(mixing, n_clients):
    clients = [case for client in client_cases(n_clients, sizes=SMALL_PACS, mixing=mixing) for case in client]
    assert len(clients) == len(set(clients)) == sum(SMALL_PACS.values())


def test_separate_sites_have_main_clients_by_their_size():
    """m = 2, 2, 2, 4 of ten: a further client goes to the site with the largest N_d / m_d."""
    clients = client_cases(10, mixing=0)
    assert all(len({case.site for case in client}) == 1 for client in clients)
    assert sorted(map(len, clients)) == [835, 835, 982, 982, 982, 983, 1024, 1024, 1172, 1172]
    site_of_client = [client[0].site for client in clients]
    assert {site: site_of_client.count(site) for site in PACS} == {"photo": 2, "art": 2, "cartoon": 2, "sketch": 4}


def test_a_mixing_of_one_is_homogeneous():
    clients = client_cases(10, mixing=1)
    assert all(abs(len(client) - 999.1) < 1.5 for client in clients)
    for site, n in PACS.items():
        counts = [sum(case.site == site for case in client) for client in clients]
        assert max(counts) - min(counts) <= 1 and sum(counts) == n


def test_between_them_the_share_is_the_papers():
    """Of art, lambda 0.1: a main client gets 2048 (0.9 / 2 + 0.1 / 10) = 942.08, another 20.48."""
    shares = heterogeneous_shares(PACS, 10, 0.1)
    assert sorted((2048 * shares["art"]).round(2).tolist()) == [20.48] * 8 + [942.08] * 2
    assert all(share.sum() == pytest.approx(1) for share in shares.values())
    counts = sorted(sum(case.site == "art" for case in client) for client in client_cases(10, mixing=0.1))
    assert set(counts[:8]) <= {20, 21} and set(counts[8:]) <= {941, 942, 943} and sum(counts) == 2048


def test_as_many_clients_as_sites_have_one_each_and_fewer_get_whole_ones_the_largest_first():
    """Sketch to one, cartoon to the other, art to the emptier (2344), photo to the then emptier (3929)."""
    clients = client_cases(4, mixing=0)
    assert sorted({case.site for case in client}.pop() for client in clients) == sorted(PACS)
    assert sorted(map(len, clients)) == sorted(PACS.values())
    clients = [{case.site for case in client} for client in client_cases(2, mixing=0)]
    assert clients == [{"photo", "sketch"}, {"art", "cartoon"}]
    assert [len(client) for client in client_cases(2, mixing=0)] == [5599, 4392]
    assert client_cases(2, "domains", mixing=0.7) == client_cases(2, mixing=0)
    assert [len(client) for client in client_cases(2, mixing=1)] == [4996, 4995]


@pytest.mark.parametrize(("n_clients", "of_each"), [(30, [10, 10, 10]), (10, [3, 3, 4]), (3, [1, 1, 1])])
def test_clients_of_one_domain_are_as_many_of_each(n_clients, of_each):
    """StableFDG, "single": N/D clients a domain, however many images it has."""
    clients = client_cases(n_clients, "domains", {site: n for site, n in PACS.items() if site != "photo"}, mixing=0.7)
    assert all(len({case.site for case in client}) == 1 for client in clients)
    site_of_client = [client[0].site for client in clients]
    assert sorted(map(site_of_client.count, set(site_of_client))) == of_each


def test_a_domain_has_no_more_clients_than_patients_and_validation_follows_the_shares():
    clients = client_cases(9, "domains", {"a": 100, "b": 100, "c": 2})
    site_of_client = [client[0].site for client in clients]
    assert {site: site_of_client.count(site) for site in "abc"} == {"a": 4, "b": 3, "c": 2}
    splits = {site: split(cases(site, 100), 1, 0.2, 0.1) for site in ("north", "south")}
    for client in partition(splits, 4, "domains", 1).values():
        assert len(client.train) == 35 and len(client.validation) == 10
        assert len({case.site for case in client.train + client.validation}) == 1


def test_the_order_of_cases_and_sites_does_not_matter_and_the_seed_does():
    splits = sites(SMALL_PACS)
    turned = {site: Split(list(reversed(s.train)), [], []) for site, s in reversed(splits.items())}
    random.Random(0).shuffle(turned["art"].train)
    for rule in get_args(Partition):
        clients = partition(splits, 10, rule, 3, mixing=0.3)
        assert partition(turned, 10, rule, 3, mixing=0.3) == clients
        assert partition(splits, 10, rule, 4, mixing=0.3) != clients


def test_who_holds_a_person_is_the_same_on_every_machine():
    r"""`printf '7\x1fclient\x1fnorth\x1f0000' | sha256sum` begins with c016; 0001 to 0003: a7e4, c078, 5e61."""
    first, second = client_cases(2, "domains", {"north": 4}, seed=7)
    assert [[case.patient for case in client] for client in (first, second)] == [["0001", "0003"], ["0000", "0002"]]


@pytest.mark.parametrize("rule", get_args(Partition))
def test_all_images_of_a_person_are_at_one_client(rule):
    splits = {site: split(cases(site, 30, images=5), 1, 0.2, 0.2) for site in ("north", "south")}
    clients = partition(splits, 6, rule, 1, mixing=0.5)
    holders: dict[tuple, set] = {}
    for name, client in clients.items():
        for case in client.train + client.validation:
            holders.setdefault((case.site, case.patient), set()).add(name)
    assert len(holders) == 2 * (18 + 6) and all(len(names) == 1 for names in holders.values())
    assert all(not client.test for client in clients.values())


def test_patients_with_several_images_are_assigned_by_the_middle_of_their_images():
    """Ten images, four of one patient: each half may differ from five images by at most two, half of that patient's."""
    sizes = [4, 1, 1, 1, 1, 1, 1]
    of = [Case("north", f"{p}_{i}", IMAGE, (), f"{p}") for p, n in enumerate(sizes) for i in range(n)]
    for seed in range(20):
        clients = partitions.assign_to_clients(
            {"north": partitions.rank_patients(of, seed)}, {"north": np.array([0.5, 0.5])}
        )
        assert all(3 <= len(client) <= 7 for client in clients) and sum(map(len, clients)) == 10


def test_small_sites_do_not_all_leave_out_the_same_clients():
    """Three sites of four patients: with equal shares, the patients are spread evenly over six clients."""
    clients = client_cases(6, mixing=1, sizes=dict.fromkeys("abc", 4))
    assert min(map(len, clients)) == 2 == max(map(len, clients))


def test_dirichlet_shares_are_sampled_until_every_client_has_enough_images():
    """StableFDG's numbers: three of the sites of PACS over 30 clients, concentration 0.5, at least 70 images."""
    three = {site: n for site, n in PACS.items() if site != "photo"}
    clients = client_cases(30, "dirichlet", three, concentration=0.5, min_images=70)
    sizes = sorted(map(len, clients))
    assert sizes[0] >= 70 and sizes[-1] > 3 * sizes[0] and sum(sizes) == sum(three.values())
    assert sum(len(client) >= 70 for client in client_cases(30, "dirichlet", three, concentration=0.5)) < 30


def test_a_large_concentration_is_nearly_homogeneous_and_a_small_one_is_not():
    """Of one site: a share of Dirichlet(c) over K clients has the variance (K - 1) / (K^2 (K c + 1))."""
    patients = {"a": partitions.rank_patients(cases("a", 2000), 0)}
    even, uneven = (partitions.dirichlet_shares(patients, 10, c, 1, 0)["a"] for c in (1e4, 0.5))
    assert even.std() < 0.002 < 0.03 < uneven.std()


def test_impossible_dirichlet_shares_are_refused_after_a_bounded_search(monkeypatch):
    monkeypatch.setattr(partitions, "MAX_DRAWS", 1000)
    with pytest.raises(ValueError, match="no sample of Dirichlet.0.5. gave each of 10 clients at least 999 of the 999"):
        client_cases(10, "dirichlet", min_images=999)
    with pytest.raises(ValueError, match="a smaller federation.min_images"):
        client_cases(10, "dirichlet", min_images=1000)


def test_more_clients_than_patients_and_clients_without_an_image_are_refused_by_name():
    """One patient has 90 of 99 images, more than the shares of three of the four clients."""
    with pytest.raises(ValueError, match="7 clients share 6 training patients; expected at most as many clients"):
        partition(sites({"a": 3, "b": 3}, images=9), 7, "domains", 0)
    lopsided = [Case("a", f"big{i}", Path("i"), (), "big") for i in range(90)] + cases("a", 9)
    sentence = "[12] of 4 clients would have no training image, the first is client_.; .*fewer"
    with pytest.raises(ValueError, match=sentence):
        partition({"a": Split(lopsided, [], [])}, 4, "domains", 0)


def test_names_sort_as_numbers():
    assert list(partition(sites({"a": 10}), 10, "domains", 0))[::9] == ["client_01", "client_10"]
