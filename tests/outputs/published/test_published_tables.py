import pytest

from medfed.core.errors import UserError
from medfed.core.registry import known_names as known_methods
from medfed.outputs.published.tables import PublishedBlock, PublishedRow, load_table, table_names

TABLES = {
    "elcfs": (1, 2),
    "ccst": (1, 2),
    "stable_fdg": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17),
    "fisc": (1, 2, 3, 6, 7, 8, 9, 10, 11),
}
# Read by hand from the papers' tables: their printed averages that are not the mean of their row.
WRONG = {
    ("elcfs_table_1", "Cup Dice", "jigen", 80.47, 80.49),
    ("elcfs_table_2", "HD", "elcfs", 10.88, 10.71),
    ("ccst_table_1", "OfficeHome", "ccst:style=overall,k=3", 63.56, 63.44),
    ("ccst_table_2", "Without Tent", "ccst:style=single,k=3", 84.84, 84.92),
    ("stable_fdg_table_7", "PACS", "fedsr", 83.70, 83.73),
    ("stable_fdg_table_7", "OfficeHome", "ccst:k=3", 63.56, 63.44),
    ("stable_fdg_table_12", "Oversampling", "stable_fdg:attention=false,received=0,mix=false", 64.10, 63.95),
    ("stable_fdg_table_13", "Probability", "stable_fdg:probability=0.9", 82.70, 82.43),
    ("fisc_table_2", "OfficeHome", "feddg_ga", 54.34, 54.43),
    ("fisc_table_6", "Validation", "fpl", 95.96, 95.71),
    ("fisc_table_6", "Test", "feddg_ga", 54.48, 57.48),
    ("fisc_table_7", "Validation", "feddg_ga", 68.22, 67.79),
    ("fisc_table_7", "Test", "feddg_ga", 83.67, 84.07),
    ("fisc_table_7", "Test", "fisc", 90.14, 90.20),
}


@pytest.fixture(scope="module")
def tables():
    return {name: load_table(name) for name in table_names()}


def row_of(block: PublishedBlock, method: str) -> PublishedRow:
    (row,) = (row for row in block.rows if row.method == method)
    return row


def numbers(block: PublishedBlock) -> list[float]:
    averages = [row.average for row in block.rows if row.average is not None]
    return [*averages, *(value for row in block.rows for value in row.values if value is not None)]


def test_every_table_exists(tables):
    assert set(tables) == {f"{paper}_table_{n}" for paper, actual in TABLES.items() for n in actual}
    assert all(name.endswith(f"_table_{table.table}") and table.blocks for name, table in tables.items())
    assert sum(len(numbers(block)) for table in tables.values() for block in table.blocks) == 1342, (
        "as many as the papers' tables have"
    )


def test_exactly_the_listed_averages_are_wrong(tables):
    """An average is wrong if it differs from the mean of its row by more than the precision of the printed numbers."""
    wrong = {
        (name, block.title, row.method, row.average, round(row.misprint + 1e-9, 2))
        for name, table in tables.items()
        for block in table.blocks
        for row in block.rows
        if row.misprint is not None
    }
    assert wrong == WRONG


def test_percentages_are_between_0_and_100_and_no_number_is_negative(tables):
    blocks = [block for table in tables.values() for block in table.blocks]
    assert {block.unit for block in blocks} == {"%", "pixel", "MB", "s", ""}
    for block in blocks:
        assert (block.metric in ("dice", "accuracy")) == (block.unit == "%")
        assert (block.direction == "higher") == (block.unit == "%" or block.title == "Inception score")
        assert all(0 <= number <= (100 if block.unit == "%" else 1000) for number in numbers(block)), block.title


