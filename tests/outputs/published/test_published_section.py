"""The tables that papers published about a comparison's dataset, with our scores below theirs."""

from dataclasses import replace

import pandas as pd
import pytest

from medfed.core.registry import known_names
from medfed.outputs.published.beside import PHANTOM_WARNING, WARNING, beside, to_published_markdown
from medfed.outputs.published.tables import _plain, load_table, table_names, tables_of_data
from medfed.results.comparison import Comparison

PROSTATE = {"name": "prostate", "root": "data/prostate"}


@pytest.fixture
def comparison():
    """ELCFS with a Dice of 80 at RUNMC, which is site A of its paper."""
    table = pd.DataFrame([("elcfs", "unseen", "prostate", "dice", "%", "RUNMC", 80.0, 1.0)])
    table.columns = ["row", "role", "structure", "metric", "unit", "site", "mean", "sd"]
    rows, none = ("elcfs",), pd.DataFrame()
    return Comparison("real", "last", "fedavg", (1,), rows, {}, (), (), table, none, rows, (), (), ())


@pytest.mark.parametrize(
    ("data", "dataset"),
    [
        (PROSTATE, "prostate"),
        ({"name": "prostate_phantom"}, "prostate"),
        ({"name": "fundus_phantom", "root": "x"}, "fundus"),
        ({"name": "digits_dg"}, "Digits-DG"),
        ({"name": "folder", "root": "/somewhere/PACS/"}, "PACS"),
        ({"name": "folder", "root": "data/office-home"}, "OfficeHome"),
        ({"name": "folder", "root": "data/sites"}, None),
        ({"name": "camelyon17"}, None),
        ({}, None),
    ],
)
def test_a_dataset_has_all_its_tables_with_its_own_blocks_only(data, dataset):
    every = [load_table(name) for name in table_names()]
    expected = [table.title for table in every if any(block.dataset == dataset for block in table.blocks)]
    tables = tables_of_data(data)
    assert [table.title for table in tables] == expected and bool(tables) == (dataset is not None)
    assert {block.dataset for table in tables for block in table.blocks} <= {dataset}


def test_datasets_of_published_blocks_are_named_as_in_configs():
    named = {_plain(block.dataset) for name in table_names() for block in load_table(name).blocks}
    others = {"pacsandofficehome", "reconstructionsofpacs", "domainnet", "iwildcam"}
    assert named - others <= set(map(_plain, known_names("datasets")))


def test_numbers_are_as_printed_and_misprints_have_a_footnote():
    block = load_table("elcfs_table_2").block("HD")
    head, *rows = [[cell.text for cell in row] for row in beside(block, {}).rows]
    assert head == ["", "", *"ABCDEF", "average"]
    assert rows[-1] == ["ELCFS", "paper", "10.30", "11.49", "11.50", "11.57", "11.08", "8.31", "10.88†"]
    assert block.footnotes[0] == "† ELCFS: the printed average is 10.88, but the row's mean is 10.71"
    assert sum("†" in row[-1] for row in rows) == 1
    copa = [row for row in beside(load_table("ccst_table_1").block("PACS"), {}).rows if row[0].text == "COPA-R18"]
    assert copa[0][-1].text == "85.1", "one decimal is what COPA's paper has"
    assert len(beside(load_table("fisc_table_11").block("Ablation"), {}).rows[0]) == 4, "no average"


def test_the_section_names_its_source_warns_against_ranking_and_has_our_scores(comparison):
    text = to_published_markdown(PROSTATE, comparison)
    table = load_table("elcfs_table_2")
    assert all(word in text for word in ("## As published\n", WARNING, *table.details))
    assert "| ELCFS | paper | 90.19 |" in text and "| elcfs | ours | 80.00 ± 1.00 | - |" in text
    assert text.count(" ours |") == 1, "the runs have no HD"
    assert to_published_markdown({"name": "camelyon17"}, comparison) == ""


def test_a_phantom_has_a_warning_of_its_own(comparison):
    phantom = replace(comparison, data="phantom")
    assert PHANTOM_WARNING in to_published_markdown(PROSTATE, phantom)
