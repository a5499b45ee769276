"""The ledger on the page: totals, descriptions of known entries, and warnings about unknown ones."""

import re
import tracemalloc

import pytest
from made_runs import ledger_row, ledger_rows, made_run
from run_figures import leave_out_charts

from medfed.federation.ledger import COLUMNS
from medfed.outputs.csv_files import format_rows
from medfed.outputs.report.ledger_descriptions import UNKNOWN, describe_entry
from medfed.outputs.report.ledger_section import format_size
from medfed.outputs.report.ledger_totals import NORMALISATION, WEIGHTS, LedgerKey, read_ledger
from medfed.outputs.report.page import build_page
from medfed.outputs.report.run_data import read_runs


@pytest.fixture(autouse=True)
def no_charts(monkeypatch):
    leave_out_charts(monkeypatch)


def with_ledger(run, rows):
    (run / "ledger.csv").write_text(format_rows(COLUMNS, rows))
    return run


def text_of(run):
    return build_page(*read_runs([run]))


def test_totals_are_those_of_the_rows(tmp_path):
    """Two sites, two rounds: a message has 24 bytes of weights and 8 of normalisation statistics; windows once 4x5."""
    ledger = read_ledger(made_run(tmp_path / "run"), sites=("A", "B"))
    up = {key.name: total for key, total in ledger.totals.items() if key.direction == "up"}
    assert up[WEIGHTS].n_bytes == 2 * 2 * 24 and up[NORMALISATION].n_bytes == 2 * 2 * 8
    assert up["windows"].n_bytes == 2 * 80 and up["windows"].rounds == {1} and up["windows"].sites == {"A", "B"}
    assert up["loss"].n_bytes == 2 * 2 * len("0.5") and up["loss"].rounds == {1, 2}
    assert ledger.total_bytes("up") == sum(total.n_bytes for total in up.values())
    assert ledger.by_site["A"]["up", "weight"] == 2 * 32
    assert ledger.bytes_by_content("up") == {"weight": 128, "statistic": 160, "fact": ledger.total_bytes("up") - 288}


def test_names_of_sites_are_replaced_in_the_names_of_tensors(tmp_path):
    rows = [ledger_row(1, site, "down", f"bank/{other}", 10) for site, other in ("AB", "BA")]
    rows += [ledger_row(1, "A", "down", "style/x/y/mean", 4), ledger_row(1, "A", "up", "control/conv.weight", 24)]
    rows += [ledger_row(1, "A", "up", "conv.weight", 24, content="weight")]
    ledger = read_ledger(with_ledger(made_run(tmp_path / "run"), rows), sites=("A", "B", "x/y"))
    names = {(key.direction, key.content, key.name): total.n_bytes for key, total in ledger.totals.items()}
    assert names == {
        ("down", "statistic", "bank/SITE"): 20,
        ("down", "statistic", "style/SITE/mean"): 4,
        ("up", "statistic", "control/ENTRY"): 24,
        ("up", "weight", WEIGHTS): 24,
    }


def test_a_fact_that_is_called_like_a_weight_is_a_fact(tmp_path):
    run = with_ledger(made_run(tmp_path / "run"), [ledger_row(1, "A", "up", "conv.weight", 3, content="fact")])
    assert [key.content for key in read_ledger(run).totals] == ["fact"]


def test_a_ledger_of_many_clients_is_added_up_in_little_memory(tmp_path):
    """20,000 rows are 1.1 MB of text; as dicts they would be 10 MB, their sums are a few thousand numbers."""
    run = made_run(tmp_path / "run")
    with open(run / "ledger.csv", "w") as file:
        file.write(",".join(COLUMNS) + "\n")
        for k in range(20_000):
            file.write(f"{k // 1000 + 1},client_{k % 1000:04d},up,train,weight,conv.weight,2x3,float32,24\n")
    tracemalloc.start()
    ledger = read_ledger(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ledger.total_bytes("up") == 20_000 * 24 and len(ledger.by_site) == 1000 and peak < 3e6


def test_sizes_have_three_digits():
    sizes = {0: "0 bytes", 999: "999 bytes", 1000: "1.00 kB", 12345: "12.3 kB", 999_600: "1.00 MB"}
    sizes |= {123_456_789: "123 MB", 5 * 10**12: "5.00 TB"}
    assert {n_bytes: format_size(n_bytes) for n_bytes in sizes} == sizes


def test_a_tensor_is_described_by_its_method_or_the_part_of_a_stack_and_unknown_if_only_another_has_its_name():
    assert describe_entry(LedgerKey("up", "statistic", "windows"), ["elcfs"]) is not UNKNOWN
    for name, method in (("windows", "mine"), ("patients", "elcfs"), ("mean", "elcfs")):
        assert describe_entry(LedgerKey("up", "statistic", name), [method]) is UNKNOWN
    assert describe_entry(LedgerKey("up", "fact", "names"), ["fedavg"]) is UNKNOWN
    key = LedgerKey("up", "statistic", "1/windows")
    assert describe_entry(key, ["ccst", "elcfs"]) == describe_entry(LedgerKey("up", "statistic", "windows"), ["elcfs"])
    assert describe_entry(key, ["elcfs", "ccst"]) is UNKNOWN
    received = describe_entry(LedgerKey("down", "statistic", "bank/SITE"), ["elcfs"])
    assert received.title == "low-frequency amplitude windows, of the other sites"
    assert describe_entry(LedgerKey("up", "statistic", "bank/SITE"), ["elcfs"]) is UNKNOWN


def test_the_section_says_how_often_and_how_much_and_warns_of_what_it_does_not_know(tmp_path):
    run = with_ledger(made_run(tmp_path / "run"), ledger_rows(["A", "B"], 2, extra="faces"))
    text = text_of(run)
    line = next(line for line in text.split("\n") if "faces" in line and "<tr>" in line)
    assert "once, round 1" in line and "not known to this report" in line and "160 bytes" in line
    assert "This report has no description of: faces" in text and "every round" in text
    known = text_of(made_run(tmp_path / "known"))
    assert "has no description" not in known
    sizes = r"In total \d+ bytes \(model weights 128 bytes, statistics 160 bytes, facts \d+ bytes\) left 2 sites"
    assert re.search(sizes, known), "two rounds: 4 * 32 bytes of weights, windows of 80 bytes once per site"


def test_a_simulation_says_that_it_is_one(tmp_path):
    run = made_run(tmp_path / "run")
    assert "simulated all sites on one machine" in text_of(run)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("in_process", "distributed"))
    assert "simulated" not in text_of(run)


def test_of_many_sites_and_shapes_the_first_are_listed(tmp_path):
    rows = [ledger_row(1, f"client_{k:04d}", "up", "conv.weight", 24, content="weight") for k in range(100)]
    rows += [ledger_row(1, "client_0000", "up", "windows", 4) | {"shape": f"{k}x5"} for k in range(5)]
    text = text_of(with_ledger(made_run(tmp_path / "run"), rows))
    assert "the first 40 of 100" in text and len(set(re.findall(r">client_\d{4}<", text))) == 40
    assert "(0x5 or 1x5 or 2x5 or others)" in text
