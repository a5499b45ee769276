import io
import json
import shutil
from contextlib import redirect_stdout

import pytest
from conftest import read_csv, small_yaml

from medfed import evaluate, report
from medfed.outputs.run_folder import RunFolder


def compare(config, out, *more: str) -> int:
    always = ("--leave-one-site-out", "--out", str(out), "--quiet", "--device", "cpu", "--set", "federation.rounds=1")
    return evaluate.main([str(config), *always, *more])


def dice_of(summary, role: str, site: str) -> float:
    keys = {"role": role, "site": site, "metric": "dice"}
    (line,) = (line for line in summary["scores"] if keys.items() <= line.items())
    return line["mean"]


@pytest.fixture(scope="module")
def compared(small_phantom, tmp_path_factory):
    """A comparison of two methods, two sites and two seeds, and what the program printed."""
    place = tmp_path_factory.mktemp("compared")
    (place / "small.yaml").write_text(small_yaml(small_phantom))
    more = ("--methods", "fedavg", "elcfs", "--sites", "UCL", "HK", "--seeds", "2")
    with redirect_stdout(io.StringIO()) as output:
        assert compare(place / "small.yaml", place / "comparison", *more) == 0
    return place / "comparison", output.getvalue()


def test_every_site_is_left_out_once_for_every_method(compared):
    out, output = compared
    assert all(word in output for word in ("fedavg", "elcfs", "UCL", "HK", "PHANTOM"))
    folders = sorted(p.parent.relative_to(out).as_posix() for p in out.rglob("summary.json"))
    assert folders == sorted(
        f"{method}/unseen_{site}/seed_{seed}"
        for method in ("fedavg", "elcfs", "fedavg-steps=elcfs")
        for site in ("UCL", "HK")
        for seed in (3, 4)
    )
    table = json.loads((out / "table.json").read_text())
    assert table and (out / "table.md").read_text().count("|") > 10 and (out / "table.csv").stat().st_size
    assert r"\begin{tabular}" in (out / "table.tex").read_text() and "### Cost" in (out / "table.md").read_text()
    costs = {row["method"]: row for row in read_csv(out / "cost.csv")}
    assert float(costs["elcfs"]["up_once"]) > 0 == float(costs["fedavg"]["up_once"])
    assert float(costs["fedavg"]["train_s"]) > 0


def test_a_run_of_an_earlier_command_is_in_none_of_the_six_outputs_and_all_say_so(
    compared, small_config, tmp_path, capsys
):
    """The first command leaves out UCL and HK, the second one only UCL: every average is the score at UCL."""
    out = tmp_path / "comparison"
    for run in ("fedavg/unseen_UCL/seed_3", "fedavg/unseen_HK/seed_3"):
        shutil.copytree(compared[0] / run, out / run)
    assert compare(small_config, out, "--methods", "fedavg", "--sites", "UCL", "HK", "--resume") == 0
    capsys.readouterr()
    assert compare(small_config, out, "--methods", "fedavg", "--sites", "UCL", "--resume") == 0
    texts = {name: (out / f"table.{name}").read_text() for name in ("md", "csv", "json", "tex")}
    texts["terminal"] = capsys.readouterr().out
    assert report.main([str(out), "--quiet"]) == 0
    texts["page"] = (out / "report.html").read_text()
    keys = {"role": "unseen", "metric": "dice", "site": "average", "row": "fedavg"}
    lines = json.loads(texts["json"])["scores"]
    (average,) = (line["mean"] for line in lines if keys.items() <= line.items())
    summary = json.loads((out / "fedavg" / "unseen_UCL" / "seed_3" / "summary.json").read_text())
    assert abs(average - dice_of(summary, "unseen", "UCL")) < 1e-9
    for name, text in texts.items():
        assert (str(average)[:12] if name in ("json", "csv") else f"{average:.2f}") in text, name
        assert name == "csv" or "eft out: 1 finished run in this folder" in text, name
        assert "unseen HK" not in text, name


def test_two_sites_are_left_out_and_both_reported(small_config, tmp_path, capsys):
    """BMC, HK, UCL: unseen BMC is validated on HK, HK on UCL and UCL on BMC."""
    out = tmp_path / "comparison"
    rule = ("--set", "federation.selection=validation_site", "--methods", "fedavg")
    short = ("--quiet", "--device", "cpu", "--set", "federation.rounds=1")
    arguments = ("--leave-two-sites-out", "--out", str(out), *short)
    assert evaluate.main([str(small_config), *arguments, *rule]) == 0
    output = capsys.readouterr().out
    assert output.index("column: unseen site") < output.index("column: validation site")
    assert "rule 'validation_site'" in output
    assert evaluate.main([str(small_config), *arguments, *rule, "--resume", "--json"]) == 0
    table = json.loads((out / "table.json").read_text())
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(out),
        **table,
        "n_locked": 0,
        "failed": {},
        "incompatible": {},
    }
    folders = {path.parent.parent.name for path in out.rglob("summary.json")}
    assert folders == {"unseen_BMC-validation_HK", "unseen_HK-validation_UCL", "unseen_UCL-validation_BMC"}
    for role in ("unseen", "validation"):
        keys = {"role": role, "metric": "dice", "row": "fedavg"}
        means = {row["site"]: row["mean"] for row in read_csv(out / "table.csv") if keys.items() <= row.items()}
        assert set(means) == {"BMC", "HK", "UCL", "average"}
        for path in out.rglob("summary.json"):
            summary = json.loads(path.read_text())
            site = summary[f"{role}_site"]
            assert abs(float(means[site]) - dice_of(summary, role, site)) < 1e-9
            apart = {summary["unseen_site"], summary["validation_site"]}
            assert summary["source_sites"] == sorted({"BMC", "HK", "UCL"} - apart)
    markdown = (out / "table.md").read_text()
    assert markdown.index("| unseen sites |") < markdown.index("| validation sites |")


