"""R2: a run that is killed and resumed is bit-identical. R3: every stored part of its state is needed for that."""

import kills
import pytest

pytestmark = pytest.mark.hardening


def finished(folder, name: str) -> dict[str, bytes]:
    """Return the files of results of a run that nobody disturbed."""
    kills.work(folder / "alone", name)
    return kills.results(folder / "alone")


@pytest.mark.parametrize("name", kills.METHODS)
def test_r2_resuming_is_bit_identical(measurement, tmp_path, name):
    n_kills = measurement.count(100, 6)
    counts = kills.kill_runs(name, kills.WAYS, n_kills, measurement.rng(name))
    expected = finished(tmp_path, name)
    stops = (1, 2, 3)
    forget = kills.FORGET["optimisers of the sites"]
    n_equal = sum(kills.is_forgotten_silently(tmp_path / str(stop), name, forget, stop, expected) for stop in stops)
    n_different = len(counts.different)
    measurement.report(
        f"{name}: runs of {kills.SETTINGS.rounds} rounds ended at random moments by {', '.join(kills.WAYS)}",
        (
            f"{n_kills} of {n_kills} kills without another model, table or ledger",
            f"{n_kills} kills, {counts.n_runs - n_different} of {counts.n_runs} resumed runs bit-identical",
            n_different == 0 and counts.n_kills == n_kills,
        ),
        (f"resumed without the optimisers of the sites: {n_equal} of {len(stops)} bit-identical", n_equal < len(stops)),
        counts.different,
    )


def test_r3_every_part_of_the_state_is_needed(measurement, tmp_path):
    names = measurement.some(kills.METHODS, 2)
    unnoticed, n_cases, n_unchanged = [], 0, 0
    for name in names:
        (folder := tmp_path / name).mkdir()
        expected = finished(folder, name)
        n_unchanged += kills.is_forgotten_silently(folder / "nothing", name, None, 2, expected)
        for number, (part, forget) in enumerate(kills.FORGET.items()):
            if part == "memory of the method" and name == "FedAvg":
                continue  # it has none
            n_cases += 1
            if kills.is_forgotten_silently(folder / str(number), name, forget, 2, expected):
                unnoticed.append(f"{part} of {name}")
    measurement.report(
        f"runs that are resumed without one of {len(kills.FORGET)} parts of their state, {len(names)} methods",
        (
            f"{n_cases} of {n_cases} give another result or are refused",
            f"{n_cases - len(unnoticed)} of {n_cases}",
            not unnoticed,
        ),
        (f"resumed with all parts: {n_unchanged} of {len(names)} bit-identical", n_unchanged == len(names)),
        [f"unnoticed: {case}" for case in unnoticed],
    )
