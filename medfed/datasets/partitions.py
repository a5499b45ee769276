"""Divide the patients of a few sites among many simulated clients, as papers do that need more clients than sites.

A rule gives each client a share of each site's training images, and `assign_to_clients` assigns patients by these
shares. All images of a patient stay together, so the shares are met up to the images of one patient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from medfed.core.seeds import digest
from medfed.datasets.case import Case
from medfed.datasets.splits import Split

MAX_DRAWS = 100_000  # samples before giving up; three sites of PACS, 30 clients, 70 images each need some hundreds
Shares = dict[str, np.ndarray]  # by site: (K,), the fraction of the site's images that each client gets; they sum to 1
Patients = Mapping[str, Sequence[Sequence[Case]]]  # by site: the cases of each patient


def partition(
    splits: Mapping[str, Split],
    n_clients: int,
    rule: str,
    seed: int,
    *,
    mixing: float = 0.0,
    concentration: float = 0.5,
    min_images: int = 1,
) -> dict[str, Split]:
    """Divide the training and validation patients of the sites among simulated clients; return their splits by name.

    Validation patients are assigned by the same shares as training patients; a client may have none. Test images stay
    with the sites. The order of the cases has no influence. The rule is one of

    - "domains": every client holds images of one site, and every site has equally many clients, as far as possible
      ("single" in the StableFDG paper); with more sites than clients, a client holds several whole sites;
    - "heterogeneous": a mixture of the images of one site and of all sites (`heterogeneous_shares`);
    - "dirichlet": random shares of each site (`dirichlet_shares`; "multi" in the StableFDG paper).

    ValueError if a client would have no training image or, with "dirichlet", fewer than `min_images`.
    """
    training = {site: rank_patients(splits[site].train, seed) for site in sorted(splits)}
    validation = {site: rank_patients(splits[site].validation, seed) for site in training}
    n_patients = {site: len(patients) for site, patients in training.items()}
    if sum(n_patients.values()) < n_clients:
        raise ValueError(
            f"{n_clients} clients share {sum(n_patients.values())} training patients; expected at most as many clients "
            "as patients; set a smaller federation.clients"
        )
    if rule == "dirichlet":
        shares = dirichlet_shares(training, n_clients, concentration, min_images, seed)
    else:
        sizes = {site: len(splits[site].train) for site in training}
        if rule == "domains" and len(sizes) <= n_clients:
            sizes = dict.fromkeys(sizes, 1)
        shares = heterogeneous_shares(sizes, n_clients, mixing if rule == "heterogeneous" else 0.0, n_patients)
    parts = assign_to_clients(training, shares), assign_to_clients(validation, shares)
    names = [f"client_{number:0{len(str(n_clients))}d}" for number in range(1, n_clients + 1)]  # of equal lengths
    if empty := [name for name, cases in zip(names, parts[0], strict=True) if not cases]:
        raise ValueError(
            f"{len(empty)} of {n_clients} clients would have no training image, the first is {empty[0]}; expected at "
            "least one patient per client; use fewer clients or another federation.partition"
        )
    return {name: Split(train, validation, []) for name, train, validation in zip(names, *parts, strict=True)}


def heterogeneous_shares(
    sizes: Mapping[str, int], n_clients: int, mixing: float, patients: Mapping[str, int] | None = None
) -> Shares:
    """Return the fraction of each site's images that each of the K clients gets, by heterogeneous partitioning.

    See Bai et al., "Benchmarking Algorithms for Federated Domain Generalization", ICLR 2024,
    https://arxiv.org/abs/2307.04942. Each site has one or more main clients, more if it has more images (`sizes`), but
    no more than patients, if possible; with fewer clients than sites, a client is the main client of several sites.
    `mixing` is the paper's lambda, in [0, 1]. If a site has m main clients, the fractions of its images are

        (1 - mixing) / m + mixing / K      for each of its main clients
        mixing / K                         for each other client
    """
    shares = {}
    for site, clients in _main_clients(sizes, n_clients, patients or sizes).items():
        main_share = np.zeros(n_clients)
        main_share[clients] = 1 / len(clients)
        shares[site] = (1 - mixing) * main_share + mixing / n_clients
    return shares


def dirichlet_shares(training: Patients, n_clients: int, concentration: float, min_images: int, seed: int) -> Shares:
    """Sample the fraction of each site's images that each of the K clients gets, from a Dirichlet distribution.

    The StableFDG paper (Park et al., NeurIPS 2023) divides images in this way. All fractions are sampled again until
    every client has at least `min_images` training images (ValueError after 100,000 samples); the paper has no such
    limit, its public code uses 70. The code also gives no further images to a client that already has more than the
    average number, so that its clients differ less. The paper does not mention this rule, and it is left out here.

    With a small `concentration`, a client gets images of few sites; with a large one, equal fractions of every site.
    """
    n_images = np.array([sum(map(len, patients)) for patients in training.values()])
    tolerance = sum(max(map(len, patients), default=0) for patients in training.values())  # patients stay whole
    rng = np.random.default_rng(int.from_bytes(digest(seed, "dirichlet", *training), "big"))
    for _ in range(MAX_DRAWS):
        samples = rng.dirichlet(np.full(n_clients, concentration), len(training))
        if (n_images @ samples).min() > min_images - tolerance:
            shares = dict(zip(training, samples, strict=True))
            if min(map(len, assign_to_clients(training, shares))) >= min_images:
                return shares
    raise ValueError(
        f"no sample of Dirichlet({concentration:g}) gave each of {n_clients} clients at least {min_images} of the "
        f"{n_images.sum()} training images; use fewer clients, a smaller federation.min_images, or a larger "
        "federation.concentration"
    )


def rank_patients(cases: Iterable[Case], seed: int) -> list[list[Case]]:
    """Group the cases of one site by patient, and order the patients by the SHA-256 of (seed, site, patient)."""
    by_patient: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_patient.setdefault((case.site, case.patient), []).append(case)
    return [by_patient[patient] for patient in sorted(by_patient, key=lambda patient: digest(seed, "client", *patient))]


def assign_to_clients(patients: Patients, shares: Shares) -> list[list[Case]]:
    """Assign all patients of every site to simulated clients, so that each client gets about its share of the images.

    The patients lie on a line on which each image has length 1, and the shares divide the line: a patient goes to the
    client in whose interval the middle of the patient's images lies.
    """
    n_clients = len(next(iter(shares.values())))
    by_client: list[list[Case]] = [[] for _ in range(n_clients)]
    for index, (site, of_site) in enumerate(sorted(patients.items())):
        # Each site starts with another client, so that sites with few patients do not all leave out the same clients.
        order = np.roll(np.arange(n_clients), -(index * n_clients // len(patients)))
        sizes = np.array([len(cases) for cases in of_site], dtype=np.float64)
        borders = (np.cumsum(shares[site][order]) * sizes.sum()).round(9)
        clients = order[np.searchsorted(borders[:-1], np.cumsum(sizes) - sizes / 2, side="right")]
        for cases, client in zip(of_site, clients, strict=True):
            by_client[client] += cases
    return [sorted(cases, key=lambda case: (case.site, case.name)) for cases in by_client]


def _main_clients(sizes: Mapping[str, int], n_clients: int, n_patients: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the main clients of each site: one or more of its own, or one that it shares with other sites."""
    if len(sizes) <= n_clients:
        n_main = dict.fromkeys(sorted(sizes), 1)
        for _ in range(n_clients - len(sizes)):
            divisible = [site for site in n_main if n_main[site] < n_patients[site]] or list(n_main)
            n_main[max(divisible, key=lambda site: sizes[site] / n_main[site])] += 1
        numbers = iter(range(n_clients))
        return {site: list(islice(numbers, n)) for site, n in n_main.items()}
    main, n_images = {}, [0] * n_clients
    for site in sorted(sizes, key=lambda site: (-sizes[site], site)):
        main[site] = [n_images.index(min(n_images))]
        n_images[main[site][0]] += sizes[site]
    return main
