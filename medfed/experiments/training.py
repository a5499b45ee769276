"""Train one federation round by round, and save every round and the notices in the run's folder; before round 1, survey
the sites."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from pandas import DataFrame
from tqdm import tqdm

from medfed.cli.notes import show_notes_by
from medfed.cli.progress import OnTraining, RoundProgress
from medfed.config.schema import Config
from medfed.core.errors import UserErrors
from medfed.federation.checks.expected import Earlier, Expected
from medfed.federation.checks.replies import Rejection, check_replies
from medfed.federation.engine import Engine
from medfed.federation.exchange import Row
from medfed.federation.ledger import message_rows
from medfed.federation.message import Kind, State
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.selection import RULES
from medfed.federation.survey import (
    IMAGES,
    INTENSITIES,
    PATIENTS,
    SIZES,
    SPACINGS,
    TOO_FEW,
    Facts,
    check_survey,
    survey_request,
)
from medfed.federation.survey_mismatches import find_mismatches
from medfed.outputs.callback import Callbacks
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import SENT, read_row
from medfed.results.text_tables import aligned
from medfed.tasks.task import Task


def train(
    config: Config,
    engine: Engine,
    folder: RunFolder,
    state: State,
    task: Task,
    quiet: bool,
    finish: Callable[[State], None] = lambda last: None,
    on_training: OnTraining | None = None,
    callbacks: Callbacks | None = None,
) -> State:
    """Run the rounds after `state.round`, save each in the run's folder, close the engine, and return the last state.

    `finish` is called with it while the engine is open.
    """
    callbacks = callbacks or Callbacks()
    settings, sends = config.federation, read_row(folder.path, config.method_name).arrangement not in SENT
    try:
        surveyed: Sequence[Row] = []
        if settings.surveys and state.round == 0:
            surveyed = survey_sites(engine, task, folder, settings.survey == "stop", quiet)
        folder.truncate(state.round)
        if not folder.rounds():
            folder.save_state(state)
        callbacks.start(config, folder.path)
        engine.restore(state.took_part, state.weights if state.round else None)
        n_sites = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
        with RoundProgress(state.round, settings.rounds, n_sites, quiet, on_training) as progress:
            engine.on_reply, engine.on_step = progress.site_replied, progress.step
            for done in federate(config.method, engine, state, settings, config.seed, config.training):
                best = RULES[settings.selection]([*folder.history(), done.history])
                done, surveyed = replace(done, ledger=[*surveyed, *done.ledger]), []
                done = done if sends else replace(done, ledger=[])  # nothing is exchanged: the messages stay here
                folder.save_round(done, best, config.evaluation.unseen_every)
                callbacks.round_done(done.history)
                progress.round_done(done.history)
                state = done.state
            finish(state)
    except KeyboardInterrupt as stop:
        raise type(stop)(
            f"stopped in round {min(state.round + 1, settings.rounds)} of {settings.rounds}; {folder.path} holds the "
            "finished rounds, and the results of the sites that had finished their part of the stopped round. Continue "
            "with the same config and --resume"
        ) from stop
    finally:
        engine.close()
    engine.restore(state.took_part)  # the evaluation needs the entries that stay at the sites
    return state


def selected_state(folder: RunFolder, last: State, rule: str, method: Method) -> State:
    """Return the state after the round that `rule` selects, with the weights that are scored (`result_weights`)."""
    chosen = RULES[rule](folder.history())
    state = last if chosen == last.round else folder.load_state(chosen)
    return replace(state, weights=method.result_weights(state))


def survey_sites(engine: Engine, task: Task, folder: RunFolder, stops: bool, quiet: bool) -> Sequence[Row]:
    """Let all sites describe their images, write the table, warn of mismatches, and return rows of the ledger."""
    requests = dict.fromkeys(engine.sites(), survey_request())
    replies = engine.exchange(Kind.SURVEY, requests)
    accepted, rejected, _ = check_replies(requests, replies, Expected(Kind.SURVEY, 1, {}, frozenset()), Earlier())
    facts: dict[str, Facts] = {}
    for site, reply in accepted.items():
        try:
            check_survey(reply, len(task.labels))
            facts[site] = reply.facts
        except ValueError as error:
            rejected.append(Rejection(site, 1, Kind.SURVEY, str(error)))
    described = {site: numbers for site, numbers in facts.items() if TOO_FEW not in numbers}
    mismatches = find_mismatches(described, task.labels, not task.has_masks, task.has_fixed_range)
    columns = ["site", *sorted({name for numbers in described.values() for name in numbers}), TOO_FEW]
    table = DataFrame([{"site": site, **numbers} for site, numbers in facts.items()], columns=columns, dtype=object)
    folder.write_text("survey.csv", table.to_csv(index=False, lineterminator="\n"))
    content = {
        "sites": described,
        "too_few_patients": [site for site in facts if site not in described],
        "labels": list(task.labels),
        "no_valid_reply": {rejection.site: rejection.reason for rejection in rejected},
        "mismatches": [asdict(mismatch) for mismatch in mismatches],
    }
    folder.write_json("survey.json", content)
    if not quiet:
        print(_survey_text(facts, rejected, task.labels))
    severe = [mismatch for mismatch in mismatches if mismatch.is_severe]
    for sentence in [*rejected, *mismatches]:
        if not (stops and sentence in severe):
            warnings.warn(str(sentence), stacklevel=2)
    if stops and severe:
        raise UserErrors([f"{mismatch}; or set federation.survey to warn" for mismatch in severe])
    return [*message_rows(1, "down", requests), *message_rows(1, "up", replies)]


def _survey_text(facts: Mapping[str, Facts], rejected: Sequence[Rejection], labels: Sequence[str]) -> str:
    """Return the table for the terminal, with one row for each site."""
    names = {PATIENTS: PATIENTS, IMAGES: IMAGES, **{f"{k}.{IMAGES}": label for k, label in enumerate(labels)}}
    names |= {f"{name}.p50": name for name in (*SIZES, *SPACINGS, *INTENSITIES[::2])}
    rows = [["site", *names.values()]]
    for site, numbers in facts.items():
        rows.append([site, *(f"{numbers[name]:.4g}" if name in numbers else "-" for name in names)])
    few, silent = [site for site in facts if TOO_FEW in facts[site]], [rejection.site for rejection in rejected]
    return (
        "What the sites report about the images that train and validate, before round 1:\n\n"
        f"{aligned(rows)}\n\n"
        "Sizes, voxels and intensities (low, high: percentiles 0.5 and 99.5 of an image) are medians over the images. "
        "A column of a structure or class has the number of images that show it. -: unknown, or of fewer patients than "
        f"the site's minimum. Sites with too few patients: {', '.join(few) or 'none'}; no reply: "
        f"{', '.join(silent) or 'none'}."
    )


@contextmanager
def record_notices(folder: RunFolder, quiet: bool, expected: str = "") -> Iterator[list[str]]:
    """Print each warning of medfed, and PyTorch's about determinism, once as a note; yield the growing list of notes.

    `notices.json` keeps them while the run is unfinished. A note that ends with `expected` is not printed.
    """
    has_begun, has_notices = ((folder.path / name).is_file() for name in ("config.yaml", "notices.json"))
    notices: list[str] = folder.read_json("notices.json") if has_begun and has_notices else []
    shown: set[str] = set()

    def show(text: str) -> None:
        if text in shown:
            return
        shown.add(text)
        if text not in notices:
            notices.append(text)
            if (folder.path / "config.yaml").is_file() and not folder.is_finished():
                folder.write_json("notices.json", notices)
        if not quiet and not (expected and text.endswith(expected)):
            tqdm.write(f"note: {text}", file=sys.stderr)

    def show_determinism(message: Warning | str, *_: object) -> None:
        """Record PyTorch's warnings about operations that are not deterministic; ignore its others."""
        if "deterministic" in str(message):
            show(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show_notes_by(show, show_determinism)
        yield notices
