from dataclasses import asdict

import pytest

from medfed.core.errors import UserError
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ROW_FILE, ComparisonRow, is_federated, is_taken_without_federation, read_row

METHODS = "fedavg ccst:k=1 ccst:k=1,style=single ccst+elcfs ccst:codec=a/b ccst:codec=a_b ccst:codec=../x".split()
VALUES = "federation.participating=2 network.weights=/a/b.pth network.weights=/a_b.pth data.root=Ä".split()
VALUES += ["training.betas=[0.9, 0.99]", "x=" + "y" * 300, "x=" + "y" * 299]
ROWS = [ComparisonRow(method, varied) for method in METHODS for varied in ((), *((value,) for value in VALUES))]
ROWS += [ComparisonRow("local", (), site) for site in ("BMC", "a@b", "a-b")] + [ComparisonRow("pooled")]


def test_folder_names_are_valid_and_unique():
    folders = [row.folder for row in ROWS]
    assert len({folder.casefold() for folder in folders}) == len(ROWS)
    for folder in folders:
        assert len(folder) < 120 and folder.isascii() and folder[0].isalnum() and not folder.endswith(".")
        assert not set(folder) & set('/\\:*?"<>| []')
    assert ComparisonRow("ccst:k=1,style=single").folder == "ccst-k=1,style=single"
    assert ComparisonRow("elcfs", ("federation.participating=2",)).folder == "elcfs--federation.participating=2"


def test_a_row_is_read_from_the_folder_of_a_run_and_a_run_without_a_row_uses_its_method(tmp_path):
    assert read_row(tmp_path, "elcfs").label == "elcfs"
    for row in ROWS:
        RunFolder(tmp_path).write_json(ROW_FILE, asdict(row))
        assert read_row(tmp_path, "other") == row


def test_the_baseline_is_fedavg_with_the_same_varied_settings_except_method_settings():
    row = ComparisonRow("ccst:style=single", ("method.k=1", "federation.participating=2"))
    assert row.label == "ccst:style=single, method.k=1, federation.participating=2"
    assert row.baseline_label() == "fedavg, federation.participating=2"
    assert row.baseline_label("elcfs") == "elcfs, federation.participating=2"
    assert ComparisonRow("ccst").baseline_label() == "fedavg"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"method": "a", "varied": [1]}', '{"method": 1, "varied": []}'])
def test_a_damaged_row_file_is_named(tmp_path, content):
    (tmp_path / ROW_FILE).write_text(content)
    with pytest.raises(UserError, match="row.json: .*--resume"):
        read_row(tmp_path, "elcfs")


def test_a_run_of_local_has_the_label_of_its_row_and_a_folder_of_its_own():
    row = ComparisonRow("local", ("federation.rounds=2",), "BMC")
    assert (row.label, row.run_label) == ("local, federation.rounds=2", "local, federation.rounds=2 at BMC")
    assert (row.folder, row.arrangement) == ("local-BMC--federation.rounds=2", "local")
    assert ComparisonRow("fedavg@steps=ccst:k=2").folder == "fedavg-steps=ccst-k=2"


def test_rows_without_a_federation_are_the_references_of_rows_with_the_same_settings_apart_from_the_method():
    pooled, other = ComparisonRow("pooled@steps=fedavg", ("federation.rounds=2",)), ComparisonRow("local")
    row = ComparisonRow("ccst", ("method.k=1", "federation.rounds=2", "federation.clients=5"))
    assert pooled.is_reference_of(row) and not other.is_reference_of(row) and not row.is_reference_of(pooled)
    assert is_federated("fedavg@steps=ccst") and not is_federated("pooled@steps=fedavg, federation.rounds=2")


def test_only_settings_that_change_the_training_of_one_participant_are_taken_by_pooled_and_local():
    without = "method.k=1 privacy.clip=1 federation.on_bad_update=drop federation.reply_timeout_s=9 data.min_patients=2"
    assert not any(map(is_taken_without_federation, [*without.split(), "federation.batch_norm=local"]))
    taken = "training.batch_size=4 federation.rounds=3 federation.participating=1 data.image_size=64"
    assert all(map(is_taken_without_federation, taken.split()))
