"""Ask all sites for a description of their images before round 1, show one table, and name what does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pandas import DataFrame

from medfed.core.errors import UserErrors
from medfed.federation.engine import Engine
from medfed.federation.exchange import Row
from medfed.federation.ledger import format_sums, message_rows, sum_bytes
from medfed.federation.message import Kind
from medfed.federation.reply_checks import Expected
from medfed.federation.survey import (
    IMAGES,
    INTENSITIES,
    ORIENTATION,
    PATIENTS,
    SIZES,
    SPACINGS,
    TOO_FEW,
    Facts,
    check_survey,
    survey_request,
)
from medfed.federation.survey_mismatches import Mismatch, find_mismatches
from medfed.federation.update_checks import Rejection, validate_replies
from medfed.outputs.run_folder import RunFolder
from medfed.results.text_tables import aligned
from medfed.tasks.task import Task

SURVEY_TABLE, SURVEY_FILE = "survey.csv", "survey.json"


@dataclass(frozen=True)
class Survey:
    """The replies of sites that described their images."""

    facts: Mapping[str, Facts]  # of the sites with a valid reply and enough patients
    too_few: Sequence[str]  # names of the sites with fewer patients than their minimum
    rejected: Sequence[Rejection]
    labels: Sequence[str]  # names of the structures or classes, in the order of their numbers in the facts
    mismatches: Sequence[Mismatch]  # the severe ones first
    ledger: Sequence[Row]

    def to_text(self) -> str:
        """Return the table for the terminal, with one row for each site."""
        head = ["site", "patients", "images", "size", "voxel (mm)", "intensities", "orientation", *self.labels]
        rows = [head]
        for site, facts in self.facts.items():
            numbers = [f"{facts[name]}" for name in (PATIENTS, IMAGES)]
            medians = [
                between.join(f"{facts[f'{name}.p50']:.4g}" for name in names if f"{name}.p50" in facts)
                for names, between in ((SIZES, " x "), (SPACINGS, " x "), (INTENSITIES[::2], " to "))
            ]
            counts = [str(facts.get(f"{k}.{IMAGES}", "few")) for k in range(len(self.labels))]
            rows.append([site, *numbers, *medians, _orientation(facts), *counts])
        others = {**dict.fromkeys(self.too_few, "too few"), **{one.site: "no reply" for one in self.rejected}}
        rows += [[site, why, *[""] * (len(head) - 2)] for site, why in others.items()]
        return "\n".join(
            [
                "What the sites report about the images that train and validate, before round 1:",
                "",
                aligned(rows),
                "",
                "Sizes, voxels and intensities (percentiles 0.5 and 99.5 of an image) are medians over the images.",
                "A column of a structure or class has the number of images that show it; few: of fewer patients than "
                "the site's minimum.",
                f"The sites sent {format_sums(sum_bytes(self.ledger)['up'])}.",
            ]
        )


def survey_sites(engine: Engine, task: Task) -> Survey:
    """Ask all sites that train to describe their images, and compare the sites with a valid reply."""
    requests = dict.fromkeys(engine.sites(), survey_request())
    replies = engine.exchange(Kind.SURVEY, requests)
    ledger = [*message_rows(1, "down", requests), *message_rows(1, "up", replies)]
    accepted, rejected = validate_replies(requests, replies, Expected(Kind.SURVEY, 1, {}, {}, frozenset()))
    facts: dict[str, Facts] = {}
    for site, reply in accepted.items():
        try:
            check_survey(reply, len(task.labels))
            facts[site] = reply.facts
        except ValueError as error:
            rejected.append(Rejection(site, 1, Kind.SURVEY, str(error)))
    described = {site: numbers for site, numbers in facts.items() if TOO_FEW not in numbers}
    mismatches = find_mismatches(described, task.labels, not task.uses_decoder, task.has_fixed_range)
    too_few = [site for site in facts if site not in described]
    return Survey(described, too_few, rejected, task.labels, mismatches, ledger)


def survey_before_training(engine: Engine, task: Task, folder: RunFolder, stops: bool, quiet: bool) -> Sequence[Row]:
    """Survey the sites, write the table, and return the ledger's rows. UserErrors for severe mismatches if `stops`."""
    survey = survey_sites(engine, task)
    columns = ["site", *sorted({name for facts in survey.facts.values() for name in facts}), TOO_FEW]
    rows = [{"site": site, **facts} for site, facts in survey.facts.items()]
    rows += [{"site": site, TOO_FEW: 1} for site in survey.too_few]
    table = DataFrame(rows, columns=columns, dtype=object)
    folder.write_text(SURVEY_TABLE, table.to_csv(index=False, lineterminator="\n"))
    content = {
        "sites": survey.facts,
        "too_few_patients": survey.too_few,
        "labels": list(survey.labels),
        "no_valid_reply": {rejection.site: rejection.reason for rejection in survey.rejected},
        "mismatches": [asdict(mismatch) for mismatch in survey.mismatches],
    }
    folder.write_json(SURVEY_FILE, content)
    if not quiet:
        print(survey.to_text())
    severe = [mismatch for mismatch in survey.mismatches if mismatch.is_severe]
    for sentence in [*survey.rejected, *survey.mismatches]:
        if not (stops and sentence in severe):
            warnings.warn(str(sentence), stacklevel=2)
    if stops and severe:
        raise UserErrors([f"{mismatch}; or set federation.survey to warn" for mismatch in severe])
    return survey.ledger


def _orientation(facts: Facts) -> str:
    """The orientation of the images, such as "RAS"; with the number of images for each of several."""
    codes = {name.partition(".")[2]: n for name, n in facts.items() if name.startswith(f"{ORIENTATION}.")}
    return ", ".join(f"{code} {n}" if len(codes) > 1 else code for code, n in sorted(codes.items()))
