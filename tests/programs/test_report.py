"""`python -m medfed.report`: one page for finished runs, and one sentence for anything else."""

import errno
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from made_runs import class_rows, finish_again, made_comparison, made_run, with_plan

import medfed
from medfed.outputs.comparison_folder import ComparisonFolder
from medfed.outputs.report.read import read_runs
from medfed.outputs.run_folder import RunFolder
from medfed.report import main
from medfed.results.row import ROW_FILE, ComparisonRow

pytestmark = pytest.mark.usefixtures("unpainted_figures")


@pytest.mark.figures
def test_the_page_of_one_run_is_written_to_its_folder_and_a_folder_given_twice_is_shown_once(tmp_path, capsys):
    run = made_run(tmp_path / "run")
    assert main([str(run)]) == 0
    assert (page := (run / "report.html").read_text()).startswith("<!DOCTYPE html>")
    assert str(run / "report.html") in capsys.readouterr().out
    assert main([str(run), str(run), "--out", str(tmp_path / "page.html"), "--quiet"]) == 0
    assert (tmp_path / "page.html").read_text().count('<section id="run-') == page.count('<section id="run-') == 1


@pytest.mark.figures
def test_the_same_folders_give_the_same_bytes(tmp_path):
    run, comparison = made_run(tmp_path / "run"), made_comparison(tmp_path / "all", seeds=(0,))
    for name in ("a.html", "b.html"):
        assert main([str(run), str(comparison), "--out", str(tmp_path / name), "--quiet"]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.figures
def test_runs_and_comparisons_of_any_task_share_a_page(tmp_path):
    runs = made_run(tmp_path / "masks"), made_run(tmp_path / "classes", rows=class_rows(["A", "B"], "C"))
    folders = *runs, made_comparison(tmp_path / "all", seeds=(0,))
    assert main([*map(str, folders), "--out", str(tmp_path / "page.html"), "--quiet"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count('<section id="run-') == 2 and page.count('<section id="comparison-') == 2
    assert "These runs are not compared" in page  # masks and classes have no table in common


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("summary.json", None, "not finished"),
        ("config.yaml", None, "neither a run nor a comparison"),
        ("ledger.csv", None, "is missing, but SHA256SUMS lists it"),
        *((name, "a: [1", "does not match SHA256SUMS") for name in ("summary.json", "config.yaml", "cases.csv")),
        *((name, "a,b\n1,2\n", "does not match SHA256SUMS") for name in ("history.csv", "figures/unseen_cases.png")),
    ],
)
def test_a_folder_that_is_no_finished_run_is_one_sentence_and_its_old_page_stays(
    tmp_path, capsys, name, damage, message
):
    run = made_run(tmp_path / "run")
    path = run / name
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    (run / "report.html").write_text("an older page")
    assert main([str(run)]) == 2
    error = capsys.readouterr().err
    assert message in error and str(tmp_path) in error and error.count("\n") == 1
    assert (run / "report.html").read_text() == "an older page"


def test_a_comparison_shows_its_finished_runs_says_which_are_missing_and_needs_one(tmp_path, capsys):
    comparison = made_comparison(tmp_path / "all")
    (comparison / "elcfs" / "unseen_A" / "seed_1" / "summary.json").unlink()
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "Not finished and not shown: 1 of its runs." in page and "not run: elcfs, unseen A, seed 1" in page
    for path in comparison.glob("*/*/*/summary.json"):
        path.unlink()
    assert main([str(comparison)]) == 2
    assert "neither a run nor a comparison with a finished run" in capsys.readouterr().err


def test_runs_of_the_plan_that_never_started_are_named_and_incomplete_local_models_are_not_shown(tmp_path):
    """`local` at unseen site A lacks the model of site C, so that its other model there says nothing about the row."""
    comparison, rows = made_comparison(tmp_path / "all", seeds=(0,)), []
    for site, trained_at in (("A", "B"), ("A", "C"), ("B", "A"), ("B", "C")):
        rows.append((ComparisonRow("local", trained_at=trained_at), site))
        path = comparison / rows[-1][0].folder / f"unseen_{site}" / "seed_0"
        if (site, trained_at) != ("A", "C"):
            made_run(path, "fedavg", site, sites=(trained_at,))
            RunFolder(path).write_json(ROW_FILE, asdict(rows[-1][0]))
    rows += [(ComparisonRow(method), site) for method in ("fedavg", "elcfs", "ccst") for site in "ABC"]
    plan = {comparison / row.folder / f"unseen_{site}" / "seed_0": (row.label, site, 0) for row, site in rows}
    ComparisonFolder(comparison, plan).write()
    assert ComparisonFolder.read(comparison).planned == plan
    _, (read,) = read_runs([comparison])
    assert {run.row.trained_at for run in read.runs if run.unseen == "A"} == {""}
    missing = read.table.missing
    assert missing[0] == "ccst (at no site)"
    assert "local, unseen A, seed 0" in missing and not any("local, unseen B" in text for text in missing)
    assert read.n_unfinished == len(plan) - len(read.runs) and read.n_unfinished >= 5


def test_a_comparison_with_another_baseline_shows_the_differences_from_it(tmp_path):
    comparison = made_comparison(tmp_path / "all", seeds=(0,))
    with_plan(comparison, "elcfs")
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "fedavg - elcfs" in page and "worse in 1 seed: fedavg (-1.71 [" in page
    (comparison / "comparison.json").write_text("{}")
    assert main([str(comparison), "--quiet"]) == 2


def test_the_numbers_of_a_comparison_are_those_of_its_own_table(tmp_path):
    """Fedavg at A: seed 0 has 80, 79, ..., 75 and a missed 0, mean 66.43; seed 1 has 0.1 % more a case, mean 66.51."""
    comparison = made_comparison(tmp_path / "all", methods=("fedavg", "elcfs:alpha=0.1"))
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "66.47 ± 0.06" in page and "elcfs:alpha=0.1" in page


def test_a_comparison_shows_costs_and_which_methods_used_test_images(tmp_path):
    """A site shares 4 x 5 numbers once, of 4 bytes each."""
    comparison = made_comparison(tmp_path / "all")
    for path in comparison.glob("elcfs/*/*"):
        finish_again(path, transductive_by=["tent"])
    assert main([str(comparison), "--quiet"]) == 0
    page = (comparison / "report.html").read_text()
    assert "elcfs: TRANSDUCTIVE (tent)" in page and "fedavg: TRANSDUCTIVE" not in page
    cost = page.partition("Seconds and bytes of a client in a round")[2].partition("</table>")[0]
    assert ">up once kB</th>" in cost and cost.count(">0.080</td>") == 2


def test_the_function_takes_runs_comparisons_and_folders_and_returns_the_path_of_the_page(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder, compared = made_run(tmp_path / "run"), made_comparison(tmp_path / "all", seeds=(0,))
    run, comparison = medfed.load_run(folder), medfed.Comparison.__new__(medfed.Comparison)
    comparison.folder = compared
    for one in (run, folder, str(folder), [run], iter([folder, run])):
        assert medfed.write_report(one, "one.html") == Path("one.html")
        assert Path("one.html").read_text().count('<section id="run-') == 1
    assert medfed.write_report(run, progress=False) == folder / "report.html"
    assert medfed.write_report(comparison) == compared / "report.html"
    assert medfed.write_report((run, comparison, str(compared))) == Path("report.html")
    page = Path("report.html").read_text()
    assert page.count('<section id="run-') == page.count('<section id="comparison-') == 1
    assert capfd.readouterr() == ("", "")


def test_an_existing_page_is_unchanged_when_the_disk_is_full(tmp_path, monkeypatch, capsys):
    run = made_run(tmp_path / "run")
    (run / "report.html").write_text("an older page")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main([str(run), "--quiet"]) == 1
    assert (run / "report.html").read_text() == "an older page" and "free some space" in capsys.readouterr().err
