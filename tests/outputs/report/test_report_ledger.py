"""What left each site: totals of the ledger, and a description of every entry that a method sends."""

import pytest
from made_runs import finish_again, ledger_row, made_run
from toy_runs import shared_run

from medfed.core.registry import known_names, resolve
from medfed.federation.ledger import COLUMNS
from medfed.federation.sent import FACTS, IMAGE_MOMENTS, UNKNOWN, WEIGHTS, describe
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.stack import Stack
from medfed.outputs.report.ledger import kilobytes, sent_of_run
from medfed.outputs.report.read import read_run
from medfed.outputs.run_files import format_rows
from medfed.testing.toy import ToyClassification

SETTINGS = {  # so that a method sends all that it can; others have their defaults
    "ccst": {"transfer": "moments", "min_patients": 1},
    "fisc": {"transfer": "moments", "min_patients": 1},
    "stable_fdg": {"stages": (1, 2), "min_patients": 1},
    **{name: {"min_patients": 1} for name in ("elcfs", "harmofl", "epi_fcr", "fpl")},
}


def with_ledger(run, rows):
    (run / "ledger.csv").write_text(format_rows(COLUMNS, rows))
    finish_again(run)
    return read_run(run)


def cells(page_table):
    return [[cell.text for cell in row] for row in page_table.table.rows[1:]]


def row(content, name, kind="train", direction="up"):
    return {"content": content, "name": name, "kind": kind, "direction": direction}


@pytest.mark.parametrize("name", sorted({*known_names("methods")} - {"stack"}))
def test_every_entry_that_a_method_sends_is_described(name):
    method = resolve("methods", name)(**SETTINGS.get(name, {}))
    rows = [row for done in shared_run(ToyClassification(), method, 2).rounds for row in done.ledger]
    assert {row["content"] for row in rows} >= {"weight", "fact"}
    assert not [row["name"] for row in rows if UNKNOWN in describe(row, method.sent)]


def test_the_place_of_a_method_in_a_stack_decides_its_description():
    sent = Stack((CCST(), ELCFS())).sent
    assert describe(row("statistic", "1/windows"), sent) == [ELCFS.sent["windows"]]
    assert describe(row("statistic", "0/windows"), sent) == describe(row("statistic", "2/x"), sent) == [UNKNOWN]
    assert describe(row("statistic", "image_moments"), sent) == [IMAGE_MOMENTS]
    assert describe(row("weight", ""), {}) == [WEIGHTS]
    assert describe(row("fact", "loss; faces"), sent) == [FACTS["loss"], UNKNOWN]
    assert describe(row("statistic", "0/windows"), Stack((ELCFS(),)).sent) == [ELCFS.sent["windows"]]


def test_the_tables_have_the_sums_of_the_ledger(tmp_path):
    """Two sites share 4 x 5 numbers once, and in each of two rounds send 32 bytes of weights and 2 facts of 5 bytes."""
    sent = sent_of_run(read_run(made_run(tmp_path / "run")))
    assert [(row[0].partition(":")[0], *row[1:]) for row in cells(sent["left"])] == [
        ("weights of the network", "model weights", "train", "every round", "0.13", "2"),
        ("low-frequency amplitude windows", "statistics", "share", "round 1", "0.16", "2"),
        ("number of training images; mean training loss", "facts", "train", "every round", "0.02", "2"),
    ]
    assert cells(sent["left"])[1][0].endswith(": windows (4x5)")
    assert [row[0].partition(":")[0] for row in cells(sent["came"])][1] == (
        "low-frequency amplitude windows, of the other sites"
    )
    assert cells(sent["by_site"]) == [[site, "0.06", "0.08", "0.01", "0.23"] for site in "AB"]
    assert "In total 0.31 kB" in sent["overview"] and "simulated all sites on one machine" in sent["overview"]
    assert not sent["unknown"] and len(sent["revealed"]) == 4
    assert kilobytes(1_234_567) == "1,234.57"


def test_an_entry_without_a_description_is_named(tmp_path):
    run = with_ledger(made_run(tmp_path / "run"), [ledger_row(1, "A", "up", "faces", 24)])
    sent = sent_of_run(run)
    assert sent["unknown"] == ["faces"] and sent["revealed"][0][1].startswith("Unknown: ")


def test_a_run_without_a_federation_says_what_moved(tmp_path):
    run = with_ledger(made_run(tmp_path / "run", "pooled"), [])
    assert "No update was sent, but all images would have to move" in sent_of_run(run)["overview"]
    assert cells(sent_of_run(run)["left"]) == []


def test_entries_that_stay_at_the_sites_but_are_part_of_the_model_are_named(tmp_path):
    texts = [
        sent_of_run(read_run(made_run(tmp_path / str(kept), sites_kept_entries=kept)))["overview"]
        for kept in (False, True)
    ]
    assert "Nothing else left a site." in texts[0] and "must agree to send" not in texts[0]
    assert "Nothing else" not in texts[1] and "each site must agree to send its entries once" in texts[1]


def test_ccst_sends_the_styles_of_all_sites_to_each_site():
    sent = resolve("methods", "ccst").sent["style/*"]
    assert sent.title.endswith(", of all sites")


def test_many_clients_are_listed_up_to_a_limit(tmp_path):
    rows = [ledger_row(1, f"client_{k:04d}", "up", "", 24, content="weight") for k in range(100)]
    table = sent_of_run(with_ledger(made_run(tmp_path / "run"), rows))["by_site"]
    assert len(cells(table)) == 40 and "the first 40 of 100" in table.table.title
