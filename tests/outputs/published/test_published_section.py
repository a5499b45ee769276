"""Tests of the section with published tables: which tables it shows, which rows are marked, and its warnings."""

import json
from html.parser import HTMLParser

import pytest
from made_runs import made_comparison, with_plan
from run_figures import leave_out_charts

from medfed.core.registry import known_names
from medfed.outputs.published import section
from medfed.outputs.published.section import ALSO_RUN_HERE, PHANTOM_WARNING, WARNING, CompletedRun, block_rows
from medfed.outputs.published.tables import load_table, table_names
from medfed.outputs.report.page import build_page
from medfed.outputs.report.run_data import read_runs
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import ComparisonRow

PROSTATE = {"name": "prostate", "root": "data/prostate"}


@pytest.fixture(autouse=True)
def no_charts(monkeypatch):
    leave_out_charts(monkeypatch)


def ran(method: str, varied=(), **settings) -> CompletedRun:
    """Return a run of a comparison; `settings` are those of the resolved config."""
    return CompletedRun(method.partition(":")[0], ComparisonRow(method, varied).changes, settings)


def marked(table, block, *runs) -> set[str]:
    actual = load_table(table).block(block)
    return {
        line[0].removesuffix(ALSO_RUN_HERE)
        for line in block_rows(load_table(table), actual, runs)
        if line[0].endswith(ALSO_RUN_HERE)
    }


def test_dataset_names_are_those_of_configs_and_of_published_blocks():
    assert set(section.DATASETS) <= set(known_names("datasets"))
    published = {block.dataset for name in table_names() for block in load_table(name).blocks}
    others = {"PACS and OfficeHome", "reconstructions of PACS"}
    assert {*section.FOLDERS.values(), *section.DATASETS.values()} - {"Camelyon17"} == published - others
    for name, root, expected in (
        ("prostate", "data/prostate", "prostate MRI"),
        ("prostate_phantom", "", "prostate MRI"),
        ("folder", "/somewhere/PACS/", "PACS"),
        ("fundus_phantom", "x", "fundus, optic disc and cup"),
        ("folder", "data/office-home", "OfficeHome"),
        ("folder", "data/sites", None),
    ):
        assert section.published_name_of({"name": name} | ({"root": root} if root else {})) == expected
    assert section.published_name_of({}) is None


def test_a_dataset_has_all_its_tables_with_its_own_blocks_only():
    tables = [load_table(name) for name in table_names()]
    expected = [(t.paper, t.table) for t in tables if any(block.dataset == "PACS" for block in t.blocks)]
    actual = section.tables_of_dataset("PACS")
    assert len(expected) > 5 and [(t.paper, t.table) for t in actual] == expected
    assert {block.dataset for table in actual for block in table.blocks} == {"PACS"}
    assert section.tables_of_dataset("Camelyon17") == section.tables_of_dataset(None) == []


def test_a_row_is_marked_if_its_settings_were_run_without_other_changes():
    three, one = {"style": "overall", "k": 3, "alpha": 1.0}, {"style": "overall", "k": 1, "alpha": 1.0}
    table = "ccst_table_2", "Without Tent"
    assert marked(*table, ran("ccst", **three)) == {"ccst:style=overall,k=3"}
    assert marked(*table, ran("ccst", ("method.k=1",), **one)) == {"ccst:style=overall,k=1"}
    both = {"ccst:style=overall,k=1", "ccst:style=overall,k=3"}
    assert marked(*table, ran("ccst:k=1", **one), ran("ccst", **three)) == both
    assert marked(*table, ran("ccst:alpha=0.5", **three | {"alpha": 0.5})) == set()
    assert marked(*table, ran("ccst", ("federation.participating=2",), **three)) == set()
    assert marked(*table, ran("fedavg")) == {"fedavg"}
    assert marked("ccst_table_2", "With Tent", ran("fedavg")) == set()


def test_every_published_row_can_be_compared_with_a_run():
    for name in table_names():
        for block in load_table(name).blocks:
            assert len(block_rows(load_table(name), block, [CompletedRun("fedavg", (), {})])) == len(block.rows) + 1


def test_settings_of_a_published_row_are_compared_by_value():
    """`contrast=0` equals 0.0 in a config, `attention=false` equals false, `site_clusters=none` equals the text."""
    row = "stable_fdg:stages=[1,2,3,4]"
    assert marked("stable_fdg_table_14", "Stages", ran(row, stages=[1, 2, 3, 4])) == {row}
    assert not marked("stable_fdg_table_14", "Stages", ran(row, stages=[1, 2, 3, 5]))
    v3_row = "fisc:contrast=0,regularisation=0,restyled_loss=true"
    v4_row = "fisc:positives=augmented"
    whole = {"contrast": 0.75, "regularisation": 0.2, "site_clusters": "finch", "common_clusters": "finch"}
    table = "fisc_table_11", "Ablation"
    assert marked(*table, ran("fisc", **whole)) == {"fisc"}
    v3 = whole | {"contrast": 0.0, "regularisation": 0.0, "restyled_loss": True}
    assert marked(*table, ran(v3_row, **v3)) == {v3_row}
    for other in ({"restyled_loss": False}, {"regularisation": 0.2}):
        assert not marked(*table, ran("fisc:contrast=0", **v3 | other))
    v4 = whole | {"positives": "augmented"}
    assert marked(*table, ran(v4_row, **v4)) == {v4_row}
    one = whole | {"site_clusters": "none"}
    assert marked(*table, ran("fisc:site_clusters=none", **one)) == {"fisc:site_clusters=none"}
    off = ran("stable_fdg:attention=false", attention=False, style=True)
    assert marked("stable_fdg_table_3", "Ablation", off) == {"stable_fdg:attention=false"}


