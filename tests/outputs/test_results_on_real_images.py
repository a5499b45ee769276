"""The script that makes the table of results on real images, docs/results/results.py."""

import importlib.util
import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from made_runs import made_run, mask_rows

from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ROW_FILE, ComparisonRow

SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "results.py"


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """The script, which writes into another folder."""
    spec = importlib.util.spec_from_file_location("results", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


@pytest.fixture
def script(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "ROWS", {"breast_us": ("Breast", "fedavg bigaug")})
    (tmp_path / "discussion.md").write_text("# Results\n")
    return committed


def toy_run(path: Path, method: str, unseen: str, shift: float) -> None:
    """A finished run with two sites; the six segmented patients of the unseen site have Dice 0.85 to 0.8, one 0."""
    source = ("A",) if unseen == "B" else ("B",)
    run = path / "breast_us" / f"one_fold_{unseen}" / method / f"unseen_{unseen}" / "seed_1"
    sent = {"up": {"weight": 3_000_000, "fact": 10}, "down": {"weight": 4_000_000, "fact": 10}}
    where = {"role": "unseen", "site": unseen, "structure": "disc", "metric": "hd", "unit": "% of diagonal"}
    hd = where | {"mean": 50.0, "low": None, "high": None, "n_patients": None, "n_images": None}  # not kept
    others = {"data": "real", "sent_bytes": sent, "trivial": {"prediction": "no pixel", "scores": [hd]}}
    made_run(run, method, unseen, 1, source, mask_rows([*source], unseen, shift), **others)
    RunFolder(run).write_json(ROW_FILE, asdict(ComparisonRow(method)))
    (run / "config.yaml").write_text("data:\n  root: /somewhere/breast_us\n")
    (run / "environment.json").write_text(json.dumps({"cuda": None}))
    (run / "timings.csv").write_text("round,train,n_steps,n_images\n1,2.5,10,40\n")


def test_the_table_has_the_mean_and_the_paired_difference_of_collected_runs(script, tmp_path):
    for unseen in "AB":
        toy_run(tmp_path / "work", "fedavg", unseen, 0.0)
        toy_run(tmp_path / "work", "bigaug", unseen, 0.07)
    cases = next((tmp_path / "work").glob("**/bigaug/unseen_B/*/cases.csv"))
    cases.write_text(cases.read_text().replace(",dice,92.0,", ",dice,92.0012345,"))
    script.main(["collect", str(tmp_path / "work")])
    script.main(["table"])
    page = (tmp_path / "README.md").read_text()
    mean = 100 * (0.85 + 0.84 + 0.83 + 0.82 + 0.81 + 0.80) / 7  # the seventh patient is missed by both
    assert f"| fedavg | {mean:.1f} [" in page
    assert f"| bigaug | fedavg | {100 * 0.07 * 6 / 7:+.1f} [" in page
    assert re.search(r"\| bigaug \| fedavg \| [^|]+ \| - \|", page)  # one seed has no interval over seeds
    assert "| row | Dice, source sites | Dice, unseen site |" in page
    assert "HD95" in page and "HD (" not in page and "References" not in page
    kept = next(tmp_path.glob("runs/breast_us/bigaug/unseen_B*/scores.csv")).read_text()
    assert ",dice,91.0,%," in kept and ",dice,92.0,%," not in kept and ",dice,92.001,%," in kept
    assert "| fedavg | 10 | 40 | 7 |" in page
    assert "  root: data/breast_us" in next(tmp_path.glob("runs/*/*/*/config.yaml")).read_text()
    assert (tmp_path / "differences_breast_us.png").is_file()


def test_a_method_of_more_effort_is_compared_with_fedavg_of_equal_effort_as_the_protocol_says(
    script, tmp_path, monkeypatch
):
    """Also if the row was a comparison of its own, which knows nothing of the other one."""
    equal = "fedavg@steps=bigaug"
    monkeypatch.setattr(script, "ROWS", {"breast_us": ("Breast", f"fedavg bigaug {equal}")})
    for unseen in "AB":
        for method, shift in (("fedavg", 0.0), (equal, 0.02), ("bigaug", 0.07)):
            toy_run(tmp_path / "work", method, unseen, shift)
    script.main(["collect", str(tmp_path / "work")])
    script.main(["table"])
    assert f"| bigaug | {equal} | {100 * 0.05 * 6 / 7:+.1f} [" in (tmp_path / "README.md").read_text()


def test_a_seed_without_all_first_rows_is_not_in_the_table_and_a_collected_run_is_not_replaced(script, tmp_path):
    for unseen in "AB":
        toy_run(tmp_path / "work", "fedavg", unseen, 0.0)
    toy_run(tmp_path / "work", "bigaug", "A", 0.07)
    script.main(["collect", str(tmp_path / "work")])
    script.main(["table"])
    assert (tmp_path / "README.md").read_text() == "# Results\n"
    scores = next(tmp_path.glob("runs/breast_us/bigaug/*/scores.csv"))
    scores.write_text("mine")
    script.main(["collect", str(tmp_path / "work")])
    assert scores.read_text() == "mine"


@pytest.mark.parametrize("data", [pytest.param("pacs", marks=pytest.mark.slow), "breast_us", "fundus_vessel"])
def test_the_page_has_its_text_and_the_tables_of_the_committed_runs(committed, tmp_path, data):
    (tmp_path / "runs").symlink_to(SCRIPT.parent / "runs")
    page = (SCRIPT.parent / "README.md").read_text()
    assert page.startswith((SCRIPT.parent / "discussion.md").read_text())
    assert "\n".join(committed.section(data)).strip("\n") in page


def test_the_cell_by_hand_is_what_its_command_prints():
    page = (SCRIPT.parent / "README.md").read_text()
    command, printed = re.search(r"```\n(gzip .+)\n```\n\nIt prints `(.+)`", page).groups()
    shown = subprocess.run(["bash", "-c", command], cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == printed
    assert f"{float(printed.split()[2]):.1f} [" in page


def test_the_first_page_has_the_numbers_of_the_page_of_results():
    page = (SCRIPT.parent / "README.md").read_text()
    table = (SCRIPT.parents[2] / "README.md").read_text().partition("| images | row |")[2].partition("\n\n")[0]
    cells = [cell.strip() for line in table.splitlines()[2:] for cell in line.split("|")[3:-2] if cell.strip()]
    assert len(cells) > 10 and [cell for cell in cells if f"| {cell} |" not in page] == []
