"""Our scores stand beside the right numbers of the paper; a comparison below a trivial predictor has no result."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from medfed import reproduce
from medfed.outputs.figures import scores
from medfed.outputs.figures.scores import save_score_bars, save_score_lines
from medfed.outputs.tables.comparison_data import Block, Cell, Line, Table
from medfed.reproduction.commands import commands_of
from medfed.reproduction.entries import Result, load_paper
from medfed.reproduction.results import Outcome, overall_text, result_text
from medfed.reproduction.rows import match
from medfed.reproduction.running import _draw
from medfed.reproduction.trivial import Trivial, trivial_accuracy, trivial_dice

PACS = Result("accuracy", "all", "ccst_table_1", "PACS")
SITES = ("art_painting", "cartoon", "photo", "sketch")


def table_of(rows: dict[str, tuple], sites=SITES) -> Table:
    """A table of accuracies; None stands for a run that was not done."""
    lines = []
    for method, values in rows.items():
        cells = tuple(None if value is None else Cell(value, None, 1) for value in values)
        average = None if None in values else Cell(sum(values) / len(values), None, 1)
        lines.append(Line(method, cells, average, 0, 10))
    block = Block("all", "accuracy", "accuracy", "%", True, tuple(lines))
    return Table("real", "last", (1,), sites, "fedavg", (), (block,), ())


def outcome_of(
    table: Table, trivial: float, paper: str, entry: str, part=0, validation: Table | None = None
) -> Outcome:
    """The outcome of a part of an entry whose planned sites are those of the tables."""
    tables = SimpleNamespace(unseen=table, validation=validation, costs={})
    sites = zip(table.sites, validation.sites if validation else table.sites, strict=True)
    federations = [SimpleNamespace(unseen_site=one, validation_site=other) for one, other in sites]
    folds = [SimpleNamespace(config=SimpleNamespace(federation=federation)) for federation in federations]
    command = commands_of(load_paper(paper).entry(entry))[part]
    comparison = SimpleNamespace(tables=tables, runs=[], failed={}, plan=SimpleNamespace(folds=folds))
    outcome = Outcome(command, comparison)
    most_frequent = {"all": Trivial(trivial, "the most frequent class of each site")}
    outcome.__dict__["trivial"] = dict.fromkeys(("unseen", "validation"), most_frequent)
    return outcome


def test_our_scores_stand_below_the_papers_in_its_order_of_sites():
    """CCST's Table 1 has the columns P, A, C, S; ours are in alphabetical order."""
    table = table_of({"fedavg": (50.0, 60.0, 70.0, 40.0), "ccst:style=overall,k=3": (51.0, None, 71.0, 41.0)})
    text = result_text(outcome_of(table, 30.0, "ccst", "table_1"), PACS)
    rows = [line.split() for line in text.splitlines()]
    assert ["ours", "70.00", "50.00", "60.00", "40.00", "55.00"] in rows, "P, A, C, S and their mean"
    assert ["ours", "71.00", "51.00", "-", "41.00", "-"] in rows, "no average without C"
    assert ["FedAvg", "paper", "95.51", "82.23", "78.20", "73.56", "82.37"] in rows


def test_a_comparison_whose_fedavg_is_not_above_the_trivial_predictor_has_no_result():
    table = table_of({"fedavg": (50.0, 60.0, 70.0, 40.0), "ccst": (99.0, 99.0, 99.0, 99.0)})
    text = result_text(outcome_of(table, 55.0, "ccst", "table_1"), PACS)
    assert "no result: FedAvg reaches 55.00 % accuracy" in text and "99.00" not in text
    assert "95.51" in text, "the paper's numbers"
    assert "no result" not in result_text(outcome_of(table, 54.9, "ccst", "table_1"), PACS)


def test_a_comparison_whose_fedavg_is_not_finished_at_each_planned_site_has_no_result():
    """A FedAvg of 75 % at two easy sites must not be compared with the trivial predictor at four sites."""
    ccst = {"ccst": (99.0, 99.0, 99.0, 99.0)}
    for rows in (ccst, {"fedavg": (80.0, None, None, 70.0)} | ccst):
        text = result_text(outcome_of(table_of(rows), 30.0, "ccst", "table_1"), PACS)
        assert "no result: FedAvg has not finished" in text and "99.00" not in text and "95.51" in text
    outcome = outcome_of(table_of({"fedavg": (50.0, 60.0, 70.0, 40.0)}), 30.0, "ccst", "table_1")
    outcome.comparison.tables.unseen = table_of({"fedavg": (50.0, 60.0)}, SITES[:2])
    assert "no result: FedAvg has not finished (it needs a score at art_painting" in outcome.no_result("all")


