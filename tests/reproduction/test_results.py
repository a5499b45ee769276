"""Our scores stand beside the right numbers of the paper."""

from types import SimpleNamespace

import pandas as pd
import pytest

from medfed import reproduce
from medfed.outputs.published.beside import match
from medfed.outputs.published.tables import load_table
from medfed.reproduction.entries import commands_of, load_paper
from medfed.reproduction.running import part_text, result_text
from medfed.results.comparison import TRIVIAL, Comparison

PACS = load_table("ccst_table_1").block("PACS")
SITES = ("art_painting", "cartoon", "photo", "sketch")
METRIC = SimpleNamespace(label="accuracy", decimals=2, higher_is_better=True)


def scores_of(rows, sites=SITES, role="unseen", structure="all", metric="accuracy") -> pd.DataFrame:
    """Scores of rows at sites, and their average; None stands for a run that was not done."""
    lines = [
        (row, site, value) for row, of_row in rows.items() for site, value in zip(sites, of_row) if value is not None
    ]
    lines += [(row, "average", sum(of_row) / len(sites)) for row, of_row in rows.items() if None not in of_row]
    table = pd.DataFrame(lines, columns=["row", "site", "mean"])
    numbers = {"rank": float("nan"), "sd": float("nan"), "low": float("nan"), "high": float("nan")}
    return table.assign(role=role, structure=structure, metric=metric, unit="%", **numbers)


def comparison_of(*tables: pd.DataFrame, trivial: float = 30.0, data="real") -> Comparison:
    """A comparison with these scores, and a prediction that ignores the image with the same score at each site."""
    parts = []
    for table in tables:
        values = {f"{TRIVIAL}: every pixel": [trivial] * (table.site.nunique() - ("average" in set(table.site)))}
        first = table.iloc[0]
        sites = sorted(set(table.site) - {"average"})
        parts += [table, scores_of(values, sites, first.role, first.structure, first.metric)]
    scores = pd.concat(parts, ignore_index=True)
    rows = tuple(dict.fromkeys(row for table in tables for row in table.row))
    metrics = {"accuracy": METRIC, "dice": METRIC}
    shown, none = ("accuracy",), pd.DataFrame()
    return Comparison(data, "last", "fedavg", (1,), rows, metrics, shown, shown, scores, none, rows, (), (), ())


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


OURS = {"fedavg": (50.0, 60.0, 70.0, 40.0), "ccst:style=overall,k=3": (51.0, None, 71.0, 41.0), "mine": (1.0,) * 4}


def test_our_scores_stand_below_the_papers_in_its_order_of_sites():
    """CCST's Table 1 has the columns P, A, C, S; ours are in alphabetical order."""
    lines = lines_of(result_text(comparison_of(scores_of(OURS)), PACS))
    place = lines.index(["FedAvg", "paper", "95.51", "82.23", "78.20", "73.56", "82.37"])
    assert lines[place + 1] == ["fedavg", "ours", "70.00", "50.00", "60.00", "40.00", "55.00"], (
        "P, A, C, S and their mean"
    )
    assert ["ccst:style=overall,k=3", "ours", "71.00", "51.00", "-", "41.00", "-"] in lines, "no average without C"
    assert ["mine", "ours", "1.00", "1.00", "1.00", "1.00", "1.00"] in lines, "a method that the paper has not"


def test_validation_domains_are_shown_by_their_own_scores():
    """FedAvg has 20 % at the unseen sites and 60 % at the validation sites."""
    part = load_paper("fisc").entry("table_1").parts[0]
    validation, unseen = (result.published() for result in part.results)
    rows = [{"fedavg": (value,) * 4, "fisc": (value + 1,) * 4} for value in (20.0, 60.0)]
    comparison = comparison_of(scores_of(rows[0]), scores_of(rows[1], role="validation"))
    assert ["fisc", "ours", *["21.00"] * 5] in lines_of(result_text(comparison, unseen))
    assert ["fisc", "ours", *["61.00"] * 5] in lines_of(result_text(comparison, validation))
    alone = result_text(comparison_of(scores_of(rows[1])), validation)
    assert "these runs have no validation site" in alone and "60.00" not in alone and "paper" in alone


def test_scores_of_a_stand_in_are_not_put_into_the_papers_columns():
    comparison = comparison_of(scores_of({"fedavg": (60.0, 70.0)}, ("hospital_4", "hospital_5")))
    ours, paper = result_text(comparison, PACS).split("\n\n")
    assert "hospital_4" in ours and "65.00" in ours and "95.51" in paper and "ours" not in paper


def test_a_varied_value_can_be_a_column_of_the_paper():
    """FISC's Table 7 has one column for each number of clients."""
    rows = {
        f"{method}, federation.clients={n}": (value + n,)
        for method, value in (("fedavg", 10.0), ("fisc", 20.0))
        for n in (5, 10, 50)
    }
    text = result_text(
        comparison_of(scores_of(rows, ("photo",)), trivial=1.0), load_table("fisc_table_7").block("Test")
    )
    assert ["fisc", "ours", "25.00", "30.00", "70.00", "-", "-", "-"] in lines_of(text)


def test_a_figure_that_no_run_has_written_is_reported(tmp_path):
    (part, _) = commands_of(load_paper("elcfs").entry("figure_4"))
    runs = [SimpleNamespace(folder=tmp_path / name) for name in "ab"]
    comparison = SimpleNamespace(runs=runs, failed={}, tables=None)
    assert part_text(part, comparison) == "figure: no run has written same_cases.png"
    (tmp_path / "b" / "figures").mkdir(parents=True)
    (tmp_path / "b" / "figures" / "same_cases.png").touch()
    assert part_text(part, comparison) == f"figure: {tmp_path / 'b' / 'figures' / 'same_cases.png'}"


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
