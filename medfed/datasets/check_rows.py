"""Say which rows and numbers a result of a training run on the data will lack, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.datasets.splits import split

_SEED = 0  # the numbers of patients in the parts of a split do not depend on it


def missing_rows(
    dataset: Dataset, cases: Mapping[str, Sequence[Case]], never_shown: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return one sentence for each site and reason why a table of results will lack a row or number.

    `never_shown` has, for each site, the structures that none of its masks contains.
    """
    sentences = []
    if len(cases) == 1:
        sentences.append(
            f"{next(iter(cases))}: no score on an unseen site, because this is the only site here; add the folder of "
            "another site, unless other hospitals take part"
        )
    for site, site_cases in cases.items():
        parts = split(site_cases, _SEED, dataset.validation_ratio, dataset.test_ratio)
        n_patients = len({case.patient for case in site_cases})
        published = any(case.part for case in site_cases)
        few = "its published split has no such part" if published else f"of its {n_patients} patient(s), none is in it"
        for part, ratio, score in (
            ("test", dataset.test_ratio, "score of this site if it trains, because there is no test part"),
            (
                "validation",
                dataset.validation_ratio,
                "influence on the choice of the best round, because there is no validation part",
            ),
        ):
            if site_cases and not getattr(parts, part):
                cure = f"set data.{part}_ratio" if ratio == 0 else "add patients"
                reason = f"data.{part}_ratio is 0" if ratio == 0 and not published else few
                sentences.append(f"{site}: no {score} ({reason}); {cure}, or let it be the unseen site")
        sentences += [
            f"{site}: no scores of {name}, because no mask of the site shows it; check data.mask_values or "
            "data.mask_colours"
            for name in never_shown.get(site, ())
        ]
    return sentences