def test_validation_domains_are_guarded_and_shown_by_their_own_scores(tmp_path):
    """FedAvg has 20 % at the unseen sites and 60 % at the validation sites; the trivial predictor has 30 %."""
    validation, unseen = load_paper("fisc").entry("table_1").parts[0].results
    low, high = (table_of({"fedavg": (value,) * 4, "fisc": (value + 1,) * 4}) for value in (20.0, 60.0))
    outcome = outcome_of(low, 30.0, "fisc", "table_1", validation=high)
    assert result_text(outcome, unseen).startswith("accuracy (%), higher is better: no result: FedAvg reaches 20.00 %")
    alone = result_text(outcome, replace(validation, table="", block=""))
    assert alone.startswith("validation sites, accuracy") and "61.00" in alone and "21.00" not in alone
    rows = [line.split() for line in result_text(outcome, validation).splitlines()]
    assert ["ours", "61.00", "61.00", "61.00", "61.00", "61.00"] in rows
    paper = load_paper("fisc")
    entry = replace(paper.entry("table_1"), parts=(replace(outcome.command.part, chart="bars"),))
    outcome = Outcome(replace(outcome.command, part=entry.parts[0]), outcome.comparison)
    outcome.__dict__["trivial"] = dict.fromkeys(("unseen", "validation"), {"all": Trivial(30.0, "")})
    _draw(paper, entry, outcome, tmp_path, False)
    assert [path.name for path in tmp_path.iterdir()] == ["table_1-all-accuracy-validation.png"]


def test_a_block_of_validation_sites_is_left_out_if_the_runs_have_none():
    """A stand-in has other sites and so no pairs: its scores at unseen sites are no scores at validation sites."""
    outcome = outcome_of(table_of({"fedavg": (60.0,) * 4}), 30.0, "fisc", "table_1")
    validation = load_paper("fisc").entry("table_1").parts[0].results[0]
    text = result_text(outcome, validation)
    assert "these runs have no validation site" in text and "60.00" not in text and "as printed" in text


def test_scores_of_a_stand_in_are_not_put_into_the_papers_columns():
    table = table_of({"fedavg": (60.0, 70.0)}, ("hospital_4", "hospital_5"))
    outcome = outcome_of(table, 50.0, "ccst", "table_1")
    outcome = Outcome(replace(outcome.command, stand_in="a phantom"), outcome.comparison)
    outcome.__dict__["trivial"] = {"unseen": {"all": Trivial(50.0, "")}}
    ours, paper = result_text(outcome, PACS).split("\n\n")
    assert "hospital_4" in ours and "65.00" in ours and "as printed" in paper and "ours" not in paper


def test_a_varied_value_can_be_a_column_of_the_paper():
    """FISC's Table 7 has one column for each number of clients."""
    rows = {
        f"{method}, federation.clients={n}": (value + n,)
        for method, value in (("fedavg", 10), ("fisc", 20))
        for n in (5, 10, 50)
    }
    entry = load_paper("fisc").entry("table_7")
    text = result_text(outcome_of(table_of(rows, ("photo",)), 1.0, "fisc", "table_7"), entry.parts[0].results[0])
    assert ["ours", "25.00", "30.00", "70.00", "-", "-", "-"] in [line.split() for line in text.splitlines()]


def test_the_mean_of_two_datasets_stands_below_the_papers_mean():
    """CCST's Table 1: the averages of PACS (55) and Office-Home (45) give 50; the paper has 72.18 for FedAvg."""
    entry = load_paper("ccst").entry("table_1")
    pacs = outcome_of(
        table_of({"fedavg": (50.0, 60.0, 70.0, 40.0), "rsc": (51.0, None, 71.0, 41.0)}), 30.0, "ccst", "table_1"
    )
    sites = ("Art", "Clipart", "Product", "Real World")
    office = outcome_of(
        table_of({"fedavg": (30.0, 40.0, 50.0, 60.0), "rsc": (1.0, 2.0, 3.0, 4.0)}, sites), 5.0, "ccst", "table_1", 1
    )
    rows = [line.split() for line in overall_text(entry, [pacs, office], entry.overall[0]).splitlines()]
    place = rows.index(["FedAvg", "paper", "72.18"])
    assert rows[place + 1] == ["ours", "50.00"]
    assert rows[rows.index(["RSC", "paper", "72.40"]) + 1] == ["ours", "-"], "its average of PACS is unknown"
    text = overall_text(entry, [pacs], entry.overall[0])
    assert text.startswith("no mean of ours: officehome was not run") and "72.18" in text and "50.00" not in text
    few = outcome_of(table_of({"fedavg": (30.0,)}, ("Art",)), 5.0, "ccst", "table_1", 1)
    assert "officehome was not run at all sites" in overall_text(entry, [pacs, few], entry.overall[0])


def test_the_overall_block_of_fundus_is_the_mean_of_disc_and_cup():
    entry = load_paper("elcfs").entry("table_1")
    sites = ("DRISHTI-GS", "REFUGE-train", "REFUGE-val", "RIM-ONE")
    tables = [table_of({"fedavg": (value,) * 4}, sites) for value in (90.0, 70.0)]
    blocks = [
        replace(table.blocks[0], structure=structure, metric="dice")
        for table, structure in zip(tables, ("disc", "cup"))
    ]
    outcome = outcome_of(replace(tables[0], blocks=tuple(blocks)), 0.0, "elcfs", "table_1")
    outcome.__dict__["trivial"] = {"unseen": {name: Trivial(10.0, "every pixel") for name in ("disc", "cup")}}
    rows = [line.split() for line in overall_text(entry, [outcome], entry.overall[0]).splitlines()]
    assert rows[rows.index(["FedAvg", "paper", "85.01"]) + 1] == ["ours", "80.00"]
    outcome.__dict__["trivial"]["unseen"]["cup"] = Trivial(75.0, "every pixel")
    assert "fundus has no result" in overall_text(entry, [outcome], entry.overall[0])


