import pytest

from medfed.core.errors import UserError
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import ROW_FILE, ComparisonRow, read_row, row_from_folder_name

METHODS = ("fedavg", "ccst:k=1", "ccst:k=1,style=single", "ccst+elcfs", "ccst:codec=a/b", "ccst:codec=a_b",
           "ccst:codec=../x")  # fmt: skip
VALUES = ("federation.participating=2", "network.weights=/a/b.pth", "network.weights=/a_b.pth", "data.root=Ä",
          "training.betas=[0.9, 0.99]", "x=" + "y" * 300, "x=" + "y" * 299)  # fmt: skip
ROWS = [ComparisonRow(method, varied) for method in METHODS for varied in ((), *((value,) for value in VALUES))]


def test_folder_names_are_valid_and_unique():
    folders = [row.folder for row in ROWS]
    assert len({folder.casefold() for folder in folders}) == len(ROWS)
    for folder in folders:
        assert len(folder) < 120 and folder.isascii() and folder[0].isalnum() and not folder.endswith(".")
        assert not set(folder) & set('/\\:*?"<>| []')


def test_a_plain_label_is_its_folder_name():
    assert ComparisonRow("ccst:k=1,style=single").folder == "ccst-k=1,style=single"
    assert ComparisonRow("elcfs", ("federation.participating=2",)).folder == "elcfs--federation.participating=2"


def test_a_row_is_read_from_the_folder_of_a_run(tmp_path):
    for row in ROWS:
        row.write(RunFolder(tmp_path))
        assert read_row(tmp_path, "other") == row


def test_a_run_without_a_row_uses_its_method_and_older_comparisons_the_folder_name(tmp_path):
    assert read_row(tmp_path, "elcfs").label == "elcfs"
    assert row_from_folder_name("ccst-k=1,style=single") == ComparisonRow("ccst:k=1,style=single")


def test_the_baseline_is_fedavg_with_the_same_varied_settings_except_method_settings():
    row = ComparisonRow("ccst:style=single", ("method.k=1", "federation.participating=2"))
    assert row.label == "ccst:style=single, method.k=1, federation.participating=2"
    assert row.baseline == "fedavg, federation.participating=2" and ComparisonRow("ccst").baseline == "fedavg"
    assert row.changes == ("method.style", "method.k", "federation.participating")


@pytest.mark.parametrize("content", [
    "{", "[]", '{"method": "a"}', '{"method": "a", "varied": [1]}', '{"method": 1, "varied": []}',
])  # fmt: skip
def test_a_damaged_row_file_is_named(tmp_path, content):
    (tmp_path / ROW_FILE).write_text(content)
    with pytest.raises(UserError, match="row.json: .*--resume"):
        read_row(tmp_path, "elcfs")