def test_methods_have_the_names_used_in_configs_and_neither_they_nor_blocks_occur_twice(tables):
    names = {row.method.partition(":")[0] for table in tables.values() for block in table.blocks for row in block.rows}
    images = {"real_images", "baseline_gan", "style2image"}  # FISC's Table 9 has rows for kinds of images
    assert names - set(known_methods("methods")) == {"eoa"} | images, "of another paper, and not in medfed"
    for table in tables.values():
        assert len({block.title for block in table.blocks}) == len(table.blocks)
        for block in table.blocks:
            assert len({row.method for row in block.rows}) == len(block.rows)
            assert all(len(row.values) == len(block.columns) for row in block.rows), block.title


@pytest.mark.parametrize(
    ("name", "block", "method", "values", "average"),
    [
        ("elcfs_table_1", "Disc HD", "elcfs", (11.36, 17.10, 10.83, 7.24), 11.63),
        ("ccst_table_1", "Mean", "copa", (75.60,), None),
        ("stable_fdg_table_2", "PACS", "stable_fdg", (83.97, 79.10, 96.27, 75.67), 83.75),
        ("fisc_table_8", "Time", "fpl", (6.29, 4.31, 0.0), None),
        ("fisc_table_9", "FID", "style2image:loss=mse", (365.873, 415.45, 343.66, 360.365), None),
    ],
)
def test_some_numbers_equal_those_read_from_the_papers(tables, name, block, method, values, average):
    row = row_of(tables[name].block(block), method)
    assert (row.values, row.average) == (values, average)


def test_tables_that_quote_other_tables_agree_with_them(tables):
    """StableFDG's Tables 3, 6, 10 and 11 quote accuracies of Table 2, and FISC's Tables 6 and 11 those of Table 1."""
    quoted, whole = tables["stable_fdg_table_6"].block("Accuracy"), tables["stable_fdg_table_2"].block("PACS")
    assert all(row.values == (row_of(whole, row.method).average,) for row in quoted.rows)
    assert (
        row_of(tables["stable_fdg_table_3"].block("Ablation"), "stable_fdg").values
        == row_of(whole, "stable_fdg").values
    )
    for name, block in (("stable_fdg_table_10", "Received styles"), ("stable_fdg_table_11", "Style shifting")):
        assert row_of(tables[name].block(block), "stable_fdg").values == row_of(whole, "stable_fdg").values
    single = row_of(tables["stable_fdg_table_1"].block("PACS"), "stable_fdg")
    few = row_of(tables["stable_fdg_table_14"].block("Stages"), "stable_fdg")
    assert (few.values[0], few.values[3], few.average) == (single.values[0], single.values[3], single.average)
    shared = row_of(tables["stable_fdg_table_9"].block("Style sharing"), "stable_fdg")
    assert shared.values[3] == row_of(whole, "stable_fdg").values[3]
    noise, test = tables["fisc_table_10"].block("Styles with noise"), tables["fisc_table_1"].block("PACS, test domain")
    assert (noise.columns, row_of(noise, "fisc").values) == (test.columns, row_of(test, "fisc").values)
    assert row_of(tables["fisc_table_6"].block("Test"), "fisc").values[1] == 66.20, "sketch, as in Table 1"
    blocks = [tables["fisc_table_1"].block(f"PACS, {part} domain") for part in ("validation", "test")]
    first = [row_of(block, "fisc").values[0] for block in blocks]
    assert row_of(tables["fisc_table_11"].block("Ablation"), "fisc").values == tuple(first)


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("medfed.outputs.published.tables.FOLDER", tmp_path)
    (tmp_path / "x_table_1.yaml").write_text("paper: X\n")
    with pytest.raises(UserError, match="x_table_1.yaml: citation: missing; add it"):
        load_table("x_table_1")
    with pytest.raises(UserError, match="No such file"):
        load_table("y_table_1")


def test_a_number_that_cannot_be_read_is_a_dash():
    row = PublishedRow("fedavg", "FedAvg", (1.0, None), 9.0)
    assert [row.text(value) for value in (*row.values, row.average)] == ["1.00", "-", "9.00"]
    assert PublishedRow("fedavg", "FedAvg", (59.185, 126.72), rounded_to=0.001).text(126.72) == "126.72"