def test_a_figure_that_no_run_has_written_is_reported(tmp_path):
    command = commands_of(load_paper("elcfs").entry("figure_4"))[0]
    runs = [SimpleNamespace(folder=tmp_path / name) for name in "ab"]
    outcome = Outcome(command, SimpleNamespace(runs=runs, failed={}))
    assert outcome.to_text() == "figures: no run has written same_cases.png"
    (tmp_path / "b" / "figures").mkdir(parents=True)
    (tmp_path / "b" / "figures" / "same_cases.png").touch()
    assert outcome.to_text() == f"figures\n  {tmp_path / 'b' / 'figures' / 'same_cases.png'}"


@pytest.mark.parametrize(
    ("published", "labels", "expected"),
    [
        ("elcfs", "fedavg elcfs:alpha=0.07", "elcfs:alpha=0.07"),
        ("stable_fdg", "stable_fdg:style=false stable_fdg", "stable_fdg"),
        ("ccst:style=overall,k=3", "ccst ccst:k=3,style=overall,codec=small", "ccst:k=3,style=overall,codec=small"),
        ("ccst:k=3", "ccst:k=1", None),
        ("ccst", "ccst+elcfs", None),
    ],
)
def test_a_published_row_is_matched_by_method_and_settings(published, labels, expected):
    assert match(published, labels.split()) == expected


def test_the_trivial_class_is_the_most_frequent_one_of_each_unseen_site_and_the_best_trivial_mask_is_found_by_dice():
    """3 of 4 and 1 of 2: the mean is 62.5 %.

    All masks are the same: the mean mask is right. Masks of all pixels: so is the mask of all pixels.
    """
    assert trivial_accuracy([["a", "a", "a", "b"], ["a", "b"]]).score == 62.5
    square = np.zeros((1, 4, 4, 2), dtype=np.uint8)
    square[:, 1:3, 1:3] = 1
    best = trivial_dice({"a": [square], "b": [square], "c": [square]}, ["organ"], ["a", "b"])["organ"]
    assert best.score == 100 and best.name == "the mean mask of the source sites"
    left, right = np.zeros_like(square), np.zeros_like(square)
    left[:, :, :2], right[:, :, 2:] = 1, 1  # the mean mask of the other site is wrong everywhere
    best = trivial_dice({"a": [left], "b": [right]}, ["organ"], ["a"])["organ"]
    assert best.name == "every pixel is foreground" and best.score == pytest.approx(100 * 2 / 3)  # 2 * 16 / (16 + 32)


def test_figures_of_scores_are_drawn(tmp_path):
    table = table_of({"fedavg": (50.0, 60.0, 70.0, 40.0), "ccst": (51.0, None, 71.0, 41.0)})
    save_score_bars(table, table.blocks[0], tmp_path / "bars.png", "bars")
    rows = {"fedavg": (50.0,), "elcfs, method.ratio=0.0": (51.0,), "elcfs, method.ratio=1.0": (52.0,)}
    varied = table_of(rows, ("a",))
    save_score_lines(varied, varied.blocks[0], tmp_path / "lines.png", "lines")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("bars.png", "lines.png"))


def test_bars_begin_at_zero_and_no_two_look_alike(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(scores, "save_png", lambda figure, path, title: drawn.append(figure))
    table = table_of({f"a method with a long name {number}": (60.0 + number,) for number in range(9)}, ("a",))
    save_score_bars(table, table.blocks[0], tmp_path / "bars.png", "bars")
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[0] == 0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a"]  # an average of one site says nothing new
    bars = [container.patches[0] for container in axes.containers]
    assert [bar.get_height() for bar in bars] == [60 + number for number in range(9)]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == 9
    drawn[0].canvas.draw()
    frame = drawn[0].legends[0].get_window_extent()
    assert 0 <= frame.x0 and frame.x1 <= drawn[0].bbox.width


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "entry"), [("elcfs", "table_2"), ("ccst", "table_1"), ("stable_fdg", "table_4"), ("fisc", "table_11")]
)
def test_a_small_entry_of_each_paper_runs(paper, entry, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert reproduce.main([paper, entry, "--small", "--set", "federation.rounds=2", "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "SMALL RUN" in output and "SYNTHETIC PHANTOM DATA" in output and "paper" in output
    out = tmp_path / "runs" / f"{paper}-{entry}-small"
    assert (out / "result.txt").read_text().count("SMALL RUN") == 1
    assert all(folder.name.endswith("-small") for folder in out.iterdir() if folder.is_dir())
