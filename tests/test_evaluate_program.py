import json

from medfed import evaluate
from medfed.outputs.run_folder import RunFolder


def compare(config, out, *more: str) -> int:
    always = ("--leave-one-site-out", "--out", str(out), "--quiet", "--device", "cpu", "--set", "federation.rounds=1")
    return evaluate.main([str(config), *always, *more])


def test_every_site_is_left_out_once_for_every_method(tiny_config, tmp_path, capsys):
    out = tmp_path / "comparison"
    assert compare(tiny_config, out, "--methods", "fedavg", "elcfs", "--sites", "UCL", "HK", "--seeds", "2") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("fedavg", "elcfs", "UCL", "HK", "PHANTOM"))
    folders = sorted(p.parent.relative_to(out).as_posix() for p in out.rglob("summary.json"))
    assert folders == sorted(
        f"{m}/unseen_{s}/seed_{n}" for m in ("fedavg", "elcfs") for s in ("UCL", "HK") for n in (3, 4)
    )
    table = json.loads((out / "table.json").read_text())
    assert table and (out / "table.md").read_text().count("|") > 10 and (out / "table.csv").stat().st_size


def test_going_on_does_only_what_is_missing_and_gives_the_same_table(tiny_config, tmp_path, capsys):
    out = tmp_path / "comparison"
    assert compare(tiny_config, out, "--methods", "fedavg", "--sites", "UCL") == 0
    first = RunFolder(out / "fedavg" / "unseen_UCL" / "seed_3")
    before = (first.path / "summary.json").stat().st_mtime_ns
    assert compare(tiny_config, out, "--methods", "fedavg", "--sites", "UCL", "HK", "--resume") == 0
    assert (first.path / "summary.json").stat().st_mtime_ns == before
    table = (out / "table.json").read_bytes()
    assert compare(tiny_config, out, "--methods", "fedavg", "--sites", "UCL", "HK", "--resume") == 0
    assert (out / "table.json").read_bytes() == table
    capsys.readouterr()


def refused(capsys, code: int, *words: str) -> None:
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(said) == 1 and all(word in said[0] for word in words), said


def test_mistakes_are_one_line(tiny_config, tmp_path, capsys):
    assert evaluate.main([str(tiny_config)]) == 2
    assert "--leave-one-site-out" in capsys.readouterr().err
    refused(capsys, compare(tiny_config, tmp_path / "a", "--methods", "elcf"), "elcf", "elcfs")
    refused(capsys, compare(tiny_config, tmp_path / "b", "--sites", "Mars"), "Mars", "UCL")
    refused(capsys, compare(tiny_config, tmp_path / "c", "--seeds", "0"), "--seeds 0")
