"""Divide the patients of a few sites among many simulated clients, as papers do that need more clients than sites.

A rule gives each client a share of each site's training images (`heterogeneous_shares`, `dirichlet_shares`), and
`assign_to_clients` assigns patients to clients by these shares. All images of a patient stay together. So the shares
are met exactly where every patient has one image, and otherwise up to the images of one patient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from medfed.datasets.base import Case
from medfed.datasets.splits import Split

MAX_DRAWS = 100_000  # before giving up; three sites of PACS, 30 clients and 70 images each take some hundreds
DRAWS_PER_BATCH = 500
Shares = dict[str, np.ndarray]  # by site: (K,), the share of its images that each client gets; they sum to 1


def partition(
    splits: Mapping[str, Split], n_clients: int, rule: str, seed: int, *,
    mixing: float = 0.0, concentration: float = 0.5, min_images: int = 1,
) -> dict[str, Split]:  # fmt: skip
    """Each client's training and validation cases, by the client's name; the test cases stay with the sites.

    Args:
        splits: of each site, by patient, before anything is handed out.
        rule: "domains", "heterogeneous" (`heterogeneous_shares`) or "dirichlet" (`dirichlet_shares`; StableFDG,
            "multi"). "domains" (StableFDG, "single"): every client holds images of one site, and every site has equally
            many clients; if there are more sites than clients, a client holds several whole sites.
        mixing, concentration, min_images: of `heterogeneous_shares`, and of `dirichlet_shares`.

    Depends on the seed and on who the people are, not on the order of the cases. Validation people follow the same
    shares; a client may have none.

    Raises:
        ValueError: a sentence, if a client would have no training image, or fewer than `min_images` under "dirichlet".
    """
    training = {site: splits[site].train for site in sorted(splits)}
    n_people = sum(len({case.subject for case in cases}) for cases in training.values())
    if n_people < n_clients:
        raise ValueError(f"{n_clients} clients share {n_people} people in training; expected at most {n_people}")
    if rule == "dirichlet":
        shares = dirichlet_shares(training, n_clients, concentration, min_images, seed)
    else:
        sizes = {site: len(cases) for site, cases in training.items()}
        if rule == "domains" and len(sizes) <= n_clients:
            sizes = dict.fromkeys(sizes, 1)
        people = {site: len({case.subject for case in cases}) for site, cases in training.items()}
        shares = heterogeneous_shares(sizes, n_clients, mixing if rule == "heterogeneous" else 0.0, people)
    trained = assign_to_clients(training, shares, seed)
    validated = assign_to_clients({site: splits[site].validation for site in training}, shares, seed)
    names = client_names(n_clients)
    if empty := [name for name, cases in zip(names, trained, strict=True) if not cases]:
        raise ValueError(
            f"{len(empty)} of {n_clients} clients would hold no training image, the first is {empty[0]}; expected one "
            "person each, so ask for fewer clients or another federation.partition"
        )
    held = zip(names, trained, validated, strict=True)
    return {name: Split(cases, kept, []) for name, cases, kept in held}


def client_names(n: int) -> list[str]:
    """client_001 to client_100, for 100."""
    return [f"client_{number:0{len(str(n))}d}" for number in range(1, n + 1)]


def heterogeneous_shares(
    sizes: Mapping[str, int], n_clients: int, mixing: float, people: Mapping[str, int] | None = None
) -> Shares:
    """Between one site a client and all sites alike (Bai et al., ICLR 2024: heterogeneous partitioning by lambda).

    Every site has main clients. Client k gets, of the N_d images of site d, N_d [(1 - lambda) 1(k is one of the m_d
    main clients of d) / m_d + lambda / K].

    Args:
        sizes: training images of each site.
        mixing: lambda in [0, 1]; 0 keeps the sites apart, 1 gives every client the same of each.
        people: of each site, which has no more main clients than these, as long as another has; as many as images if
            not given.
    """
    shares = {}
    for site, clients in _main_clients(sizes, n_clients, people or sizes).items():
        own = np.zeros(n_clients)
        own[clients] = 1 / len(clients)
        shares[site] = (1 - mixing) * own + mixing / n_clients
    return shares


def dirichlet_shares(
    training: Mapping[str, Sequence[Case]], n_clients: int, concentration: float, min_images: int, seed: int
) -> Shares:
    """Shares of each site drawn from Dirichlet(concentration) over the clients (StableFDG).

    Drawn again, for all sites, until every client has at least `min_images` training images.

    Raises:
        ValueError: if that does not come about in MAX_DRAWS draws.
    """
    n_images = np.array([len(training[site]) for site in sorted(training)])
    people = [_people(training[site], seed) for site in sorted(training)]
    rng = np.random.default_rng(int.from_bytes(_hash(seed, "dirichlet", *sorted(training)), "big"))
    enough = n_images.sum() >= n_clients * min_images
    for _ in range(MAX_DRAWS // DRAWS_PER_BATCH if enough else 0):
        drawn = rng.dirichlet(np.full(n_clients, concentration), (DRAWS_PER_BATCH, len(people)))
        hoped = np.einsum("bdk,d->bk", drawn, n_images).min(axis=1)  # a person's images move a client's count by some
        largest = sum(max(map(len, of_site), default=0) for of_site in people)
        for shares in drawn[hoped > min_images - largest]:
            held = np.zeros(n_clients)
            for place, (of_site, share) in enumerate(zip(people, shares, strict=True)):
                takers = _takers(of_site, share, place, len(people))
                held += np.bincount(takers, [len(own) for own in of_site], n_clients)
            if held.min() >= min_images:
                return dict(zip(sorted(training), shares, strict=True))
    raise ValueError(
        f"no draw of Dirichlet({concentration:g}) gave each of {n_clients} clients at least {min_images} of the "
        f"{n_images.sum()} training images; ask for fewer clients, a smaller federation.min_images, or a larger "
        "federation.concentration"
    )


def assign_to_clients(cases: Mapping[str, Iterable[Case]], shares: Shares, seed: int) -> list[list[Case]]:
    """The cases of each client, sorted by site and patient; every case is in exactly one list.

    The people of a site stand in a row, ranked by the SHA-256 of (seed, site, subject), as long as they have images.
    The clients' shares cut that row, and a person goes where the middle of its images lies.
    """
    held: list[list[Case]] = [[] for _ in range(len(next(iter(shares.values()))))]
    for place, site in enumerate(sorted(cases)):
        people = _people(cases[site], seed)
        for own, client in zip(people, _takers(people, shares[site], place, len(cases)), strict=True):
            held[client] += own
    return [sorted(own, key=lambda case: (case.site, case.patient)) for own in held]


def _main_clients(sizes: Mapping[str, int], n_clients: int, people: Mapping[str, int]) -> dict[str, list[int]]:
    """The clients that a site mostly goes to: one or more of its own, or one that it shares with other sites."""
    if len(sizes) <= n_clients:
        n_main = dict.fromkeys(sorted(sizes), 1)
        for _ in range(n_clients - len(sizes)):
            roomy = [site for site in n_main if n_main[site] < people[site]] or list(n_main)
            n_main[max(roomy, key=lambda site: sizes[site] / n_main[site])] += 1
        numbers = iter(range(n_clients))
        return {site: list(islice(numbers, n)) for site, n in n_main.items()}
    main, filled = {}, [0] * n_clients
    for site in sorted(sizes, key=lambda site: (-sizes[site], site)):
        main[site] = [filled.index(min(filled))]
        filled[main[site][0]] += sizes[site]
    return main


def _people(cases: Iterable[Case], seed: int) -> list[list[Case]]:
    """The cases of one site by person, the people by rank."""
    people: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        people.setdefault((case.site, case.subject), []).append(case)
    return [people[person] for person in sorted(people, key=lambda person: _hash(seed, "client", *person))]


def _takers(people: Sequence[Sequence[Case]], share: np.ndarray, place: int, n_sites: int) -> np.ndarray:
    """(P,): the client of each person of the site at `place`.

    Each site begins with another client, so that sites of few people do not leave out the same clients.
    """
    n_clients = len(share)
    order = np.roll(np.arange(n_clients), -(place * n_clients // n_sites))
    sizes = np.array([len(own) for own in people], dtype=np.float64)
    borders = (np.cumsum(share[order]) * sizes.sum()).round(9)
    return order[np.searchsorted(borders[:-1], np.cumsum(sizes) - sizes / 2, side="right")]


def _hash(seed: int, *purpose: str) -> bytes:
    return hashlib.sha256("\x1f".join((str(seed), *purpose)).encode()).digest()