def test_each_number_of_sites_is_a_row_and_only_those_sites_train_and_are_scored(small_config, tmp_path, capsys):
    out, vary = tmp_path / "comparison", ("--vary", "federation.participating=1,2", "--methods", "fedavg", "elcfs")
    assert compare(small_config, out, *vary, "--sites", "UCL") == 0
    output = capsys.readouterr().out
    assert "fedavg, federation.participating=1  " in output and "minus" in output
    trained = {}
    for method in ("fedavg", "elcfs"):
        for k in (1, 2):
            run = out / f"{method}--federation.participating={k}" / "unseen_UCL" / "seed_3"
            summary = json.loads((run / "summary.json").read_text())
            row = json.loads((run / "row.json").read_text())
            takes_more = (method, k) == ("elcfs", 2)  # one site has no other site's windows
            effort = "fedavg@steps=elcfs, federation.participating=2" if takes_more else ""
            names = {"method": method, "varied": [f"federation.participating={k}"]}
            assert row == names | {"trained_at": "", "equal_effort": effort}
            trained[method, k] = set(summary["source_sites"])
            assert {row["site"] for row in read_csv(run / "cases.csv")} <= trained[method, k] | {"UCL"}
            seen = {line["site"] for line in summary["scores"] if line["role"] == "seen"} - {"average"}
            assert set(summary["patients"]) <= trained[method, k] and seen <= trained[method, k]
            read = json.loads((run / "data.json").read_text())["cases"]
            assert {case.partition("/")[0] for case in read} == trained[method, k]
            assert {row["site"] for row in RunFolder(run).ledger()} == trained[method, k]
    assert len(trained["fedavg", 1]) == 1 and trained["fedavg", 1] < trained["fedavg", 2] == {"BMC", "HK"}
    assert all(trained["elcfs", k] == trained["fedavg", k] for k in (1, 2))
    found = {line["row"] for line in json.loads((out / "table.json").read_text())["scores"]}
    assert {name for name in found if not name.startswith("trivial")} == {
        *(f"{method}, federation.participating={k}" for method in ("fedavg", "elcfs") for k in (1, 2)),
        "fedavg@steps=elcfs, federation.participating=2",
    }
    assert len({row["method"] for row in read_csv(out / "cost.csv")}) == 5
    markdown = (out / "table.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert "## As published" in markdown and "ELCFS, Table 2" in markdown and "SYNTHETIC" in markdown
    assert "also run here" not in markdown, "all have a varied setting that no paper's row names"
    assert compare(small_config, out, *vary, "--sites", "UCL", "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")} == before
    assert capsys.readouterr().out == output
    assert report.main([str(out), "--quiet"]) == 0
    assert "elcfs, federation.participating=2" in (out / "report.html").read_text()


HARMOFL = ["--methods", "fedavg", "harmofl", "--set", "data.standardise=slice"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--baseline", "fedprox"], ["--baseline fedprox", "fedavg; elcfs"]),
        (
            ["--methods", "pooled", "elcfs", "--baseline", "pooled"],
            ["--baseline pooled", "no federated", "elcfs"],
        ),
        (["--methods", "pooled", "local", "--baseline", "pooled"], ["no federated method of this name; found none;"]),
        (["--pairs", "UCL/HK"], ["use --pairs only if two sites"]),
        (["--leave-two-sites-out", "--set", "data.sites=[BMC, UCL]"], ["at least three", "BMC, UCL"]),
        (["--methods", "fedavg", "--vary", "data.image_size=32,34"], ["fedavg, data.image_size=34", "data.image_size"]),
        (HARMOFL, ["harmofl", "data.standardise", "method.normalise", "Nothing was trained"]),
    ],
)
def test_a_mistake_is_one_line_before_the_first_run(small_config, tmp_path, capsys, flags, words):
    out = ("--out", str(tmp_path / "out"), "--quiet", "--device", "cpu", "--set", "federation.rounds=1")
    kind = () if "--leave-two-sites-out" in flags else ("--leave-one-site-out",)
    assert evaluate.main([str(small_config), *kind, *out, *flags]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists()