def test_numbers_are_as_printed_and_misprints_have_a_footnote():
    table = load_table("elcfs_table_2")
    block = table.block("HD")
    head, *rows = block_rows(table, block, [])
    assert head == ["method", "printed as", *block.columns, "average"]
    assert rows[-1] == ["elcfs", "ELCFS", "10.30", "11.49", "11.50", "11.57", "11.08", "8.31", "10.88†"]
    assert section.footnotes(table, block) == ("† ELCFS: the printed average is 10.88, but the row's mean is 10.71",)
    assert sum("†" in row[-1] for row in rows) == 1
    ccst = load_table("ccst_table_1")
    copa = next(row for row in block_rows(ccst, ccst.block("PACS"), []) if row[0] == "copa")
    assert copa[-1] == "85.1", "one decimal is what COPA's paper has"
    fisc = load_table("fisc_table_11")
    assert "average" not in block_rows(fisc, fisc.block("Ablation"), [])[0]


def test_the_section_names_its_source_and_warns_against_ranking():
    text = section.to_published_markdown(PROSTATE, "real", [ran("elcfs")])
    table = load_table("elcfs_table_2")
    facts = (table.citation, table.backbone, table.split, table.baselines, *table.notes)
    assert all(word in text for word in ("\n## As published\n", WARNING, *facts))
    assert "PHANTOM" not in text and PHANTOM_WARNING in section.to_published_markdown(PROSTATE, "phantom", [])
    assert "| elcfs (also run here) | ELCFS | 90.19 |" in text and "| fedavg | FedAvg |" in text
    assert section.to_published_markdown({"name": "camelyon17"}, "real", []) == ""


class Details(HTMLParser):
    """Collect the texts inside and outside <details>."""

    def __init__(self, text):
        super().__init__()
        self.depth, self.within, self.without = 0, "", ""
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.depth += name == "details"

    def handle_endtag(self, name):
        self.depth -= name == "details"

    def handle_data(self, text):
        self.within += text * bool(self.depth)
        self.without += text * (not self.depth)


def of_data(path, data: str):
    """Write a comparison whose configs have a data block."""
    for config in made_comparison(path, ("fedavg", "elcfs"), (0,)).rglob("config.yaml"):
        config.write_text(config.read_text() + f"data: {data}\n")
    return path


def test_the_page_shows_published_tables_in_a_folded_section(tmp_path):
    text = build_page(*read_runs([of_data(tmp_path / "all", "{name: prostate, root: data/prostate}")]))
    actual = Details(text)
    assert "As published: 1 table on prostate MRI" in actual.within and "90.19" in actual.within
    assert WARNING in actual.within and PHANTOM_WARNING in actual.within and "elcfs (also run here)" in actual.within
    assert "† ELCFS: the printed average is 10.88" in actual.within and "90.19" not in actual.without
    captions = [caption for caption in text.split("<figcaption>")[1:] if caption.startswith("ELCFS, Table 2")]
    assert len(captions) == 2 and all("PUBLISHED numbers, not of this comparison." in caption for caption in captions)


@pytest.mark.parametrize("data", ["{name: folder, root: x}", "7", "[a]"])
def test_a_page_of_other_data_has_no_published_tables(tmp_path, data):
    assert "As published" not in build_page(*read_runs([of_data(tmp_path / "all", data)]))


def test_the_page_reads_labels_and_baselines_from_row_files(tmp_path):
    """Folder names with a hash do not contain the settings. ELCFS with K=2 is tested against FedAvg with K=2."""
    varied = [
        ComparisonRow(method, (f"federation.participating={k}", "network.weights=a/b.pth"))
        for k in (1, 2)
        for method in ("fedavg", "elcfs")
    ]
    path = made_comparison(tmp_path / "all", tuple(row.folder for row in varied), (0,))
    for row in varied:
        for run in path.glob(f"{row.folder}/*/*"):
            summary = json.loads((run / "summary.json").read_text())
            (run / "summary.json").write_text(json.dumps(summary | {"method": row.method}))
            row.write(RunFolder(run))
    runs, comparisons = read_runs([with_plan(path)])
    ((role, table),) = comparisons[0].tables
    method_lines = {line.method: line for line in table.blocks[0].lines}
    assert list(method_lines)[:2] == [row.label for row in varied if row.method == "fedavg"]
    for row in varied:
        actual = method_lines[row.label]
        assert (actual.difference is not None) == (row.method == "elcfs")
    assert any("against fedavg with the same varied settings" in note for note in table.notes)
